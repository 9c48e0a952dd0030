"""The training step: one exact update from a global batch, on any number of replicas.

Keras divides by the token count of each replica, compiles the whole strategy with XLA, and gives
every replica the same dropout mask. Here the replicas first add up their target tokens. Then each
computes the gradients of its rows, with XLA and in several parts if configured. The optimizer gets
the sum of the gradients if it is finite.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.errors import InputError
from keras_transformer.layers import dropout_seed
from keras_transformer.models.encoder_decoder import EncoderDecoder
from keras_transformer.training.averages import WeightAverages
from keras_transformer.training.devices import uses_gpus
from keras_transformer.training.dropout_masks import hashed_masks, philox_masks
from keras_transformer.training.loss import (
    AuxiliaryLoss,
    LossSums,
    gpu_slice_rows,
    loss_and_gradients,
    real_tokens,
)

# Bounds and growth of the loss scale of float16.
FIRST_SCALE = 2.0**15
MAX_SCALE = 2.0**24
STEPS_TO_DOUBLE = 2000


class _OutputMap:
    """The map from features to logits as one float32 matrix `[V, d]`, with tied weights or without.

    A bias is an additional column of the matrix, and a constant 1 is an additional feature.
    """

    def __init__(self, transformer: EncoderDecoder):
        self._kernel, self._bias = transformer.output_weights()
        self._transposed = transformer.config.tie_embeddings == "none"
        self._paths = {id(v): path for path, v in transformer.weights_by_path().items()}
        self._on_gpus = uses_gpus(tf.distribute.get_strategy())

    def matrix(self) -> tf.Tensor:
        """Returns the matrix of the current weights."""
        values = tf.convert_to_tensor(self._kernel.value)
        if self._transposed:
            values = tf.transpose(values)  # --> [V, d_model]
        if self._bias is None:
            return values
        return tf.concat([values, self._bias.value[:, None]], axis=1)

    def flat(self, features: tf.Tensor) -> tf.Tensor:
        """Returns features `[B, T, d_model]` as the rows `[N, d]` that the matrix applies to."""
        features = tf.reshape(features, [-1, features.shape[-1]])
        if self._bias is not None:
            features = tf.concat([features, tf.ones_like(features[:, :1])], axis=1)
        return features

    def slice_rows(self, labels: tf.Tensor) -> tf.Tensor | None:
        """Returns the rows of logits to compute at once for flat labels; None on a CPU."""
        if not self._on_gpus:
            return None
        return gpu_slice_rows(
            tf.shape(labels)[0], self._kernel.shape[-1 if self._transposed else 0]
        )

    def gradients(self, by_matrix: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the gradients of the weights, by path, from the gradient of the matrix."""
        if self._bias is None:
            by_kernel, by_bias = by_matrix, {}
        else:
            by_kernel, by_bias = by_matrix[:, :-1], {self._paths[id(self._bias)]: by_matrix[:, -1]}
        by_kernel = tf.transpose(by_kernel) if self._transposed else by_kernel
        return {self._paths[id(self._kernel)]: by_kernel, **by_bias}


class _LossScale:
    """A factor of the loss that keeps small float16 gradients from becoming 0.

    Args:
        add_weight: adds a variable to a Keras model, as `keras.Model.add_weight`.

    Attributes:
        scale: the factor.
        finite_steps: steps since the factor last changed.
    """

    def __init__(self, add_weight: Callable[..., keras.Variable]):
        self.scale = add_weight(
            name="loss_scale", initializer=keras.initializers.Constant(FIRST_SCALE),
            trainable=False, dtype="float32", autocast=False,
        )  # fmt: skip
        self.finite_steps = add_weight(
            shape=(), name="finite_steps", initializer="zeros", trainable=False, dtype="int32"
        )

    def adapt(self, finite: tf.Tensor) -> None:
        """Halves the scale after an overflow, doubles it after many steps without one.

        Args:
            finite: bool scalar, True if the gradients of this step were finite.
        """
        steps = tf.where(finite, self.finite_steps.value + 1, 0)
        grow = steps >= STEPS_TO_DOUBLE
        scale = self.scale.value
        grown = tf.where(grow, tf.minimum(scale * 2.0, MAX_SCALE), scale)
        self.scale.assign(tf.where(finite, grown, tf.maximum(scale / 2.0, 1.0)))
        self.finite_steps.assign(tf.where(grow, 0, steps))


