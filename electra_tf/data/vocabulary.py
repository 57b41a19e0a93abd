"""WordPiece vocabularies: train one, load one, reject a broken one."""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import itertools
import unicodedata
from collections.abc import Iterable
from typing import Any

from electra_tf import files
from electra_tf.data import paths
from electra_tf.errors import UserError

_MISSING_CHARACTERS = 0.001
# The original's limit, in characters.
MAX_WORD_LENGTH = 200
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_SPECIAL = ("pad", "unk", "cls", "sep", "mask")


def _id_of(name: str) -> functools.cached_property[int]:
    """The id of a special token, by what the constructor calls it."""
    return functools.cached_property(lambda self: self.ids[self.names[name]])


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """The tokens, in the order of their ids, and the names of the special ones.

    ``pad`` fills up, its id need not be 0; ``unk`` stands for words that cannot be
    split into pieces, ``cls`` before the first segment, ``sep`` after each one, and
    ``mask`` in the place of a hidden token. Raises ValueError: no tokens, or none but
    these, a token twice, an empty token, a special token missing.

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
            raise UserError(
                "the vocabulary is empty (on cloud storage, check the upload)"
            )
        first: dict[str, int] = {}
        for number, token in enumerate(self.tokens, 1):
            if token in first:
                raise UserError(
                    f"token {token!r} is there twice, on lines {first[token]} and "
                    f"{number}"
                )
            first[token] = number
        missing = [name for name in self.special_tokens if name not in first]
        if missing:
            raise UserError(
                f"special tokens missing: {', '.join(missing)}. Add them, one per "
                "line, or rename those that the vocabulary has to these; in Python, "
                'say what they are called: Vocabulary.load(path, mask="<mask>").'
            )
        if first.keys() == set(self.special_tokens):
            raise UserError(
                "there are no tokens but the special ones: every word of a text would "
                f"be {self.unk}. Train a vocabulary, or take another file."
            )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Names of the padding, unknown, first, separator and mask token."""
        return tuple(self.names.values())

    @property
    def names(self) -> dict[str, str]:
        """What the special tokens are called, as the constructor takes it."""
        return {name: getattr(self, name) for name in _SPECIAL}

    @functools.cached_property
    def ids(self) -> dict[str, int]:
        """Id of each token."""
        return {token: index for index, token in enumerate(self.tokens)}

    pad_id = _id_of("pad")
    unk_id = _id_of("unk")
    cls_id = _id_of("cls")
    sep_id = _id_of("sep")
    mask_id = _id_of("mask")

    @functools.cached_property
    def sha256(self) -> str:
        """Hash of the tokens in their order, one per line."""
        return hashlib.sha256(self._text().encode("utf-8")).hexdigest()

    @classmethod
    def load(cls, path: files.AnyPath, /, **names: str) -> Vocabulary:
        """Reads a file with one token per line, UTF-8.

        Special tokens may have other names, such as ``mask="<mask>"``. A ValueError
        also says that the file is not UTF-8, or not one token per line.
        """
        try:
            text = paths.read_bytes(path).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}: not UTF-8 at byte {error.start}. A vocabulary is a text file "
                "with one token per line."
            ) from error
        lines = [line.removesuffix("\r") for line in text.split("\n")]
        while lines and not lines[-1]:
            lines.pop()
        for number, line in enumerate(lines, 1):
            if not line:
                raise UserError(
                    f"{path}: line {number} is empty. A vocabulary has one token on "
                    "every line."
                )
            if " " in line or "\t" in line:
                raise UserError(
                    f"{path}: line {number} is {line[:40]!r}: not one token per line. "
                    "Give a vocab.txt as BERT uses it, not a SentencePiece, JSON or "
                    "tokenizer file."
                )
        try:
            return cls(tuple(lines), **names)
        except ValueError as error:
            raise UserError(f"{path}: {error}") from error

    def save(self, path: files.AnyPath) -> None:
        """Writes one token per line; the file is there whole or not at all."""
        files.write_text(path, self._text())

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
    """Learns a WordPiece vocabulary with Hugging Face ``tokenizers``.

    Reproducible: equal lines give equal tokens, in any process, with any number of
    threads and in any order of the lines. The trainer alone is not, because it numbers
    the pieces ``##x`` in the order of a hash map with a random seed, and breaks ties
    between equally frequent pairs by these numbers. Here the alphabet is counted and
    sorted first and handed over with its numbers, which leaves nothing to chance.

    Args:
        lines: text; read twice, so an iterator is kept in memory.
        size: number of tokens; fewer are returned when the text has no more pairs.
        lower_case: whether the text is lower-cased.
        strip_accents: whether accents are removed, if it is lower-cased.
        min_frequency: occurrences that a character and a merged pair must have.
        limit_alphabet: most frequent characters to keep, the others become [UNK]. By
            default 1000, or less so that it takes at most an eighth of ``size``, and
            as many more of those that stand alone (CJK, punctuation: one token each)
            as it takes to have 99.9 % of the text, up to half of ``size``.

    Returns:
        The special tokens, ``[PAD]`` first; the characters and the characters inside
        words (``##x``), each in code point order; the longer pieces, as learned.

    Raises ValueError: the text is empty, or ``size`` is too small for its alphabet.

    Examples:
        >>> lines = ["the cat sat on the mat", "the cat ran"] * 10
        >>> tokens = et.data.train_vocabulary(lines, size=40)
        >>> tokens[:5]
        ['[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]']
        >>> "the" in tokens
        True
    """
    # Only training needs it; loading a vocabulary stays fast.
    from tokenizers import BertWordPieceTokenizer

    lines = list(lines) if iter(lines) is lines else lines
    tokenizer = BertWordPieceTokenizer(
        lowercase=lower_case, strip_accents=lower_case and strip_accents
    )
    counts = _counted_characters(lines, tokenizer.normalizer, min_frequency)
    alphabet = list(counts)[:limit_alphabet]
    if limit_alphabet is None:
        alphabet = _default_alphabet(counts, size)
    alphabet.sort()
    inside = [f"##{part}" for part in alphabet if not _stands_alone(part)]
    fixed = [*SPECIAL_TOKENS, *alphabet, *inside]
    if not alphabet:
        raise UserError("cannot train a vocabulary: the text has no words")
    if size < len(fixed):
        raise UserError(
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
    lines: Iterable[str], normalizer: Any, min_frequency: int
) -> dict[str, int]:
    """Counts of the characters of the normalized text, the most frequent first."""
    # Normalized once per distinct character, not once per character of the text.
    raw = collections.Counter(itertools.chain.from_iterable(lines))
    counts: collections.Counter[str] = collections.Counter()
    for character, count in raw.items():
        for part in normalizer.normalize_str(character):
            if not part.isspace():
                counts[part] += count
    order = sorted(counts, key=lambda part: (-counts[part], part))
    return {part: counts[part] for part in order if counts[part] >= min_frequency}


def _default_alphabet(counts: dict[str, int], size: int) -> list[str]:
    """What ``train_vocabulary`` keeps without ``limit_alphabet``."""
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
