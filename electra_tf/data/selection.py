"""Document filters and deduplication.

Filters drop documents by their own text. Deduplication then drops later copies and
later near duplicates in the order of the corpus (MinHash with banding: Broder 1997;
Leskovec et al., Mining of Massive Datasets, 3.4).
"""

import functools
import hashlib
import itertools
import re
import zlib
from collections.abc import Iterator
from unicodedata import category

import numpy as np

from electra_tf.config.records import RecordsConfig
from electra_tf.data.corpora import Document, open_corpus

# Reasons to drop a document; a verdict is an index of this tuple.
REASONS = ("kept", "too_short", "duplicate", "near_duplicate", "contaminated")
KEPT = 0
HASHES = 128
_WORDS_IN_A_SHINGLE = 5
_WORDS_OF_AN_OVERLAP = 13  # Brown et al., 2020 (GPT-3), appendix C.
_WORDS_AT_ONCE = 4096
# Scripts without spaces: each character is a word.
_ALONE = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
)
# Vowel signs and accents, which \w lacks.
_MARKS = "".join(c for c in map(chr, range(0x300, 0x1C00)) if category(c)[0] == "M")
_WORD = re.compile(f"[{_ALONE}]|(?:[^\\W{_ALONE}]|[{_MARKS}])+")


def text_hash(document: Document) -> int:
    """Computes a 64-bit hash of the text."""
    text = "\n".join(document).encode("utf-8")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def characters(document: Document) -> int:
    """Returns the number of characters of the lines, without line breaks."""
    return sum(map(len, document))


class Reader:
    """Computes hash, verdict and MinHash signature of documents."""

    def __init__(self, settings: RecordsConfig):
        self._settings = settings
        self._min_hash = None
        if settings.dedup == "near":
            from datasketch import MinHash

            self._min_hash = MinHash(HASHES, seed=1, hashfunc=zlib.crc32)

    @functools.cached_property
    def _evaluation(self) -> frozenset[bytes]:
        """Hashes of the n-grams of evaluation texts, and of their short lines."""
        hashes: set[bytes] = set()
        for source in open_corpus(self._settings.decontaminate, text_column=None):
            for document in source.documents():
                for part in (document, *([line] for line in document)):
                    hashes.update(_overlap_hashes(part))
        return frozenset(hashes)

    def __call__(self, document: Document) -> tuple[int, int, np.ndarray]:
        """Returns hash, verdict, and signature: [128] uint32, or [0] if not needed."""
        verdict = KEPT
        if characters(document) < self._settings.min_characters:
            verdict = REASONS.index("too_short")
        elif self._settings.decontaminate and not self._evaluation.isdisjoint(
            _overlap_hashes(document)
        ):
            verdict = REASONS.index("contaminated")
        signature = np.zeros(HASHES if self._min_hash else 0, np.uint32)
        if self._min_hash and verdict == KEPT:
            # Copying the permutations is faster than drawing them.
            minimum, waiting = self._min_hash.copy(), shingles(document)
            while some := list(itertools.islice(waiting, _WORDS_AT_ONCE)):
                minimum.update_batch(some)
            signature = minimum.hashvalues
        return text_hash(document), verdict, signature


def _overlap_hashes(document: Document) -> Iterator[bytes]:
    for words in shingles(document, _WORDS_OF_AN_OVERLAP):
        yield hashlib.blake2b(words, digest_size=8).digest()


def shingles(document: Document, size: int = _WORDS_IN_A_SHINGLE) -> Iterator[bytes]:
    """Yields lower-cased n-grams of words; all words of a shorter document.

    A document without words, such as emoji, is its own n-gram.
    """
    words: list[str] = []
    is_short = True
    for line in document:
        words += _WORD.findall(line.lower())
        if len(words) >= size:
            is_short = False
            for start in range(len(words) - size + 1):
                yield " ".join(words[start : start + size]).encode()
            words = words[1 - size :]
    if is_short:
        yield " ".join(words or document).encode()


def rows_in_a_band(similarity: float) -> int:
    """Returns the largest rows per LSH band with 99 % recall at ``similarity``."""
    rows = HASHES
    while rows > 1 and 1 - (1 - similarity**rows) ** (HASHES // rows) < 0.99:
        rows -= 1
    return rows


def judge(
    settings: RecordsConfig,
    hashes: np.ndarray,
    verdicts: np.ndarray,
    signatures: np.ndarray,
) -> np.ndarray:
    """Deduplicates the D documents of a corpus; returns verdicts, [D] uint8.

    Takes the results of a ``Reader``. Documents with an equal band of the signature
    share a bucket. A document is a near duplicate if its signature is similar to the
    first one in a bucket. Signatures are [0, 128] without near-duplicate removal.
    """
    verdicts = verdicts.copy()
    if settings.dedup in ("exact", "near"):
        kept = np.flatnonzero(verdicts == KEPT)
        _, firsts = np.unique(hashes[kept], return_index=True)
        verdicts[np.delete(kept, firsts)] = REASONS.index("duplicate")
    if settings.dedup == "near":
        kept = np.flatnonzero(verdicts == KEPT)
        rows = rows_in_a_band(settings.near_similarity)
        mixed = np.random.default_rng(0).integers(0, 2**64, rows, np.uint64)
        for start in range(0, HASHES - rows + 1, rows):
            band = signatures[kept, start : start + rows]
            # The comparison of signatures resolves collisions of sums.
            sums = (band * mixed).sum(axis=1, dtype=np.uint64)
            _, firsts, bucket = np.unique(sums, return_index=True, return_inverse=True)
            first = firsts[bucket]
            later = np.flatnonzero(first != np.arange(len(kept)))
            for some in np.array_split(later, 1 + len(later) // _WORDS_AT_ONCE):
                ours, theirs = signatures[kept[some]], signatures[kept[first[some]]]
                similar = (ours == theirs).mean(axis=1) >= settings.near_similarity
                verdicts[kept[some[similar]]] = REASONS.index("near_duplicate")
    return verdicts
