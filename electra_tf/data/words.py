"""WordPiece tokenizer for whole corpora without TensorFlow, equal to `WordPiece`.

Importing TensorFlow takes as long as tokenizing 40 MB. Most words of a text are
repeated, so a dict caches the ids of every string between two spaces.
"""

import array
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from electra_tf.data.vocabulary import MAX_WORD_LENGTH, Vocabulary

LINES_AT_ONCE = 1000
MAX_ENTRIES = 1 << 19
MAX_CHARACTERS = 50  # Longest cached string: Chinese lines have no spaces.
# Control characters that BERT deletes and ``str.split`` treats as spaces.
_NO_SPACES = re.compile("[\x0b\x0c\x1c-\x1f\x85]")
# Characters that TensorFlow, Python and ``tokenizers`` treat alike. The gaps have
# characters that are newer than some of their Unicode tables.
_FAMILIAR = re.compile(
    "[\0-\u061c\u061e-\u07fc\u0900-\u09fc\u0a00-\u0a75\u0a80-\u0af9\u0b00-\u0b54"
    "\u0b80-\u0c03\u0c05-\u0c3b\u0c3d-\u0c76\u0c85-\u0cff\u0d01-\u0d3a\u0d3d-\u0d80"
    "\u0d82-\u0eb9\u0f00-\u166c\u1680-\u1733\u1780-\u180e\u1810-\u1884\u1887-\u1abe"
    "\u1b00-\u1b4c\u1b50-\u1b7c\u1b80-\u1c88\u1c90-\u1df5\u1e00-\u2c2e\u2c30-\u2c5e"
    "\u2c60-\u2e42\u2e80-\ua7bf\ua800-\ua82b\ua830-\ua8c4\ua900-\ua9bc\ua9be-\uabf9"
    "\uac00-\ud7ff\ue000-\ufffd\U00010000-\U0001056f\U00012000-\U00012ff0"
    "\U00013000-\U0001342f\U00017000-\U0001ceff\U0001d000-\U0001deff"
    "\U0001e900-\U0001e943\U0001f000-\U0002b81f\U0002b920-\U0010ffff]*"
)


class WordTable(dict[str, bytes]):
    """Tokenizes lines like `WordPiece`; caches the int32 ids of strings."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        lower_case: bool = True,
        strip_accents: bool = True,
    ):
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

        super().__init__()
        self._vocabulary = vocabulary
        self._lower_case = lower_case
        self._casing = {"lower_case": lower_case, "strip_accents": strip_accents}
        # Its lower case of a final capital sigma would differ.
        self._normalizer = normalizers.BertNormalizer(
            lowercase=False, strip_accents=lower_case and strip_accents
        )
        self._tokenizer = Tokenizer(
            models.WordPiece(
                vocabulary.ids,
                unk_token=vocabulary.unk,
                max_input_chars_per_word=MAX_WORD_LENGTH,
            )
        )
        self._tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self._unfamiliar: set[str] = set()

    def encode(self, lines: Iterable[str]) -> Iterator[np.ndarray]:
        """Tokenizes lines lazily; yields the int32 ids of each line."""
        lines = iter(lines)
        while block := list(itertools.islice(lines, LINES_AT_ONCE)):
            rows = self._rows(block)
            if chunks := sorted(self._unfamiliar):
                self._unfamiliar.clear()
                # A call of TensorFlow per string would be 100 times slower.
                exact = (ids.tobytes() for ids in self._exact.encode(chunks))
                self.update(zip(chunks, exact, strict=True))
                rows = self._rows(block)
                for chunk in chunks:
                    if len(chunk) > MAX_CHARACTERS:
                        del self[chunk]
            if len(self) > MAX_ENTRIES:
                self.clear()
            yield from rows

    def _rows(self, lines: Sequence[str]) -> list[np.ndarray]:
        texts = (s if s.isprintable() else _NO_SPACES.sub("", s) for s in lines)
        rows = (b"".join(map(self.__getitem__, text.split())) for text in texts)
        return [np.frombuffer(row, np.int32) for row in rows]

    def __missing__(self, chunk: str) -> bytes:
        if not _FAMILIAR.fullmatch(chunk):
            self._unfamiliar.add(chunk)
            return b""
        text = chunk
        if not (text.isascii() and text.isprintable()):
            text = self._normalizer.normalize_str(text)
        if self._lower_case:
            text = text.lower()
        ids = array.array("i", self._tokenizer.encode(text).ids).tobytes()
        if len(chunk) <= MAX_CHARACTERS:
            self[chunk] = ids
        return ids

    @functools.cached_property
    def _exact(self) -> Any:
        from electra_tf.data.tokenizer import WordPiece

        return WordPiece(self._vocabulary, **self._casing)
