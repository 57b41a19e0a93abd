import random
import unicodedata

import pytest

from electra_tf.data import words
from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from electra_tf.data.words import WordTable
from tests.data.test_tokenizer import HARD, vocabulary_of
from tests.golden.commands import python

CASINGS = pytest.mark.parametrize(
    ("lower_case", "strip_accents"), [(True, True), (True, False), (False, False)]
)
# Without surrogates and most unassigned ones, which `WordTable` passes to `WordPiece`.
CHARACTERS = [
    chr(code)
    for code in range(0x110000)
    if not 0xD800 <= code < 0xE000 and code != ord("\n")
    if code % 97 == 0 or unicodedata.category(chr(code)) != "Cn"
]


def compare(texts, characters, lower_case, strip_accents):
    casing = {"lower_case": lower_case, "strip_accents": strip_accents}
    tokens = vocabulary_of(characters)
    theirs = WordPiece(tokens, **casing).encode(texts)
    mine = WordTable(tokens, **casing).encode(iter(texts))
    for text, found, expected in zip(texts, mine, theirs, strict=True):
        assert found.tolist() == expected.tolist(), ascii(text)


@CASINGS
def test_hard_text(lower_case, strip_accents):
    texts = [text.replace("\n", " ") for text in HARD] * 3
    texts += ["a" * length for length in (199, 200, 201, 500)]
    texts += ["[MASK] ##a #a", "abcdabcabz"]
    # Letters of one to four bytes, alone and with neighbors.
    for letter in "a\u0438\u0e01\U00010400":
        texts += [letter * length for length in (67, 199, 200, 201, 500)]
        texts += [f"a {letter * 201}.{letter * 200}\u4e2d{letter * 201} b"]
    texts += ["\u0438\u0301" * 200, "\u0301" * 300, "\u4e2d" * 300]
    compare(texts, {*"".join(texts)}, lower_case, strip_accents)


@CASINGS
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_characters_between_letters(lower_case, strip_accents, whole):
    """All characters, or the first 4,000 and a sample."""
    some = [*CHARACTERS[:4000], *random.Random(0).sample(CHARACTERS, 2000)]
    texts = [f"a{each}B{each} {each}" for each in (CHARACTERS if whole else some)]
    compare(texts, CHARACTERS[:0x3000] if whole else some, lower_case, strip_accents)


@CASINGS
def test_mixed_characters(lower_case, strip_accents):
    """Includes sigmas; their lower case depends on the characters after punctuation."""
    rng = random.Random(1)
    some = "\u03a3\u03a3\u03b1\u0391.'\u2019:\u00ad\u0301\u0345 \u0390\u0130i"
    some += "I-\x01\x0b\u200b\u4e2db\u302e\U0001d165\u00e9\ud55c\U0001f600"
    texts = ["".join(rng.choices(some, k=12)) for _ in range(3000)]
    compare(texts, some, lower_case, strip_accents)


@CASINGS
def test_marks_and_sigmas_without_end(lower_case, strip_accents):
    """Requires linear time; quadratic time takes minutes on these texts."""
    texts = ["a" + "\u0301\u0316" * 100_000, "\u03a3" * 100_000, "\u4e2d" * 100_000]
    texts = [*texts, f"{texts[2]} \u03a3"]
    compare(texts, {*"".join(texts), "\u03c2"}, lower_case, strip_accents)


def test_whole_tokens_are_split_and_cut_as_words():
    """Tokens with punctuation or 200 letters do not bypass the rules."""
    tokens = Vocabulary((*SPECIAL_TOKENS, "a=b", "a", "b", "=", "c" * 200, "c"))
    texts = ["a=b", "a\u2260b", "c" * 200, "c" * 201, "C" * 220]
    theirs = [row.tolist() for row in WordPiece(tokens).encode(texts)]
    assert [row.tolist() for row in WordTable(tokens).encode(texts)] == theirs
    assert theirs[2:] == [[9], [1], [1]]


def test_lines_are_kept_apart(monkeypatch):
    rng = random.Random(2)
    some = ["ab", "abc", "", "x.y", "\u1885b"]
    lines = [" ".join(rng.choices(some, k=9)) for _ in range(50)]
    lines += ["", "abc " * 500, ""]
    for count in (1, 7, 1000):
        monkeypatch.setattr(words, "LINES_AT_ONCE", count)
        compare(lines, (), True, True)
    assert list(WordTable(vocabulary_of("")).encode([])) == []


def test_a_full_table_forgets_and_goes_on(monkeypatch):
    """After each line, the table has at most 16 entries of at most two characters."""
    monkeypatch.setattr(words, "LINES_AT_ONCE", 1)
    monkeypatch.setattr(words, "MAX_ENTRIES", 16)
    monkeypatch.setattr(words, "MAX_CHARACTERS", 2)
    rng = random.Random(3)
    lines = [" ".join(rng.choices("abcdefghijklmnop", k=5)) for _ in range(300)]
    lines[100] = " ".join(rng.choices("abcdefghijklmnopqrstuvwxyz.,", k=200))
    # TensorFlow's tokenizer handles this letter, in a short and a long string.
    lines[200] = "a\u1885 abcd\u1885bcd a\u1885"
    compare(lines, (), True, True)


def test_unfamiliar_words_are_batched(monkeypatch):
    """A call of TensorFlow per word would take 100 times as long."""
    calls, encode = [], WordPiece.encode
    monkeypatch.setattr(
        WordPiece, "encode", lambda *given: calls.append(given) or encode(*given)
    )
    lines = [f"\u1885{chr(0x61 + n)} a\u1886" for n in range(20)]
    assert len(list(WordTable(vocabulary_of("a")).encode(lines))) == 20
    assert len(calls) == 1


def test_ordinary_text_loads_no_tensorflow():
    """Covers accented letters, emoji, Chinese and Burmese."""
    program = """
import sys
from electra_tf.data import building, units
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from electra_tf.data.words import WordTable
table = WordTable(Vocabulary((*SPECIAL_TOKENS, "a", ".")))
found = table.encode(["A. \\u00e1", "\\u4e2d \\U0001f600 \\u1019\\u103a"])
assert [ids.tolist() for ids in found] == [[5, 6, 5], [1, 1, 1]], found
assert "tensorflow" not in sys.modules
"""
    done = python("-c", program)
    assert done.returncode == 0, done.stderr
