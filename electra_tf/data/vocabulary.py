"""WordPiece vocabularies: training, loading, validation."""

import collections
import dataclasses
import functools
import hashlib
import itertools
import re
import unicodedata
from collections.abc import Iterable
from typing import Any, Self

from electra_tf import files
from electra_tf.data import paths
from electra_tf.errors import UserError, explained

_MIN_FREQUENCY = 2  # Of characters and of merged pairs.
# The original's limit in characters; longer words become [UNK].
MAX_WORD_LENGTH = 200
# Limit of ``tensorflow_text.FastBertTokenizer``, without a leading ##.
_MAX_TOKEN_BYTES = 256
_UNUSED = re.compile(r"\[unused\d+\]")
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def _id_of(name: str) -> functools.cached_property[int]:
    return functools.cached_property(lambda self: self.ids[self.names[name]])


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Tokens in the order of their ids, and the names of the special tokens.

    Raises ``ValueError`` if a special token is missing, all tokens are special or
    unused, or a token is empty, too long, repeated, or has an invalid character.

    Examples:
        >>> tokens = "[PAD] [UNK] [CLS] [SEP] [MASK] hello wor ##ld".split()
        >>> vocabulary = et.data.Vocabulary(tuple(tokens))
        >>> len(vocabulary), vocabulary.cls_id, vocabulary.ids["hello"]
        (8, 2, 5)
    """

    tokens: tuple[str, ...]
    pad: str = "[PAD]"
    unk: str = "[UNK]"
    cls: str = "[CLS]"
    sep: str = "[SEP]"
    mask: str = "[MASK]"

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", tuple(self.tokens))
        if not self.tokens:
            raise UserError("the vocabulary is empty")
        first: dict[str, int] = {}
        for number, token in enumerate(self.tokens, 1):
            if token in first:
                lines = f"{first[token]} and {number}"
                raise UserError(f"token {token!r} occurs twice, on lines {lines}")
            if problem := _problem(token):
                raise UserError(f"token {number}, {token[:40]!r}, {problem}")
            first[token] = number
        missing = [name for name in self.special_tokens if name not in first]
        if missing:
            raise UserError(
                f"special tokens missing: {', '.join(missing)}. Add them, one per "
                'line, or pass other names: Vocabulary.load(path, mask="<mask>").'
            )
        if all(map(_UNUSED.fullmatch, first.keys() - set(self.special_tokens))):
            raise UserError("all tokens are special or unused")

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Names of the special tokens: pad, unk, cls, sep, mask."""
        return tuple(self.names.values())

    @property
    def names(self) -> dict[str, str]:
        """Names of the special tokens, by constructor argument."""
        names = ("pad", "unk", "cls", "sep", "mask")
        return {name: getattr(self, name) for name in names}

    @functools.cached_property
    def ids(self) -> dict[str, int]:
        """Ids by token."""
        return {token: index for index, token in enumerate(self.tokens)}

    pad_id = _id_of("pad")
    unk_id = _id_of("unk")
    cls_id = _id_of("cls")
    sep_id = _id_of("sep")
    mask_id = _id_of("mask")

    @functools.cached_property
    def sha256(self) -> str:
        """SHA-256 of the tokens in order, one per line."""
        return hashlib.sha256(self._text().encode("utf-8")).hexdigest()

    @classmethod
    def load(cls, path: files.AnyPath, /, **names: str) -> Self:
        """Reads a UTF-8 file with one token per line; strips trailing spaces.

        ``names`` renames special tokens, such as ``mask="<mask>"``. Raises
        ``ValueError`` if the file is not a vocabulary.
        """
        if paths.is_folder(path):
            raise UserError(f"{path} is a folder: name a file, such as its vocab.txt")
        with paths.open_bytes(path) as file:
            content = file.read()
        with explained(str(path)):
            text = content.decode("utf-8-sig")
            lines = [line.rstrip(" \t\r") for line in text.split("\n")]
            while lines and not lines[-1]:
                lines.pop()
            return cls(tuple(lines), **names)

    def save(self, path: files.AnyPath) -> None:
        """Writes one token per line, atomically."""
        files.write_text(path, self._text())

    def _text(self) -> str:
        return "".join(f"{token}\n" for token in self.tokens)


