"""LoRA: low-rank updates of frozen kernels (Hu et al., 2021), with keras-hub's verbs.

A kernel W [D, F] with factors A [D, r] and B [r, F] multiplies by W + A B.
"""

import functools
import os
from typing import Self

import h5py
import keras

from electra_tf.errors import UserError
from electra_tf.layers.quantization import modes
from electra_tf.layers.serialization import fresh_copy
from electra_tf.layers.weights import check_positive


def is_factor(variable: keras.Variable) -> bool:
    """Returns whether a variable of a block is a factor of LoRA."""
    return "_lora_" in variable.name


class LoraModel:
    """Mixin with the verbs of LoRA for an encoder or a model with an ``encoder``."""

    def enable_lora(self, rank: int) -> None:
        """Freezes the encoder, except for new factors at all kernels of its blocks.

        Outputs stay the same until the factors are trained. Compile the model after
        this call. Raises ValueError if LoRA is enabled already or weights are int8.
        """
        check_positive(rank=rank)
        encoder = getattr(self, "encoder", self)
        if encoder.lora_rank:
            raise UserError(f"LoRA is enabled already, of rank {encoder.lora_rank}.")
        if any(modes(encoder)):
            raise UserError("The encoder is int8: train LoRA, merge it, then quantize.")
        encoder.lora_rank = rank
        for block in encoder.transformer.blocks:
            block._tracker.unlock()
            add = functools.partial(block.add_weight, dtype="float32", autocast=False)
            for kernel in [v for v in block.weights if v.name.endswith("kernel")]:
                rows, columns = kernel.shape
                name = kernel.name.removesuffix("kernel") + "lora_"
                a = add((rows, rank), "he_uniform", name=f"{name}a")
                b = add((rank, columns), "zeros", name=f"{name}b")
                kernel.lora = (a, b)
            block._tracker.lock()
        # Freezes all but the factors; Keras passes only changes on to sublayers.
        encoder.trainable = False
        encoder.trainable = True

    def merge_lora(self) -> Self:
        """Returns a copy with the factors added to the kernels."""
        copy = fresh_copy(self, lora_rank=None)
        weights = [v for v in self.weights if not is_factor(v)]
        for variable, target in zip(weights, copy.weights, strict=True):
            value = variable.numpy()
            if hasattr(variable, "lora"):
                a, b = variable.lora
                value = value + a.numpy() @ b.numpy()
            target.assign(value)
        layers = zip(self._flatten_layers(), copy._flatten_layers(), strict=True)
        for own, new in layers:
            # Tables that ``DeltaEmbedding`` borrows are not among the weights.
            if hasattr(own, "lender"):
                new.lender.set_weights(own.lender.get_weights())
        return copy

    def save_lora_weights(self, filepath: str | os.PathLike) -> None:
        """Saves the factors and the task's head.

        Raises ValueError without LoRA or if other weights are trained.
        """
        encoder = getattr(self, "encoder", self)
        rank = encoder.lora_rank
        if not rank:
            raise UserError("The model has no LoRA weights: call enable_lora(rank).")
        trained = [v for v in encoder.weights if v.trainable]
        if others := [v.path for v in trained if not is_factor(v)]:
            raise UserError(
                f"{others[0]} is trained, and the file has only LoRA's factors and the "
                "head: freeze it before training, or save the whole model."
            )
        with h5py.File(filepath, "w") as file:
            file["lora/rank"] = rank
            file["lora"].attrs["labels"] = list(getattr(self, "labels", ()))
            for name, variable in self._lora_weights().items():
                file[name] = variable.numpy()

    def load_lora_weights(self, filepath: str | os.PathLike) -> None:
        """Loads ``save_lora_weights`` into an equal model; enables LoRA if it is off.

        Raises ValueError if the rank, the labels, a name or a shape differs.
        """
        try:
            with h5py.File(filepath) as file:
                rank = int(file["lora/rank"][()])
                stored = list(file["lora"].attrs.get("labels", ()))
                arrays = {
                    f"lora/{number}/{name}": array[()]
                    for number, group in file["lora"].items()
                    if number != "rank"
                    for name, array in group.items()
                }
        except FileNotFoundError:
            raise
        except (OSError, KeyError) as error:
            raise UserError(f"{filepath} holds no LoRA weights: {error}") from error
        labels = list(getattr(self, "labels", ()))
        if stored and labels and stored != labels:
            raise UserError(
                f"{filepath} has the labels {stored}, and the model {labels}."
            )
        encoder = getattr(self, "encoder", self)
        # Checked before LoRA is enabled, which cannot be undone.
        rows = [x.shape[0] for n, x in arrays.items() if n.endswith("qkv_lora_a")]
        if rows != [encoder.hidden_size] * encoder.num_layers:
            raise UserError(f"{filepath} holds LoRA weights of another model.")
        if not encoder.lora_rank:
            self.enable_lora(rank)
        own = self._lora_weights()
        shapes = {name: array.shape for name, array in arrays.items()}
        if shapes != {name: variable.shape for name, variable in own.items()}:
            raise UserError(f"{filepath} holds LoRA weights of another model.")
        for name, variable in own.items():
            variable.assign(arrays[name])

    def _lora_weights(self) -> dict[str, keras.Variable]:
        """Returns the factors and the head's weights, trained or frozen, by name."""
        encoder = {id(v) for v in getattr(self, "encoder", self).weights}
        own = [v for v in self.weights if is_factor(v) or id(v) not in encoder]
        # Numbered as in keras-hub, because names are not unique.
        return {f"lora/{number}/{v.name}": v for number, v in enumerate(own)}
