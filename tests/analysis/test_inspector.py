import numpy as np
import pytest
from scipy import special
from tokenizers import BertWordPieceTokenizer

from electra_tf.analysis import Inspector
from tests import tiny_run
from tests.reference.step import Networks
from tests.tasks.common import TOKENS

TEXT = "A good MOVIE was not awful , the book"


@pytest.fixture(scope="module")
def model():
    return tiny_run.electra()


def ids_of(text):
    """Returns the ids of Hugging Face's tokenizer, with [CLS] and [SEP]."""
    vocabulary = {token: index for index, token in enumerate(TOKENS)}
    return BertWordPieceTokenizer(vocabulary, lowercase=True).encode(text).ids


def reference(model):
    variables = model.trainable_variables
    return Networks(variables), [np.asarray(v, np.float64) for v in variables]


def batch_of(ids, positions=()):
    ids = np.array([ids])
    return {
        "masked_input_ids": ids,
        "input_mask": np.ones_like(ids),
        "segment_ids": np.zeros_like(ids),
        "masked_lm_positions": np.array([positions], int),
    }


def replaced(model, ids):
    networks, weights = reference(model)
    logits = networks.discriminator_logits(weights, np.array([ids]), batch_of(ids))
    return special.expit(logits[0])


def filled(model, ids, positions):
    networks, weights = reference(model)
    logits = networks.generator_logits(weights, batch_of(ids, positions))
    return special.softmax(logits[0], axis=-1)


def test_fills_are_those_of_numpy(model, inspector):
    found = inspector.fill("a [MASK] movie was[MASK].", top=3)
    ids = ids_of("a [MASK] movie was [MASK] .")
    positions = [i for i, index in enumerate(ids) if TOKENS[index] == "[MASK]"]
    assert found.tokens == tuple(TOKENS[index] for index in ids)
    assert len(found.fills) == len(positions) == 2
    for choices, row in zip(found.fills, filled(model, ids, positions), strict=True):
        best = np.argsort(-row)[:3]
        assert [token for token, _ in choices] == [TOKENS[i] for i in best]
        np.testing.assert_allclose([p for _, p in choices], row[best], atol=1e-5)
    (choices,) = inspector.fill("[MASK]", top=len(TOKENS) + 1).fills
    assert {token for token, _ in choices} == set(TOKENS)


def test_verdicts_of_text_and_of_corrupted_text_are_those_of_numpy(model, inspector):
    found = inspector.verdicts(TEXT)
    ids = ids_of(TEXT)
    assert found.tokens == tuple(TOKENS[index] for index in ids)
    np.testing.assert_allclose(found.probabilities, replaced(model, ids), atol=1e-5)
    assert found.original is None
    # Only masked tokens change, and never [CLS] and [SEP].
    found = inspector.corrupt(TEXT, mask_rate=0.4, seed=1)
    assert found.original == tuple(TOKENS[index] for index in ids)
    assert sum(found.is_masked) == round(0.4 * len(ids))
    assert not found.is_masked[0]
    assert not found.is_masked[-1]
    changes = np.array(found.original) != np.array(found.tokens)
    assert 0 < changes.sum() == changes[np.array(found.is_masked)].sum()
    expected = replaced(model, [TOKENS.index(token) for token in found.tokens])
    np.testing.assert_allclose(found.probabilities, expected, atol=1e-5)


def test_corruption_is_a_function_of_text_and_seed(inspector):
    first = inspector.corrupt(TEXT, seed=1)
    inspector.corrupt("a book")
    assert inspector.corrupt(TEXT, seed=1) == first
    assert len({inspector.corrupt(TEXT, seed=seed).tokens for seed in range(6)}) > 1


SCHEDULES = {"mask_rate": 0.1, "final_mask_rate": 1.0, "temperature": 9.0}
SCHEDULES |= {"final_temperature": 1e-4, "temperature_steps": 5}


