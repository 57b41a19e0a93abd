import itertools

import numpy as np
import pytest
import tensorflow as tf

from electra_tf.tasks.base import Example
from electra_tf.tasks.encoding import encode, encode_texts, pack, padded
from electra_tf.tasks.text import Classification
from tests.tasks import common

HARD = (
    "",
    " ",
    "Good movie!",
    "caf\u00e9 na\u00efve",
    "\u4f60\u597d movie",
    "\U0001f600 good \u200d bad",
    "a\tb\nc\u00a0d",
    "very " * 80,
    "[MASK] [SEP] good",
    "\u0130stanbul \u00df",
    "''\"\"",
    "x" * 250,
    "\u0627\u0644 good",
    "\x00bad\x07",
)


def popped(first, second, limit):
    """The truncation rule of the original code."""
    while first + second > limit:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


@pytest.mark.parametrize("limit", [0, 1, 5, 6, 13])
def test_pairs_are_truncated_by_popping_the_longer_one(limit):
    lengths = list(itertools.product(range(12), repeat=2))
    segments = [
        tf.ragged.constant([[9] * length for length in column], tf.int32)
        for column in zip(*lengths, strict=True)
    ]
    _, segment_ids = pack(segments, common.tokenizer().vocabulary, limit + 3)
    got = [(ids.count(0) - 2, ids.count(1) - 1) for ids in segment_ids.to_list()]
    assert got == [popped(first, second, limit) for first, second in lengths]


def reference(tokenizer, texts, limit):
    """Reference encoding: truncates, then joins [CLS] A [SEP] B [SEP]."""
    ids = [tokenizer.encode([text])[0].tolist() for text in texts]
    cls, sep = tokenizer.vocabulary.cls_id, tokenizer.vocabulary.sep_id
    if len(ids) == 1:
        row = [cls, *ids[0][: limit - 2], sep]
        return row, [0] * len(row)
    first, second = popped(len(ids[0]), len(ids[1]), limit - 3)
    head, tail = [cls, *ids[0][:first], sep], [*ids[1][:second], sep]
    return head + tail, [0] * len(head) + [1] * len(tail)


@pytest.mark.parametrize("limit", [8, 32])
@pytest.mark.parametrize("pair", [False, True])
def test_rows_and_tensors_equal_the_definition(limit, pair):
    tokenizer = common.tokenizer()
    columns = [HARD, HARD[::-1]] if pair else [HARD]
    examples = list(zip(*columns, strict=True))
    rows = encode_texts(tokenizer, examples, limit).inputs
    batch = padded(encode(tokenizer, [tf.constant(c) for c in columns], limit))
    for number, texts in enumerate(examples):
        ids, segments = reference(tokenizer, texts, limit)
        assert rows["input_ids"][number].tolist() == ids
        assert rows["segment_ids"][number].tolist() == segments
        real = batch["input_mask"][number].numpy() == 1
        assert real.sum() == len(ids)
        assert batch["input_ids"][number].numpy()[real].tolist() == ids
        assert batch["segment_ids"][number].numpy()[real].tolist() == segments


def test_rows_need_room_for_a_token_of_each_text():
    for texts, least in (([("a",)], 3), ([("a", "b")], 5)):
        assert [*encode_texts(common.tokenizer(), texts, least).lengths] == [least]
        with pytest.raises(ValueError, match=f"max_seq_length is .* at least {least}"):
            encode_texts(common.tokenizer(), texts, least - 1)


def test_batches_of_unequal_sizes_are_refused():
    """The trimmer of TensorFlow Text reads memory of others."""
    for sizes in ((2, 1), (1, 2)):
        texts = [tf.constant(["good"] * size) for size in sizes]
        with pytest.raises(tf.errors.InvalidArgumentError):
            encode(common.tokenizer(), texts, 16)


def test_lone_surrogates_are_dropped():
    texts = [("good \ud800 movie",), ("good movie",)]
    ids = encode_texts(common.tokenizer(), texts, 16).inputs["input_ids"]
    assert ids[0].tolist() == ids[1].tolist()
    broken, whole = common.tokenizer().encode([text for (text,) in texts])
    assert broken.tolist() == whole.tolist()


def reference_windows(pieces, room):
    """Splits one text in plain Python."""
    if len(pieces) <= room:
        return [pieces]
    count = -(-len(pieces) // room)
    begins = [n * (len(pieces) - room) // (count - 1) for n in range(count)]
    assert begins[-1] == len(pieces) - room
    return [pieces[begin : begin + room] for begin in begins]


def test_batches_of_windows_have_one_structure():
    """Covers batches with and without texts of several windows."""
    options = {"labels": ("a", "b"), "long_texts": "windows"}
    task = Classification(name="x", source=None, **options)
    short, long = Example("0", ("good",), "a"), Example("1", ("good " * 9,), "b")
    for batch in ([short], [long], [long, short], [short, long]):
        rows = task.featurize(batch, common.tokenizer(), 8, training=True)
        assert rows.weights.dtype == np.float32
        weights = np.bincount(rows.example, rows.weights)
        np.testing.assert_allclose(weights, 1, rtol=1e-6)


def test_windows_of_long_texts():
    tokenizer = common.tokenizer()
    texts = ["", "good movie", "a b c d e f", "a b c d e f g", "q r s t u v w x y " * 3]
    room, vocabulary = 6, tokenizer.vocabulary
    rows = encode_texts(tokenizer, [(t,) for t in texts], room + 2, "windows")
    expected, whose = [], []
    for number, ids in enumerate(tokenizer.encode(texts)):
        found = reference_windows(ids.tolist(), room)
        expected += [[vocabulary.cls_id, *row, vocabulary.sep_id] for row in found]
        whose += [number] * len(found)
    assert rows.example.tolist() == whose
    ids = rows.inputs["input_ids"]
    assert [ids[row].tolist() for row in range(len(ids))] == expected
    served = padded(encode(tokenizer, [tf.constant(texts)], room + 2, "windows"))
    assert served["example"].numpy().tolist() == whose
    real = served["input_mask"].numpy() > 0
    parts = zip(served["input_ids"].numpy(), real, strict=True)
    assert [row[mask].tolist() for row, mask in parts] == expected