class TrainingStep:
    """Updates the weights by one global batch, under the strategy in whose scope it was created.

    Args:
        transformer: a built model.
        config: how to train.
        optimizer: gets the gradients.
        add_weight: adds a variable to the Keras model that trains, as `keras.Model.add_weight`.
        jit_compile: compile forward and backward pass with XLA, per replica.
        auxiliary_loss: a second loss, with the weight `config.auxiliary_loss_weight`.

    Attributes:
        trained: the weights that are trained, by path: all except frozen ones.
        counters: other state than weights and optimizer, by name.
        averages: the moving averages of the weights.
        output: the map from features to logits.
        differentiate: the forward and backward pass of the rows of one replica, a `tf.function`.
        stop_flag: a variable that is 1 if this process wants training to end, or None. Its sum over
            replicas is logged as `stop`, so that all workers know it after the same step.

    Raises:
        InputError: if `config.freeze` matches no weight, or all of them.

    Example:
    >>> from keras_transformer import Transformer, preset
    >>> from keras_transformer.training.trainer import Trainer
    >>> config = preset("tiny").replace(model__d_model=8, model__num_heads=2)
    >>> step = Trainer(Transformer(config.model), config.training).training_step
    >>> ids = tf.constant([[5, 6, 3]])
    >>> logs = step(({"source_ids": ids, "target_ids": tf.constant([[2, 5, 6]])}, ids))
    >>> float(logs["tokens"])
    3.0
    """

    def __init__(
        self,
        transformer: EncoderDecoder,
        config: TrainingConfig,
        optimizer: keras.optimizers.Optimizer,
        add_weight: Callable[..., keras.Variable],
        jit_compile: bool,
        auxiliary_loss: AuxiliaryLoss | None,
    ):
        self._transformer = transformer
        self._config = config
        self._optimizer = optimizer
        self._auxiliary_loss = auxiliary_loss
        self._dropout_masks = hashed_masks if jit_compile else philox_masks
        self._strategy = tf.distribute.get_strategy()
        self.trained = _trained_weights(transformer, config.freeze)
        self.output = _OutputMap(transformer)
        self.stop_flag: tf.Variable | None = None
        optimizer.build(list(self.trained.values()))
        self.counters = {
            name: add_weight(
                shape=(), name=name, initializer="zeros", trainable=False, dtype="int32"
            )
            for name in ("step", "skipped")
        }
        self._loss_scale = (
            _LossScale(add_weight) if transformer.compute_dtype == "float16" else None
        )
        if self._loss_scale is not None:
            self.counters["loss_scale"] = self._loss_scale.scale
            self.counters["finite_steps"] = self._loss_scale.finite_steps
        self.averages = WeightAverages(transformer.weights_by_path(), config.ema_decay, add_weight)
        self.differentiate = tf.function(
            self._loss_and_gradients, jit_compile=jit_compile, autograph=False
        )

    def __call__(self, data: Any) -> dict[str, tf.Tensor]:
        """Takes one step, and returns its logs. Call it once, outside of the replicas.

        Args:
            data: the inputs and labels of a global batch, distributed over the replicas.
        """
        strategy = self._strategy
        parts = strategy.num_replicas_in_sync * self._config.num_microbatches
        step, skipped = self.counters["step"].value, self.counters["skipped"].value
        # Dropout is a function of (seed, step, replica and part) and, in the layer, of its path.
        first_seed = tf.stack(
            [tf.constant(self._config.seed << 32, tf.int64), tf.cast(step, tf.int64) * parts]
        )
        # Read now, because the logs belong to this step, and the scale is changed below.
        scale = tf.convert_to_tensor(self._loss_scale.scale) if self._loss_scale else 1.0
        learning_rate = tf.convert_to_tensor(self._optimizer.learning_rate)
        logs, gradients = strategy.run(self._replica_step, args=(data, first_seed, scale))
        # All replicas have the same logs.
        logs = {name: strategy.experimental_local_results(log)[0] for name, log in logs.items()}
        norm = logs["gradient_norm"]
        finite = tf.math.is_finite(norm)

        def update() -> tf.Tensor:
            self._update(gradients, norm, scale, learning_rate)
            return tf.constant(True)

        tf.cond(finite, update, lambda: tf.constant(False))
        logs["skipped"] = tf.where(finite, 0, skipped + 1)
        skipped.assign(logs["skipped"])
        step.assign_add(1)
        logs["learning_rate"] = learning_rate
        if self._loss_scale is not None:
            self._loss_scale.adapt(finite)
            logs["loss_scale"] = scale
        return logs

    def _replica_step(
        self, data: Any, first_seed: tf.Tensor, loss_scale: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        """Returns the logs of the step and the gradients, both summed over all replicas."""
        inputs, labels = data
        context = tf.distribute.get_replica_context()
        total = tf.distribute.ReduceOp.SUM
        tokens = tf.reduce_sum(real_tokens(labels, self._transformer.config.pad_id))
        stop = tf.constant(0.0) if self.stop_flag is None else tf.cast(self.stop_flag, tf.float32)
        tokens, stop = tf.unstack(context.all_reduce(total, tf.stack([tokens, stop])))
        # A step without a token has gradients of 0, not NaN.
        scale = loss_scale / tf.maximum(tokens, 1.0)
        replica = tf.cast(context.replica_id_in_sync_group, tf.int64)
        seed = first_seed + [0, replica * self._config.num_microbatches]
        sums, gradients = self._accumulate(inputs, labels, seed, scale)
        sums = LossSums(*context.all_reduce(total, list(sums)))
        gradients = context.all_reduce(total, gradients)
        norm = tf.linalg.global_norm(gradients) / loss_scale
        # Already equal, except for the last bit if workers have different processors.
        norm = context.all_reduce(tf.distribute.ReduceOp.MEAN, norm)
        logs = {
            "loss": sums.loss / tf.maximum(tokens, 1.0),
            "log_perplexity": -sums.log_likelihood / tf.maximum(tokens, 1.0),
            "tokens": tokens,
            "gradient_norm": norm,
        }
        if self._auxiliary_loss is not None:
            logs["auxiliary_loss"] = sums.auxiliary / tf.maximum(tokens, 1.0)
        if self.stop_flag is not None:
            logs["stop"] = stop
        return logs, gradients

    def _accumulate(
        self, inputs: dict[str, tf.Tensor], labels: tf.Tensor, seed: tf.Tensor, scale: tf.Tensor
    ) -> tuple[LossSums, list[tf.Tensor]]:
        """Calls `_loss_and_gradients` for `num_microbatches` parts of the rows, one after the
        other.
        """
        count = self._config.num_microbatches
        if count == 1:
            return self.differentiate(inputs, labels, seed, scale)

        def split(ids: tf.Tensor) -> tf.Tensor:
            rows, length = tf.unstack(tf.shape(ids))
            pad_id = self._transformer.config.pad_id
            ids = tf.pad(ids, [[0, -rows % count], [0, 0]], constant_values=pad_id)
            return tf.reshape(ids, [count, -1, length])

        parts = tf.nest.map_structure(split, (inputs, labels))

        def add_part(i: tf.Tensor, total: Any) -> Any:
            part = tf.nest.map_structure(lambda ids: ids[i], parts)
            more = self.differentiate(*part, seed + [0, tf.cast(i, tf.int64)], scale)
            return i + 1, tf.nest.map_structure(tf.add, total, more)

        zeros = [tf.zeros(weight.shape, tf.float32) for weight in self.trained.values()]
        start = (LossSums(*[tf.constant(0.0)] * len(LossSums._fields)), zeros)
        _, total = tf.while_loop(
            lambda i, _: i < count, add_part, (tf.constant(0), start), parallel_iterations=1
        )
        return total

    def _loss_and_gradients(
        self, inputs: dict[str, tf.Tensor], labels: tf.Tensor, seed: tf.Tensor, scale: tf.Tensor
    ) -> tuple[LossSums, list[tf.Tensor]]:
        """Returns the sums of this replica, and the gradients of its loss times `scale`, in
        float32.
        """
        with tf.GradientTape() as tape, dropout_seed(seed, self._dropout_masks(seed)):
            features, auxiliary = self._features(inputs)
            features = self.output.flat(features)
        labels = tf.reshape(labels, [-1])
        sums, by_output = loss_and_gradients(
            features,
            labels,
            self.output.matrix(),
            label_smoothing=self._config.label_smoothing,
            pad_id=self._transformer.config.pad_id,
            scale=scale,
            slice_rows=self.output.slice_rows(labels),
        )
        gradients = tape.gradient(
            [features, auxiliary],
            [variable.value for variable in self.trained.values()],
            output_gradients=[by_output.features, self._config.auxiliary_loss_weight * scale],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        # Gradients of embeddings are IndexedSlices. Dense ones can be summed over replicas, and
        # with the gradient of the output map.
        total = {
            path: tf.cast(tf.convert_to_tensor(gradient), tf.float32)
            for path, gradient in zip(self.trained, gradients, strict=True)
        }
        for path, gradient in self.output.gradients(by_output.kernel).items():
            if path in total:
                total[path] += gradient
        return sums._replace(auxiliary=auxiliary), list(total.values())

    def _features(self, inputs: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the features `[B, T, d_model]` of a step, and its auxiliary loss, a scalar."""
        if self._auxiliary_loss is None:
            return self._transformer.features(inputs, training=True), tf.constant(0.0)
        model: Any = self._transformer  # a model that returns its attention
        memory = model.encode(inputs["source_ids"], training=True)
        decoded = model.decode(
            inputs["target_ids"], memory, return_attention_scores=True, training=True
        )
        return decoded.features, self._auxiliary_loss(inputs, decoded.features, decoded.attention)

    def _update(
        self, gradients: list[Any], norm: tf.Tensor, scale: Any, learning_rate: tf.Tensor
    ) -> None:
        """Updates the weights by the total gradients, which every replica has.

        `optimizer.apply` would sum them over the replicas once more. This is what it does after
        that.
        """
        strategy, optimizer = self._strategy, self._optimizer
        clip_norm = self._config.clip_norm
        factor = clip_norm / tf.maximum(norm, clip_norm) if clip_norm > 0 else 1.0
        rescaled = clip_norm > 0 or self._loss_scale is not None

        def update_one(variable: Any, gradient: tf.Tensor) -> None:
            if rescaled:
                gradient = gradient * (factor / scale)
            optimizer.update_step(gradient, variable, learning_rate)

        with strategy.scope():
            for variable, gradient in zip(self.trained.values(), gradients, strict=True):
                strategy.extended.update(variable.value, update_one, args=(gradient,), group=False)
            optimizer.iterations.assign_add(1)
            self.averages.update(optimizer.iterations.value)


def _trained_weights(transformer: EncoderDecoder, freeze: str) -> dict[str, keras.Variable]:
    """Returns the weights of trainable layers that no pattern of `freeze` matches.

    Patterns are separated by commas.
    """
    weights = transformer.weights_by_path()
    trainable = {id(variable) for variable in transformer.trainable_variables}
    patterns = [pattern.strip() for pattern in freeze.split(",") if pattern.strip()]
    trained = {path: weight for path, weight in weights.items() if id(weight) in trainable}
    for pattern in patterns:
        frozen = fnmatch.filter(weights, pattern)
        if not frozen:
            raise InputError(
                f"training.freeze contains {pattern!r}, which matches no weight. Use patterns of "
                f"paths such as {next(iter(weights))}."
            )
        for path in frozen:
            trained.pop(path, None)
    if not trained:
        raise InputError(
            f"training.freeze {freeze!r} and layers with trainable=False freeze every weight, so "
            "nothing can be trained."
        )
    return trained
