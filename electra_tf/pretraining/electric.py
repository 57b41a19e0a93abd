"""Electric: an energy for every token, trained against noise.

Clark et al., 2020b, "Pre-Training Transformers as Energy-Based Cloze Models" (EMNLP).
Electric models the probability of a token given all others without a softmax and
without [MASK]:

    p(x_t | x without t) = exp(-E(x)_t) / Z(x without t),    E(x)_t = w . h(x)_t

with h the encoder of the whole text. It is trained by noise-contrastive estimation
(section 2): of n tokens, k random ones are replaced by noise drawn from q(. | x
without t), a two-tower generator. Exp(-E) takes the place of p, with Z = 1. Of the
tokens at hand (n - k) are then data and k noise, and Bayes' rule says of a token at t

    P(data)  = (n - k) exp(-E) / ((n - k) exp(-E) + k q)
    P(noise) = k q / ((n - k) exp(-E) + k q) = sigmoid(logit),
    logit    = log(k q) - log((n - k) exp(-E)) = E(x)_t + log q + log(k / (n - k)).

So the sign is that of ELECTRA's head: a high energy is an unlikely token, a positive
logit says noise. The loss is the binary cross-entropy of these logits (Algorithm 2: one
pass for all noise and data, taking the text with noise for the context of every token).
The label is where a token came from: a draw that equals the original is noise too.

Letters: B batch, S sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.features import derive_inputs, scatter_positions
from electra_tf.layers import losses
from electra_tf.layers.encoder import TextEncoder
from electra_tf.pretraining.base import Batch
from electra_tf.pretraining.objectives import Discriminator, ReplacedTokenDetection
from electra_tf.pretraining.samplers import corrupt
from electra_tf.pretraining.two_tower import Cloze, TwoTowerElectra, TwoTowerGenerator


class Noised(NamedTuple):
    """What Electric's encoder reads and is asked.

    Attributes:
        inputs: encoder inputs, with ``input_ids`` the text with noise [B, S].
        is_masked: [B, S] bool, positions that were drawn.
        is_replaced: [B, S] bool, the same: every drawn position is noise.
        is_replaceable: [B, S] bool, positions that may be drawn.
        log_noise: [B, S] float32, log q of the token in ``inputs`` given the
            *original* tokens around it; without gradient.
    """

    inputs: dict[str, tf.Tensor]
    is_masked: tf.Tensor
    is_replaced: tf.Tensor
    is_replaceable: tf.Tensor
    log_noise: tf.Tensor


def noise_logits(energies: tf.Tensor, noised: Noised) -> tf.Tensor:
    """E + log q + log(k / (n - k)), float32 [B, S] like the energies; > 0 is noise."""
    drawn = tf.reduce_sum(tf.cast(noised.is_masked, tf.float32), 1, keepdims=True)
    tokens = tf.cast(noised.inputs["input_mask"], tf.float32)
    rest = tf.reduce_sum(tokens, 1, keepdims=True) - drawn
    # Deviation: k / (n - k) of each row, as the paper's Algorithm 2. The original code
    # has one constant, mask_prob / (1 - mask_prob), which is wrong for short rows and
    # under a schedule of the mask rate. A row without a draw counts as one with one.
    odds = tf.maximum(drawn, 1.0) / tf.maximum(rest, 1.0)
    return energies + noised.log_noise + tf.math.log(odds)


@keras.saving.register_keras_serializable(package="electra_tf")
class NoiseContrastiveEstimation(ReplacedTokenDetection):
    """Is this token noise? Binary cross-entropy of energies corrected by the noise.

    Called, it gives the energies E(x)_t [B, S]; its loss and its metrics are those of
    ``noise_logits``, over all real tokens (section 2, Algorithm 2, and the original
    code). ``replaced_fraction`` is the share of noise.

    Examples:
        >>> energy = pretraining.NoiseContrastiveEstimation()
        >>> energy(tf.zeros([1, 4, 32])).shape  # of every token
        TensorShape([1, 4])
    """

    def __init__(self, **kwargs):
        super().__init__("all", **kwargs)

    def loss(
        self, hidden: tf.Tensor, corrupted: Noised, totals: Batch, *, training: bool
    ) -> tf.Tensor:
        """Returns the local share of the mean loss over all real tokens."""
        logits = noise_logits(self(hidden, training=training), corrupted)
        return self.loss_of_logits(logits, corrupted, totals)

    def answer(self, hidden: tf.Tensor, corrupted: Noised) -> dict[str, tf.Tensor]:
        """Returns replaced_probability, float32 [B, S]: that of noise."""
        probability = tf.sigmoid(noise_logits(self(hidden), corrupted))
        return {"replaced_probability": probability}

    def as_model(self, encoder: TextEncoder) -> EnergyModel:
        """The encoder with its head, as a model of its own: it gives energies."""
        return EnergyModel(encoder, self)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments; the positions are no choice here."""
        config = super().get_config()
        del config["positions"]
        return config


@keras.saving.register_keras_serializable(package="electra_tf")
class EnergyModel(Discriminator):
    """A trained Electric without its generator: the energy of every token.

    Called, it gives E(x)_t [B, S] float32, which is no logit of "replaced": a high
    energy is an unlikely token. Arguments as ``Discriminator``.

    Examples:
        >>> model = pretraining.EnergyModel(
        ...     discriminator, pretraining.NoiseContrastiveEstimation()
        ... )
        >>> model({"input_ids": tf.constant([[2, 7, 9, 3]])}).shape
        TensorShape([1, 4])
    """


