"""The part of a training step after the gradients: clipping, Adam, averages and counters.

It does not depend on the shape of the batch. On a CPU, each weight is updated by one fused
operation. With XLA on GPUs, one program per replica updates all weights, slots and counters,
because a GPU would wait for hundreds of small operations. The host does not wait for that program:
it keeps the old values if the gradients are not finite. On a CPU that program is slower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_transformer.training.averages import WeightAverages
from keras_transformer.training.optimizer import FusedAdam
from keras_transformer.training.replica_function import replica_function

# Bounds and growth of the loss scale of float16.
FIRST_SCALE = 2.0**15
MAX_SCALE = 2.0**24
STEPS_TO_DOUBLE = 2000


class LossScale:
    """A factor of the loss that keeps small float16 gradients from becoming 0.

    Args:
        add_weight: adds a variable to a Keras model, as `keras.Model.add_weight`.

    Attributes:
        scale: the factor.
        finite_steps: steps since the factor last changed.

    Example:
    >>> loss_scale = LossScale(keras.layers.Layer().add_weight)
    >>> loss_scale.adapt(tf.constant(False))
    >>> float(loss_scale.scale), int(loss_scale.finite_steps)
    (16384.0, 0)
    """

    def __init__(self, add_weight: Callable[..., keras.Variable]):
        self.scale = add_weight(
            name="loss_scale", initializer=keras.initializers.Constant(FIRST_SCALE),
            trainable=False, dtype="float32", autocast=False,
        )  # fmt: skip
        self.finite_steps = add_counter(add_weight, "finite_steps")

    def adapted(self, finite: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the next scale and `finite_steps`.

        The scale is halved after an overflow, and doubled after many steps without one.

        Args:
            finite: bool scalar, True if the gradients of this step were finite.
        """
        steps = tf.where(finite, self.finite_steps.value + 1, 0)
        grow = steps >= STEPS_TO_DOUBLE
        scale = tf.convert_to_tensor(self.scale.value)
        grown = tf.where(grow, tf.minimum(scale * 2.0, MAX_SCALE), scale)
        scale = tf.where(finite, grown, tf.maximum(scale / 2.0, 1.0))
        return scale, tf.where(grow, tf.zeros_like(steps), steps)

    def adapt(self, finite: tf.Tensor) -> None:
        """Assigns the values that `adapted` returns."""
        scale, steps = self.adapted(finite)
        self.scale.assign(scale)
        self.finite_steps.assign(steps)


class TrainingState(NamedTuple):
    """The variables that a step changes.

    Attributes:
        trained: the weights that are trained, by path.
        averages: the moving averages of all weights.
        counters: `step`, the number of steps, and `skipped`, the number of steps in a row without
            an update.
        loss_scale: the scale of float16, or None.

    Example:
    >>> add_weight = keras.layers.Layer().add_weight
    >>> counters = {"step": add_weight(shape=(), dtype="int64")}
    >>> TrainingState({}, WeightAverages({}, 0.0, add_weight), counters, None).loss_scale is None
    True
    """

    trained: Mapping[str, keras.Variable]
    averages: WeightAverages
    counters: Mapping[str, keras.Variable]
    loss_scale: LossScale | None


