import json

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


@pytest.fixture(scope="module")
def vocabulary():
    """Every form of each character of HARD, as first and continuing piece."""
    characters = {chr(code) for code in range(33, 127)}
    for lower, strip in ((True, True), (True, False), (False, False)):
        normalizer = BertWordPieceTokenizer(lowercase=lower, strip_accents=strip)
        for text in HARD:
            characters |= set(normalizer.normalizer.normalize_str(text)) - {" "}
    inside = [f"##{character}" for character in sorted(characters)]
    tokens = [*sorted(characters), *inside, "it", "##re"]
    return Vocabulary((*SPECIAL_TOKENS, *tokens))


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
    ids = WordPiece(vocabulary).tokenize(tf.constant([b"It re\xc3\xa9\xff\xfee"]))
    tokens = [vocabulary.tokens[index] for index in ids[0].numpy()]
    assert tokens == ["it", "r", "##e", "##e", "##e"]
    assert ids.dtype == tf.int32
    assert ids.shape.as_list() == [1, None]


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


def test_batches_of_1024_keep_their_order(vocabulary):
    tokenizer = WordPiece(vocabulary)
    expected = [ids.tolist() for ids in tokenizer.encode(HARD)]
    assert [ids.tolist() for ids in tokenizer.encode(HARD * 60)] == expected * 60
    assert tokenizer.encode([]) == []


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
