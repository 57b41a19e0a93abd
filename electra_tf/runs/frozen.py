"""Frozen probes: linear models on the hidden states of a frozen encoder.

One linear layer is trained to convergence (``linear.py``) on each layer's states, and
on a learned mixture of all layers. Only the encoder's weights affect the score, so each
encoder has one score, not one per seed. The probes follow Tenney et al., 2019, the
mixtures ELMo (Peters et al., 2018).

Letters: L layers (with the first block's input), N words or texts, D hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from electra_tf.cli import Log
from electra_tf.errors import UserError
from electra_tf.layers.encoder import TextEncoder
from electra_tf.runs import linear
from electra_tf.runs.finetuning_tasks import TaskData
from electra_tf.tasks.base import Ragged, Rows, Task
from electra_tf.tasks.batching import make_batch
from electra_tf.tasks.heads import TaskModel, Tensors, mean_over_tokens

# The main probe is the mixture with the first reading.
MIXTURE = "mixture"
_States = dict[str, np.ndarray]
# Scores by probe, split and name.
ProbeScores = dict[str, dict[str, dict[str, float]]]


def _words(state: tf.Tensor, inputs: Tensors) -> tf.Tensor:
    return tf.boolean_mask(state, inputs["is_word"] > 0)


# Pooling functions by task kind: states [B, S, D] of a layer -> vectors [N, D].
_TEXT = {"mean": mean_over_tokens, "cls": lambda state, inputs: state[:, 0]}
READINGS = dict.fromkeys(linear.LOSSES, _TEXT) | {"tagging": {"words": _words}}


def check(task: Task, flag: str = "--frozen") -> None:
    """Raises ValueError if ``flag`` does not support tasks of this kind."""
    if task.kind not in READINGS:
        raise UserError(
            f"{flag} supports tasks with labels of texts or words, and not spans as in "
            f"--task={task.name}: leave {flag} out."
        )


def scores(
    encoder: TextEncoder, data: TaskData, batch_size: int, log: Log
) -> ProbeScores:
    """Trains and scores all probes of a task.

    Probes are named by pooling and layer, such as "mean 0" or "cls mixture"; the first
    mixture is the main probe.
    """
    task, train = data.task, data.train_rows
    loss, readings = linear.LOSSES[task.kind], READINGS[task.kind]
    targets, weights, groups = _targets(train)
    outputs = task.num_outputs if task.kind != "tagging" else len(task.tags.learned)
    layers = encoder.num_layers + 1
    parts = {MIXTURE: slice(0, layers)}
    parts |= {str(layer): slice(layer, layer + 1) for layer in range(layers)}
    probes: ProbeScores = {}
    train_states = states_of(encoder, train, readings, batch_size)
    split_states = {
        split: states_of(encoder, data.rows[split], readings, batch_size)
        for split in data.eval_splits
    }
    for reading in readings:
        states = train_states.pop(reading)
        shift, scale = standardize(states)
        mean = states.mean(axis=0, keepdims=True)
        strength = linear.choose_strength(
            mean, targets, groups, outputs, loss, weights=weights
        )
        del mean
        for name, part in parts.items():
            probe = linear.fit(
                states[part], targets, outputs, loss, strength=strength, weights=weights
            )
            by_split = {}
            for split, vectors in split_states.items():
                rows = data.rows[split]
                logits = probe((vectors[reading][part] - shift[part]) / scale[part])
                answers = task.decode(_by_row(logits, rows), rows, data.examples[split])
                by_split[split] = task.score(answers, data.examples[split])
            probes[f"{reading} {name}"] = by_split
            score = by_split[data.eval_splits[0]][task.main_metric]
            shares = " ".join(f"{share:.2f}" for share in probe.shares)
            more = f"  shares {shares}" if name == MIXTURE else ""
            log(f"{reading} {name}: {task.main_metric} {score:.2f}{more}")
        log(f"{reading}: strength {strength:g}, {states.shape[1]:,} vectors")
    return probes


def start_head(model: TaskModel, task: Task, rows: Rows, batch_size: int) -> None:
    """Initializes a model's head with a converged linear probe of its encoder.

    Linear probing before fine-tuning (Kumar et al., 2022): the first gradients of a
    random head distort pretrained states; the gradients of a converged probe do not.
    """
    head = model.head
    reading, layers = "words", slice(-1, None)
    if task.kind != "tagging":
        reading = "cls" if head.pooling == "cls" else "mean"
        layers = slice(None) if head.reads == "states" else layers
    loss, readings = linear.LOSSES[task.kind], READINGS[task.kind]
    targets, weights, groups = _targets(rows)
    readings = {reading: readings[reading]}
    states = states_of(model.encoder, rows, readings, batch_size, layers)[reading]
    # One scale for all layers, which the kernel can absorb.
    shift = states.mean(axis=1, dtype=np.float64)
    states -= shift[:, np.newaxis].astype(np.float32)
    variance = [np.square(layer).mean(axis=0, dtype=np.float64) for layer in states]
    scale = np.maximum(np.sqrt(np.mean(variance, axis=0)), 1e-6)
    states /= scale.astype(np.float32)
    mean = states.mean(axis=0, keepdims=True)
    outputs = head.num_outputs
    strength = linear.choose_strength(
        mean, targets, groups, outputs, loss, weights=weights
    )
    probe = linear.fit(
        states, targets, outputs, loss, strength=strength, weights=weights
    )
    kernel = probe.kernel / scale[:, np.newaxis]
    head.kernel.assign(kernel)
    head.bias.assign(probe.bias - probe.shares @ shift @ kernel)
    if head.reads == "states":
        head.mixture.assign(np.log(np.maximum(probe.shares, 1e-6)))


def _targets(rows: Rows) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Returns targets, weights and row numbers of the trained texts or words."""
    (column,) = rows.targets.values()
    if not isinstance(column, Ragged):
        return column, rows.weights, rows.example
    is_word = rows.weights.values > 0
    owners = np.repeat(rows.example, column.lengths)
    return column.values[is_word], None, owners[is_word]


