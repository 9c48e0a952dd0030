"""The training step: one exact update from a global batch, whatever the number of replicas.

Stock Keras divides by each replica's own token count, wraps XLA around the whole
strategy, and gives every replica the same dropout mask. Here the replicas first
agree on the number of target tokens, then each computes the gradients of its
share of the sum (inside XLA if asked), and the optimizer sees their total.
"""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.layers import dropout_seed
from keras_transformer.model import Transformer
from keras_transformer.training.loss import (
    EvaluationSums,
    LossSums,
    evaluation_sums,
    loss_and_gradients,
    real_tokens,
)
from keras_transformer.training.schedule import make_optimizer

_MAX_LOSS_SCALE = 2.0**15
_STEPS_TO_DOUBLE_SCALE = 2000


class Trainer(keras.Model):
    """Trains a `Transformer` through `fit`, under the strategy whose scope it is made in.

    Args:
        transformer: a model made in the same strategy's scope.
        config: how to train.
        jit_compile: compile forward and backward pass with XLA, per replica.

    `fit` takes a dataset of `({"source_ids", "target_ids"}, labels)` with the
    rows of the *global* batch, a multiple of the number of replicas. It logs
    `loss` (label-smoothed, nats a token), `log_perplexity` (of the true labels,
    likewise), `tokens`, `learning_rate` and `gradient_norm`; validation logs `val_loss`,
    `val_perplexity` and `val_accuracy`.
    """

    def __init__(self, transformer: Transformer, config: TrainingConfig, jit_compile: bool = False):
        super().__init__(name="trainer")
        self.transformer = transformer
        self.config = config
        transformer.build()
        self.built = True
        self.compile(
            optimizer=make_optimizer(config, transformer.config.d_model), jit_compile=False
        )
        self.optimizer.build(transformer.trainable_variables)
        self._untied = transformer.config.tie_embeddings == "none"
        self._needs_loss_scale = transformer.compute_dtype == "float16"
        if self._needs_loss_scale:
            self.loss_scale = self.add_weight(
                name="loss_scale", initializer=keras.initializers.Constant(_MAX_LOSS_SCALE),
                trainable=False, dtype="float32", autocast=False,
            )  # fmt: skip
            self.finite_steps = self.add_weight(
                name="finite_steps", initializer="zeros", trainable=False, dtype="int32"
            )
        self._differentiate = tf.function(self._loss_and_gradients, jit_compile=jit_compile)
        self._evaluation_function: Any = None

    @property
    def step(self) -> int:
        """Number of updates so far."""
        return int(tf.convert_to_tensor(self.optimizer.iterations.value))

    def state_by_path(self) -> dict[str, keras.Variable]:
        """All that the next step depends on besides the weights: the optimizer, the loss scale."""
        scale = [self.loss_scale, self.finite_steps] if self._needs_loss_scale else []
        return {variable.path: variable for variable in [*self.optimizer.variables, *scale]}

    def _output_kernel(self) -> tf.Tensor:
        """Float32 `[V, d_model]`; a bias is one more column."""
        kernel, bias = self.transformer.output_weights()
        values = tf.convert_to_tensor(kernel.value)
        if self._untied:
            values = tf.transpose(values)  # --> [V, d_model]
        return values if bias is None else tf.concat([values, bias.value[:, None]], axis=1)

    def _flat_features(
        self, inputs: dict[str, tf.Tensor], labels: tf.Tensor, training: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Features `[N, d_model]`, and a constant 1 for the bias if there is one; labels `[N]`."""
        features = self.transformer.features(inputs, training=training)
        features = tf.reshape(features, [-1, features.shape[-1]])
        if self.transformer.config.output_bias:
            features = tf.concat([features, tf.ones_like(features[:, :1])], axis=1)
        return features, tf.reshape(labels, [-1])

    def _loss_and_gradients(
        self, inputs: dict[str, tf.Tensor], labels: tf.Tensor, seed: tf.Tensor, scale: tf.Tensor
    ) -> tuple[LossSums, list[tf.Tensor]]:
        """This replica's sums, and `scale` times the gradients of its loss, in float32."""
        variables = self.transformer.trainable_variables
        with tf.GradientTape() as tape, dropout_seed(seed):
            features, flat_labels = self._flat_features(inputs, labels, training=True)
        sums, by_output = loss_and_gradients(
            features,
            flat_labels,
            self._output_kernel(),
            label_smoothing=self.config.label_smoothing,
            pad_id=self.transformer.config.pad_id,
            scale=scale,
        )
        gradients = tape.gradient(
            features,
            [variable.value for variable in variables],
            output_gradients=by_output.features,
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        # Embeddings' gradients come as IndexedSlices; dense ones can be summed over replicas
        # and with the share of the output map.
        total = {
            variable.path: tf.cast(tf.convert_to_tensor(gradient), tf.float32)
            for variable, gradient in zip(variables, gradients, strict=True)
        }
        kernel, bias = self.transformer.output_weights()
        width = self.transformer.config.d_model
        by_kernel = by_output.kernel[:, :width]
        total[kernel.path] += tf.transpose(by_kernel) if self._untied else by_kernel
        if bias is not None:
            total[bias.path] += by_output.kernel[:, width]
        return sums, list(total.values())

    def _replica_step(
        self, data: Any, first_seed: tf.Tensor, loss_scale: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        """What every replica does: gradients of its rows, summed over all replicas."""
        inputs, labels = data
        context = tf.distribute.get_replica_context()
        total = tf.distribute.ReduceOp.SUM
        tokens = context.all_reduce(
            total, tf.reduce_sum(real_tokens(labels, self.transformer.config.pad_id))
        )
        # A step without a token has gradients of 0, not NaN.
        scale = loss_scale / tf.maximum(tokens, 1.0)
        replica = tf.cast(context.replica_id_in_sync_group, tf.int64)
        sums, gradients = self._differentiate(inputs, labels, first_seed + [0, replica], scale)
        sums = LossSums(*context.all_reduce(total, list(sums)))
        gradients = context.all_reduce(total, gradients)
        gradients = [gradient / loss_scale for gradient in gradients]
        norm = tf.linalg.global_norm(gradients)
        if self.config.clip_norm > 0:
            factor = self.config.clip_norm / tf.maximum(norm, self.config.clip_norm)
            gradients = [gradient * factor for gradient in gradients]
        logs = {
            "loss": sums.loss / tf.maximum(tokens, 1.0),
            "log_perplexity": -sums.log_likelihood / tf.maximum(tokens, 1.0),
            "tokens": tokens,
            "gradient_norm": norm,
        }
        return logs, gradients

    def _global_step(self, data: Any) -> dict[str, tf.Tensor]:
        """One update: called outside the replicas, once for all of them."""
        strategy = self.distribute_strategy
        replicas = strategy.num_replicas_in_sync
        step = tf.cast(self.optimizer.iterations.value, tf.int64)
        # Dropout is a function of (seed, step, replica) and, in the layer, of its path.
        first_seed = tf.stack([tf.constant(self.config.seed << 32, tf.int64), step * replicas])
        # Read now: the log is of this step, and the scale is changed below.
        scale = tf.convert_to_tensor(self.loss_scale) if self._needs_loss_scale else 1.0
        learning_rate = tf.convert_to_tensor(self.optimizer.learning_rate)
        logs, gradients = strategy.run(self._replica_step, args=(data, first_seed, scale))
        # Every replica has the same logs already.
        logs = {name: strategy.experimental_local_results(log)[0] for name, log in logs.items()}
        logs["learning_rate"] = learning_rate

        def update() -> tf.Tensor:
            self._update(gradients, learning_rate)
            return tf.constant(True)

        if self._needs_loss_scale:
            finite = tf.math.is_finite(logs["gradient_norm"])
            tf.cond(finite, update, lambda: tf.constant(False))
            self._adapt_loss_scale(finite)
            logs["loss_scale"] = scale
        else:
            update()
        return logs

    def _update(self, gradients: list[Any], learning_rate: tf.Tensor) -> None:
        """Moves the weights by gradients that every replica has in full.

        `optimizer.apply` would sum them over the replicas once more; this is
        what it does after that.
        """
        strategy, optimizer = self.distribute_strategy, self.optimizer

        def update_one(variable: Any, gradient: tf.Tensor) -> None:
            optimizer.update_step(gradient, variable, learning_rate)

        variables = self.transformer.trainable_variables
        with strategy.scope():
            for variable, gradient in zip(variables, gradients, strict=True):
                strategy.extended.update(variable.value, update_one, args=(gradient,), group=False)
            optimizer.iterations.assign_add(1)

    def _adapt_loss_scale(self, finite: tf.Tensor) -> None:
        """Halves the scale after an overflow, doubles it after many steps without one."""
        steps = tf.where(finite, self.finite_steps.value + 1, 0)
        grow = steps >= _STEPS_TO_DOUBLE_SCALE
        scale = self.loss_scale.value
        grown = tf.where(grow, tf.minimum(scale * 2.0, _MAX_LOSS_SCALE), scale)
        self.loss_scale.assign(tf.where(finite, grown, tf.maximum(scale / 2.0, 1.0)))
        self.finite_steps.assign(tf.where(grow, 0, steps))

    def make_train_function(self, force: bool = False) -> Any:
        if getattr(self, "train_function", None) is None or force:

            @tf.function(reduce_retracing=True)
            def train_function(iterator: Any) -> dict[str, tf.Tensor]:
                return self._global_step(next(iterator))

            self.train_function = train_function
        return self.train_function

    def evaluate(self, x: tf.data.Dataset, **kwargs: Any) -> dict[str, float]:
        """Validation `loss`, `perplexity` and `accuracy` (share of tokens) over a whole dataset.

        `fit(validation_data=dataset)` calls it; sums are over all of its tokens,
        so that neither batches nor replicas weigh more than their tokens.
        """
        if self._evaluation_function is None:
            self._evaluation_function = tf.function(self._global_evaluation, reduce_retracing=True)
        strategy = self.distribute_strategy
        sums = [0.0] * len(EvaluationSums._fields)
        for data in strategy.experimental_distribute_dataset(x):
            batch_sums = self._evaluation_function(data)
            sums = [total + float(part) for total, part in zip(sums, batch_sums, strict=True)]
        total = EvaluationSums(*sums)
        tokens = max(total.tokens, 1.0)
        return {
            "loss": total.loss / tokens,
            "perplexity": math.exp(min(-total.log_likelihood / tokens, 700.0)),
            "accuracy": total.correct / tokens,
        }

    def _global_evaluation(self, data: Any) -> EvaluationSums:
        strategy = self.distribute_strategy
        sums = strategy.run(self._replica_evaluation, args=(data,))
        return EvaluationSums(*(strategy.reduce("SUM", part, axis=None) for part in sums))

    def _replica_evaluation(self, data: Any) -> EvaluationSums:
        inputs, labels = data
        features, labels = self._flat_features(inputs, labels, training=False)
        return evaluation_sums(
            features,
            labels,
            self._output_kernel(),
            label_smoothing=self.config.label_smoothing,
            pad_id=self.transformer.config.pad_id,
        )

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        # Everything is built in __init__; Keras would average a batch over the replicas, turning
        # ids into floats, and open the dataset once more.
        del iterator, data_batch
