"""Names, shapes and dtypes of the tensors in records, batches and model inputs.

Axes: B batch, S sequence, P predicted positions per sequence. ``docs/data.md`` shows
the dictionaries as a table.
"""

from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from electra_tf.errors import UserError


class Feature(NamedTuple):
    """Axes such as ``("B", "S")``, dtype and meaning of a tensor."""

    shape: tuple[str, ...]
    dtype: str
    meaning: str


ENCODER_INPUTS: dict[str, Feature] = {
    "input_ids": Feature(("B", "S"), "int32", "original token ids, 0-padded"),
    "input_mask": Feature(("B", "S"), "int32", "1 real token, 0 padding"),
    "segment_ids": Feature(("B", "S"), "int32", "0 first, 1 second segment"),
}

PRETRAINING: dict[str, Feature] = {
    **ENCODER_INPUTS,
    "masked_input_ids": Feature(("B", "S"), "int32", "input of the generator"),
    "masked_lm_positions": Feature(("B", "P"), "int32", "chosen positions, 0-padded"),
    "masked_lm_ids": Feature(("B", "P"), "int32", "original ids at these positions"),
    "masked_lm_weights": Feature(("B", "P"), "float32", "1 real slot, 0 unused slot"),
}


# Input names of Hugging Face and keras-hub.
_ALIASES = {
    "attention_mask": "input_mask",
    "padding_mask": "input_mask",
    "token_ids": "input_ids",
    "token_type_ids": "segment_ids",
}


def encoder_inputs(
    inputs: Mapping[str, tf.Tensor] | tf.Tensor,
) -> dict[str, tf.Tensor]:
    """Returns inputs with ``input_mask`` (default ones) and ``segment_ids`` (zeros).

    Both are int32 [B, S]. ``inputs`` are token ids or a dict, also with the names of
    Hugging Face or keras-hub; other entries are kept. Raises ValueError for invalid
    inputs.
    """
    if not isinstance(inputs, Mapping):
        inputs = {"input_ids": inputs}
    renamed: dict[str, tf.Tensor] = {}
    for given, value in inputs.items():
        name = _ALIASES.get(given, given)
        if given in ("inputs_embeds", "position_ids"):
            raise UserError(f"The encoder cannot read {given}: leave it out.")
        if name in renamed:
            raise UserError(f"{given} is another name of {name}: pass one of them.")
        renamed[name] = value
    if "input_ids" not in renamed:
        raise UserError(f"input_ids is missing; the inputs are {', '.join(inputs)}.")
    ids = renamed["input_ids"]
    dtype, shape = getattr(ids, "dtype", tf.string), getattr(ids, "shape", ())
    if len(shape) != 2 or dtype == tf.string:
        raise UserError(
            f"input_ids must be token ids of shape [batch, length], got {shape}."
        )
    shape = ids.shape[:2]
    if None in tuple(shape):
        shape = tf.shape(ids)[:2]
    for name, default in (("input_mask", tf.ones), ("segment_ids", tf.zeros)):
        value = renamed.get(name)
        if value is None:
            renamed[name] = default(shape, tf.int32)
        elif value.dtype != tf.int32:
            renamed[name] = tf.cast(value, tf.int32)
    return renamed


def tensor_specs(features: Mapping[str, Feature]) -> dict[str, tf.TensorSpec]:
    """Returns one ``tf.TensorSpec`` per feature, with axes of any size."""
    return {
        name: tf.TensorSpec([None] * len(feature.shape), feature.dtype, name)
        for name, feature in features.items()
    }


def check_batch(batch: Mapping[str, tf.Tensor]) -> None:
    """Raises ValueError if a ``PRETRAINING`` feature is missing or malformed."""
    missing = sorted(PRETRAINING.keys() - batch.keys())
    if missing:
        raise UserError(
            f"The batch lacks {', '.join(missing)}; it has {', '.join(sorted(batch))}. "
            "Build it with electra_tf.data.pretraining_dataset."
        )
    for name, feature in PRETRAINING.items():
        value = batch[name]
        got = (tf.as_dtype(value.dtype).name, len(value.shape))
        expected = (feature.dtype, len(feature.shape))
        if got != expected:
            raise UserError(
                f"Feature {name}: expected {feature.dtype} of shape "
                f"[{', '.join(feature.shape)}], got {got[0]} of shape {value.shape}."
            )


def scatter_positions(
    rows: tf.Tensor, positions: tf.Tensor, values: tf.Tensor, used: tf.Tensor
) -> tf.Tensor:
    """Writes ``values`` into ``rows`` at ``positions`` where ``used`` is true.

    ``rows`` is [B, S, ...]; ``values`` is [B, P, ...]; ``positions`` is int32 and
    ``used`` bool [B, P]. A repeated position gets one of its values.
    """
    batch, size = tf.unstack(tf.shape(positions))
    numbers = tf.repeat(tf.range(batch), size)
    # Unused slots write to an extra first column, which is dropped.
    columns = tf.reshape(tf.where(used, positions + 1, 0), [-1])
    inner = rows.shape[2:]
    padded = tf.pad(rows, [[0, 0], [1, 0], *([0, 0] for _ in inner)])
    updated = tf.tensor_scatter_nd_update(
        padded, tf.stack([numbers, columns], axis=1), tf.reshape(values, [-1, *inner])
    )
    return updated[:, 1:]


def derive_inputs(
    input_ids: tf.Tensor, input_mask: tf.Tensor, sep_id: int
) -> dict[str, tf.Tensor]:
    """Returns the ``ENCODER_INPUTS``; segment 0 ends at the first [SEP]."""
    separators = tf.cast(input_ids == sep_id, tf.int32)
    after_first = tf.minimum(tf.cumsum(separators, axis=1, exclusive=True), 1)
    segments = after_first * input_mask
    return {"input_ids": input_ids, "input_mask": input_mask, "segment_ids": segments}
