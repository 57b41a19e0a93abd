"""The sentence-level loss: was anything in this input replaced?

A negative result of the paper (its appendix on negative results): a fifth of the
inputs is left as it was, and the [CLS] vector says whether the input was corrupted.
It made the results slightly worse. An objective beside the token-level one, and a
sampler that leaves rows alone.

Letters: B batch, S sequence, P predicted positions, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
import tensorflow as tf

from electra_tf import losses
from electra_tf.encoder import TextEncoder
from electra_tf.layers.weights import add_dense
from electra_tf.pretraining.base import Batch, deserialize_parts
from electra_tf.pretraining.detectors import Discriminator
from electra_tf.pretraining.metrics import TokenMean, TotalLoss
from electra_tf.pretraining.objectives import Objective
from electra_tf.pretraining.samplers import Corrupted
from electra_tf.pretraining.schedules import Schedule
from electra_tf.replicas import fold_in

# Site of the choice of rows, beside the wrapped sampler's draws from the same seed.
_ROWS = 1


@keras.saving.register_keras_serializable(package="electra_tf")
class SentenceDetection(Objective):
    """Was anything in this row replaced? Binary cross-entropy, a mean over rows.

    One linear unit reads the hidden state of [CLS]. A row counts as corrupted if any
    of its tokens differs from the original: a row whose samples all happen to be right
    is as real as its tokens are. Rows of padding do not count.

    Args:
        **kwargs: passed to ``keras.layers.Layer``.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.loss_metric = TokenMean(name="sentence_loss")
        self._accuracy = TokenMean(name="sentence_accuracy")
        self._corrupted = TokenMean(name="corrupted_fraction")

    def build(self, hidden_shape):
        """Creates the unit for hidden states of shape [B, S, D]."""
        self.kernel, self.bias = add_dense(
            self, "sentence", (hidden_shape[-1], 1), keras.initializers.GlorotUniform()
        )
        self.built = True

    @property
    def step_metrics(self) -> list[keras.metrics.Metric]:
        """The metrics that ``loss`` updates, in the order they are shown."""
        return [self.loss_metric, self._accuracy, self._corrupted]

    def call(
        self, hidden: tf.Tensor, inputs: Batch | None = None, training: bool = False
    ) -> tf.Tensor:
        """Returns sentence_logits [B] float32 of hidden [B, S, D]; > 0 is corrupted."""
        del inputs, training
        first = tf.cast(hidden[:, 0], tf.float32)
        logits = tf.matmul(first, tf.cast(self.kernel, tf.float32))
        return tf.squeeze(logits + tf.cast(self.bias, tf.float32), axis=-1)

    def loss(
        self, hidden: tf.Tensor, corrupted: Corrupted, totals: Batch, *, training: bool
    ) -> tf.Tensor:
        """Returns the local share of the mean loss over all rows with tokens."""
        logits = self(hidden, corrupted.inputs, training=training)
        labels = tf.reduce_any(corrupted.is_replaced, axis=1)
        weights = tf.reduce_max(corrupted.inputs["input_mask"], axis=1)
        values = losses.binary_cross_entropy(labels, logits)
        self.loss_metric.update_state(values, weights)
        self._accuracy.update_state((logits > 0) == labels, weights)
        self._corrupted.update_state(labels, weights)
        return losses.weighted_mean(values, weights, totals["rows"])


@keras.saving.register_keras_serializable(package="electra_tf")
class JointObjective(Objective):
    """One objective plus another one, weighted.

    Scores, answers and the saved model are those of the first.

    Args:
        first: an objective layer.
        second: another one.
        weight: of the second one's loss; the first one's is 1.
        **kwargs: passed to ``keras.layers.Layer``.
    """

    def __init__(
        self,
        first: Objective,
        second: Objective,
        weight: float = 1.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.first = first
        self.second = second
        self.weight = weight
        self.loss_metric = TotalLoss(
            [(first.loss_metric, 1.0), (second.loss_metric, weight)], name="joint_loss"
        )

    def build(self, hidden_shape):
        """Builds both objectives."""
        for part in (self.first, self.second):
            if not part.built:
                part.build(hidden_shape)
        self.built = True

    @property
    def step_metrics(self) -> list[keras.metrics.Metric]:
        """The metrics of both."""
        return [*self.first.step_metrics, *self.second.step_metrics]

    def call(
        self, hidden: tf.Tensor, inputs: Batch | None = None, training: bool = False
    ) -> tf.Tensor:
        """Returns the scores of the first objective."""
        return self.first(hidden, inputs, training=training)

    def loss(
        self, hidden: tf.Tensor, corrupted: Corrupted, totals: Batch, *, training: bool
    ) -> tf.Tensor:
        """Returns the weighted sum of both losses."""
        first, second = (
            part.loss(hidden, corrupted, totals, training=training)
            for part in (self.first, self.second)
        )
        return first + self.weight * second

    def answer(self, hidden: tf.Tensor, corrupted: Corrupted) -> dict[str, tf.Tensor]:
        """Returns the answer of the first objective."""
        return self.first.answer(hidden, corrupted)

    def as_model(self, encoder: TextEncoder) -> Discriminator:
        """The encoder with the head of the first objective."""
        return self.first.as_model(encoder)

    def get_config(self):
        """Returns the constructor's arguments, the objectives live."""
        return {
            **super().get_config(),
            "first": self.first,
            "second": self.second,
            "weight": self.weight,
        }

    @classmethod
    def from_config(cls, config):
        """Rebuilds the layer from ``get_config``, before or after serialization."""
        return cls(**deserialize_parts(config))


@keras.saving.register_keras_serializable(package="electra_tf")
class LeaveRows:
    """A sampler that gives some rows their own tokens back: nothing is replaced there.

    The generator trains on these rows as on all others; its ``sampled_accuracy`` counts
    their tokens as sampled right.

    Args:
        sampler: the sampler of the other rows.
        share: probability of a row to be left as it was; 0.2 in the paper.

    Raises:
        ValueError: if the share is not in [0, 1).
    """

    def __init__(self, sampler: Callable, share: float = 0.2):
        if not 0 <= share < 1:
            raise ValueError(f"share must be in [0, 1), got {share}.")
        self.sampler = sampler
        self.share = share

    @property
    def schedules(self) -> dict[str, Schedule]:
        """What varies with the step in the sampler of the other rows."""
        return getattr(self.sampler, "schedules", {})

    def __call__(
        self,
        mlm_logits: tf.Tensor,
        masked_lm_ids: tf.Tensor,
        seed: tf.Tensor,
        step: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Draws tokens; arguments and result as ``CategoricalSampler``."""
        sampled_ids = self.sampler(mlm_logits, masked_lm_ids, seed, step)
        draws = tf.random.stateless_uniform(
            [tf.shape(masked_lm_ids)[0], 1], fold_in(seed, _ROWS), alg="philox"
        )
        return tf.where(draws < self.share, masked_lm_ids, sampled_ids)

    def get_config(self):
        """Returns the constructor's arguments, the sampler live."""
        return {"sampler": self.sampler, "share": self.share}

    @classmethod
    def from_config(cls, config):
        """Rebuilds the sampler from ``get_config``."""
        return cls(**deserialize_parts(config))
