"""Frozen probes: linear models on the hidden states of a frozen encoder.

A linear layer on a learned mixture of all layers is trained to convergence with L-BFGS.
It starts from zero and equal shares, without learning rate or seed. The probes follow
Tenney et al., 2019, the mixture ELMo (Peters et al., 2018).

Letters: L layers (with the first block's input), N words or texts, D hidden size, C
outputs.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from scipy import optimize, special

from electra_tf.errors import UserError
from electra_tf.layers.encoder import TextEncoder
from electra_tf.tasks.base import Ragged, Rows, Task
from electra_tf.tasks.batching import make_batch
from electra_tf.tasks.heads import TaskModel, Tensors, mean_over_tokens

# States [B, S, D] of a layer, inputs -> vectors [N, D].
Pool = Callable[[tf.Tensor, Tensors], tf.Tensor]
# (logits [N, C], targets) -> losses [N], gradient [N, C].
Loss = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
# L2 strengths to choose from, largest first.
STRENGTHS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
_MOST_STEPS = 500
# Relative tolerance of L-BFGS; a tenth of it moves POS scores by 0.05 at most.
LEAST_GAIN = 1e-5


def _softmax(logits: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows = np.arange(len(targets))
    logits = logits - logits.max(axis=1, keepdims=True)
    shares = np.exp(logits)
    totals = shares.sum(axis=1, keepdims=True)
    values = np.log(totals[:, 0]) - logits[rows, targets]
    shares /= totals
    shares[rows, targets] -= 1
    return values, shares


def _sigmoid(logits: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values = np.logaddexp(0, logits) - targets * logits
    return values.sum(axis=1), special.expit(logits) - targets


def _squared(logits: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    errors = logits - targets
    return np.square(errors).sum(axis=1) / 2, errors


# Losses by task kind. Targets are class ids [N], or one value per output [N, C].
LOSSES: dict[str, Loss] = {
    "classification": _softmax,
    "tagging": _softmax,
    "multilabel": _sigmoid,
    "regression": _squared,
}


@dataclasses.dataclass(frozen=True)
class Linear:
    """A trained layer: logits = sum(shares * states) @ kernel + bias."""

    shares: np.ndarray
    kernel: np.ndarray
    bias: np.ndarray

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Returns logits [N, C] of states [L, N, D]."""
        mixed = np.tensordot(self.shares.astype(states.dtype), states, 1)
        return mixed @ self.kernel.astype(states.dtype) + self.bias


