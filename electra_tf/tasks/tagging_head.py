"""The tagging head, and what a served model makes of its outputs.

Letters: B batch, S sequence, D hidden size, C tags, W words.
"""

import keras
import tensorflow as tf

from electra_tf.losses import token_cross_entropy, weighted_mean
from electra_tf.tasks.heads import ClassificationHead
from electra_tf.tasks.tag_sets import TagSet


@keras.saving.register_keras_serializable(package="electra_tf")
class TaggingHead(ClassificationHead):
    """One linear layer on every position, after dropout; arguments as its parent's."""

    def call(self, hidden, inputs=None, *, training=False, seed=None):
        """Returns tag_logits, float32 [B, S, C], from hidden [B, S, D]."""
        vectors = self.dropout_layer(hidden, training=training, seed=seed)
        # float32 whatever the policy: it is the last product before the loss.
        logits = tf.tensordot(tf.cast(vectors, tf.float32), self.kernel, 1)
        return logits + self.bias

    def compute_output_spec(self, hidden, inputs=None, *, training=False, seed=None):
        """Returns the shape of the result of `call`."""
        shape = (*hidden.shape[:2], self.num_outputs)
        return keras.KerasTensor(shape, dtype="float32")


@keras.saving.register_keras_serializable(package="electra_tf")
class WordMean(keras.losses.Loss):
    """Cross-entropy of tag_logits, the mean over the words of the batch.

    Words are what sample weights above 0 mark; they are counted over all replicas,
    which Keras's own reductions do not do.

    Args:
        name: Name of the loss.
    """

    def __init__(self, name="word_mean"):
        super().__init__(name=name, reduction="none")

    def __call__(self, y_true, y_pred, sample_weight=None):
        """This replica's share of the mean: a scalar.

        Args:
            y_true: Tags, int [B, S].
            y_pred: tag_logits, [B, S, C].
            sample_weight: float [B, S]; default: all ones.
        """
        values = self.call(y_true, y_pred)
        weights = tf.ones_like(values) if sample_weight is None else sample_weight
        return weighted_mean(values, weights)

    def call(self, y_true, y_pred):
        """Returns [B, S]."""
        return token_cross_entropy(y_pred, tf.cast(y_true, tf.int32))

    def get_config(self):
        """Returns the constructor arguments."""
        return {"name": self.name}


def word_outputs(logits: tf.Tensor, inputs: dict, tags: TagSet) -> dict:
    """Answers to words.

    Args:
        logits: tag_logits, [R, S, C].
        inputs: From `word_tensors`.
        tags: What the model has learned.

    Returns:
        words and tags (string) and probabilities [B, W], padded; num_words [B].
    """
    place = tf.stack([inputs["word_row"], inputs["word_position"]], axis=-1)
    probabilities = tf.nn.softmax(tf.gather_nd(logits, place))  # [B, W, C]
    read = inputs["word_position"] > 0
    fallback = tags.learned.index(tags.fallback)
    best = tf.where(read, tf.argmax(probabilities, -1), fallback)
    real = tf.sequence_mask(inputs["num_words"], tf.shape(best)[1])
    return {
        "words": inputs["words"],
        "num_words": inputs["num_words"],
        "tags": tf.where(real, _answered(best, tags), ""),
        "probabilities": tf.where(read, tf.reduce_max(probabilities, -1), 0.0),
    }


def _answered(best, tags):
    """`TagSet.answer` of numbers [B, W]: looked up by tag and tag before it."""
    before = tf.pad(best + 1, [[0, 0], [1, 0]])[:, :-1]  # 0: nothing before
    table = [
        [tags.answer_tag(tag, other) for tag in tags.learned]
        for other in ("O", *tags.learned)
    ]
    return tf.gather_nd(tf.constant(table), tf.stack([before, best], axis=-1))


def position_outputs(logits: tf.Tensor, tags: TagSet) -> dict:
    """Tags (as learned) and probabilities at every position, [B, S]."""
    probabilities = tf.nn.softmax(logits)
    return {
        "tags": tf.gather(tf.constant(tags.learned), tf.argmax(probabilities, -1)),
        "probabilities": tf.reduce_max(probabilities, -1),
    }
