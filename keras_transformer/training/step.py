"""The training step: one exact update from a global batch, however it is spread.

Stock Keras divides by each replica's own token count, wraps XLA around the whole
strategy, and gives every replica the same dropout mask. Here the replicas first
agree on the number of target tokens. Then each computes the gradients of its
share of the sum (inside XLA if asked, in several parts if asked), and the
optimizer sees their total, if it is finite.
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
from keras_transformer.training.loss import AuxiliaryLoss, LossSums, loss_and_gradients, real_tokens
from keras_transformer.training.loss_scale import LossScale


class OutputMap:
    """The map from features to logits as one float32 matrix `[V, d]`, whatever is tied.

    A bias is one more column of the matrix, and a constant 1 is one more feature.
    """

    def __init__(self, transformer: EncoderDecoder):
        self._kernel, self._bias = transformer.output_weights()
        self._transposed = transformer.config.tie_embeddings == "none"
        self._paths = {id(v): path for path, v in transformer.weights_by_path().items()}

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

    def gradients(self, by_matrix: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the gradients by the weights, by path, for one by the matrix."""
        if self._bias is None:
            by_kernel, by_bias = by_matrix, {}
        else:
            by_kernel, by_bias = by_matrix[:, :-1], {self._paths[id(self._bias)]: by_matrix[:, -1]}
        by_kernel = tf.transpose(by_kernel) if self._transposed else by_kernel
        return {self._paths[id(self._kernel)]: by_kernel, **by_bias}


