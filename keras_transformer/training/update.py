"""The part of a training step after the gradients: clipping, Adam, averages and counters.

Every replica updates its own copies of the variables by the same total gradients. On GPUs with XLA
the update is one program, because a GPU would wait for hundreds of small operations.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy.typing as npt
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.errors import require
from keras_transformer.models.encoder_decoder import EncoderDecoder
from keras_transformer.training.devices import replica_function
from keras_transformer.training.schedules import LearningRate

# Bounds and growth of the loss scale of float16.
FIRST_SCALE = 2.0**15
MAX_SCALE = 2.0**24
STEPS_TO_DOUBLE = 2000


def make_optimizer(config: TrainingConfig, d_model: int) -> keras.optimizers.Adam:
    """Returns Keras's Adam with the schedule of the run.

    It holds the two moments of each weight (paper, section 5.3). `Update` changes them itself,
    because `apply` would sum the gradients over the replicas once more.
    """
    rate = LearningRate(
        config.schedule, config.learning_rate, config.warmup_steps, config.max_steps, d_model
    )
    # The name is part of the paths of its variables. By default, Keras counts optimizers.
    return keras.optimizers.Adam(rate, config.beta_1, config.beta_2, config.epsilon, name="adam")


def trained_weights(transformer: EncoderDecoder, freeze: str) -> dict[str, keras.Variable]:
    """Returns the weights of trainable layers that no pattern of `freeze` matches.

    Patterns are separated by commas.
    """
    weights = transformer.weights_by_path()
    trainable = {id(variable) for variable in transformer.trainable_variables}
    trained = {path: weight for path, weight in weights.items() if id(weight) in trainable}
    for pattern in filter(None, map(str.strip, freeze.split(","))):
        frozen = fnmatch.filter(weights, pattern)
        require(
            bool(frozen),
            f"training.freeze contains {pattern!r}, which matches no weight. Use patterns of paths "
            f"such as {next(iter(weights))}.",
        )
        for path in frozen:
            trained.pop(path, None)
    require(bool(trained), f"training.freeze is {freeze!r}, which leaves no weight to train.")
    return trained


class Update:
    """Updates the weights, and all other state of the training.

    With `scales_loss`, the loss has a factor that keeps small float16 gradients from 0.

    Attributes:
        step: number of steps.
        skipped: number of steps in a row without an update.
        averages: the moving average of each weight, by path; empty if `ema_decay` is 0.
    """

    def __init__(
        self,
        weights: Mapping[str, keras.Variable],
        trained: Mapping[str, keras.Variable],
        optimizer: keras.optimizers.Adam,
        config: TrainingConfig,
        add_weight: Callable[..., keras.Variable],
        *,
        scales_loss: bool,
        as_one_program: bool,
    ):
        self.trained = trained
        self._weights = weights
        self._optimizer = optimizer
        self._config = config

        # TensorFlow keeps int32 variables in the memory of the host, so a GPU would wait.
        add = functools.partial(
            add_weight, dtype="int64", initializer="zeros", trainable=False, autocast=False
        )
        self.step, self.skipped = add(name="step"), add(name="skipped")
        self.counters = [self.step, self.skipped]
        self._scale: keras.Variable | None = None
        if scales_loss:
            first = keras.initializers.Constant(FIRST_SCALE)
            self._scale = add(name="loss_scale", dtype="float32", initializer=first)
            self._finite_steps = add(name="finite_steps")
            self.counters += [self._scale, self._finite_steps]
        self.averages: dict[str, keras.Variable] = {}
        for path, weight in weights.items() if config.ema_decay else ():
            name = "average_of_" + path.replace("/", "_")
            self.averages[path] = add(name=name, shape=weight.shape, dtype=weight.dtype)
            self.averages[path].assign(weight.value)
        jit_compile = as_one_program or None
        self.global_norm = replica_function(_global_norm, list, jit_compile)
        self.apply = replica_function(self._apply, self.variables, jit_compile)

    def variables(self) -> list[keras.Variable]:
        """Returns the weights and all other state."""
        kept = [*self._weights.values(), *self.averages.values(), *self.counters]
        return [*kept, *self._optimizer.variables]

    def scale(self) -> tf.Tensor | float:
        """Returns the factor of the loss; 1.0 without float16."""
        return 1.0 if self._scale is None else tf.convert_to_tensor(self._scale.value)

    def _apply(self, gradients: Sequence[tf.Tensor], norm: tf.Tensor) -> dict[str, tf.Tensor]:
        """Updates all variables of a replica, and returns the logs. Call it in every replica.

        If the norm is not finite, only the counters and the loss scale change. No branch decides
        about it, because a GPU would wait for the host: with a learning rate of 0, decays of 1 and
        gradients of 0, all values stay. The gradients have the factor of the loss scale, the norm
        does not.
        """
        config, optimizer, scale = self._config, self._optimizer, self.scale()
        finite = tf.math.is_finite(norm)
        learning_rate = tf.convert_to_tensor(optimizer.learning_rate)
        rate = tf.where(finite, learning_rate, 0.0)
        updates = tf.cast(optimizer.iterations.value + 1, tf.float32)
        factor = 1.0 / scale
        if config.clip_norm > 0:
            factor = config.clip_norm / tf.maximum(norm, config.clip_norm) / scale
        factor = tf.where(finite, factor, 0.0)
        beta_1, beta_2 = optimizer.beta_1, optimizer.beta_2
        same_for_all_weights = {
            "lr": rate,
            "beta1": tf.where(finite, beta_1, 1.0),
            "beta2": tf.where(finite, beta_2, 1.0),
            "beta1_power": beta_1**updates,
            "beta2_power": beta_2**updates,
            "epsilon": optimizer.epsilon,
        }
        first_moments, second_moments = (
            [variable for variable in optimizer.variables if variable.name.endswith(name)]
            for name in ("_momentum", "_velocity")
        )
        for weight, gradient, first, second in zip(
            self.trained.values(), gradients, first_moments, second_moments, strict=True
        ):
            if config.weight_decay and len(weight.shape) > 1:  # biases and layer norms do not decay
                _subtract(weight, weight.value * (rate * config.weight_decay))
            tf.raw_ops.ResourceApplyAdam(
                var=weight.value.handle,
                m=first.value.handle,
                v=second.value.handle,
                grad=tf.math.multiply_no_nan(gradient, factor),
                **same_for_all_weights,
            )
        # At first the averages move faster, so that they forget the initial weights.
        distance = 1.0 - tf.minimum(config.ema_decay, (1.0 + updates) / (10.0 + updates))
        distance = tf.where(finite, distance, 0.0)
        for path, average in self.averages.items():
            _subtract(average, (average.value - self._weights[path].value) * distance)
        logs = {
            "skipped": tf.where(finite, tf.zeros_like(self.skipped.value), self.skipped.value + 1),
            "learning_rate": learning_rate,
        }
        if self._scale is not None:
            logs["loss_scale"] = scale
            self._adapt_scale(finite)
        with tf.control_dependencies([finite]):  # a step whose gradients fail is not counted
            _assign(optimizer.iterations, optimizer.iterations.value + tf.cast(finite, tf.int64))
            _assign(self.skipped, logs["skipped"])
            _assign(self.step, self.step.value + 1)
        return logs

    def _adapt_scale(self, finite: tf.Tensor) -> None:
        """Halves the loss scale after an overflow, and doubles it after many steps without one."""
        assert self._scale is not None
        steps = tf.where(finite, self._finite_steps.value + 1, 0)
        grow = steps >= STEPS_TO_DOUBLE
        scale = tf.convert_to_tensor(self._scale.value)
        grown = tf.where(grow, tf.minimum(scale * 2.0, MAX_SCALE), scale)
        _assign(self._scale, tf.where(finite, grown, tf.maximum(scale / 2.0, 1.0)))
        _assign(self._finite_steps, tf.where(grow, tf.zeros_like(steps), steps))

    @contextlib.contextmanager
    def averages_in_place(self) -> Iterator[None]:
        """Exchanges the weights and their averages inside the block."""

        def exchange() -> None:
            for path, average in self.averages.items():
                weight = tf.identity(self._weights[path].value)
                self._weights[path].assign(average.value)
                average.assign(weight)

        exchange()
        try:
            yield
        finally:
            exchange()


def arrays(variables: Mapping[str, keras.Variable]) -> dict[str, npt.NDArray[Any]]:
    """Returns the values of variables."""
    return {path: keras.ops.convert_to_numpy(variable) for path, variable in variables.items()}


# A mirrored variable cannot be assigned in a replica, but each of its copies can.


def _assign(variable: keras.Variable, value: tf.Tensor) -> None:
    tf.raw_ops.AssignVariableOp(resource=variable.value.handle, value=value)


def _subtract(variable: keras.Variable, value: tf.Tensor) -> None:
    tf.raw_ops.AssignSubVariableOp(resource=variable.value.handle, value=value)


def _global_norm(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the global norm of tensors, with one operation for all vectors."""
    vectors = [tensor for tensor in tensors if tensor.shape.rank == 1]
    others = [tensor for tensor in tensors if tensor.shape.rank != 1]
    return tf.linalg.global_norm([*others, tf.concat(vectors, axis=0)] if vectors else others)
