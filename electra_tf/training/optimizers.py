"""AdamW as ELECTRA uses it: no bias correction, decay in the update, one joint clip.

The update of a weight `w` with gradient `g` at rate `r` is

    m = beta_1 * m + (1 - beta_1) * g
    v = beta_2 * v + (1 - beta_2) * g * g
    w = w - r * (m / (sqrt(v) + epsilon) + weight_decay * w)

The fused Adam kernel of TensorFlow computes exactly this with beta powers of zero; it
is about twice as fast as the element-wise chain of `keras.optimizers.AdamW`
(`benchmarks/optimizer_speed.py`) and compiles under XLA.
"""

import fnmatch
import functools
from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from electra_tf.training.clipping import (
    CLIPPING,
    ClipGroups,
    group_ids,
    joint_norm,
    squared_norms,
)

NO_WEIGHT_DECAY = ("bias", "*_bias", "gamma", "*_gamma", "beta", "*_beta")


@keras.saving.register_keras_serializable(package="electra_tf")
class AdamW(keras.optimizers.Optimizer):
    """Adam with decoupled weight decay, as the original ELECTRA code defines it.

    Two scalars describe the last update and are safe to read between steps:
    `gradient_norm` (float32, joint norm of the reduced gradient before clipping) and
    `first_nonfinite` (int32, index of the first variable whose gradient was not finite,
    -1 if all were). An update whose norm is not finite counts as one with a gradient of
    zero, so weights and slots stay finite.

    Args:
        learning_rate: float, schedule, or callable without arguments.
        weight_decay: factor of the decay, scaled by the learning rate.
        beta_1: decay of the first moment.
        beta_2: decay of the second moment.
        epsilon: added outside the square root.
        bias_correction: divide the moments by `1 - beta ** t`; False in ELECTRA.
        clip_norm: joint norm the gradients are scaled down to; None does not clip.
        clipping: "after_reduction" clips the sum over replicas once, so that n replicas
            equal one; "per_replica" clips each replica's share to `clip_norm / n`
            before the sum, as the original did on TPUs.
        exclude_from_weight_decay: shell-style patterns of the last part of a variable's
            path; matching variables are not decayed. The default spares all biases and
            layer normalizations; embeddings are decayed.
        learning_rate_multipliers: dict of variable path to factor, or list of
            (variables, factor); scales rate and decay of these variables.
        clip_groups: dict of group name to (variables or their paths, norm or None):
            variables that are measured and clipped apart from the rest, whose norm
            `clip_norm` then limits. The norm of a group before clipping is in
            `group_norms[name]`.
        name: name of the optimizer, the first part of its variables' paths.

    Raises:
        ValueError: unknown `clipping`, a norm that is not positive, or (when built) a
            multiplier or group for a path that is missing or not unique.
    """

    def __init__(
        self,
        learning_rate=5e-4,
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
            raise ValueError(
                f"clipping is {clipping!r}; allowed are {', '.join(CLIPPING)}."
            )
        groups = _groups_by_path(clip_groups)
        for norm in (clip_norm, *(norm for _, norm in groups.values())):
            if norm is not None and not norm > 0:
                raise ValueError(
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
        self.clip_groups = groups
        self._limits = (clip_norm, *(norm for _, norm in groups.values()))
        self._clip_share, self._scales = CLIPPING[clipping]
        self._beta_powers = self._powers if bias_correction else _zero_powers

    def build(self, variables):
        """Creates two slots per variable and the two scalars of the last update."""
        if self.built:
            return
        super().build(variables)
        self._momentums, self._velocities = self.add_optimizer_variables(
            variables, ["momentum", "velocity"]
        )
        self.gradient_norm = self.add_variable(
            (), dtype="float32", name="gradient_norm", aggregation="only_first_replica"
        )
        self.first_nonfinite = self.add_variable(
            (),
            initializer=keras.initializers.Constant(-1),
            dtype="int32",
            name="first_nonfinite",
            aggregation="only_first_replica",
        )
        self._decays = tuple(self._decay_of(variable) for variable in variables)
        self._factors = self._factors_of(variables)
        self._groups = group_ids(self.clip_groups, [_path(v) for v in variables])
        self.group_norms = {
            name: self.add_variable(
                (),
                dtype="float32",
                name=f"gradient_norm_{name}",
                aggregation="only_first_replica",
            )
            for name in self.clip_groups
        }

    def nonfinite_variable(self) -> str | None:
        """Path of the first variable with a non-finite gradient in the last update.

        Returns:
            A string, or None if all gradients were finite or none was applied yet.
        """
        index = int(self.first_nonfinite.numpy()) if self.built else -1
        return None if index < 0 else _path(self._trainable_variables[index])

    def _decay_of(self, variable):
        leaf = _path(variable).rsplit("/", 1)[-1]
        if any(fnmatch.fnmatchcase(leaf, p) for p in self._no_decay_patterns):
            return 0.0
        return (self.weight_decay or 0.0) * self._use_weight_decay(variable)

    def _factors_of(self, variables):
        paths = [_path(variable) for variable in variables]
        wrong = [p for p in self.learning_rate_multipliers if paths.count(p) != 1]
        if wrong:
            raise ValueError(
                "learning_rate_multipliers names "
                f"{', '.join(wrong)}, which no variable or several have as path; the "
                f"{len(paths)} variables begin with {', '.join(paths[:5])}."
            )
        return tuple(float(self.learning_rate_multipliers.get(p, 1.0)) for p in paths)

    def _backend_apply_gradients(self, grads, trainable_variables):
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
        self._record(norm, squares, indices, groups)

        finite = tf.math.is_finite(norm)
        gradients = [
            tf.math.multiply_no_nan(g, tf.cast(tf.where(finite, scale, 0.0), g.dtype))
            for g, scale in zip(gradients, self._scales(groups, squares), strict=True)
        ]
        tf.__internal__.distribute.interim.maybe_merge_call(
            self._update_variables,
            tf.distribute.get_strategy(),
            list(zip(variables, gradients, strict=True)),
            tf.cast(self.learning_rate, tf.float32),
            self._beta_powers(),
        )

    def _record(self, norm, squares, indices, groups):
        bad = tf.logical_not(tf.math.is_finite(squares))
        first = tf.gather(tf.constant(indices), tf.argmax(tf.cast(bad, tf.int32)))
        self.gradient_norm.assign(norm)
        self.first_nonfinite.assign(tf.where(tf.reduce_any(bad), first, -1))
        of_groups = groups.norms(squares)[1:]
        for variable, value in zip(self.group_norms.values(), of_groups, strict=True):
            variable.assign(value)

    def _update_variables(self, strategy, pairs, learning_rate, beta_powers):
        for variable, gradient in pairs:
            strategy.extended.update(
                variable,
                self._update_variable,
                args=(gradient, learning_rate, *beta_powers),
                group=False,
            )

    def _update_variable(self, variable, gradient, learning_rate, *beta_powers):
        index = self._get_variable_index(variable)
        constant = functools.partial(tf.cast, dtype=variable.dtype)
        rate = constant(learning_rate * self._factors[index])
        # The kernel's step does not depend on the weight, so decaying first is the
        # original's sum of both, up to rounding.
        # Deviation: the kernel forms 1 - beta_2 in float32, which moves an update by
        # 6e-6 of its size at 0.999.
        if self._decays[index]:
            variable.assign_sub(variable * (rate * constant(self._decays[index])))
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=constant(beta_powers[0]),
            beta2_power=constant(beta_powers[1]),
            lr=rate,
            beta1=constant(self.beta_1),
            beta2=constant(self.beta_2),
            epsilon=constant(self.epsilon),
            grad=tf.cast(gradient, variable.dtype),
        )

    def _powers(self):
        step = tf.cast(self._iterations.value + 1, tf.float32)
        return self.beta_1**step, self.beta_2**step

    def get_config(self) -> dict:
        """Returns the constructor arguments."""
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


def _by_path(multipliers):
    if multipliers is None:
        return {}
    if isinstance(multipliers, Mapping):
        return dict(multipliers)
    factors = {}
    for variables, factor in multipliers:
        for variable in variables:
            if factors.setdefault(_path(variable), factor) != factor:
                raise ValueError(
                    f"{_path(variable)} is given the learning-rate multipliers "
                    f"{factors[_path(variable)]} and {factor}; list it once."
                )
    return factors


def _groups_by_path(groups):
    return {
        name: ([m if isinstance(m, str) else _path(m) for m in members], norm)
        for name, (members, norm) in (groups or {}).items()
    }


def _path(variable):
    return getattr(variable, "path", variable.name).split(":")[0]


def _zero_powers():
    return 0.0, 0.0
