"""WordPiece vocabularies: train one, load one, refuse a broken one."""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import itertools
import os
import unicodedata
from collections.abc import Iterable
from pathlib import Path

_MISSING_CHARACTERS = 0.001
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The tokens, in the order of their ids, and the names of the special ones.

    Attributes:
        tokens: Token of each id.
        pad: Name of the padding token; its id need not be 0.
        unk: Name of the token for words that cannot be split into pieces.
        cls: Name of the token before the first segment.
        sep: Name of the token after each segment.
        mask: Name of the token that hides another one.

    Raises:
        ValueError: No tokens, a token twice, an empty token, a special token missing.
    """

    tokens: tuple[str, ...]
    pad: str = "[PAD]"
    unk: str = "[UNK]"
    cls: str = "[CLS]"
    sep: str = "[SEP]"
    mask: str = "[MASK]"

    def __post_init__(self):
        object.__setattr__(self, "tokens", tuple(self.tokens))
        _validate(self.tokens, self.special_tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Names of the padding, unknown, first, separator and mask token."""
        return (self.pad, self.unk, self.cls, self.sep, self.mask)

    @property
    def names(self) -> dict[str, str]:
        """What the special tokens are called, as the constructor takes it."""
        return dict(
            zip(("pad", "unk", "cls", "sep", "mask"), self.special_tokens, strict=True)
        )

    @functools.cached_property
    def ids(self) -> dict[str, int]:
        """Id of each token."""
        return {token: index for index, token in enumerate(self.tokens)}

    @property
    def pad_id(self) -> int:
        """Id of the padding token."""
        return self.ids[self.pad]

    @property
    def unk_id(self) -> int:
        """Id of the unknown token."""
        return self.ids[self.unk]

    @property
    def cls_id(self) -> int:
        """Id of the token before the first segment."""
        return self.ids[self.cls]

    @property
    def sep_id(self) -> int:
        """Id of the token after each segment."""
        return self.ids[self.sep]

    @property
    def mask_id(self) -> int:
        """Id of the mask token."""
        return self.ids[self.mask]

    @functools.cached_property
    def sha256(self) -> str:
        """Hash of the tokens in their order, one per line."""
        return hashlib.sha256(self._text().encode("utf-8")).hexdigest()

    @classmethod
    def load(cls, path: str | os.PathLike, /, **names: str) -> Vocabulary:
        """Reads a file with one token per line, UTF-8.

        Args:
            path: The file.
            **names: Special tokens that are called otherwise, such as `mask="<mask>"`.

        Raises:
            ValueError: The file is empty, not UTF-8 or not one token per line, has a
                token twice or lacks a special token.
            OSError: It cannot be read.
        """
        try:
            text = Path(path).read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}: not UTF-8 at byte {error.start}. A vocabulary is a text file "
                "with one token per line."
            ) from error
        lines = [line.removesuffix("\r") for line in text.split("\n")]
        while lines and not lines[-1]:
            lines.pop()
        try:
            for number, line in enumerate(lines, 1):
                _check_line(line, number)
            return cls(tuple(lines), **names)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def save(self, path: str | os.PathLike):
        """Writes one token per line; the file is there whole or not at all."""
        temporary = Path(f"{path}.{os.getpid()}.tmp")
        try:
            with open(temporary, "w", encoding="utf-8", newline="\n") as file:
                file.write(self._text())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def _text(self) -> str:
        return "".join(f"{token}\n" for token in self.tokens)