class TrainingStep:
    """Moves the weights by one global batch, under the strategy in whose scope it is made.

    Args:
        transformer: a built model.
        config: how to train.
        optimizer: gets the gradients.
        add_weight: adds a variable to the Keras model that trains, as `keras.Model.add_weight`.
        jit_compile: compile forward and backward pass with XLA, per replica.
        auxiliary_loss: a second loss, which counts `config.guided_alignment` times.

    Attributes:
        trained: the weights that steps move, by path: all but the frozen ones.
        counters: what the next step depends on besides the weights and the optimizer, by name.
        averages: the moving averages of the weights.
        output: the map from features to logits.
        stop_flag: see `Trainer`.

    Raises:
        InputError: where `config.freeze` names no weight, or all of them.
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
        self._strategy = tf.distribute.get_strategy()
        self.trained = _trained_weights(transformer, config.freeze)
        self.output = OutputMap(transformer)
        self.stop_flag: tf.Variable | None = None
        optimizer.build(list(self.trained.values()))
        self.counters = {
            name: add_weight(
                shape=(), name=name, initializer="zeros", trainable=False, dtype="int32"
            )
            for name in ("step", "skipped")
        }
        self._loss_scale = LossScale(add_weight) if transformer.compute_dtype == "float16" else None
        if self._loss_scale is not None:
            self.counters["loss_scale"] = self._loss_scale.scale
            self.counters["finite_steps"] = self._loss_scale.finite_steps
        self.averages = WeightAverages(transformer.weights_by_path(), config.ema_decay, add_weight)
        self._differentiate = tf.function(
            self._loss_and_gradients, jit_compile=jit_compile, autograph=False
        )

    def __call__(self, data: Any) -> dict[str, tf.Tensor]:
        """Takes one step, and returns its logs; called outside the replicas, once for all of them.

        Args:
            data: the inputs and labels of a global batch, distributed over the replicas.
        """
        strategy = self._strategy
        parts = strategy.num_replicas_in_sync * self._config.accumulate_steps
        step, skipped = self.counters["step"].value, self.counters["skipped"].value
        # Dropout is a function of (seed, step, replica and part) and, in the layer, of its path.
        first_seed = tf.stack(
            [tf.constant(self._config.seed << 32, tf.int64), tf.cast(step, tf.int64) * parts]
        )
        # Read now: the log is of this step, and the scale is changed below.
        scale = tf.convert_to_tensor(self._loss_scale.scale) if self._loss_scale else 1.0
        learning_rate = tf.convert_to_tensor(self._optimizer.learning_rate)
        logs, gradients = strategy.run(self._replica_step, args=(data, first_seed, scale))
        # Every replica has the same logs already.
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
        seed = first_seed + [0, replica * self._config.accumulate_steps]
        sums, gradients = self._accumulate(inputs, labels, seed, scale)
        sums = LossSums(*context.all_reduce(total, list(sums)))
        gradients = context.all_reduce(total, gradients)
        norm = tf.linalg.global_norm(gradients) / loss_scale
        # The same already, but for the last bit where workers have processors of two kinds.
        norm = context.all_reduce(tf.distribute.ReduceOp.MEAN, norm)
        logs = {
            "loss": sums.loss / tf.maximum(tokens, 1.0),
            "log_perplexity": -sums.log_likelihood / tf.maximum(tokens, 1.0),
            "tokens": tokens,
            "gradient_norm": norm,
        }
        if self._auxiliary_loss is not None:
            logs[self._auxiliary_loss.name] = sums.auxiliary / tf.maximum(tokens, 1.0)
        if self.stop_flag is not None:
            logs["stop"] = stop
        return logs, gradients

    def _accumulate(
        self, inputs: dict[str, tf.Tensor], labels: tf.Tensor, seed: tf.Tensor, scale: tf.Tensor
    ) -> tuple[LossSums, list[tf.Tensor]]:
        """`_loss_and_gradients` in `accumulate_steps` parts of the rows, one after the other."""
        count = self._config.accumulate_steps
        if count == 1:
            return self._differentiate(inputs, labels, seed, scale)

        def split(ids: tf.Tensor) -> tf.Tensor:
            rows, length = tf.unstack(tf.shape(ids))
            pad_id = self._transformer.config.pad_id
            ids = tf.pad(ids, [[0, -rows % count], [0, 0]], constant_values=pad_id)
            return tf.reshape(ids, [count, -1, length])

        parts = tf.nest.map_structure(split, (inputs, labels))

        def add_part(i: tf.Tensor, total: Any) -> Any:
            part = tf.nest.map_structure(lambda ids: ids[i], parts)
            more = self._differentiate(*part, seed + [0, tf.cast(i, tf.int64)], scale)
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
        """Returns this replica's sums, and `scale` times the gradients of its loss, in float32."""
        with tf.GradientTape() as tape, dropout_seed(seed):
            features, auxiliary = self._features(inputs)
            features = self.output.flat(features)
        sums, by_output = loss_and_gradients(
            features,
            tf.reshape(labels, [-1]),
            self.output.matrix(),
            label_smoothing=self._config.label_smoothing,
            pad_id=self._transformer.config.pad_id,
            scale=scale,
        )
        gradients = tape.gradient(
            [features, auxiliary],
            [variable.value for variable in self.trained.values()],
            output_gradients=[by_output.features, self._config.guided_alignment * scale],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        # Embeddings' gradients come as IndexedSlices; dense ones can be summed over replicas
        # and with the share of the output map.
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
        model: Any = self._transformer  # one that returns its attention, as not every one does
        memory = model.encode(inputs["source_ids"], training=True)
        decoded = model.decode(
            inputs["target_ids"], memory, return_attention_scores=True, training=True
        )
        return decoded.features, self._auxiliary_loss(inputs, decoded.features, decoded.attention)

    def _update(
        self, gradients: list[Any], norm: tf.Tensor, scale: Any, learning_rate: tf.Tensor
    ) -> None:
        """Moves the weights by gradients that every replica has in full.

        `optimizer.apply` would sum them over the replicas once more; this is
        what it does after that.
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
    """Returns every weight that `freeze`, patterns separated by commas, leaves to be trained."""
    weights = transformer.weights_by_path()
    patterns = [pattern.strip() for pattern in freeze.split(",") if pattern.strip()]
    trained = dict(weights)
    for pattern in patterns:
        frozen = fnmatch.filter(weights, pattern)
        if not frozen:
            raise InputError(
                f"training.freeze names {pattern!r}, which matches no weight; expected patterns of "
                f"paths like {next(iter(weights))}"
            )
        for path in frozen:
            trained.pop(path, None)
    if not trained:
        raise InputError(f"training.freeze {freeze!r} freezes every weight; expected to train some")
    return trained
