"""Names, shapes and dtypes of the tensors in records, batches and model inputs.

Axes: B batch, S sequence, P predicted positions per sequence. ``docs/data.md`` shows
the dictionaries as a table, with the meanings.
"""

from collections.abc import Mapping

import tensorflow as tf

from electra_tf.errors import UserError


def _specs(dtype: str, *names: str) -> dict[str, tf.TensorSpec]:
    return {name: tf.TensorSpec([None, None], dtype, name) for name in names}


# All [B, S].
ENCODER_INPUTS = _specs("int32", "input_ids", "input_mask", "segment_ids")
PRETRAINING = {
    **ENCODER_INPUTS,
    **_specs("int32", "masked_input_ids"),
    # [B, P].
    **_specs("int32", "masked_lm_positions", "masked_lm_ids"),
    **_specs("float32", "masked_lm_weights"),
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
    Hugging Face or keras-hub; other entries are kept. Invalid ones raise ValueError.
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


def check_batch(batch: Mapping[str, tf.Tensor]) -> None:
    """Raises ValueError if a ``PRETRAINING`` feature is missing or malformed."""
    missing = sorted(PRETRAINING.keys() - batch.keys())
    if missing:
        raise UserError(
            f"The batch lacks {', '.join(missing)}; it has {', '.join(sorted(batch))}. "
            "Build it with electra_tf.data.pretraining_dataset."
        )
    for name, spec in PRETRAINING.items():
        value = batch[name]
        dtype = tf.as_dtype(value.dtype)
        if dtype != spec.dtype or len(value.shape) != 2:
            raise UserError(
                f"Feature {name}: expected {spec.dtype.name} with two axes, got "
                f"{dtype.name} of shape {value.shape}."
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