def _is_word(rows: Rows) -> Ragged | None:
    """Returns the mask of first word pieces in tagging rows, None for other rows."""
    if "word" in rows.notes:
        word = rows.notes["word"]
        return Ragged((word.values >= 0).astype(np.int32), word.splits)
    if isinstance(rows.weights, Ragged):
        return Ragged((rows.weights.values > 0).astype(np.int32), rows.weights.splits)
    return None


def states_of(
    encoder: TextEncoder,
    rows: Rows,
    readings: Mapping,
    batch_size: int,
    layers: slice = slice(None),
) -> _States:
    """Returns pooled states, float32 [L, N, D] by reading, in the order of the rows."""
    is_word = _is_word(rows)
    counts = np.ones(len(rows), np.int64)
    if is_word is not None:
        counts = np.add.reduceat(is_word.values, is_word.splits[:-1])
    begins = np.concatenate([[0], np.cumsum(counts)])
    count = len(range(encoder.num_layers + 1)[layers])
    shape = (count, int(begins[-1]), encoder.hidden_size)
    pooled = {reading: np.empty(shape, np.float32) for reading in readings}

    @tf.function(reduce_retracing=True)
    def read(inputs: Tensors) -> Tensors:
        states = encoder.states(inputs)[layers]
        return {
            name: tf.stack(
                [tf.cast(pick(state, inputs), tf.float32) for state in states]
            )
            for name, pick in readings.items()
        }

    order = np.argsort(rows.lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        length = int(rows.lengths[chosen].max())
        inputs = dict(make_batch(rows, chosen, length)[0])
        if is_word is not None:
            inputs["is_word"] = is_word.pad(chosen, length)
        inputs = {name: tf.constant(value) for name, value in inputs.items()}
        places = [np.arange(begins[row], begins[row + 1]) for row in chosen]
        for name, vectors in read(inputs).items():
            pooled[name][:, np.concatenate(places)] = vectors.numpy()
    return pooled


def standardize(states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standardizes each feature of [L, N, D] to mean 0 and variance 1, in place.

    One L2 strength then suits all layers, and mixture weights are comparable. Returns
    the mean and the scale, float32 [L, 1, D].
    """
    shift = states.mean(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    scale = np.empty_like(shift)
    for layer, moved in enumerate(states):
        moved -= shift[layer]
        scale[layer] = np.sqrt(np.square(moved).mean(axis=0, dtype=np.float64))
        scale[layer] = np.maximum(scale[layer], 1e-6)
        moved /= scale[layer]
    return shift, scale


def _by_row(logits: np.ndarray, rows: Rows) -> list[np.ndarray]:
    """Splits logits [N, C] by row: [C] per text, [S, C] in tagging."""
    is_word = _is_word(rows)
    if is_word is None:
        return list(logits)
    everywhere = np.zeros([len(is_word.values), logits.shape[1]], np.float32)
    everywhere[is_word.values > 0] = logits
    return np.split(everywhere, is_word.splits[1:-1])
