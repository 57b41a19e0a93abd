import dataclasses

import numpy as np
import pytest

from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import Vocabulary
from electra_tf.tasks import Classification
from electra_tf.tasks.cache import cache_key, cached_rows
from tests.tasks import common

TASK = Classification(name="mood", source=None, labels=("neg", "pos"))


def key(task=TASK, examples=None, tokenizer=None, length=16, training=False):
    examples = common.sentiment(4) if examples is None else examples
    tokenizer = tokenizer or common.tokenizer()
    return cache_key(task, examples, tokenizer, length, training=training)


def test_key_holds_everything_the_rows_depend_on():
    # Pitfall 40: the original's cache is keyed by the task alone.
    vocabulary = Vocabulary((*common.TOKENS, "extra"))
    examples = common.sentiment(4)
    relabeled = [dataclasses.replace(examples[0], label="neg"), *examples[1:]]
    keys = [
        key(),
        key(examples=common.sentiment(5)),
        key(examples=relabeled),
        key(tokenizer=WordPiece(vocabulary)),
        key(tokenizer=WordPiece(Vocabulary(common.TOKENS), lower_case=False)),
        key(tokenizer=WordPiece(Vocabulary(common.TOKENS), strip_accents=False)),
        key(length=17),
        key(training=True),
        key(task=dataclasses.replace(TASK, labels=("pos", "neg"))),
        key(task=dataclasses.replace(TASK, class_weights="balanced")),
    ]
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]


def get(folder, log=lambda line: None, **kwargs):
    examples = common.sentiment(4)
    return cached_rows(
        TASK, examples, common.tokenizer(), 16, folder=str(folder), log=log, **kwargs
    )


def test_second_time_comes_from_disk_and_is_the_same(tmp_path):
    said = []
    fresh = get(tmp_path)
    stored = get(tmp_path, said.append)
    assert "tokenized before" in said[0]
    for name, column in fresh.columns().items():
        other = stored.columns()[name]
        np.testing.assert_array_equal(
            getattr(column, "values", column), getattr(other, "values", other)
        )
    assert stored.pad_id == fresh.pad_id
    assert stored.inputs["input_ids"].splits.tolist() == (
        fresh.inputs["input_ids"].splits.tolist()
    )


@pytest.mark.parametrize("keep", [0, 100])
def test_a_damaged_file_is_made_anew(tmp_path, keep):
    fresh = get(tmp_path)
    (path,) = tmp_path.glob("*.npz")
    path.write_bytes(path.read_bytes()[:keep])
    said = []
    again = get(tmp_path, said.append)
    assert "damaged" in said[0]
    assert len(again) == len(fresh)
