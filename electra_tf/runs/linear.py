"""Linear models on fixed features, trained to convergence with L-BFGS.

The loss of a linear layer is convex: no learning rate, schedule, data order or seed.

Letters: L layers, N examples, D features, C outputs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
from scipy import optimize, special

# (logits [N, C], targets) -> losses [N], gradient [N, C].
Loss = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
# L2 strengths to choose from, largest first.
STRENGTHS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
_MOST_STEPS = 500
# Relative tolerance of L-BFGS; a tenth of it moves POS scores by 0.05 at most.
_LEAST_GAIN = 1e-5


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

    For one layer of ``states``, float [1, N, D], the minimum is unique. For several
    layers, softmax mixture weights are learned too, starting from equal weights.
    ``weights`` [N] weight the examples. ``start`` is a warm start, the solution for
    another strength.

    ``states`` should have mean 0. Optimizing over decorrelated features keeps the
    minimum and takes tens of steps instead of hundreds.
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
        to_kernel = apart.T @ (mixed.T @ back + strength * kernel)
        to_scores = np.zeros(layers)
        if layers > 1:
            to_shares = (flat @ (back @ narrow.T).reshape(-1)).astype(np.float64)
            to_scores = shares * (to_shares - shares @ to_shares)
        gradient = [to_scores, to_kernel.reshape(-1), back.sum(axis=0)]
        value += strength / 2 * np.square(kernel).sum()
        return float(value), np.concatenate(gradient).astype(np.float64)

    point = np.zeros(layers + (size + 1) * num_outputs)
    if start is not None:
        kernel = np.linalg.solve(apart, start.kernel)
        parts = (np.log(start.shares), kernel.reshape(-1), start.bias)
        point = np.concatenate(parts)
    result = optimize.minimize(
        value_and_gradient,
        point,
        jac=True,
        method="L-BFGS-B",
        options={
            "maxiter": _MOST_STEPS,
            "ftol": _LEAST_GAIN,
            "gtol": 1e-6,
            "maxcor": 20,
        },
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
    strengths: Sequence[float] = STRENGTHS,
) -> float:
    """Returns the strength with the lowest loss on a held-out tenth.

    ``groups`` [N] are ids of examples that stay together, such as words of a sentence.
    """
    names = np.unique(groups)
    left_out = np.random.default_rng(0).permutation(names)[: max(1, len(names) // 10)]
    held = np.isin(groups, left_out)
    if held.all():
        return strengths[0]
    all_weights = np.ones(len(targets)) if weights is None else weights
    losses, kept, layer = {}, states[:, ~held], None
    for strength in strengths:
        layer = fit(
            kept,
            targets[~held],
            num_outputs,
            loss,
            strength=strength,
            weights=all_weights[~held],
            start=layer,
        )
        values, _ = loss(layer(states[:, held]), targets[held])
        losses[strength] = np.average(values, weights=all_weights[held])
    return min(losses, key=losses.get)