@keras.saving.register_keras_serializable(package="electra_tf")
class Electric(TwoTowerElectra):
    """Energy-based cloze model and its noise distribution, trained jointly.

    The loss is ``generator_weight * cross-entropy + discriminator_weight * NCE``, the
    first over all candidates (see ``TwoTowerGenerator``), the second over all real
    tokens. No gradient flows from the second into the generator, neither through the
    draws nor through log q.

    Called, it gives the energies E(x)_t [B, S] of encoder inputs; ``detector()``, a
    run's ``discriminator.keras``, does the same. See ``pseudo_log_likelihood``.

    The objective is ``NoiseContrastiveEstimation()`` by default. A sampler must draw
    from the softmax of the logits it gets, as the default does: log q is taken from
    them.

    Examples:
        >>> model = pretraining.Electric(towers, discriminator)
    """

    _learns_from_samples = True

    def __init__(
        self,
        generator: TwoTowerGenerator,
        discriminator: TextEncoder,
        *,
        objective: keras.layers.Layer | None = None,
        **kwargs,
    ):
        objective = objective or NoiseContrastiveEstimation(name="objective")
        super().__init__(generator, discriminator, objective=objective, **kwargs)
        draw = self.sampler
        if getattr(draw, "temperature", 1) != 1 or getattr(
            draw, "disallow_correct", False
        ):
            raise UserError(
                "Electric takes log q from the softmax of the generator's logits: the "
                "sampler must draw from it, with temperature=1 and without "
                "disallow_correct."
            )

    def _corrupted(self, batch: Batch, cloze: Cloze, sampled_ids: tf.Tensor) -> Noised:
        corrupted = corrupt(batch, sampled_ids, self.special_ids)
        positions = batch["masked_lm_positions"]
        # From the text and not from the samples: of two draws at a position one is
        # left. The context is the original one, as for the tokens that stayed.
        drawn_ids = tf.gather(corrupted.inputs["input_ids"], positions, batch_dims=1)
        log_noise = scatter_positions(
            -cloze.values,
            positions,
            -losses.token_cross_entropy(cloze.mlm_logits, drawn_ids),
            batch["masked_lm_weights"] > 0,
        )
        drawn = corrupted.is_masked
        return Noised(
            inputs=corrupted.inputs,
            is_masked=drawn,
            is_replaced=drawn,
            is_replaceable=corrupted.is_replaceable,
            log_noise=tf.stop_gradient(log_noise),
        )


def pseudo_log_likelihood(
    model: Callable[..., tf.Tensor],
    tokenizer: Callable,
    texts: Sequence[str],
    *,
    max_seq_length: int = 128,
    batch_size: int = 32,
) -> np.ndarray:
    """Sum of log p(token | all others) over each text, from one pass over it.

    Section 3 of the Electric paper: PLL(x) is the sum of -E(x)_t, with Z taken for 1
    as in training. [CLS] and [SEP] are left out: they are never noise, so that nothing
    was learned of their energies. For comparing texts of about equal length, such as
    the hypotheses of a speech recognizer.

    ``model`` is an ``Electric``, or the ``discriminator.keras`` of its run, and
    ``tokenizer`` the run's ``WordPiece``. Texts are cut to ``max_seq_length``, [CLS]
    and [SEP] included. Returns float64 nats, one number per text.

    Examples:
        >>> tokenizer = et.load("mini").tokenizer
        >>> table = et.layers.TextEmbedding(
        ...     len(tokenizer.vocabulary), 16, max_positions=32
        ... )
        >>> encoder = et.TextEncoder(table, hidden_size=32, **small)
        >>> model = pretraining.EnergyModel(
        ...     encoder, pretraining.NoiseContrastiveEstimation()
        ... )
        >>> texts = ["the cat sat.", "it ran."]
        >>> pretraining.pseudo_log_likelihood(
        ...     model, tokenizer, texts, max_seq_length=32
        ... ).shape
        (2,)
    """
    vocabulary = tokenizer.vocabulary
    scores = []
    for start in range(0, len(texts), batch_size):
        rows = [
            [vocabulary.cls_id, *ids[: max_seq_length - 2], vocabulary.sep_id]
            for ids in tokenizer.encode(texts[start : start + batch_size])
        ]
        ragged = tf.ragged.constant(rows, tf.int32)
        lengths = tf.cast(ragged.row_lengths(), tf.int32)
        ids = ragged.to_tensor(vocabulary.pad_id, shape=[None, max_seq_length])
        mask = tf.sequence_mask(lengths, max_seq_length, tf.int32)
        inputs = derive_inputs(ids, mask, vocabulary.sep_id)
        energies = np.asarray(model(inputs), np.float64)
        # Between [CLS] and the final [SEP]; a text cannot hold special tokens.
        inner = np.arange(max_seq_length)[None] < np.asarray(lengths)[:, None] - 1
        inner[:, 0] = False
        scores.extend(-(energies * inner).sum(axis=1))
    return np.array(scores)
