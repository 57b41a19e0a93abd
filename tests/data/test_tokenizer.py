import functools
import json
import random
import unicodedata

import numpy as np
import pytest
import tensorflow as tf
from tokenizers import BertWordPieceTokenizer

from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from tests.golden.commands import python

# Each text detects a tokenizer that skips one of BERT's steps.
HARD = [
    "Hello, World! it's 3.14 (ok)",
    "caf\u00e9 CAF\u00c9 cafe\u0301 na\u00efve \u00c5ngstr\u00f6m",
    "\u4e2d\u6587abc\u65e5\u672c",
    "\U00020000\u3400\uf900 \U0002f800",
    "hi\U0001f600there \U0001f468\u200d\U0001f469 \u2764\ufe0f",
    "a\x00b\x07c d\x7fe\x85f\ufffdg\ue000h",
    "soft\u00adhyphen zero\u200bwidth \ufeffbom",
    "\ufb01ne \ufb03 \u00df \u017f",
    "\uff21\uff22\uff0c\uff41",
    "x\u00b2 \u2026 \u2122 \u00bd",
    "a\u00a0b\u2003c\u2028d\u2029e\u3000f\u1680g",
    "tab\there\nline\r\nend",
    "\u0130stanbul I\u0131",
    "\u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2",
    "\u041c\u043e\u0441\u043a\u0432\u0430 \u0439",
    "\u0627\u0644\u0639\u064e\u0631 \u05e9\u05c1",
    "\u0915\u093f\u0924\u093e\u092c \u0e01\u0e33",
    "\ud55c\uad6d\uc5b4 \u30ab\u3099 \u30ac",
    "don\u2019t \u201cquote\u201d \u2014 dash \u00bfque?",
    "\u20ac5 \u00a35 $5 ^_^ `code` ~a~ a|b <b>",
    "",
    "   ",
]


def vocabulary_of(characters):
    """Characters, their lower case and their parts, as first and continuing pieces."""
    forms = {
        part
        for char in characters
        for form in (char, char.lower())
        for part in (*form, *unicodedata.normalize("NFD", form))
        if not part.isspace() and unicodedata.category(part) != "Cc"
    }
    forms |= set("abcdefghijklmnopqrstuvwxyz")
    parts = ["ab", "abc", "bcd", *sorted(forms)]
    return Vocabulary((*SPECIAL_TOKENS, *parts, *(f"##{part}" for part in parts)))


@pytest.fixture(scope="module")
def vocabulary():
    return vocabulary_of("".join(HARD))


@pytest.mark.parametrize(
    ("lower_case", "strip_accents"), [(True, True), (True, False), (False, True)]
)
def test_agrees_with_hugging_face(lower_case, strip_accents, vocabulary):
    ours = WordPiece(vocabulary, lower_case=lower_case, strip_accents=strip_accents)
    theirs = BertWordPieceTokenizer(
        vocabulary.ids, lowercase=lower_case, strip_accents=lower_case and strip_accents
    )
    for text, ids in zip(HARD, ours.encode(HARD), strict=True):
        expected = theirs.encode(text, add_special_tokens=False)
        assert ids.tolist() == expected.ids, (ascii(text), expected.tokens)


def test_by_hand(vocabulary):
    """Invalid bytes are dropped."""
    ids = WordPiece(vocabulary).tokenize(tf.constant([b"Ab re\xc3\xa9\xff\xfee"]))
    tokens = [vocabulary.tokens[index] for index in ids[0].numpy()]
    assert tokens == ["ab", "r", "##e", "##e", "##e"]
    assert ids.dtype == tf.int32
    assert ids.shape.as_list() == [1, None]
    assert WordPiece(vocabulary).encode([]) == []


