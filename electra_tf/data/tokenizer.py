"""WordPiece: the same ids offline, inside tf.data and in a SavedModel."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_text as tf_text

from electra_tf.data.vocabulary import MAX_WORD_LENGTH, Vocabulary

_SPACE = r"[\t\n\r\p{Z}]"
_DELETED = r"[\x{fffd}\p{Cc}\p{Cf}\p{Co}]"
# Or a text without spaces, such as Chinese: not all that match have one.
_WITH_LONG_WORD = rf"(?s).*[^ ]{{{MAX_WORD_LENGTH + 1}}}.*"
_MANY_MARKS = r"(\p{M}{16})"
_CAPITALS_OF_LOCALES = "\u0130\u012e\u00cc\u00cd\u0128"
_BATCH = 1024


class WordPiece(tf.Module):
    """BERT's tokenizer: clean, lower-case, strip accents, split, greedy longest match.

    The text is normalized in the graph, as Hugging Face's ``BertWordPieceTokenizer``
    and the original do it, and then split by ``tensorflow_text.FastBertTokenizer``,
    whose own normalization is another one (compatibility case folding). Rows of
    printable ASCII, which need none of it, take a short cut.

    Agrees with ``BertWordPieceTokenizer`` except for:

    * Literal [MASK], [CLS], ... in the text: brackets and a word here (as in the
      original), the special token there.
    * Words over 200 characters are [UNK], as in the original; over 100 there.
    * Final capital sigma becomes a final small sigma (as in the original).
    * About 760 of 282,000 code points (380 of them combining marks), which came with
      Unicode versions that TensorFlow's regular expressions do not know yet.
    * Invalid UTF-8: offending bytes are dropped here, not accepted there.

    Works under ``tf.function``, in ``tf.data.Dataset.map`` (on batches) and as an
    attribute of an exported model; who loads the SavedModel imports
    ``tensorflow_text`` first.

    Accents are removed only if the text is lower-cased too.

    Example:
        >>> tokenizer = WordPiece(Vocabulary.load("vocab.txt"))
        >>> tokenizer.tokenize(tf.constant(["Hello world"]))
        <tf.RaggedTensor [[7592, 2088]]>
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
        self._clean_unicode = _cleaner(lower_case, lower_case and strip_accents)
        self._clean_ascii = tf.strings.lower if lower_case else tf.identity
        self._split = tf_text.FastBertTokenizer(
            vocab=list(vocabulary.tokens),
            # As many as so many characters can have; `_limited` counts them.
            max_bytes_per_word=4 * MAX_WORD_LENGTH,
            token_out_type=tf.int32,
            unknown_token=vocabulary.unk,
        )
        self._is_inside = np.array([t.startswith("##") for t in vocabulary.tokens])
        # Autograph would read the source of all that is called, for half a second.
        self._tokenize = tf.function(
            self.tokenize,
            input_signature=[tf.TensorSpec([None], tf.string)],
            autograph=False,
        )

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Ids of [N] texts, UTF-8, without special tokens: [N, None] int32, ragged."""
        normalized = self.normalize(texts)
        return tf.cond(
            tf.reduce_any(tf.strings.regex_full_match(normalized, _WITH_LONG_WORD)),
            lambda: self._limited(normalized)[0],
            lambda: self._split.tokenize(normalized),
        )

    def tokenize_with_offsets(
        self, texts: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Ids, and which characters of the texts (valid UTF-8) each piece stands for.

        Exact although the text is normalized before it is split: every character is
        normalized alone too, which says how many bytes came of it. Characters of which
        nothing is left, such as combining accents, belong to the piece before them.

        Returns ids, first character, and character after the last one, counted in
        Unicode code points: [N, None] int32 each, ragged.
        """
        normalized = self.normalize(texts)
        ids, starts, ends = self._limited(normalized)
        characters = tf.strings.unicode_split(texts, "UTF-8")
        sizes = tf.cast(tf.strings.length(self.normalize(characters.values)), tf.int64)
        # Bytes of all texts in a row are numbered through; so are their characters.
        after = tf.cumsum(sizes)
        before = tf.concat([[0], after], 0)
        first_character = characters.row_starts()
        first_byte = tf.gather(before, first_character)
        row = starts.value_rowids()

        def holder(offsets: tf.RaggedTensor) -> tf.Tensor:
            """The characters that hold these bytes: the first that end after them."""
            byte = tf.cast(offsets.values, tf.int64) + tf.gather(first_byte, row)
            character = tf.searchsorted(after, byte, "right", tf.int64)
            return tf.cast(character - tf.gather(first_character, row), tf.int32)

        # A piece may end inside of what came of one character, such as a Korean
        # syllable; that character then belongs to it as a whole.
        end = tf.maximum(holder(ends - 1) + 1, holder(ends))
        count = tf.cast(characters.row_lengths(), tf.int32)
        end = tf.minimum(end, tf.gather(count, row))
        return ids, starts.with_values(holder(starts)), ends.with_values(end)

    def _limited(
        self, normalized: tf.Tensor
    ) -> tuple[tf.RaggedTensor, tf.RaggedTensor, tf.RaggedTensor]:
        """Ids, first byte, and byte after the last; long words are one [UNK] each."""
        ids, starts, ends = self._split.tokenize_with_offsets(normalized)
        row, values = ids.value_rowids(), ids.flat_values
        # Bytes of all texts in a row, and how many characters begin before each.
        sizes = tf.cast(tf.strings.length(normalized), tf.int64)
        base = tf.gather(tf.cumsum(sizes, exclusive=True), row)
        content = tf.io.decode_raw(tf.strings.reduce_join(normalized), tf.uint8)
        is_start = tf.cast(tf.bitwise.bitwise_and(content, 0xC0) != 0x80, tf.int32)
        before = tf.concat([[0], tf.cumsum(is_start)], 0)
        # Pieces that go on with a word are those of the vocabulary that begin with ##.
        is_first = ~tf.gather(tf.constant(self._is_inside), values)
        word = tf.cumsum(tf.cast(is_first, tf.int32)) - 1
        begin = tf.math.segment_min(starts.flat_values, word)
        end = tf.math.segment_max(ends.flat_values, word)
        first, last = tf.gather(begin, word) + base, tf.gather(end, word) + base
        is_long = tf.gather(before, last) - tf.gather(before, first) > MAX_WORD_LENGTH
        kept = is_first | ~is_long
        columns = (
            tf.where(is_long, self.vocabulary.unk_id, values),
            starts.flat_values,
            tf.where(is_long, last - base, ends.flat_values),
        )
        rows = tf.boolean_mask(row, kept)
        return tuple(
            tf.RaggedTensor.from_value_rowids(
                tf.boolean_mask(column, kept), rows, nrows=ids.nrows()
            )
            for column in columns
        )

    def normalize(self, texts: tf.Tensor) -> tf.Tensor:
        """The text that is split into words: [N] string to [N] string."""
        plain = self._clean_ascii(texts)
        rows = tf.where(~tf.strings.regex_full_match(texts, "[ -~]*"))  # [M, 1]
        return tf.cond(
            tf.size(rows) == 0,
            lambda: plain,
            lambda: tf.tensor_scatter_nd_update(
                plain, rows, self._clean_unicode(tf.gather_nd(texts, rows))
            ),
        )

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Ids of each text, int32, tokenized in batches: the offline ``tokenize``."""
        rows = []
        for start in range(0, len(texts), _BATCH):
            batch = self._tokenize(
                tf.constant(texts[start : start + _BATCH], tf.string)
            )
            ids, splits = batch.values.numpy(), batch.row_splits.numpy().tolist()
            rows += [ids[a:b] for a, b in itertools.pairwise(splits)]
        return rows

    def decode(self, ids: Iterable[int]) -> str:
        """Readable text: pieces joined, spaces before punctuation left out.

        Special tokens are shown, padding is not. The spaces, case and accents of the
        original text are lost.
        """
        tokens, pad = self.vocabulary.tokens, self.vocabulary.pad_id
        text = " ".join(tokens[index] for index in ids if index != pad)
        # An example may start inside a word: no piece is joined to a special token.
        text = re.sub(r"(?<!\]) ##(?=\S)", "", text)
        text = re.sub(r" ([,.;:!?%)\]}])(?=\W|$)", r"\1", text)
        return re.sub(r"([(\[{$]) (?=\w)|(?<=\w) (['\u2019-]) (?=\w)", r"\1\2", text)


def _cleaner(lower_case: bool, strip_accents: bool) -> Callable[[tf.Tensor], tf.Tensor]:
    """The steps for text that is not plain ASCII, in the order of the original."""

    def clean(texts: tf.Tensor) -> tf.Tensor:
        # Invalid bytes become U+FFFD, which the next step deletes.
        texts = tf.strings.unicode_transcode(
            texts, "UTF-8", "UTF-8", errors="replace", replacement_char=0xFFFD
        )
        texts = tf.strings.regex_replace(texts, _SPACE, " ")
        return tf.strings.regex_replace(texts, _DELETED, "")

    def strip(texts: tf.Tensor) -> tf.Tensor:
        # Decomposition sorts the marks of a letter, in time quadratic in their number.
        # So a joiner, which is deleted with the marks, ends a run of more than any
        # script has; the Stream-Safe Text Format of Unicode (UAX 15) allows 30.
        texts = tf.strings.regex_replace(clean(texts), _MANY_MARKS, "\\1\u034f")
        decomposed = tf_text.normalize_utf8(texts, "NFD")
        return tf.strings.regex_replace(decomposed, r"\p{Mn}", "")

    def lower(texts: tf.Tensor) -> tf.Tensor:
        # ICU lower-cases by the rules of the process's locale. Letters that Turkish and
        # Lithuanian ones treat in their own way are replaced first: I and J with all
        # of ASCII, which needs no ICU; the others only occur with their accents.
        texts = tf.strings.lower((strip if strip_accents else clean)(texts))
        for capital in "" if strip_accents else _CAPITALS_OF_LOCALES:
            texts = tf.strings.regex_replace(texts, capital, capital.lower())
        return tf.strings.lower(texts, encoding="utf-8")

    return lower if lower_case else clean