def train_vocabulary(
    lines: Iterable[str],
    size: int,
    *,
    lower_case: bool = True,
    strip_accents: bool = True,
    min_frequency: int = 2,
    limit_alphabet: int | None = None,
) -> list[str]:
    """Learns a WordPiece vocabulary with Hugging Face `tokenizers`.

    Reproducible: equal lines give equal tokens, in any process, with any number of
    threads and in any order of the lines. The trainer alone is not, because it numbers
    the pieces `##x` in the order of a hash map with a random seed, and breaks ties
    between equally frequent pairs by these numbers. Here the alphabet is counted and
    sorted first and handed over with its numbers, which leaves nothing to chance.

    Args:
        lines: Text; read twice, so an iterator is kept in memory.
        size: Number of tokens; fewer are returned when the text has no more pairs.
        lower_case: Whether the text is lower-cased.
        strip_accents: Whether accents are removed, if it is lower-cased.
        min_frequency: Occurrences that a character and a merged pair must have.
        limit_alphabet: Most frequent characters to keep, the others become [UNK]. By
            default 1000, or less so that it takes at most an eighth of `size`, and
            as many more of those that stand alone (CJK, punctuation: one token each)
            as it takes to have 99.9 % of the text, up to half of `size`.

    Returns:
        The special tokens, `[PAD]` first; the characters and the characters inside
        words (`##x`), each in code point order; the longer pieces, as learned.

    Raises:
        ValueError: The text is empty, or `size` is too small for its alphabet.
    """
    from tokenizers import BertWordPieceTokenizer

    lines = list(lines) if iter(lines) is lines else lines
    tokenizer = BertWordPieceTokenizer(
        lowercase=lower_case, strip_accents=lower_case and strip_accents
    )
    counts = _counted_characters(lines, tokenizer.normalizer, min_frequency)
    alphabet = sorted(
        _default_alphabet(counts, size)
        if limit_alphabet is None
        else list(counts)[:limit_alphabet]
    )
    fixed = [
        *SPECIAL_TOKENS,
        *alphabet,
        *(f"##{character}" for character in alphabet if not _stands_alone(character)),
    ]
    if not alphabet:
        raise ValueError("cannot train a vocabulary: the text has no words")
    if size < len(fixed):
        raise ValueError(
            f"vocabulary size {size} is too small: the special tokens and the "
            f"{len(alphabet)} characters take {len(fixed)}. Raise the size or lower "
            "limit_alphabet."
        )
    tokenizer.train_from_iterator(
        lines,
        vocab_size=size,
        min_frequency=min_frequency,
        limit_alphabet=len(alphabet),
        initial_alphabet=alphabet,
        special_tokens=fixed,
        show_progress=False,
    )
    ids = tokenizer.get_vocab(with_added_tokens=False)
    return sorted(ids, key=ids.get)


def _counted_characters(
    lines: Iterable[str], normalizer, min_frequency: int
) -> dict[str, int]:
    """Counts of the characters of the normalized text, the most frequent first."""
    raw: collections.Counter[str] = collections.Counter()
    for line in lines:
        raw.update(line)
    counts: collections.Counter[str] = collections.Counter()
    for character, count in raw.items():
        for part in normalizer.normalize_str(character):
            if not part.isspace():
                counts[part] += count
    order = sorted(counts, key=lambda part: (-counts[part], part))
    return {part: counts[part] for part in order if counts[part] >= min_frequency}


def _default_alphabet(counts: dict[str, int], size: int) -> list[str]:
    """What `train_vocabulary` keeps without `limit_alphabet`."""
    order = list(counts)
    limit = min(1000, max(64, size // 16))
    alphabet, others = order[:limit], filter(_stands_alone, order[limit:])
    tokens = sum(1 if _stands_alone(part) else 2 for part in alphabet)
    missing = sum(counts[part] for part in order[limit:])
    allowed = _MISSING_CHARACTERS * sum(counts.values())
    for part in itertools.islice(others, max(0, size // 2 - tokens)):
        if missing <= allowed:
            break
        alphabet.append(part)
        missing -= counts[part]
    return alphabet


def _stands_alone(character: str) -> bool:
    """Whether it is a word of its own wherever it occurs: punctuation and CJK."""
    punctuation = character.isascii() and not character.isalnum()
    ideograph = unicodedata.name(character, "").startswith("CJK ")
    return punctuation or ideograph or unicodedata.category(character)[0] == "P"


def _check_line(line: str, number: int):
    if not line:
        raise ValueError(
            f"line {number} is empty. A vocabulary has one token on every line."
        )
    if " " in line or "\t" in line:
        raise ValueError(
            f"line {number} is {line[:40]!r}: not one token per line. Give a vocab.txt "
            "as BERT uses it, not a SentencePiece, JSON or tokenizer file."
        )


def _validate(tokens: tuple[str, ...], special: tuple[str, ...]):
    if not tokens:
        raise ValueError("the vocabulary is empty (on cloud storage, check the upload)")
    first: dict[str, int] = {}
    for number, token in enumerate(tokens, 1):
        if token in first:
            raise ValueError(
                f"token {token!r} is there twice, on lines {first[token]} and {number}"
            )
        first[token] = number
    missing = [name for name in special if name not in first]
    if missing:
        raise ValueError(
            f"special tokens missing: {', '.join(missing)}. Add them, one per line, or "
            "rename those that the vocabulary has to these; in Python, say what they "
            'are called: Vocabulary.load(path, mask="<mask>").'
        )
