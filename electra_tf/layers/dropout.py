"""Dropout as a layer, for heads; the encoder's own dropout is fused into its blocks."""

import keras

from electra_tf.layers import fused
from electra_tf.layers.randomness import check_rate, check_seed, split_seed

__all__ = ["Dropout", "split_seed"]


@keras.saving.register_keras_serializable(package="electra_tf")
class Dropout(keras.layers.Layer):
    """Dropout whose mask is a pure function of the seed given to the call.

    Args:
        rate: Share of elements to drop, in [0, 1).
        **kwargs: Passed to `keras.layers.Layer`.
    """

    def __init__(self, rate, **kwargs):
        super().__init__(**kwargs)
        self.rate = check_rate(rate, "rate")

    def build(self, input_shape=None):
        """Has nothing to create."""

    def call(self, inputs, *, training=False, seed=None):
        """Drops elements when training.

        Args:
            inputs: Float tensor of any rank above 0.
            training: Python bool.
            seed: int32 [2], needed only when something is dropped.

        Returns:
            Tensor like `inputs`.
        """
        if not training or not self.rate:
            return inputs
        return fused.drop(inputs, seed=check_seed(seed), rate=self.rate)

    def compute_output_shape(self, input_shape):
        """Returns the shape of the result of `call`."""
        return input_shape

    def get_config(self):
        """Returns the constructor arguments."""
        return {**super().get_config(), "rate": self.rate}