def fit(
    states: np.ndarray,
    targets: np.ndarray,
    num_outputs: int,
    loss: Loss,
    *,
    strength: float,
    weights: np.ndarray | None = None,
    start: Linear | None = None,
) -> Linear:
    """Minimizes the weighted mean loss plus strength / 2 * the squared kernel.

    ``states`` are float [L, N, D], with mean 0. Several layers get softmax mixture
    weights, which start equal. ``weights`` [N] weight the examples. ``start`` is the
    solution for another strength. Decorrelated features take far fewer steps.
    """
    layers, count, size = states.shape
    flat = states.reshape(layers, count * size)
    apart = _apart(states[0] if layers == 1 else states.mean(axis=0))
    share = np.full(count, 1 / count) if weights is None else weights / weights.sum()
    share = share.astype(states.dtype)
    bounds = np.cumsum([layers, size * num_outputs])

    def unpack(point: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        scores, kernel, bias = np.split(point, bounds)
        return special.softmax(scores), apart @ kernel.reshape(size, -1), bias

    def value_and_gradient(point: np.ndarray) -> tuple[float, np.ndarray]:
        shares, kernel, bias = unpack(point)
        narrow = kernel.astype(states.dtype)
        # A single layer needs no mixture and no copy.
        mixed = states[0]
        if layers > 1:
            mixed = (shares.astype(states.dtype) @ flat).reshape(count, size)
        values, back = loss(mixed @ narrow + bias.astype(states.dtype), targets)
        back = (back * share[:, None]).astype(states.dtype)
        value = np.dot(values.astype(np.float64), share)
        value += strength / 2 * np.square(kernel).sum()
        to_kernel = apart.T @ (mixed.T @ back + strength * kernel)
        to_scores = np.zeros(layers)
        if layers > 1:
            to_shares = (flat @ (back @ narrow.T).reshape(-1)).astype(np.float64)
            to_scores = shares * (to_shares - shares @ to_shares)
        gradient = [to_scores, to_kernel.reshape(-1), back.sum(axis=0)]
        return float(value), np.concatenate(gradient).astype(np.float64)

    point = np.zeros(layers + (size + 1) * num_outputs)
    if start is not None:
        kernel = np.linalg.solve(apart, start.kernel).reshape(-1)
        point = np.concatenate([np.log(start.shares), kernel, start.bias])
    options = {"maxiter": _MOST_STEPS, "ftol": LEAST_GAIN, "gtol": 1e-6, "maxcor": 20}
    result = optimize.minimize(
        value_and_gradient, point, jac=True, method="L-BFGS-B", options=options
    )
    return Linear(*unpack(result.x))


def _apart(features: np.ndarray) -> np.ndarray:
    """Returns the whitening matrix [D, D], damped for directions of low variance."""
    size = features.shape[1]
    covariance = (features.T @ features).astype(np.float64) / len(features)
    least = 1e-3 * np.trace(covariance) / size + 1e-12
    variances, directions = np.linalg.eigh(covariance)
    return directions / np.sqrt(np.maximum(variances, 0) + least)


def choose_strength(
    states: np.ndarray,
    targets: np.ndarray,
    groups: np.ndarray,
    num_outputs: int,
    loss: Loss,
    *,
    weights: np.ndarray | None = None,
) -> float:
    """Returns the strength with the lowest loss on a held-out tenth.

    ``groups`` [N] are ids of examples that stay together, such as words of a sentence.
    """
    names = np.unique(groups)
    left_out = np.random.default_rng(0).permutation(names)[: max(1, len(names) // 10)]
    held = np.isin(groups, left_out)
    if held.all():
        return STRENGTHS[0]
    weights = np.ones(len(targets)) if weights is None else weights
    losses, layer = {}, None
    kept, others = states[:, ~held], states[:, held]
    for strength in STRENGTHS:
        layer = fit(
            kept,
            targets[~held],
            num_outputs,
            loss,
            strength=strength,
            weights=weights[~held],
            start=layer,
        )
        values, _ = loss(layer(others), targets[held])
        losses[strength] = np.average(values, weights=weights[held])
    return min(losses, key=losses.get)


def cls(state: tf.Tensor, inputs: Tensors) -> tf.Tensor:
    """Returns the states of [CLS]."""
    del inputs
    return state[:, 0]


def words(state: tf.Tensor, inputs: Tensors) -> tf.Tensor:
    """Returns the states of the first pieces of words."""
    return tf.boolean_mask(state, inputs["is_word"])


def check(task: Task, flag: str) -> None:
    """Raises ValueError if ``flag`` does not support tasks of this kind."""
    if task.kind not in LOSSES:
        raise UserError(
            f"{flag} supports tasks with labels of texts or words, not spans as in "
            f"--task={task.name}: leave {flag} out."
        )


def probe(encoder: TextEncoder, task: Task, rows: Rows, batch_size: int) -> TaskModel:
    """Returns a model with a probe as its head, on words or on means over texts."""
    head = task.head(encoder)
    mixture = {"pooling": "layers", "num_states": encoder.num_layers + 1}
    head = type(head).from_config(head.get_config() | mixture)
    model = TaskModel(encoder, head)
    start_head(model, task, rows, batch_size)
    return model


def _fit(states: np.ndarray, task: Task, rows: Rows, outputs: int) -> Linear:
    """Fits a probe, with the strength that suits the mean of all layers."""
    loss = LOSSES[task.kind]
    targets, weights, groups = targets_of(rows)
    if weights is not None:
        is_used = weights > 0
        if not np.any(is_used):
            raise UserError("All sample weights are 0: there is nothing to learn.")
        states, weights = states[:, is_used], weights[is_used]
        targets, groups = targets[is_used], groups[is_used]
    mean = states.mean(axis=0, keepdims=True)
    strength = choose_strength(mean, targets, groups, outputs, loss, weights=weights)
    return fit(states, targets, outputs, loss, strength=strength, weights=weights)


def start_head(model: TaskModel, task: Task, rows: Rows, batch_size: int) -> None:
    """Initializes a model's head with a converged linear probe of its encoder.

    Linear probing (Kumar et al., 2022): gradients of a random head distort states.
    """
    head, pool = model.head, words
    if task.kind != "tagging":
        pool = cls if head.pooling == "cls" else mean_over_tokens
    layers = slice(None) if head.reads == "states" else slice(-1, None)
    states = states_of(model.encoder, rows, pool, batch_size, layers)
    # Smaller differences are rounding, which the kernel would multiply.
    least = max(1e-4 * float(np.linalg.norm(states)) / states.size**0.5, 1e-6)
    # One scale for all layers, which the kernel can absorb.
    shift = states.mean(axis=1, dtype=np.float64)
    states -= shift[:, np.newaxis].astype(np.float32)
    variance = [np.square(layer).mean(axis=0, dtype=np.float64) for layer in states]
    scale = np.maximum(np.sqrt(np.mean(variance, axis=0)), least)
    states /= scale.astype(np.float32)
    probe = _fit(states, task, rows, head.num_outputs)
    kernel = probe.kernel / scale[:, np.newaxis]
    head.kernel.assign(kernel)
    head.bias.assign(probe.bias - probe.shares @ shift @ kernel)
    if head.reads == "states":
        head.mixture.assign(np.log(np.maximum(probe.shares, 1e-6)))


def targets_of(rows: Rows) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    """Returns targets, weights and example numbers of the trained texts or words."""
    (column,) = rows.targets.values()
    if not isinstance(column, Ragged):
        return column, rows.weights, rows.example
    is_word = rows.weights.values > 0
    owners = np.repeat(rows.example, column.lengths)[is_word]
    return column.values[is_word], rows.weights.values[is_word].astype(float), owners


def states_of(
    encoder: TextEncoder,
    rows: Rows,
    pool: Pool,
    batch_size: int,
    layers: slice,
) -> np.ndarray:
    """Returns pooled states of training rows, float32 [L, N, D], in their order."""
    counts = np.ones(len(rows), np.int64)
    # First word pieces alone have weights in tagging rows.
    if isinstance(rows.weights, Ragged):
        is_word, starts = rows.weights.values > 0, rows.weights.splits[:-1]
        counts = np.add.reduceat(is_word, starts, dtype=np.int64)
    # Numbers of the vectors of each row.
    places = np.split(np.arange(counts.sum()), np.cumsum(counts)[:-1])
    num_layers = len(range(encoder.num_layers + 1)[layers])
    pooled = np.empty([num_layers, counts.sum(), encoder.hidden_size], np.float32)

    @tf.function(reduce_retracing=True)
    def read(inputs: Tensors) -> tf.Tensor:
        states = encoder.states(inputs)[layers]
        return tf.stack([tf.cast(pool(each, inputs), tf.float32) for each in states])

    order = np.argsort(rows.lengths, kind="stable")
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        length = int(rows.lengths[chosen].max())
        inputs, _, weights = make_batch(rows, chosen, length)
        if isinstance(rows.weights, Ragged):
            inputs["is_word"] = weights > 0
        inputs = {name: tf.constant(value) for name, value in inputs.items()}
        target = np.concatenate([places[row] for row in chosen])
        pooled[:, target] = read(inputs).numpy()
    return pooled
