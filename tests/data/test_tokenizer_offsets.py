import functools
import random

import pytest
import tensorflow as tf

from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary

LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,-\u00e9\u03c3\u03c2\u4eac"
JAMO = "\u1112\u1161\u11ab"
TOKENS = (*SPECIAL_TOKENS, *LETTERS, *(f"##{c}" for c in LETTERS))
TOKENS += (JAMO[0], f"##{JAMO[1]}", f"##{JAMO[2]}", "end")


@functools.cache
def tokenizer_of(**casing):
    return WordPiece(Vocabulary(TOKENS), **casing)


def pieces(texts, **casing):
    """Yields (id, start, end) of the pieces of each text, with the ids of `encode`."""
    tokenizer = tokenizer_of(**casing)
    columns = tokenizer.tokenize_with_offsets(tf.constant(texts))
    columns = [column.to_list() for column in columns]
    assert columns[0] == [ids.tolist() for ids in tokenizer.encode(texts)]
    return [list(zip(*row, strict=True)) for row in zip(*columns, strict=True)]


def surfaces(text, **casing):
    (row,) = pieces([text], **casing)
    return [(TOKENS[piece], text[start:end]) for piece, start, end in row]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("aB c", [("a", "a"), ("##b", "B"), ("c", "c")]),
        # A character that loses a byte, characters that merge into one, and one that
        # lower-cases to two.
        ("\u00c9a", [("e", "\u00c9"), ("##a", "a")]),
        ("e\u0301\u0302a", [("e", "e\u0301\u0302"), ("##a", "a")]),
        ("\u0130x", [("i", "\u0130"), ("##x", "x")]),
        # Deleted characters belong to the preceding piece.
        ("a\u200db\ufe0f c", [("a", "a\u200d"), ("##b", "b\ufe0f"), ("c", "c")]),
        # Unknown full-width letters and emoji stay in one piece.
        ("\uff21\uff22 a", [("[UNK]", "\uff21\uff22"), ("a", "a")]),
        ("\U0001f600\ufe0f.", [("[UNK]", "\U0001f600\ufe0f"), (".", ".")]),
        # Unicode spaces and line ends.
        ("\u00a0a\u3000\r\nb", [("a", "a"), ("b", "b")]),
        # Each Chinese character is a word.
        ("a\u4eacb", [("a", "a"), ("\u4eac", "\u4eac"), ("b", "b")]),
        # A final sigma depends on its neighbors.
        ("\u03a3\u03a3", [("\u03c3", "\u03a3"), ("##\u03c2", "\u03a3")]),
        # One syllable, three pieces.
        ("\ud55c", [(part, "\ud55c") for part in TOKENS[-4:-1]]),
        ("", []),
        (" \u200d", []),
    ],
)
def test_pieces_point_at_the_original_characters(text, expected):
    assert surfaces(text) == expected


def test_case_and_accents_that_are_kept():
    assert surfaces("A\u00e9", lower_case=False) == [("[UNK]", "A\u00e9")]
    kept = surfaces("A\u00e9", strip_accents=False)
    assert kept == [("a", "A"), ("##\u00e9", "\u00e9")]


def test_words_that_are_too_long():
    long_word, short_word = "\u00c9" * 201, "\u00c9" * 200
    first, long, dot, *short = surfaces(f"a {long_word}.{short_word}")
    assert (first, long, dot) == (("a", "a"), ("[UNK]", long_word), (".", "."))
    assert short == [("e", "\u00c9")] + [("##e", "\u00c9")] * 199


def test_random_texts_in_one_batch():
    """The span of each known piece normalizes to its token, and spans are in order."""
    draw = random.Random(0)
    alphabet = "abAB\u00c9\u0301\u200d\ufe0f .\u4eac\U0001f600\u00a0\n\u0130\u03a3"
    texts = ["".join(draw.choices(alphabet, k=draw.randrange(30))) for _ in range(200)]
    found, expected = [], []
    for text, row in zip(texts, pieces(texts), strict=True):
        last = 0
        for piece, start, end in row:
            assert last <= start < end <= len(text)
            last = end
            token = TOKENS[piece].removeprefix("##")
            if token not in ("[UNK]", "\u03c2"):
                found.append(text[start:end])
                expected.append(token.encode())
    assert tokenizer_of().normalize(tf.constant(found)).numpy().tolist() == expected
    assert len(expected) > 500
