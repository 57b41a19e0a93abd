"""AdamW as ELECTRA uses it: no bias correction, decay in the update, one joint clip.

The update of a weight ``w`` with gradient ``g`` at rate ``r`` is

    m = beta_1 * m + (1 - beta_1) * g
    v = beta_2 * v + (1 - beta_2) * g * g
    w = w - r * (m / (sqrt(v) + epsilon) + weight_decay * w)

The fused Adam kernel of TensorFlow computes exactly this with beta powers of zero; it
is about twice as fast as the element-wise chain of ``keras.optimizers.AdamW`` and
compiles under XLA.
"""

from __future__ import annotations

import fnmatch
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import keras
import tensorflow as tf

from electra_tf.errors import UserError

Schedule = keras.optimizers.schedules.LearningRateSchedule

# Last parts of the paths of biases and LayerNorms, which the original does not decay.
NO_WEIGHT_DECAY = ("bias", "*_bias", "gamma", "*_gamma", "beta", "*_beta")


def squared_norms(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """Squared norm of each gradient, float32 [number of gradients]."""
    # In float32 whatever the gradients': a square beyond it (norm above 1.8e19) counts
    # as not finite.
    return 2.0 * tf.stack([tf.nn.l2_loss(tf.cast(g, tf.float32)) for g in gradients])


def joint_norm(squares: tf.Tensor) -> tf.Tensor:
    """Norm of several gradients together, from their squared norms."""
    return tf.sqrt(tf.reduce_sum(squares))


def group_ids(
    named: Mapping[str, tuple[Sequence[str], float | None]], paths: Sequence[str]
) -> tuple[int, ...]:
    """Number of the group of each variable: 0 for none, then the named ones in order.

    Raises:
        ValueError: a named path is missing from ``paths``, or in several groups.
    """
    claimed = [path for members, _ in named.values() for path in members]
    wrong = sorted({p for p in claimed if claimed.count(p) + paths.count(p) != 2})
    if wrong:
        raise UserError(
            f"clip_groups names {', '.join(wrong[:5])}, which no variable has as path "
            f"or several groups claim; the {len(paths)} variables begin with "
            f"{', '.join(paths[:5])}."
        )
    numbers = dict.fromkeys(paths, 0)
    for number, (members, _) in enumerate(named.values(), start=1):
        numbers |= dict.fromkeys(members, number)
    return tuple(numbers[path] for path in paths)


class ClipGroups:
    """Sets of gradients that are measured and clipped each by its own norm.

    One group is the usual joint clip. ``limits`` are the norms of the groups, of which
    None does not clip; ``ids`` are the number of the group of each gradient.
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
        """Factor of each gradient that clips its group to its limit / ``replicas``."""
        pairs = zip(self.norms(squares), self.limits, strict=True)
        scales = [tf.minimum(1.0, limit / replicas / norm) for norm, limit in pairs]
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


# Name of the choice -> what happens to each replica's share of the gradients, and the
# factors for their sum over the replicas. "after_reduction" makes a run independent of
# how many replicas it is spread over; "per_replica" is what the original did.
CLIPPING: dict[str, tuple[Callable, Callable]] = {
    "after_reduction": (keep, ClipGroups.scales),
    "per_replica": (clip_share, keep_scales),
}


@keras.saving.register_keras_serializable(package="electra_tf")
class AdamW(keras.optimizers.Optimizer):
    """Adam with decoupled weight decay, as the original ELECTRA code defines it.

    Two scalars describe the last update and are safe to read between steps:
    ``gradient_norm`` (float32, joint norm of the reduced gradient before clipping) and
    ``first_nonfinite`` (int32, index of the first variable whose gradient was not
    finite, -1 if all were). An update whose norm is not finite counts as one with a
    gradient of zero, so weights and slots stay finite.

    Args:
        learning_rate: positive; a float, a schedule of the step, or a callable.
        weight_decay: decoupled, times the rate at that step; None or 0: none.
        beta_1: decay of the first moment; ``beta_2`` of the second.
        epsilon: added to the root of the second moment, outside of it.
        bias_correction: multiply the rate by ``sqrt(1 - beta_2 ** t) /
            (1 - beta_1 ** t)``, Adam with Kingma and Ba's epsilon hat: against moments
            that are divided each, epsilon weighs up to 32 times as much in the first
            updates, which matters for gradients near it. False in ELECTRA.
        clip_norm: joint norm the gradients are scaled down to; None does not clip.
        clipping: "after_reduction" clips the sum over replicas once, so that n replicas
            equal one; "per_replica" clips each replica's share to ``clip_norm / n``
            before the sum, as the original did on TPUs.
        exclude_from_weight_decay: shell-style patterns of the last part of a variable's
            path; matching variables are not decayed. The default spares all biases and
            layer normalizations; embeddings are decayed.
        learning_rate_multipliers: dict of variable path to factor, or list of
            (variables, factor); scales rate and decay of these variables.
        clip_groups: dict of group name to (variables or their paths, norm or None):
            variables that are measured and clipped apart from the rest, whose norm
            ``clip_norm`` then limits. The norm of a group before clipping is in
            ``group_norms[name]``.
        name: name of the optimizer, the first part of its variables' paths.

    Raises:
        ValueError: unknown ``clipping``, a norm that is not positive, or (when built) a
            multiplier or group for a path that is missing or not unique.

    Examples:
        >>> weight = keras.Variable([1.0, -2.0], name="kernel")
        >>> optimizer = et.training.AdamW(0.1, weight_decay=0.0, bias_correction=True)
        >>> optimizer.apply([tf.constant([0.5, -0.5])], [weight])
        >>> weight.numpy().round(3)
        array([ 0.9, -1.9], dtype=float32)
    """

    def __init__(
        self,
        learning_rate: float | Schedule | Callable = 5e-4,
        *,
        weight_decay: float | None = 0.01,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        bias_correction: bool = False,
        clip_norm: float | None = 1.0,
        clipping: str = "after_reduction",
        exclude_from_weight_decay: Sequence[str] = NO_WEIGHT_DECAY,
        learning_rate_multipliers: Mapping[str, float] | Sequence | None = None,
        clip_groups: Mapping[str, tuple[Sequence, float | None]] | None = None,
        name: str = "adamw",
    ):
        if isinstance(learning_rate, int):
            learning_rate = float(learning_rate)
        super().__init__(learning_rate, weight_decay=weight_decay, name=name)
        if clipping not in CLIPPING:
            raise UserError(
                f"clipping is {clipping!r}; allowed are {', '.join(CLIPPING)}."
            )
        groups = _groups_by_path(clip_groups)
        self._limits = (clip_norm, *(norm for _, norm in groups.values()))
        for norm in self._limits:
            if norm is not None and not norm > 0:
                raise UserError(
                    f"clip_norm is {norm}; give a positive norm, or None for no "
                    "clipping."
                )
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.bias_correction = bias_correction
        self.clip_norm = clip_norm
        self.clipping = clipping
        # The attribute of the same name is a method of the base class, which keeps
        # working beside the patterns.
        self._no_decay_patterns = tuple(exclude_from_weight_decay)
        self.learning_rate_multipliers = _by_path(learning_rate_multipliers)
        # Of a list of variables, some may be frozen by the time of the first step.
        self._may_be_frozen = not isinstance(learning_rate_multipliers, Mapping)
        self.clip_groups = groups
        self._clip_share, self._scales = CLIPPING[clipping]
        self._bases = (beta_1, beta_2) if bias_correction else ()

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Creates two slots per variable and the two scalars of the last update."""
        if self.built:
            return
        super().build(variables)
        self._momentums, self._velocities = self.add_optimizer_variables(
            variables, ["momentum", "velocity"]
        )
        scalar = functools.partial(
            self.add_variable, (), aggregation="only_first_replica"
        )
        minus_one = keras.initializers.Constant(-1)
        self.gradient_norm = scalar(dtype="float32", name="gradient_norm")
        self.first_nonfinite = scalar(
            dtype="int32", name="first_nonfinite", initializer=minus_one
        )
        self._decays = tuple(self._decay_of(variable) for variable in variables)
        self._factors = self._factors_of(variables)
        self._groups = group_ids(self.clip_groups, [_path(v) for v in variables])
        self.group_norms = {
            name: scalar(dtype="float32", name=f"gradient_norm_{name}")
            for name in self.clip_groups
        }

    def nonfinite_variable(self) -> str | None:
        """Path of the first variable whose last gradient was not finite, or None."""
        index = int(self.first_nonfinite.numpy()) if self.built else -1
        return None if index < 0 else _path(self._trainable_variables[index])

    def _decay_of(self, variable: keras.Variable) -> float:
        leaf = _path(variable).rsplit("/", 1)[-1]
        if any(fnmatch.fnmatchcase(leaf, p) for p in self._no_decay_patterns):
            return 0.0
        return (self.weight_decay or 0.0) * self._use_weight_decay(variable)

    def _factors_of(self, variables: Sequence[keras.Variable]) -> tuple[float, ...]:
        paths = [_path(variable) for variable in variables]
        if self._may_be_frozen:
            self.learning_rate_multipliers = {
                path: factor
                for path, factor in self.learning_rate_multipliers.items()
                if path in paths
            }
        wrong = [p for p in self.learning_rate_multipliers if paths.count(p) != 1]
        if wrong:
            raise UserError(
                "learning_rate_multipliers names "
                f"{', '.join(wrong)}, which no variable or several have as path; the "
                f"{len(paths)} variables begin with {', '.join(paths[:5])}."
            )
        return tuple(float(self.learning_rate_multipliers.get(p, 1.0)) for p in paths)

    def _backend_apply_gradients(
        self, grads: Sequence, trainable_variables: Sequence
    ) -> None:
        # Deviation: Keras clips in each replica before the gradients are summed, so two
        # replicas take another step than one. The order here is reduce, measure, clip.
        variables = [getattr(v, "value", v) for v in trainable_variables]
        # IndexedSlices become dense once, here: rows that occur twice count as their
        # sum in the norm, and no later use has to convert again.
        indices = [self._get_variable_index(v) for v in variables]
        groups = ClipGroups(self._limits, [self._groups[i] for i in indices])
        gradients = self._clip_share(groups, [tf.convert_to_tensor(g) for g in grads])
        reduced = self._all_reduce_sum_gradients(
            list(zip(gradients, variables, strict=True))
        )
        gradients = [gradient for gradient, _ in reduced]
        squares = squared_norms(gradients)
        norm = joint_norm(squares)
        # What is read between steps is kept in variables and not in logs: reading them
        # costs nothing until somebody does.
        bad = tf.logical_not(tf.math.is_finite(squares))
        first = tf.gather(tf.constant(indices), tf.argmax(tf.cast(bad, tf.int32)))
        self.gradient_norm.assign(norm)
        self.first_nonfinite.assign(tf.where(tf.reduce_any(bad), first, -1))
        of_groups = groups.norms(squares)[1:]
        for variable, value in zip(self.group_norms.values(), of_groups, strict=True):
            variable.assign(value)

        # A gradient that is not finite becomes 0 without a branch, in which replicas
        # could not synchronize: multiply_no_nan makes 0 of NaN times a factor of 0.
        finite = tf.math.is_finite(norm)
        kept = functools.cache(lambda scale: tf.where(finite, scale.deref(), 0.0))
        gradients = [
            tf.math.multiply_no_nan(g, tf.cast(kept(scale.ref()), g.dtype))
            for g, scale in zip(gradients, self._scales(groups, squares), strict=True)
        ]
        # The powers for bias correction; with powers of 0 the kernel corrects none.
        step = tf.cast(self._iterations.value + 1, tf.float32)
        powers = [base**step for base in self._bases] or [tf.zeros([]), tf.zeros([])]
        numbers = (*powers, self.beta_1, self.beta_2, self.epsilon)
        learning_rate = tf.cast(self.learning_rate, tf.float32)

        # What many variables have in common is a tensor once: as one for each variable
        # they were a third of the operations of a step, all of which are traced and
        # optimized before the first step.
        @functools.cache
        def scalars(dtype: tf.DType) -> list[tf.Tensor]:
            return [tf.cast(number, dtype) for number in numbers]

        @functools.cache
        def rates(factor: float, decay: float, dtype: tf.DType) -> list[tf.Tensor]:
            rate = tf.cast(learning_rate * factor, dtype)
            return [rate, rate * tf.cast(decay, dtype)]

        updates = [
            (
                v,
                g,
                *rates(self._factors[i], self._decays[i], v.dtype),
                *scalars(v.dtype),
            )
            for v, g, i in zip(variables, gradients, indices, strict=True)
        ]
        # Variables that several replicas have are updated from outside of the replicas.
        tf.__internal__.distribute.interim.maybe_merge_call(
            self._update_variables, tf.distribute.get_strategy(), updates
        )

    def _update_variables(
        self, strategy: tf.distribute.Strategy, updates: Sequence[tuple]
    ) -> None:
        for variable, *numbers in updates:
            strategy.extended.update(
                variable, self._update_variable, args=numbers, group=False
            )

    def _update_variable(
        self,
        variable: tf.Variable,
        gradient: tf.Tensor,
        rate: tf.Tensor,
        decay: tf.Tensor,
        *scalars: tf.Tensor,
    ) -> None:
        index = self._get_variable_index(variable)
        beta1_power, beta2_power, beta1, beta2, epsilon = scalars
        # The kernel's step does not depend on the weight, so decaying first is the
        # original's sum of both, up to rounding.
        # Deviation: the kernel forms 1 - beta_2 in float32, which moves an update by
        # 6e-6 of its size at 0.999.
        if self._decays[index]:
            variable.assign_sub(variable * decay)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=beta1_power,
            beta2_power=beta2_power,
            lr=rate,
            beta1=beta1,
            beta2=beta2,
            epsilon=epsilon,
            grad=tf.cast(gradient, variable.dtype),
        )

    def get_config(self) -> dict:
        """Returns the arguments of this constructor, which takes few of Keras's."""
        # Not ``Serializable``: the attribute learning_rate is the present value, and
        # the patterns are kept under another name.
        base = super().get_config()
        return {
            **{key: base[key] for key in ("name", "learning_rate", "weight_decay")},
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
            "bias_correction": self.bias_correction,
            "clip_norm": self.clip_norm,
            "clipping": self.clipping,
            "exclude_from_weight_decay": list(self._no_decay_patterns),
            "learning_rate_multipliers": dict(self.learning_rate_multipliers),
            "clip_groups": {n: [list(p), c] for n, (p, c) in self.clip_groups.items()},
        }


def _by_path(multipliers: Mapping[str, float] | Sequence | None) -> dict[str, float]:
    if multipliers is None or isinstance(multipliers, Mapping):
        return dict(multipliers or {})
    factors = {}
    for variables, factor in multipliers:
        for variable in variables:
            if factors.setdefault(_path(variable), factor) != factor:
                raise UserError(
                    f"{_path(variable)} is given the learning-rate multipliers "
                    f"{factors[_path(variable)]} and {factor}; list it once."
                )
    return factors


def _groups_by_path(
    groups: Mapping[str, tuple[Sequence, float | None]] | None,
) -> dict[str, tuple[list[str], float | None]]:
    return {
        name: ([m if isinstance(m, str) else _path(m) for m in members], norm)
        for name, (members, norm) in (groups or {}).items()
    }


def _path(variable: keras.Variable | tf.Variable) -> str:
    return getattr(variable, "path", variable.name).split(":")[0]