class Update:
    """Updates the training state by the total gradients, which every replica has.

    Args:
        state: the variables.
        optimizer: an optimizer that was built for the trained weights.
        clip_norm: largest norm of the gradients; 0 does not clip them.
        compiled: compile the update with XLA. The optimizer must be a `FusedAdam`.

    Attributes:
        compiled: whether to call `compiled_step` in every replica, or `step` outside of them.
        global_norm: returns the norm of a list of gradients, a float32 scalar.

    Example:
    >>> add_weight = keras.layers.Layer().add_weight
    >>> weight = keras.Variable([3.0, 4.0])
    >>> optimizer = FusedAdam(0.1)
    >>> optimizer.build([weight])
    >>> counters = {name: add_weight(shape=(), dtype="int64") for name in ("step", "skipped")}
    >>> averages = WeightAverages({}, 0.0, add_weight)
    >>> state = TrainingState({"w": weight}, averages, counters, None)
    >>> update = Update(state, optimizer, clip_norm=0.0, compiled=False)
    >>> gradients = [tf.constant([1.0, -1.0])]
    >>> logs = update.step(gradients, update.global_norm(gradients))
    >>> weight.numpy().round(2), int(logs["skipped"])
    (array([2.9, 4.1], dtype=float32), 0)
    """

    def __init__(
        self,
        state: TrainingState,
        optimizer: keras.optimizers.Optimizer,
        clip_norm: float,
        compiled: bool,
    ):
        self._state = state
        self._optimizer: Any = optimizer
        self._clip_norm = clip_norm
        self._strategy = tf.distribute.get_strategy()
        self.compiled = compiled
        self.global_norm: Callable[[Sequence[tf.Tensor]], tf.Tensor] = _global_norm
        if compiled:
            self.global_norm = replica_function(_compiled_norm, list, jit_compile=True)
            self._program = replica_function(self._compiled_step, self._variables, jit_compile=True)

    def _variables(self) -> list[keras.Variable]:
        counters = self._state.counters.values()
        return [*self._state.averages.variables, *counters, *self._optimizer.variables]

    def loss_scale(self) -> tf.Tensor | float:
        """Returns the factor of the loss; 1.0 without float16."""
        loss_scale = self._state.loss_scale
        return tf.convert_to_tensor(loss_scale.scale.value) if loss_scale else 1.0

    # One operation per weight, for all replicas.

    def step(self, gradients: Sequence[Any], norm: tf.Tensor) -> dict[str, tf.Tensor]:
        """Ends a step with an update, or without one if `norm` is not finite.

        Call it outside of the replicas.

        Args:
            gradients: the total gradient of each trained weight, times the loss scale.
            norm: their global norm, without the loss scale.

        Returns:
            The logs `skipped` and `learning_rate`, and `loss_scale` if there is one.
        """
        step, skipped = (self._state.counters[name].value for name in ("step", "skipped"))
        # Read now, because the logs belong to this step, and the scale is changed below.
        scale = self.loss_scale()
        learning_rate = tf.convert_to_tensor(self._optimizer.learning_rate)
        finite = tf.math.is_finite(norm)

        def update() -> tf.Tensor:
            self._update_weights(gradients, norm, scale, learning_rate)
            return tf.constant(True)

        tf.cond(finite, update, lambda: tf.constant(False))
        logs = {
            "skipped": tf.where(finite, tf.zeros_like(skipped), skipped + 1),
            "learning_rate": learning_rate,
        }
        skipped.assign(logs["skipped"])
        with tf.control_dependencies([finite]):  # a step whose gradients fail is not counted
            step.assign_add(1)
        if self._state.loss_scale is not None:
            self._state.loss_scale.adapt(finite)
            logs["loss_scale"] = scale
        return logs

    def _update_weights(
        self, gradients: Sequence[Any], norm: tf.Tensor, scale: Any, learning_rate: tf.Tensor
    ) -> None:
        """`optimizer.apply` would sum the gradients over the replicas once more. This is what it
        does after that.
        """
        strategy, optimizer = self._strategy, self._optimizer
        factor = self._clipping(norm)
        rescaled = self._clip_norm > 0 or self._state.loss_scale is not None
        # The same for all weights, so they are computed once.
        powers = (optimizer.beta_powers(),) if isinstance(optimizer, FusedAdam) else ()

        def update_one(variable: Any, gradient: tf.Tensor) -> None:
            if rescaled:
                gradient = gradient * (factor / scale)
            optimizer.update_step(gradient, variable, learning_rate, *powers)

        with strategy.scope():
            for variable, gradient in zip(self._state.trained.values(), gradients, strict=True):
                strategy.extended.update(variable.value, update_one, args=(gradient,), group=False)
            optimizer.iterations.assign_add(1)
            self._state.averages.update(optimizer.iterations.value)

    def _clipping(self, norm: tf.Tensor) -> tf.Tensor | float:
        if not self._clip_norm > 0:
            return 1.0
        return self._clip_norm / tf.maximum(norm, self._clip_norm)

    # One program of XLA, for one replica.

    def compiled_step(
        self, gradients: Sequence[tf.Tensor], norm: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Does the same as `step`, in one program. Call it in every replica."""
        return self._program(list(gradients), norm)

    def _compiled_step(
        self, gradients: Sequence[tf.Tensor], norm: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        optimizer, state = self._optimizer, self._state
        finite = tf.math.is_finite(norm)
        updates = tf.convert_to_tensor(optimizer.iterations.value) + 1
        learning_rate = tf.convert_to_tensor(optimizer.learning_rate)
        scale, powers = self.loss_scale(), optimizer.beta_powers()
        factor = self._clipping(norm) / scale
        values: list[tuple[keras.Variable, tf.Tensor]] = [(optimizer.iterations, updates)]
        weights: dict[str, tf.Tensor] = {}
        for (path, variable), gradient in zip(state.trained.items(), gradients, strict=True):
            slots = optimizer.slots(variable)
            weights[path], *moments = optimizer.updated(
                gradient * factor, variable.value, slots, learning_rate, powers
            )
            values += zip((variable, *slots), (weights[path], *moments), strict=True)
        values += state.averages.updated(updates, weights)
        # All values are computed from the old ones, which stay if the step is skipped.
        values = [(v, tf.where(finite, value, v.value)) for v, value in values]
        step, skipped = (state.counters[name] for name in ("step", "skipped"))
        logs = {
            "skipped": tf.where(finite, tf.zeros_like(skipped.value), skipped.value + 1),
            "learning_rate": learning_rate,
        }
        values += [(step, step.value + 1), (skipped, logs["skipped"])]
        if state.loss_scale is not None:
            logs["loss_scale"] = scale
            variables = (state.loss_scale.scale, state.loss_scale.finite_steps)
            values += zip(variables, state.loss_scale.adapted(finite), strict=True)
        for variable, value in values:
            # `assign` of a mirrored variable is not allowed in a replica. All replicas assign the
            # same value.
            tf.raw_ops.AssignVariableOp(resource=variable.value.handle, value=value)
        return logs


def add_counter(add_weight: Callable[..., keras.Variable], name: str) -> keras.Variable:
    """Adds a counter to a Keras model, in the memory of the device.

    Args:
        add_weight: adds a variable to a Keras model, as `keras.Model.add_weight`.
        name: name of the variable.

    Example:
    >>> add_counter(keras.layers.Layer().add_weight, "step").dtype
    'int64'
    """
    # TensorFlow keeps int32 variables in the memory of the host, so a GPU would wait for them.
    return add_weight(shape=(), name=name, initializer="zeros", trainable=False, dtype="int64")


def _global_norm(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the global norm of tensors, with one operation for all vectors."""
    vectors = [tensor for tensor in tensors if tensor.shape.rank == 1]
    others = [tensor for tensor in tensors if tensor.shape.rank != 1]
    return tf.linalg.global_norm([*others, tf.concat(vectors, axis=0)] if vectors else others)


def _compiled_norm(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the global norm of tensors, in a form for XLA.

    Columns are summed first: XLA vectorizes this sum on CPUs, and it is more exact than one sum
    over all elements.
    """
    sums = [
        tf.reduce_sum(tf.square(tensor), axis=range(tensor.shape.rank - 1)) for tensor in tensors
    ]
    return tf.sqrt(tf.reduce_sum(tf.concat(sums, axis=0)))