def test_word_limit_is_200_characters(vocabulary):
    """The maximum is 200, not 100 (pitfall 6 of docs/fidelity.md)."""
    lengths = (100, 101, 150, 200, 201)
    encoded = WordPiece(vocabulary).encode(["a" * length for length in lengths])
    assert [len(ids) for ids in encoded] == [100, 101, 150, 200, 1]
    assert encoded[-1].tolist() == [vocabulary.unk_id]
    # The letter has two bytes. Only the long words of a text become [UNK].
    letter = "\u0438"
    text = f"{letter * 200} {letter * 201}.{letter * 900} a{letter * 199}"
    short, mixed = WordPiece(vocabulary).encode([letter * 200, text])
    assert len(short) == 200
    unk, (a, dot) = vocabulary.unk_id, (vocabulary.ids[token] for token in "a.")
    assert mixed.tolist()[:204] == [*short, unk, dot, unk, a]
    assert len(mixed) == 204 + 199


def test_documented_differences(vocabulary):
    ours, theirs = WordPiece(vocabulary), BertWordPieceTokenizer(vocabulary.ids)
    (literal,) = ours.encode(["[MASK]"])
    assert vocabulary.mask_id not in literal
    assert theirs.encode("[MASK]", add_special_tokens=False).ids == [vocabulary.mask_id]
    sigma = ours.normalize(tf.constant(["\u03a3\u03a3"])).numpy()[0].decode()
    assert sigma == "\u03a3\u03a3".lower() == "\u03c3\u03c2"


NORMALIZE = """
import json, sys
import tensorflow as tf
from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary
for strip in (True, False):
    vocabulary = Vocabulary((*SPECIAL_TOKENS, "a"))
    tokenizer = WordPiece(vocabulary, strip_accents=strip)
    texts = tokenizer.normalize(tf.constant(json.loads(sys.argv[1]))).numpy()
    print(json.dumps([text.decode() for text in texts]))
print(json.dumps(tf.strings.lower(sys.argv[2], encoding="utf-8").numpy().decode()))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("locale", "capital", "lowered"),
    [("tr_TR", "I", "\u0131"), ("lt_LT", "\u00cc", "i\u0307\u0300")],
)
def test_text_does_not_depend_on_the_locale(locale, capital, lowered, monkeypatch):
    accents = "\u0300\u0301\u0303\u0307"
    dotted = "\u0130\u012e\u00cc\u00cd\u0128IJ"
    texts = ["INDIA caf\u00e9", "J\u012eI\u0301", "\u0130stanbul I\u0131", "PLAIN I"]
    texts += [letter + accent for letter in dotted for accent in accents]
    monkeypatch.setenv("LC_ALL", f"{locale}.UTF-8")
    monkeypatch.setenv("PYTHONUTF8", "1")
    done = python("-c", NORMALIZE, json.dumps(texts), capital)
    assert done.returncode == 0, done.stderr
    stripped, accented, by_icu = done.stdout.splitlines()
    assert json.loads(by_icu) == lowered, "the locale has reached ICU"
    for found, strip in ((stripped, True), (accented, False)):
        theirs = BertWordPieceTokenizer(lowercase=True, strip_accents=strip).normalizer
        assert json.loads(found) == [theirs.normalize_str(text) for text in texts]


def test_decode_is_readable():
    words = ["the", "cat", "##s", "don", "'", "t", "(", "sleep", ")", ",", "ok", "."]
    vocabulary = Vocabulary((*SPECIAL_TOKENS, *words))
    tokenizer = WordPiece(vocabulary)
    (ids,) = tokenizer.encode(["The cats don't (sleep), ok."])
    row = [vocabulary.cls_id, *ids, vocabulary.sep_id, 0, 0]
    assert tokenizer.decode(ids) == "the cats don't (sleep), ok."
    assert tokenizer.decode(row) == "[CLS] the cats don't (sleep), ok. [SEP]"
    inside = [vocabulary.cls_id, vocabulary.ids["##s"], vocabulary.ids["ok"]]
    assert tokenizer.decode(inside) == "[CLS] ##s ok"
    assert tokenizer.decode(np.array([vocabulary.mask_id])) == "[MASK]"


# Offsets.

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
