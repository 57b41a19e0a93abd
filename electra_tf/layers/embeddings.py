"""Token embeddings: words, positions and segments, normalized.

Encoders with the same embedding object share all tables and the LayerNorm, the default
of the paper (section 3.2) and of the original code. The other classes share less.

Letters: B batch, S sequence, V vocabulary, E embedding size. In every call,
``training`` turns dropout on, which needs ``seed``, int32 [2].
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.layers import fused, plain, weights
from electra_tf.layers.quantization import QuantizableLayer
from electra_tf.layers.randomness import check_rate, check_seed, known_shape
from electra_tf.layers.serialization import Serializable, argument_names, fresh_copy

# The tables in the order of creation.
TABLES = ("word_embeddings", "position_embeddings", "segment_embeddings")


@keras.saving.register_keras_serializable(package="electra_tf")
class TextEmbedding(QuantizableLayer, Serializable, keras.layers.Layer):
    """Sum of word, segment and position embeddings, LayerNorm, dropout.

    Its tables are the variables ``word_embeddings`` [V, E], ``position_embeddings``
    [max_positions, E] and ``segment_embeddings`` [num_segments, E] with E = ``size``.
    ``position_init`` is "truncated_normal", or "sinusoidal", an initial table that
    encodes relative positions; ValueError for other values. See
    ``TransformerEncoderBlock`` for other arguments.

    Examples:
        >>> table = et.layers.TextEmbedding(vocab_size=100, size=16, max_positions=32)
        >>> ids = tf.constant([[2, 7, 3]])
        >>> table(ids, segment_ids=ids * 0).shape
        TensorShape([1, 3, 16])
    """

    int8_weights = ("word_embeddings",)
    int8_axis = -1
    # Whether tables are shared with other embeddings; `quantize` then leaves them.
    is_shared = False

    def __init__(
        self,
        vocab_size: int,
        size: int,
        *,
        max_positions: int = 512,
        num_segments: int = 2,
        dropout: float = 0.1,
        initializer_range: float = 0.02,
        position_init: str = "truncated_normal",
        layer_norm_epsilon: float = 1e-12,
        name: str = "embeddings",
        **kwargs,
    ):
        super().__init__(name=name, **kwargs)
        weights.check_positive(
            vocab_size=vocab_size,
            size=size,
            max_positions=max_positions,
            num_segments=num_segments,
        )
        self.vocab_size = vocab_size
        self.size = size
        self.max_positions = max_positions
        self.num_segments = num_segments
        self.dropout = check_rate(dropout, "dropout")
        self.initializer_range = initializer_range
        allowed = ("truncated_normal", "sinusoidal")
        weights.check_choice("position_init", position_init, allowed)
        self.position_init = position_init
        self.layer_norm_epsilon = layer_norm_epsilon

    def build(self, input_shape: tuple | None = None) -> None:
        rows = (self.vocab_size, self.max_positions, self.num_segments)
        for name, count in zip(TABLES, rows, strict=True):
            self._add_table(name, count)
        self.gamma, self.beta = weights.add_layer_norm(self, "layer_norm", self.size)
        if self.quantization_mode:
            self._make_int8()

    def quantize(self, *args: Any, **kwargs: Any) -> None:
        if self.is_shared:
            # Keras warns and quantizes the other layers.
            raise NotImplementedError(f"{self.name} stays float: it shares tables.")
        super().quantize(*args, **kwargs)

    def _add_table(self, name: str, rows: int) -> None:
        if name == "position_embeddings" and self.position_init == "sinusoidal":
            start = weights.SinusoidalRows(self.initializer_range)
        else:
            start = keras.initializers.TruncatedNormal(stddev=self.initializer_range)
        setattr(self, name, weights.add_weight(self, name, (rows, self.size), start))

    def call(
        self,
        input_ids: tf.Tensor,
        segment_ids: tf.Tensor,
        *,
        training: bool = False,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Embeds int32 [B, S] tokens and segments: [B, S, E] in the compute dtype.

        Raises ValueError if S is above ``max_positions``.
        """
        words = self.words(input_ids)
        return self.compose(words, segment_ids, training=training, seed=seed)

    def words(self, input_ids: tf.Tensor) -> tf.Tensor:
        """Looks up word embeddings: int32 [B, S] to float32 [B, S, E]."""
        return self._pick("word_embeddings", lambda table: tf.gather(table, input_ids))

    def compose(
        self,
        words: tf.Tensor,
        segment_ids: tf.Tensor,
        *,
        training: bool = False,
        seed: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Maps ``words``, float32 [B, S, E], to the result of ``call``."""
        length = known_shape(words)[1]
        message = (
            f"The sequence is longer than the position table of {self.max_positions} "
            "rows: shorten it or use a larger max_positions."
        )
        if not isinstance(length, int):
            check = tf.debugging.assert_less_equal(length, self.max_positions, message)
            # Later ops depend on the check; otherwise their shape error comes first.
            with tf.control_dependencies([check]):
                length = tf.identity(length)
        elif length > self.max_positions:
            raise ValueError(f"{message} Got {length} tokens.")
        segments = self._pick(
            "segment_embeddings", lambda table: tf.gather(table, segment_ids)
        )
        positions = self._pick("position_embeddings", lambda table: table[:length])
        ops, rate = (fused, self.dropout) if training else (plain, 0.0)
        return ops.norm_drop(
            words + segments + positions,
            self.gamma,
            self.beta,
            seed=check_seed(seed) if rate else None,
            rate=rate,
            epsilon=self.layer_norm_epsilon,
            dtype=self.compute_dtype,
        )

    def _pick(self, name: str, rows: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
        """Applies ``rows`` to the named table; returns float32."""
        table = getattr(self, name)
        values = tf.cast(rows(tf.convert_to_tensor(table)), tf.float32)
        if not hasattr(table, "scale"):
            return values
        return values / tf.expand_dims(rows(tf.convert_to_tensor(table.scale)), -1)

    def word_table(self) -> tf.Tensor:
        """Returns the word table, float32 [V, E], with gradients."""
        return self._pick("word_embeddings", tf.identity)

    def standalone(self) -> TextEmbedding:
        """Returns these embeddings as a ``TextEmbedding`` that shares no table."""
        return self

    def take_over(self, source: TextEmbedding) -> None:
        for name in TABLES:
            self._set_table(name, source._pick(name, tf.identity))
        self.gamma.assign(source.gamma)
        self.beta.assign(source.beta)

    def _set_table(self, name: str, values: tf.Tensor) -> None:
        if hasattr(getattr(self, name), "scale"):
            raise UserError(f"{self.name} is int8: copy into float embeddings.")
        getattr(self, name).assign(values)


class _BorrowingEmbedding(TextEmbedding):
    def __init__(self, lender: TextEmbedding, *, name: str, **kwargs):
        given = {key: getattr(lender, key) for key in argument_names(TextEmbedding)}
        super().__init__(**{**given, **kwargs, "name": name})
        # Not in build, which opens a name scope: the lender's paths must not change.
        if not lender.built:
            lender.build()
        self.is_shared = lender.is_shared = True
        # A closure, because Keras would track the lender's variables in this layer.
        self._lender = lambda: lender

    @property
    def lender(self) -> TextEmbedding:
        """The ``TextEmbedding`` that owns the shared tables; not a sublayer."""
        return self._lender()

    def standalone(self) -> TextEmbedding:
        config = {**self.get_config(), "name": self.lender.name}
        del config["lender"]
        copy = TextEmbedding.from_config(config)
        copy.build()
        copy.take_over(self)
        return copy


@keras.saving.register_keras_serializable(package="electra_tf")
class SharedWordEmbedding(_BorrowingEmbedding):
    """Embeddings that share the word table of another embedding, the ``lender``.

    Both embeddings train the table. Most re-implementations share only this table.
    Other arguments of ``TextEmbedding`` are those of the lender by default.

    Examples:
        >>> lender = et.layers.TextEmbedding(vocab_size=100, size=16)
        >>> own = et.layers.SharedWordEmbedding(lender, name="discriminators")
        >>> ids = tf.constant([[2, 7, 3]])
        >>> own(ids, segment_ids=ids * 0).shape
        TensorShape([1, 3, 16])
    """

    def _add_table(self, name: str, rows: int) -> None:
        if name == "word_embeddings":
            self.word_embeddings = self.lender.word_embeddings
        else:
            super()._add_table(name, rows)


@keras.saving.register_keras_serializable(package="electra_tf")
class DeltaEmbedding(_BorrowingEmbedding):
    """Gradient-disentangled embedding sharing: stop_gradient(shared table) + delta.

    DeBERTaV3 (He et al., 2021), section 3.3: E_D = sg(E_G) + E_delta, with E_delta
    initially zero. The discriminator's loss does not train the tables of the generator,
    the ``lender``. The LayerNorm is not shared, as in that paper's code. Weight decay
    pulls towards the shared values. See ``SharedWordEmbedding`` for other arguments.

    Examples:
        >>> generators = et.layers.TextEmbedding(vocab_size=100, size=16, dropout=0.0)
        >>> own = et.layers.DeltaEmbedding(generators, name="discriminators")
        >>> ids = tf.constant([[2, 7, 3]])
        >>> own(ids, segment_ids=ids * 0).shape
        TensorShape([1, 3, 16])
    """

    def _add_table(self, name: str, rows: int) -> None:
        name = f"{name}_delta"
        setattr(self, name, weights.add_weight(self, name, (rows, self.size)))

    def _pick(self, name: str, rows: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
        shared = tf.stop_gradient(self.lender._pick(name, rows))
        return shared + super()._pick(f"{name}_delta", rows)

    def _set_table(self, name: str, values: tf.Tensor) -> None:
        # The lender's table must not change.
        shared = self.lender._pick(name, tf.identity)
        getattr(self, f"{name}_delta").assign(values - shared)


def with_embeddings(model: Any, embeddings: TextEmbedding | None = None) -> Any:
    """Returns an equal model or layer on other embeddings, by default standalone ones.

    This is a copy, or the same object if the embeddings are, or if it has none.
    """
    layers = model._flatten_layers()
    given = next((each for each in layers if isinstance(each, TextEmbedding)), None)
    if given is None:
        return model
    embeddings = embeddings or given.standalone()
    if embeddings is given:
        return model
    copy = fresh_copy(model, embeddings=embeddings)
    tables = {id(v) for layer in (given, embeddings) for v in layer.weights}
    values, targets = (
        [v for v in each.weights if id(v) not in tables] for each in (model, copy)
    )
    for value, target in zip(values, targets, strict=True):
        target.assign(value)
    return copy