@pytest.mark.parametrize(
    ("flags", "may_be_correct"),
    [
        ({"mask_rate": 1.0, "temperature": 1e-4}, True),
        ({**SCHEDULES, "disallow_correct": True}, False),
    ],
)
def test_a_low_temperature_takes_the_most_probable(
    model, tmp_path, flags, may_be_correct
):
    # At rate 1, all candidates are chosen; 15 % of them stay visible.
    inspector = Inspector(tiny_run.save(tmp_path, **flags), pytest.fail)
    found = inspector.corrupt("good book")
    assert found == inspector.corrupt("good book", mask_rate=1.0)
    assert found.is_masked == (False, True, True, False)
    choices = []
    for shown in ("[MASK] [MASK]", "good [MASK]", "[MASK] book", "good book"):
        shares = filled(model, ids_of(shown), [1, 2])
        if not may_be_correct:
            shares[[0, 1], ids_of("good book")[1:3]] = 0
        choices.append(tuple(TOKENS[index] for index in shares.argmax(-1)))
    assert found.tokens[1:3] in choices


def test_whole_words_are_masked_as_in_pretraining(tmp_path):
    flags = {"mask_select": "whole_words", "mask_rate": 0.5}
    inspector = Inspector(tiny_run.save(tmp_path, **flags), pytest.fail)
    found = inspector.corrupt("books " * 4)
    first, second = found.is_masked[1:-1:2], found.is_masked[2:-1:2]
    # Five of ten tokens hold two of the words of two pieces.
    assert first == second
    assert sum(first) == 2


def test_casing_comes_from_the_records_or_is_assumed(tmp_path):
    tokens = (*TOKENS[:-1], "Book")
    folder = tiny_run.save(tmp_path, tokens=tokens, data={"lower_case": False})
    assert "Book" in Inspector(folder, pytest.fail).verdicts("Book").tokens
    (folder / "config.json").unlink()
    said = []
    assert Inspector(folder, said.append).verdicts("BOOK").tokens[1] == "book"
    assert "--lower_case; assumed" in said[0]


def test_too_long_texts(inspector, tmp_path):
    assert len(inspector.verdicts("book " * 30).tokens) == 32
    for ask in (inspector.verdicts, inspector.corrupt, inspector.fill):
        with pytest.raises(ValueError, match=r"33 tokens.*at most 32"):
            ask("[MASK] " * 31 if ask == inspector.fill else "book " * 31)
    said = []
    short = Inspector(tiny_run.save(tmp_path, max_seq_length=16), said.append)
    short.verdicts("book " * 14)
    assert not said
    short.verdicts("book " * 15)
    assert "17 tokens, pretraining had at most 16" in said[0]


def test_bad_settings_are_refused(inspector):
    for ask, text, options, message in (
        (inspector.verdicts, "  ", {}, "no tokens"),
        (inspector.corrupt, "\x00\u200b", {}, "no tokens"),
        (inspector.corrupt, "book", {"mask_rate": 1.5}, "mask_rate"),
        (inspector.fill, "no mask", {}, r"write \[MASK\]"),
    ):
        with pytest.raises(ValueError, match=message):
            ask(text, **options)


def test_what_a_folder_lacks_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="No model at"):
        Inspector(tmp_path / "nothing", pytest.fail)
    folder = tiny_run.save(tmp_path, tokens=TOKENS[:-1])
    with pytest.raises(ValueError, match=f"{len(TOKENS)} tokens but the vocabulary"):
        Inspector(folder, pytest.fail).verdicts("book")
    folder = tiny_run.save(tmp_path)
    (folder / "generator.keras").unlink()
    inspector = Inspector(folder, pytest.fail)
    assert inspector.verdicts("book")
    for ask in (inspector.corrupt, lambda text: inspector.fill(text + " [MASK]")):
        with pytest.raises(ValueError, match=r"No such file .*generator\.keras"):
            ask("book")
    (folder / "discriminator.keras").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="cannot be loaded"):
        Inspector(folder, pytest.fail).verdicts("book")
    for path in folder.glob("*.keras"):
        path.unlink()
    with pytest.raises(ValueError, match=r"No such file .* Import other checkpoints"):
        Inspector(folder, pytest.fail).verdicts("book")
    (folder / "task.json").write_text("{}")
    with pytest.raises(ValueError, match="fine-tuned model"):
        Inspector(folder, pytest.fail)


def test_a_masked_lm_fills_and_does_not_judge(model, tmp_path):
    folder = tiny_run.save(tmp_path, model.generator, objective="mlm")
    inspector = Inspector(folder, pytest.fail)
    assert inspector.fill("[MASK]").fills
    with pytest.raises(ValueError, match="--objective=mlm"):
        inspector.verdicts("book")
