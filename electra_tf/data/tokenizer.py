"""WordPiece tokenizer as TensorFlow ops, for tf.data and SavedModels."""

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from electra_tf.data.vocabulary import MAX_WORD_LENGTH, Vocabulary

_SPACE = r"[\t\n\r\p{Z}]"
_DELETED = r"[\x{fffd}\p{Cc}\p{Cf}\p{Co}]"
_MANY_MARKS = r"(\p{M}{16})"
_CAPITALS_OF_LOCALES = "\u0130\u012e\u00cc\u00cd\u0128"
_BATCH = 1024
_LONE_SURROGATES = re.compile("[\ud800-\udfff]")


def string_tensor(texts: Iterable[str]) -> tf.Tensor:
    """Returns texts as a string tensor; U+FFFD replaces lone surrogates."""
    valid = [_LONE_SURROGATES.sub("\ufffd", text).encode() for text in texts]
    return tf.constant(valid, tf.string)


class WordPiece(tf.Module):
    """BERT's tokenizer: clean, lower-case, strip accents, split, greedy longest match.

    Splits with ``tensorflow_text.FastBertTokenizer``, but normalizes the text itself,
    because its own normalization (compatibility case folding) differs.
    ``docs/fidelity.md`` lists the differences from Hugging Face's
    ``BertWordPieceTokenizer``.

    Works under ``tf.function``, in ``tf.data.Dataset.map`` (on batches) and in an
    exported model; import ``tensorflow_text`` before loading the SavedModel.
    ``strip_accents`` requires ``lower_case``.

    Examples:
        >>> tokens = "[PAD] [UNK] [CLS] [SEP] [MASK] hello wor ##ld".split()
        >>> vocabulary = et.data.Vocabulary(tuple(tokens))
        >>> tokenizer = et.data.WordPiece(vocabulary)
        >>> tokenizer.tokenize(tf.constant(["Hello world"]))
        <tf.RaggedTensor [[5, 6, 7]]>
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        lower_case: bool = True,
        strip_accents: bool = True,
    ):
        super().__init__(name="wordpiece")
        self.vocabulary = vocabulary
        self.lower_case = lower_case
        self.strip_accents = strip_accents
        self._clean_ascii = tf.strings.lower if lower_case else tf.identity
        self._split = tf_text.FastBertTokenizer(
            vocab=list(vocabulary.tokens),
            # A bound in bytes; `_limited` counts characters.
            max_bytes_per_word=4 * MAX_WORD_LENGTH,
            token_out_type=tf.int32,
            unknown_token=vocabulary.unk,
        )
        self._is_inside = np.array([t.startswith("##") for t in vocabulary.tokens])
        parts = (token.removeprefix("##") for token in vocabulary.tokens)
        self._sizes = np.fromiter(map(len, parts), np.int32)
        self._tokenize = tf.function(
            self.tokenize,
            input_signature=[tf.TensorSpec([None], tf.string)],
            autograph=False,
        )

    def __reduce__(self) -> tuple:
        casing = {"lower_case": self.lower_case, "strip_accents": self.strip_accents}
        return functools.partial(WordPiece, **casing), (self.vocabulary,)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns ids of [N] UTF-8 texts without [CLS] and [SEP]: [N, None] int32."""
        (ids,) = self._limited(self._split.tokenize(self.normalize(texts)))
        return ids

    def tokenize_with_offsets(
        self, texts: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Tokenizes valid UTF-8 texts; returns ids, starts and ends of the pieces.

        All are [N, None] int32. Offsets count Unicode code points of the text before
        normalization; ends are exclusive. Characters that normalization deletes, such
        as combining accents, belong to the previous piece.
        """
        ids, starts, ends = self._split.tokenize_with_offsets(self.normalize(texts))
        ids, starts, ends = self._limited(
            ids, (starts, tf.math.segment_min), (ends, tf.math.segment_max)
        )
        characters = tf.strings.unicode_split(texts, "UTF-8")
        sizes = tf.cast(tf.strings.length(self.normalize(characters.values)), tf.int64)
        # Bytes and characters are numbered across all texts.
        after = tf.cumsum(sizes)
        before = tf.concat([[0], after], 0)
        first_character = characters.row_starts()
        first_byte = tf.gather(before, first_character)
        row = starts.value_rowids()

        def holder(offsets: tf.RaggedTensor) -> tf.Tensor:
            """Returns the character that contains each byte."""
            byte = tf.cast(offsets.values, tf.int64) + tf.gather(first_byte, row)
            character = tf.searchsorted(after, byte, "right", tf.int64)
            return tf.cast(character - tf.gather(first_character, row), tf.int32)

        # A piece includes the decomposed character in which it ends (Korean).
        end = tf.maximum(holder(ends - 1) + 1, holder(ends))
        count = tf.cast(characters.row_lengths(), tf.int32)
        end = tf.minimum(end, tf.gather(count, row))
        return ids, starts.with_values(holder(starts)), ends.with_values(end)

    def _limited(
        self, ids: tf.RaggedTensor, *others: tuple[tf.RaggedTensor, Callable]
    ) -> list[tf.RaggedTensor]:
        """Replaces words that are too long with one [UNK].

        ``others`` are values per piece, each with a reduction over a word's pieces.
        """
        pieces = ids.flat_values
        is_first = ~tf.gather(tf.constant(self._is_inside), pieces)
        word = tf.cumsum(tf.cast(is_first, tf.int32)) - 1
        size = tf.math.segment_sum(tf.gather(tf.constant(self._sizes), pieces), word)
        is_long = tf.gather(size > MAX_WORD_LENGTH, word)
        kept = is_first | ~is_long
        splits = tf.concat([[0], tf.cumsum(tf.cast(kept, tf.int64))], 0)
        splits = tf.gather(splits, ids.row_splits)
        chosen = tf.squeeze(tf.where(kept), 1)
        columns = [tf.where(is_long, self.vocabulary.unk_id, pieces)]
        for other, of_word in others:
            whole = tf.gather(of_word(other.flat_values, word), word)
            columns.append(tf.where(is_long, whole, other.flat_values))
        # Validation would take more ops than the rest of this method.
        make = functools.partial(tf.RaggedTensor.from_row_splits, validate=False)
        return [make(tf.gather(column, chosen), splits) for column in columns]

    def normalize(self, texts: tf.Tensor) -> tf.Tensor:
        """Normalizes the text before splitting: [N] string to [N] string."""
        # Printable ASCII skips the regular expressions, half the time of tokenization.
        plain = self._clean_ascii(texts)
        rows = tf.where(~tf.strings.regex_full_match(texts, "[ -~]*"))  # [M, 1]
        return tf.cond(
            tf.size(rows) == 0,
            lambda: plain,
            lambda: tf.tensor_scatter_nd_update(
                plain, rows, self._clean_unicode(tf.gather_nd(texts, rows))
            ),
        )

    def _clean_unicode(self, texts: tf.Tensor) -> tf.Tensor:
        """Normalizes non-ASCII text in the order of the original."""
        # Invalid bytes become U+FFFD, which the next step deletes.
        texts = tf.strings.unicode_transcode(
            texts, "UTF-8", "UTF-8", errors="replace", replacement_char=0xFFFD
        )
        texts = tf.strings.regex_replace(texts, _SPACE, " ")
        texts = tf.strings.regex_replace(texts, _DELETED, "")
        if not self.lower_case:
            return texts
        if self.strip_accents:
            # Decomposition sorts the marks of a letter in quadratic time. So a joiner,
            # which is deleted with the marks, splits long runs (UAX 15, Stream-Safe).
            texts = tf.strings.regex_replace(texts, _MANY_MARKS, "\\1\u034f")
            texts = tf_text.normalize_utf8(texts, "NFD")
            texts = tf.strings.regex_replace(texts, r"\p{Mn}", "")
        # ICU lower-cases by the process's locale. So letters with Turkish or Lithuanian
        # rules are replaced first: I and J with ASCII; others only if accents are kept.
        texts = tf.strings.lower(texts)
        for capital in "" if self.strip_accents else _CAPITALS_OF_LOCALES:
            texts = tf.strings.regex_replace(texts, capital, capital.lower())
        return tf.strings.lower(texts, encoding="utf-8")

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Tokenizes in batches; returns the int32 ids of each text."""
        rows = []
        for start in range(0, len(texts), _BATCH):
            strings = string_tensor(texts[start : start + _BATCH])
            batch = self._tokenize(strings)
            ids, splits = batch.values.numpy(), batch.row_splits.numpy().tolist()
            rows += [ids[a:b] for a, b in itertools.pairwise(splits)]
        return rows

    def decode(self, ids: Iterable[int]) -> str:
        """Joins the pieces to readable text, with special tokens, without padding."""
        tokens, pad = self.vocabulary.tokens, self.vocabulary.pad_id
        text = " ".join(tokens[index] for index in ids if index != pad)
        # An example may start inside a word: do not join its piece to [CLS].
        text = re.sub(r"(?<!\]) ##(?=\S)", "", text)
        text = re.sub(r" ([,.;:!?%)\]}])(?=\W|$)", r"\1", text)
        return re.sub(r"([(\[{$]) (?=\w)|(?<=\w) (['\u2019-]) (?=\w)", r"\1\2", text)
