import hashlib
import itertools

import pytest

from electra_tf.data.tokenizer import WordPiece
from electra_tf.data.vocabulary import SPECIAL_TOKENS, Vocabulary, train_vocabulary
from electra_tf.errors import UserError
from tests.golden.commands import python

TEXT = [
    "the cat sat on the mat",
    "the dog sat on the log",
    "a caf\u00e9 in \u6771\u4eac, the CAF\u00c9",
] * 3

SCRIPT = """
import random, sys
from electra_tf.data.vocabulary import train_vocabulary
rng = random.Random(0)
words = ["".join(rng.choices("abcde\\xe9", k=rng.randrange(2, 9))) for _ in range(500)]
lines = [" ".join(rng.choices(words, k=8)) for _ in range(400)]
random.Random(sys.argv[1]).shuffle(lines)
print(ascii(train_vocabulary(lines, 400)))
"""


def test_training_is_reproducible_in_fresh_processes(monkeypatch):
    """It does not depend on the order of the lines, either."""
    tokens = []
    for seed, threads in (("1", "1"), ("2", "4")):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        monkeypatch.setenv("RAYON_NUM_THREADS", threads)
        done = python("-c", SCRIPT, seed)
        assert done.returncode == 0, done.stderr
        tokens.append(done.stdout)
    assert len(tokens[0].split()) == 400
    assert tokens[0] == tokens[1]


def test_order_and_merges():
    tokens = train_vocabulary(iter(TEXT), 80)
    assert tuple(tokens[:5]) == SPECIAL_TOKENS
    letters = sorted(token for token in tokens if len(token) == 1)
    inner = [f"##{letter}" for letter in letters if letter not in ",\u4eac\u6771"]
    assert tokens[5:][: len(letters)] == letters
    assert tokens[5 + len(letters) :][: len(inner)] == inner
    assert {"the", "sat"} <= set(tokens), "frequent words become one piece"
    # A CJK character is always a word of its own.
    assert {"\u6771", "e"} <= set(letters)
    assert not {"##\u6771", "\u00e9", "C"} & set(tokens)
    assert len(tokens) == len(set(tokens)) <= 80
    cased = train_vocabulary(TEXT, 90, lower_case=False)
    assert {"C", "\u00e9", "\u00c9"} <= set(cased)


def test_characters_that_stand_alone_fill_half_of_the_vocabulary():
    """The tokens are the 4096 most frequent of 5000 CJK characters."""
    characters = [chr(0x4E00 + rank) for rank in range(5000)]
    text = "".join(c * (55_000 // rank) for rank, c in enumerate(characters, 1))
    tokens = train_vocabulary([text], 8192)
    assert len(tokens) == 4096 + len(SPECIAL_TOKENS)
    # Later characters are as frequent as the last of them.
    assert {*characters[:3900]} < {*tokens} - {*SPECIAL_TOKENS} < {*characters}


def test_rare_characters_take_no_room_from_words():
    words = [a + b + c for a in "abcdef" for b in "abcdef" for c in "abcdef"]
    rare = [chr(0x4E00 + rank) * 2 for rank in range(1000)]
    tokens = train_vocabulary([" ".join(words)] * 4000 + rare, 512)
    assert sum(token >= "\u4e00" for token in tokens) == 64 - 6
    assert set(words) & set(tokens)


def test_characters_inside_words_are_limited_as_before():
    letters = [chr(start + n) for start in (0x430, 0x5D0, 0x10D0) for n in range(26)]
    text = " ".join(a + b for a, b in itertools.pairwise(letters))
    assert sum(len(token) == 1 for token in train_vocabulary([text] * 9, 1000)) == 64


def test_training_errors():
    for lines, size, message in (
        (TEXT, 6, "size 6 is too small"),
        (["  "], 100, "no words"),
        (TEXT[0], 100, "must be a list of lines, got the string"),
    ):
        with pytest.raises(ValueError, match=message):
            train_vocabulary(lines, size)


def test_load_save_and_ids(tmp_path):
    vocabulary = Vocabulary(("[UNK]", "[PAD]", "a", "[SEP]", "[MASK]", "[CLS]"))
    path = tmp_path / "vocab.txt"
    vocabulary.save(path)
    assert path.read_bytes() == b"[UNK]\n[PAD]\na\n[SEP]\n[MASK]\n[CLS]\n"
    loaded = Vocabulary.load(path)
    assert loaded == vocabulary
    assert len(loaded) == 6
    ids = (loaded.pad_id, loaded.unk_id, loaded.cls_id, loaded.sep_id, loaded.mask_id)
    assert ids == (1, 0, 5, 3, 4)
    assert loaded.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert [file.name for file in tmp_path.iterdir()] == ["vocab.txt"]


# The special tokens and placeholder lines.
LINES = "\n".join(SPECIAL_TOKENS).encode() + b"\n%s\n"


def test_ends_of_lines_and_other_names(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("\r\n".join(["<pad>", *SPECIAL_TOKENS[1:], "a", ""]).encode())
    with pytest.raises(ValueError, match=r"missing: \[PAD\]"):
        Vocabulary.load(path)
    loaded = Vocabulary.load(path, pad="<pad>", cls="[CLS]")
    assert loaded.pad_id == 0
    assert Vocabulary.load(path, **loaded.names) == loaded
    path.write_bytes(LINES % b"a \nb\t \r\n##c\t")
    assert Vocabulary.load(path).tokens[5:] == ("a", "b", "##c")
    with pytest.raises(UserError, match=r"is a folder: name .*vocab\.txt"):
        Vocabulary.load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the vocabulary is empty"),
        (b"[PAD]\n[UNK]\na\n", r"missing: \[CLS\], \[SEP\], \[MASK\]"),
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nb\n[CLS]\n", "lines 3 and 7"),
        (b"[PAD]\n\n[UNK]\n", "token 2, '', is empty"),
        (b"[PAD]\t0\n", "one token per line"),
        (b"[PAD]\n\xff\n", "can't decode byte 0xff in position 6"),
        (LINES % b"[unused0]\n[unused17]", "all tokens are special or unused"),
        (LINES % (b"a" * 201), "token 6, .* is too long"),
        (LINES % ("\u0e01" * 86).encode(), "token 6, .* is too long"),
        (LINES % b"a\0b", "token 6, .* has a space, a line break or a zero byte"),
    ],
)
def test_broken_files_are_refused(content, message, tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        Vocabulary.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("token", ["a\nb", "a b", "\t", "\r", "a\0", "", "\ud800"])
def test_tokens_that_no_file_can_hold_are_refused(token):
    with pytest.raises(UserError, match="token 6"):
        Vocabulary((*SPECIAL_TOKENS, token))


@pytest.mark.parametrize(
    ("words", "lower_case"),
    [(["MKVLA" * 80, "QGTEN" * 80], True), (["\u0e01\u0e33" * 90], False)],
)
def test_no_token_is_too_long_for_the_tokenizer(words, lower_case):
    """Protein sequences and Thai lines without spaces are single words."""
    tokens = train_vocabulary(words * 9, 400, lower_case=lower_case)
    # FastBertTokenizer raises RuntimeError at 257 bytes.
    assert max(len(token.encode()) for token in tokens) <= 256
    tokenizer = WordPiece(Vocabulary(tuple(tokens)), lower_case=lower_case)
    (ids,) = tokenizer.encode([words[0][:150]])
    assert tokenizer.vocabulary.unk_id not in ids