def _problem(token: str) -> str:
    """Returns the reason why a token is invalid, or ""."""
    part = token.removeprefix("##")
    if not token:
        return "is empty"
    if not {" ", "\t", "\n", "\r", "\0"}.isdisjoint(token):
        return "has a space, a line break or a zero byte: give one token per line"
    try:
        size = len(part.encode("utf-8"))
    except UnicodeEncodeError:
        return "has half of a surrogate pair, which UTF-8 cannot hold"
    if len(part) > MAX_WORD_LENGTH or size > _MAX_TOKEN_BYTES:
        return f"is too long (over {MAX_WORD_LENGTH} characters or 256 bytes)"
    return ""


def train_vocabulary(
    lines: Iterable[str],
    size: int,
    *,
    lower_case: bool = True,
    strip_accents: bool = True,
) -> list[str]:
    """Trains a WordPiece vocabulary with Hugging Face ``tokenizers``.

    The result does not depend on the order of the lines, because the trainer starts
    from a sorted alphabet. Tokens have at most 64 characters. The alphabet has the
    ``size // 16`` most frequent characters, between 64 and 1000. CJK characters and
    punctuation join it until it covers 99.9 % of the text, up to half of ``size``.

    Args:
        lines: text; read twice, so an iterator is copied to a list.
        size: number of tokens; fewer if all pairs of the text are merged. Raises
            ``ValueError`` if it is below the alphabet's.
        lower_case: lower-cases the text.
        strip_accents: removes accents if ``lower_case``.

    Returns:
        Special tokens, ``[PAD]`` first; characters, then characters inside words
        (``##x``), each in code point order; longer pieces in the order of merges.

    Examples:
        >>> lines = ["the cat sat on the mat", "the cat ran"] * 10
        >>> tokens = et.data.train_vocabulary(lines, size=40)
        >>> tokens[:5]
        ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
        >>> "the" in tokens
        True
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    if isinstance(lines, str):
        raise UserError(f"lines must be a list of lines, got the string {lines!r:.60}")
    lines = list(lines) if iter(lines) is lines else lines
    tokenizer = Tokenizer(models.BPE(continuing_subword_prefix="##"))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=lower_case, strip_accents=lower_case and strip_accents
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    alphabet = sorted(_alphabet(lines, tokenizer.normalizer, size))
    inside = [f"##{part}" for part in alphabet if not _stands_alone(part)]
    fixed = [*SPECIAL_TOKENS, *alphabet, *inside]
    if not alphabet:
        raise UserError("cannot train a vocabulary: the text has no words")
    if size < len(fixed):
        raise UserError(f"vocabulary size {size} is too small: it needs {len(fixed)}")
    # WordPieceTrainer has no length limit: text without spaces gives unloadable tokens.
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=_MIN_FREQUENCY,
        limit_alphabet=len(alphabet),
        initial_alphabet=alphabet,
        special_tokens=fixed,
        continuing_subword_prefix="##",
        max_token_length=_MAX_TOKEN_BYTES // 4,  # Bytes of a character.
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    ids = tokenizer.get_vocab(with_added_tokens=False)
    return sorted(ids, key=ids.get)


def _alphabet(lines: Iterable[str], normalizer: Any, size: int) -> list[str]:
    raw = collections.Counter(itertools.chain.from_iterable(lines))
    counts: collections.Counter[str] = collections.Counter()
    for character, count in raw.items():
        for part in normalizer.normalize_str(character):
            if not part.isspace():
                counts[part] += count
    order = sorted(counts, key=lambda part: (-counts[part], part))
    order = [part for part in order if counts[part] >= _MIN_FREQUENCY]
    limit = min(1000, max(64, size // 16))
    alphabet, others = order[:limit], filter(_stands_alone, order[limit:])
    tokens = sum(1 if _stands_alone(part) else 2 for part in alphabet)
    missing = sum(counts[part] for part in order[limit:])
    allowed = 0.001 * sum(counts[part] for part in order)
    for part in itertools.islice(others, max(0, size // 2 - tokens)):
        if missing <= allowed:
            break
        alphabet.append(part)
        missing -= counts[part]
    return alphabet


def _stands_alone(character: str) -> bool:
    """Returns True if a character is always a separate word: punctuation and CJK."""
    punctuation = character.isascii() and not character.isalnum()
    ideograph = unicodedata.name(character, "").startswith("CJK ")
    return punctuation or ideograph or unicodedata.category(character)[0] == "P"
