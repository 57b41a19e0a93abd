"""Norms of gradients, jointly or in groups, and the factors that clip them."""

import math
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf


def squared_norms(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """Squared norm of each gradient, float32 [number of gradients]."""
    # A square beyond float32 (norm above 1.8e19) counts as not finite.
    return 2.0 * tf.stack([tf.nn.l2_loss(tf.cast(g, tf.float32)) for g in gradients])


def joint_norm(squares: tf.Tensor) -> tf.Tensor:
    """Norm of several gradients together, from their squared norms."""
    return tf.sqrt(tf.reduce_sum(squares))


def clip_scale(norm: tf.Tensor, limit: float) -> tf.Tensor:
    """Factor that brings `norm` down to `limit`, 1 where it is below."""
    return tf.minimum(1.0, limit / norm)


def group_ids(
    named: Mapping[str, tuple[Sequence[str], float | None]], paths: Sequence[str]
) -> tuple[int, ...]:
    """Number of the group of each variable: 0 for none, then the named ones in order.

    Args:
        named: dict of group name to (paths of its variables, norm).
        paths: path of every variable.

    Raises:
        ValueError: a named path is missing from `paths`, or in several groups.
    """
    claimed = [path for members, _ in named.values() for path in members]
    wrong = sorted({p for p in claimed if claimed.count(p) + paths.count(p) != 2})
    if wrong:
        raise ValueError(
            f"clip_groups names {', '.join(wrong[:5])}, which no variable has as path "
            f"or several groups claim; the {len(paths)} variables begin with "
            f"{', '.join(paths[:5])}."
        )
    numbers = {
        path: number
        for number, (members, _) in enumerate(named.values(), start=1)
        for path in members
    }
    return tuple(numbers.get(path, 0) for path in paths)


class ClipGroups:
    """Sets of gradients that are measured and clipped each by its own norm.

    One group is the usual joint clip.

    Args:
        limits: norm of each group; None does not clip.
        ids: number of the group of each gradient.
    """

    def __init__(self, limits: Sequence[float | None], ids: Sequence[int]):
        self.limits = [math.inf if limit is None else float(limit) for limit in limits]
        self.ids = ids
        self._members = [
            [index for index, group in enumerate(ids) if group == number]
            for number in range(len(limits))
        ]

    def norms(self, squares: tf.Tensor) -> list[tf.Tensor]:
        """Norm of each group, from the squared norms of all gradients."""
        return [
            joint_norm(tf.gather(squares, tf.constant(members, tf.int32)))
            for members in self._members
        ]

    def scales(self, squares: tf.Tensor, *, replicas: int = 1) -> list[tf.Tensor]:
        """Factor of each gradient that clips its group to its limit / `replicas`."""
        pairs = zip(self.norms(squares), self.limits, strict=True)
        scales = [clip_scale(norm, limit / replicas) for norm, limit in pairs]
        return [scales[number] for number in self.ids]


def clip_share(groups: ClipGroups, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Clips one replica's share of the gradients, as the original did on TPUs."""
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    squares = squared_norms(gradients)
    # Unscaled if not finite: the guard after the reduction then names the variable.
    finite = tf.math.is_finite(joint_norm(squares))
    scales = groups.scales(squares, replicas=replicas)
    return [
        g * tf.cast(tf.where(finite, scale, 1.0), g.dtype)
        for g, scale in zip(gradients, scales, strict=True)
    ]


def keep(groups: ClipGroups, gradients: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    """Leaves gradients as they are."""
    del groups
    return gradients


def keep_scales(groups: ClipGroups, squares: tf.Tensor) -> list[tf.Tensor]:
    """Factors of 1: nothing is clipped."""
    del groups
    return [tf.constant(1.0)] * squares.shape[0]


# Name of the choice -> what happens to each replica's share, and the factors of the
# sum over the replicas.
CLIPPING: dict[str, tuple[Callable, Callable]] = {
    "after_reduction": (keep, ClipGroups.scales),
    "per_replica": (clip_share, keep_scales),
}
