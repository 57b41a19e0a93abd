"""Frozen probes: linear models on the hidden states of a frozen encoder.

A linear layer on a learned mixture of all layers is trained to convergence
(``linear.py``). Only the encoder's weights affect the score, so each encoder has one
score, not one per seed. The probes follow Tenney et al., 2019, the mixture ELMo (Peters
et al., 2018).

Letters: L layers (with the first block's input), N words or texts, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from electra_tf.cli import Log
from electra_tf.errors import UserError
from electra_tf.layers.encoder import TextEncoder
from electra_tf.runs import linear
from electra_tf.runs.finetuning_tasks import TaskData
from electra_tf.tasks.base import Ragged, Rows, Scores, Task
from electra_tf.tasks.batching import make_batch
from electra_tf.tasks.heads import TaskModel, Tensors, mean_over_tokens

# States [B, S, D] of a layer, inputs -> vectors [N, D].
Pool = Callable[[tf.Tensor, Tensors], tf.Tensor]


def cls(state: tf.Tensor, inputs: Tensors) -> tf.Tensor:
    """Returns the states of [CLS]."""
    del inputs
    return state[:, 0]


def words(state: tf.Tensor, inputs: Tensors) -> tf.Tensor:
    """Returns the states of the first pieces of words."""
    return tf.boolean_mask(state, inputs["is_word"] > 0)


def check(task: Task, flag: str = "--frozen") -> None:
    """Raises ValueError if ``flag`` does not support tasks of this kind."""
    if task.kind not in linear.LOSSES:
        raise UserError(
            f"{flag} supports tasks with labels of texts or words, and not spans as in "
            f"--task={task.name}: leave {flag} out."
        )


def scores(
    encoder: TextEncoder, data: TaskData, batch_size: int, log: Log
) -> dict[str, Scores]:
    """Trains a probe on words, or on means over texts; returns its scores by split."""
    task, train = data.task, data.train_rows
    pool = words if task.kind == "tagging" else mean_over_tokens
    states = states_of(encoder, train, pool, batch_size)
    shift, scale = standardize(states)
    probe = _fit(states, task, train, task.num_outputs)
    log(f"shares of the layers: {' '.join(f'{x:.2f}' for x in probe.shares)}")
    by_split = {}
    for split in data.eval_splits:
        rows, examples = data.rows[split], data.examples[split]
        vectors = states_of(encoder, rows, pool, batch_size)
        logits = probe((vectors - shift) / scale)
        answers = task.decode(_by_row(logits, rows), rows, examples)
        by_split[split] = task.score(answers, examples)
    return by_split


def _fit(states: np.ndarray, task: Task, rows: Rows, outputs: int) -> linear.Linear:
    """Fits a probe, with the strength that suits the mean of all layers."""
    loss = linear.LOSSES[task.kind]
    targets, weights, groups = _targets(rows)
    mean = states.mean(axis=0, keepdims=True)
    arguments = (targets, groups, outputs, loss)
    strength = linear.choose_strength(mean, *arguments, weights=weights)
    options = {"strength": strength, "weights": weights}
    return linear.fit(states, targets, outputs, loss, **options)


def start_head(model: TaskModel, task: Task, rows: Rows, batch_size: int) -> None:
    """Initializes a model's head with a converged linear probe of its encoder.

    Linear probing before fine-tuning (Kumar et al., 2022): the first gradients of a
    random head distort pretrained states; the gradients of a converged probe do not.
    """
    head, pool, layers = model.head, words, slice(-1, None)
    if task.kind != "tagging":
        pool = cls if head.pooling == "cls" else mean_over_tokens
        layers = slice(None) if head.reads == "states" else layers
    states = states_of(model.encoder, rows, pool, batch_size, layers)
    # One scale for all layers, which the kernel can absorb.
    shift = states.mean(axis=1, dtype=np.float64)
    states -= shift[:, np.newaxis].astype(np.float32)
    variance = [np.square(layer).mean(axis=0, dtype=np.float64) for layer in states]
    scale = np.maximum(np.sqrt(np.mean(variance, axis=0)), 1e-6)
    states /= scale.astype(np.float32)
    probe = _fit(states, task, rows, head.num_outputs)
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
    pool: Pool,
    batch_size: int,
    layers: slice = slice(None),
) -> np.ndarray:
    """Returns pooled states, float32 [L, N, D], in the order of the rows."""
    is_word = _is_word(rows)
    counts = np.ones(len(rows), np.int64)
    if is_word is not None:
        counts = np.add.reduceat(is_word.values, is_word.splits[:-1])
    begins = np.concatenate([[0], np.cumsum(counts)])
    count = len(range(encoder.num_layers + 1)[layers])
    pooled = np.empty((count, int(begins[-1]), encoder.hidden_size), np.float32)

    @tf.function(reduce_retracing=True)
    def read(inputs: Tensors) -> tf.Tensor:
        states = encoder.states(inputs)[layers]
        return tf.stack([tf.cast(pool(each, inputs), tf.float32) for each in states])

    order = np.argsort(rows.lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        length = int(rows.lengths[chosen].max())
        inputs = dict(make_batch(rows, chosen, length)[0])
        if is_word is not None:
            inputs["is_word"] = is_word.pad(chosen, length)
        inputs = {name: tf.constant(value) for name, value in inputs.items()}
        places = [np.arange(begins[row], begins[row + 1]) for row in chosen]
        pooled[:, np.concatenate(places)] = read(inputs).numpy()
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
