"""ELECTRA's AdamW: no bias correction, decoupled weight decay, global norm clipping.

The update of a weight ``w`` with gradient ``g`` at learning rate ``r`` is

    m = beta_1 * m + (1 - beta_1) * g
    v = beta_2 * v + (1 - beta_2) * g * g
    w = w - r * (m / (sqrt(v) + epsilon) + weight_decay * w)

TensorFlow's fused Adam kernel with beta powers of zero computes this update. It is
about twice as fast as ``keras.optimizers.AdamW`` and compiles under XLA.
"""

import fnmatch
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import keras
import tensorflow as tf

from electra_tf.errors import UserError
from electra_tf.training.schedules import FitSchedule

Schedule = keras.optimizers.schedules.LearningRateSchedule

# Name patterns of biases and LayerNorm weights, which the original does not decay.
NO_WEIGHT_DECAY = ("bias", "*_bias", "gamma", "*_gamma", "beta", "*_beta")


@keras.saving.register_keras_serializable(package="electra_tf")
class AdamW(keras.optimizers.Optimizer):
    """Adam with decoupled weight decay, as in the original ELECTRA code.

    All weights must be float32. ``gradient_norm`` (float32) is the global norm of the
    last gradient, reduced and not yet clipped. If it is not finite, the update uses
    zero gradients, so weights and slots stay finite, and ``first_nonfinite`` (int64) is
    the index of the first variable with such a gradient, else -1.

    Args:
        learning_rate: a float, a schedule of the step, or a callable.
        weight_decay: decoupled, times the learning rate; None or 0 disables it.
        beta_1: decay of the first moment.
        beta_2: decay of the second moment.
        epsilon: added to the root of the second moment.
        bias_correction: multiply the learning rate by ``sqrt(1 - beta_2 ** t) /
            (1 - beta_1 ** t)``, with Kingma and Ba's epsilon hat. False in ELECTRA.
        clip_norm: global norm to clip the gradients to, after their sum over replicas;
            None disables clipping.
        exclude_from_weight_decay: shell-style patterns of the last part of a variable's
            path. The default excludes biases and LayerNorm weights, not embeddings.
        learning_rate_multipliers: dict of variable path to factor, or list of
            (variables, factor); scales learning rate and decay of these variables.

    Raises UserError if ``clip_norm`` is not positive, and when built, if the path of a
    multiplier is missing or not unique.

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
        exclude_from_weight_decay: Sequence[str] = NO_WEIGHT_DECAY,
        learning_rate_multipliers: Mapping[str, float] | Sequence | None = None,
        name: str = "adamw",
    ):
        if isinstance(learning_rate, int):
            learning_rate = float(learning_rate)
        super().__init__(learning_rate, weight_decay=weight_decay, name=name)
        if clip_norm is not None and not clip_norm > 0:
            raise UserError(
                f"clip_norm is {clip_norm}; give a positive norm, or None for no "
                "clipping."
            )
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.bias_correction = bias_correction
        self.clip_norm = clip_norm
        if isinstance(exclude_from_weight_decay, str):
            exclude_from_weight_decay = [exclude_from_weight_decay]
        # Not ``exclude_from_weight_decay``, which is a method of the base class.
        self._no_decay_patterns = tuple(exclude_from_weight_decay)
        self.learning_rate_multipliers = _by_path(learning_rate_multipliers)
        # Variables of a list may be frozen before the first step.
        self._may_be_frozen = not isinstance(learning_rate_multipliers, Mapping)

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        if any(variable.dtype != "float32" for variable in variables):
            # beta_2 rounds to 1 in bfloat16.
            raise UserError(
                "AdamW needs float32 weights: use float32, mixed_bfloat16 or "
                "mixed_float16."
            )
        super().build(variables)
        self._momentums, self._velocities = self.add_optimizer_variables(
            variables, ["momentum", "velocity"]
        )
        self.gradient_norm = self.add_variable(
            (), dtype="float32", aggregation="only_first_replica", name="gradient_norm"
        )
        # Unused, but part of all checkpoints. TensorFlow keeps int32 variables on the
        # host, out of reach for steps that XLA compiles for a GPU.
        initial = keras.initializers.Constant(-1)
        self.add_variable((), initial, dtype="int32", name="first_nonfinite")
        # Used instead. Keras does not add a TensorFlow variable to checkpoints.
        once = tf.VariableAggregation.ONLY_FIRST_REPLICA
        self.first_nonfinite = tf.Variable(
            -1, trainable=False, dtype=tf.int64, aggregation=once
        )
        self._decays = tuple(self._decay_of(variable) for variable in variables)
        self._factors = self._factors_of(variables)
        # Read by Keras's ``exclude_from_weight_decay``, which is then an error.
        self._built = True

    @keras.optimizers.Optimizer.learning_rate.setter
    def learning_rate(self, learning_rate: float | Schedule | Callable) -> None:
        """Sets a number, constant for a ``FitSchedule``, or a schedule until built."""
        if callable(learning_rate) and getattr(self, "built", False):
            raise UserError(
                "A schedule is fixed once the optimizer is built: compile with another."
            )
        if isinstance(self._learning_rate, FitSchedule) and not callable(learning_rate):
            self._learning_rate.assign(learning_rate)
        else:
            keras.optimizers.Optimizer.learning_rate.fset(self, learning_rate)

    @property
    def weight_decay(self) -> float | None:
        """Decoupled weight decay; raises ValueError if it is set after ``build``."""
        return self._weight_decay

    @weight_decay.setter
    def weight_decay(self, weight_decay: float | None) -> None:
        if getattr(self, "built", False):
            raise UserError(
                "weight_decay is fixed once the optimizer is built: compile the model "
                "with another AdamW."
            )
        self._weight_decay = weight_decay

    def nonfinite_variable(self) -> str | None:
        """Returns the path of the first variable with a bad last gradient, or None."""
        index = int(self.first_nonfinite.numpy()) if self.built else -1
        return None if index < 0 else _path(self._trainable_variables[index])

    def _decay_of(self, variable: keras.Variable) -> float:
        leaf = _path(variable).rsplit("/", 1)[-1]
        if any(fnmatch.fnmatchcase(leaf, p) for p in self._no_decay_patterns):
            return 0.0
        return (self.weight_decay or 0.0) * self._use_weight_decay(variable)

    def _factors_of(self, variables: Sequence[keras.Variable]) -> tuple[float, ...]:
        paths, factors = [*map(_path, variables)], self.learning_rate_multipliers
        if self._may_be_frozen:
            factors = {path: x for path, x in factors.items() if path in paths}
        wrong = [path for path in factors if paths.count(path) != 1]
        if wrong:
            raise UserError(
                f"learning_rate_multipliers names {', '.join(wrong)}, which is not the "
                f"path of one variable, such as {paths[0]}."
            )
        self.learning_rate_multipliers = factors
        return tuple(float(factors.get(path, 1.0)) for path in paths)

    def apply(self, grads: Sequence, trainable_variables: Any = None) -> None:
        # A step at the end of the data has no gradients: it must not decay or count.
        with tf.control_dependencies([g for g in grads if g is not None][:1]):
            super().apply(grads, trainable_variables)

    def _backend_apply_gradients(
        self, grads: Sequence, trainable_variables: Sequence
    ) -> None:
        # Deviation: Keras clips in each replica before the sum, so results depend on
        # the number of replicas. The order is reduce, measure, clip.
        variables = [getattr(v, "value", v) for v in trainable_variables]
        indices = [self._get_variable_index(v) for v in variables]
        # IndexedSlices become dense: the norm needs the sum of repeated rows.
        gradients = [tf.cast(tf.convert_to_tensor(g), tf.float32) for g in grads]
        pairs = [*zip(gradients, variables, strict=True)]
        gradients = [gradient for gradient, _ in self._all_reduce_sum_gradients(pairs)]
        # A square that overflows float32 (norm above 1.8e19) counts as not finite.
        squares = 2.0 * tf.stack([tf.nn.l2_loss(gradient) for gradient in gradients])
        norm = tf.sqrt(tf.reduce_sum(squares))
        # Variables instead of logs: they take time only if they are read.
        bad = tf.logical_not(tf.math.is_finite(squares))
        position = tf.argmax(tf.cast(bad, tf.float32))
        first = tf.gather(tf.constant(indices, tf.int64), position)
        self.gradient_norm.assign(norm)
        self.first_nonfinite.assign(
            tf.where(tf.reduce_any(bad), first, tf.constant(-1, tf.int64))
        )

        scale = tf.constant(1.0)
        if self.clip_norm is not None:
            scale = tf.minimum(1.0, self.clip_norm / norm)
        # Zeroes bad gradients without a branch, in which replicas cannot synchronize:
        # multiply_no_nan returns 0 for NaN times 0.
        scale = tf.where(tf.math.is_finite(norm), scale, 0.0)
        gradients = [tf.math.multiply_no_nan(g, scale) for g in gradients]
        powers = [tf.zeros([]), tf.zeros([])]
        if self.bias_correction:
            step = tf.cast(self._iterations.value + 1, tf.float32)
            powers = [self.beta_1**step, self.beta_2**step]
        numbers = (*powers, self.beta_1, self.beta_2, self.epsilon)
        # Shared, because one copy per variable was a third of a step's operations.
        scalars = [tf.cast(number, tf.float32) for number in numbers]
        learning_rate = tf.cast(self.learning_rate, tf.float32)

        @functools.cache
        def rates(factor: float, decay: float) -> list[tf.Tensor]:
            rate = learning_rate * factor
            return [rate, rate * decay]

        updates = []
        for variable, gradient, i in zip(variables, gradients, indices, strict=True):
            own = rates(self._factors[i], self._decays[i])
            updates.append((variable, gradient, *own, *scalars))
        # Mirrored variables are updated in the cross-replica context.
        tf.__internal__.distribute.interim.maybe_merge_call(
            self._update_variables, tf.distribute.get_strategy(), updates
        )

    def _update_variables(
        self, strategy: tf.distribute.Strategy, updates: Sequence[tuple]
    ) -> None:
        for variable, *args in updates:
            strategy.extended.update(variable, self._update_variable, args, group=False)

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
        # The step does not use the weight: decaying first is equal up to rounding.
        # Deviation: 1 - beta_2 in float32, a relative error of 6e-6 at 0.999.
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
            grad=gradient,
        )

    def get_config(self) -> dict:
        # Not ``Serializable``: learning_rate is the current value here.
        base = super().get_config()
        own = ("beta_1", "beta_2", "epsilon", "bias_correction", "clip_norm")
        return {
            **{key: base[key] for key in ("name", "learning_rate", "weight_decay")},
            **{key: getattr(self, key) for key in own},
            "exclude_from_weight_decay": list(self._no_decay_patterns),
            "learning_rate_multipliers": dict(self.learning_rate_multipliers),
        }

    @classmethod
    def from_config(cls, config: dict, **kwargs: Any) -> Self:
        # Older versions could clip gradients in parts.
        older = ("clipping", "clip_groups")
        config = {name: value for name, value in config.items() if name not in older}
        optimizer = super().from_config(config, **kwargs)
        # The model that was saved may have frozen variables.
        optimizer._may_be_frozen = True
        return optimizer

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Loads the state as Keras does, without the clip-group norms of older files.

        Moments stay zero if the saved optimizer had none.
        """
        # Keras's store has no iterator.
        stored = {name: store[name] for name in store.keys()}  # noqa: SIM118
        variables = dict(enumerate(self.variables))
        own = {name: v for name, v in stored.items() if int(name) in variables}
        if len(stored) <= 2:
            # The step, and the learning rate if it is not a schedule.
            for name, value in own.items():
                variables[int(name)].assign(value)
            return
        is_fit = self.built and all(
            variables[int(name)].shape == value.shape for name, value in own.items()
        )
        super().load_own_variables(own if is_fit else stored)


def _by_path(multipliers: Mapping[str, float] | Sequence | None) -> dict[str, float]:
    if multipliers is None or isinstance(multipliers, Mapping):
        return dict(multipliers or {})
    factors = {}
    for variables, factor in multipliers:
        for path in map(_path, variables):
            if factors.setdefault(path, factor) != factor:
                raise UserError(
                    f"{path} is given the learning-rate multipliers {factors[path]} "
                    f"and {factor}; list it once."
                )
    return factors


def _path(variable: keras.Variable | tf.Variable) -> str:
    return getattr(variable, "path", variable.name).split(":")[0]
