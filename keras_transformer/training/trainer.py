"""A Keras model that trains a Transformer: one exact update from a global batch, on any devices.

Keras divides by the token count of each replica, compiles the whole strategy with XLA, and gives
every replica the same dropout mask. Here, in `Trainer.train_step`, the replicas first add up their
target tokens. Then each computes the gradients of its rows, with XLA and in several parts if
configured. Each replica updates its weights by the sum of the gradients if it is finite.
"""

from __future__ import annotations

import fnmatch
import itertools
import math
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.errors import InputError
from keras_transformer.layers import dropout_seed
from keras_transformer.models.encoder_decoder import EncoderDecoder
from keras_transformer.models.transformer import is_excluded
from keras_transformer.training.devices import (
    make_xla_cache_names_reproducible,
    replica_function,
    uses_gpus,
)
from keras_transformer.training.dropout_masks import hashed_masks, philox_masks
from keras_transformer.training.loss import (
    AuxiliaryLoss,
    LossSums,
    gpu_slice_rows,
    loss_and_gradients,
    real_tokens,
)
from keras_transformer.training.update import Update, make_optimizer


class Trainer(keras.Model):
    """Trains a model with `fit`, under the strategy in whose scope it was created.

    `fit` takes a dataset of `({"source_ids", "target_ids"}, labels)` with the rows of the *global*
    batch, a multiple of the number of replicas, or a distributed dataset with the rows of each
    replica.

    Logs of training:

    * `loss`: label-smoothed cross entropy in nats per token, without the auxiliary loss
    * `log_perplexity`: cross entropy of the true labels in nats per token
    * `auxiliary_loss`: in nats per token, before its factor
    * `tokens`, `learning_rate` and `gradient_norm`
    * `skipped`: steps in a row, including this one, without an update, because gradients were not
      finite
    * `loss_scale`: only with float16

    `jit_compile` compiles the forward and backward pass with XLA, per replica; on GPUs the update,
    too.

    Attributes:
        differentiate: the forward and backward pass of the rows of one replica.
        stop_flag: a variable that is 1 if this process wants training to end, or None. Its sum over
            replicas is logged as `stop`, so that all workers know it after the same step.
        steps_to_pass: number of calls of the train function that do nothing. So the first epoch of
            a resumed run, an interval of which a part was trained before, ends where it should.
    """

    def __init__(
        self,
        transformer: EncoderDecoder,
        config: TrainingConfig,
        jit_compile: bool = False,
        auxiliary_loss: AuxiliaryLoss | None = None,
    ):
        super().__init__(name="trainer")
        self.transformer = transformer
        self.config = config
        transformer.build()
        self.built = True
        self.auxiliary_loss = auxiliary_loss if config.auxiliary_loss_weight else None
        if config.auxiliary_loss_weight:
            _check_auxiliary_loss(transformer, config, auxiliary_loss)
        self.compile(
            optimizer=make_optimizer(config, transformer.config.d_model),
            jit_compile=False,  # Keras would compile the whole strategy
        )
        self.num_replicas = self.distribute_strategy.num_replicas_in_sync
        self.xla = jit_compile
        self.xla_on_gpus = jit_compile and uses_gpus(self.distribute_strategy)
        trained = _trained_weights(transformer, config.freeze)
        self.optimizer.build(list(trained.values()))
        self.update = Update(
            transformer.weights_by_path(), trained, self.optimizer, config, self.add_weight,
            scales_loss=transformer.compute_dtype == "float16", as_one_program=self.xla_on_gpus,
        )  # fmt: skip
        self.output_map = _OutputMap(transformer)
        self.stop_flag: tf.Variable | None = None
        self.steps_to_pass = 0
        self.differentiate = replica_function(
            self._loss_and_gradients, lambda: transformer.variables, jit_compile or None
        )
        self._evaluate_batch = tf.function(
            self._evaluation_sums, reduce_retracing=True, autograph=False
        )

    def make_train_function(self, force: bool = False) -> Any:
        if getattr(self, "train_function", None) is None or force:

            @tf.function(reduce_retracing=True, autograph=False)
            def next_step(iterator: Any) -> dict[str, tf.Tensor]:
                return self.take_step(next(iterator))

            def train_function(iterator: Any) -> dict[str, tf.Tensor]:
                if self.steps_to_pass:
                    self.steps_to_pass -= 1
                    return {}
                return next_step(iterator)

            self.train_function = train_function
        return self.train_function

    def take_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Updates the weights by a global batch, distributed over the replicas.

        Returns:
            The logs of the first replica. All have the same, but Keras would reduce them.
        """
        strategy = self.distribute_strategy
        self._prepare_tracing()
        logs = strategy.run(self.train_step, args=(data,))
        return {name: strategy.experimental_local_results(log)[0] for name, log in logs.items()}

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Takes a step in one replica, with the rows of this replica."""
        inputs, labels = data
        labels = self.output_map.predictable(labels)
        tokens = tf.reduce_sum(real_tokens(labels, self.transformer.config.pad_id))
        stop = tf.constant(0.0) if self.stop_flag is None else tf.cast(self.stop_flag, tf.float32)
        if self.num_replicas > 1:
            tokens, stop = tf.unstack(self._sum(tf.stack([tokens, stop])))
        # A step without a token has gradients of 0, not NaN.
        loss_scale, divisor = self.update.scale(), tf.maximum(tokens, 1.0)
        sums, gradients = self._accumulate(inputs, labels, self._seed(), loss_scale / divisor)
        # One collective: TensorFlow packs all tensors of a call into one buffer.
        totals = self._sum([*sums, *gradients])
        sums, gradients = LossSums(*totals[: len(sums)]), totals[len(sums) :]
        norm = self.update.global_norm(gradients) / loss_scale
        if self.num_replicas > 1:
            # Already equal, except for the last bit if workers have different processors.
            context = tf.distribute.get_replica_context()
            norm = context.all_reduce(tf.distribute.ReduceOp.MEAN, norm)
        logs = {
            "loss": sums.loss / divisor,
            "log_perplexity": -sums.log_likelihood / divisor,
            "tokens": tokens,
            "gradient_norm": norm,
        }
        if self.auxiliary_loss is not None:
            logs["auxiliary_loss"] = sums.auxiliary / divisor
        if self.stop_flag is not None:
            logs["stop"] = stop
        return logs | self.update.apply(gradients, norm)

    def _sum(self, values: Any) -> Any:
        """Sums tensors over the replicas."""
        if self.num_replicas == 1:
            return values  # without an operation for each of them
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, values)

    def _seed(self) -> tf.Tensor:
        """Returns the dropout seed of this replica and of its first part, int64 `[2]`.

        Dropout is a function of (seed, step, replica and part) and, in the layer, of its path.
        """
        parts = self.config.num_microbatches
        count = tf.convert_to_tensor(self.update.step.value) * (self.num_replicas * parts)
        if self.num_replicas > 1:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            count += tf.cast(replica, tf.int64) * parts
        return tf.stack([tf.constant(self.config.seed << 32, tf.int64), count])

    def _accumulate(
        self, inputs: dict[str, tf.Tensor], labels: tf.Tensor, seed: tf.Tensor, scale: tf.Tensor
    ) -> tuple[LossSums, list[tf.Tensor]]:
        """Calls `differentiate` for `num_microbatches` parts of the rows, one after the other."""
        count = self.config.num_microbatches
        if count == 1:
            return self.differentiate(inputs, labels, seed, scale)

        def split(ids: tf.Tensor) -> tf.Tensor:
            rows, length = tf.unstack(tf.shape(ids))
            pad_id = self.transformer.config.pad_id
            ids = tf.pad(ids, [[0, -rows % count], [0, 0]], constant_values=pad_id)
            return tf.reshape(ids, [count, -1, length])

        parts = tf.nest.map_structure(split, (inputs, labels))

        def add_part(i: tf.Tensor, total: Any) -> Any:
            part = tf.nest.map_structure(lambda ids: ids[i], parts)
            more = self.differentiate(*part, seed + [0, tf.cast(i, tf.int64)], scale)
            return i + 1, tf.nest.map_structure(tf.add, total, more)

        zeros = [tf.zeros(weight.shape, tf.float32) for weight in self.update.trained.values()]
        start = (LossSums(*[tf.constant(0.0)] * len(LossSums._fields)), zeros)
        _, total = tf.while_loop(
            lambda i, _: i < count, add_part, (tf.constant(0), start), parallel_iterations=1
        )
        return total

    def _loss_and_gradients(
        self, inputs: dict[str, tf.Tensor], labels: tf.Tensor, seed: tf.Tensor, scale: tf.Tensor
    ) -> tuple[LossSums, list[tf.Tensor]]:
        """Returns the sums of these rows, and the float32 gradients of their loss times `scale`."""
        output_map, trained = self.output_map, self.update.trained
        draw_mask = hashed_masks(seed) if self.xla else philox_masks(seed)
        with tf.GradientTape() as tape, dropout_seed(seed, draw_mask):
            features, auxiliary = self._features(inputs)
            features = output_map.flat(features)
        sums, (by_features, by_matrix) = self._loss(features, labels, scale)
        gradients = tape.gradient(
            [features, auxiliary],
            [variable.value for variable in trained.values()],
            output_gradients=[by_features, self.config.auxiliary_loss_weight * scale],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        # Gradients of embeddings are IndexedSlices. Dense ones can be summed over replicas, and
        # with the gradient of the output map.
        total = {
            path: tf.cast(tf.convert_to_tensor(gradient), tf.float32)
            for path, gradient in zip(trained, gradients, strict=True)
        }
        for path, gradient in output_map.gradients(by_matrix).items():
            if path in total:
                total[path] += gradient
        return sums._replace(auxiliary=auxiliary), list(total.values())

    def _features(self, inputs: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the features `[B, T, d_model]` of a step, and its auxiliary loss, a scalar."""
        if self.auxiliary_loss is None:
            return self.transformer.features(inputs, training=True), tf.constant(0.0)
        model: Any = self.transformer  # a model that returns its attention
        memory = model.encode(inputs["source_ids"], training=True)
        decoded = model.decode(
            inputs["target_ids"], memory, return_attention_scores=True, training=True
        )
        return decoded.features, self.auxiliary_loss(inputs, decoded.features, decoded.attention)

    def _loss(
        self, features: tf.Tensor, labels: tf.Tensor, scale: tf.Tensor | None
    ) -> tuple[LossSums, tuple[tf.Tensor, ...]]:
        labels = tf.reshape(labels, [-1])
        return loss_and_gradients(
            features, labels, self.output_map.matrix(),
            label_smoothing=self.config.label_smoothing, pad_id=self.transformer.config.pad_id,
            excluded=self.output_map.excluded(), scale=scale,
            slice_rows=self.output_map.slice_rows(labels),
        )  # fmt: skip

    def compile_shape(
        self, rows: tf.Tensor, source_length: tf.Tensor, target_length: tf.Tensor
    ) -> tf.Tensor:
        """Compiles the forward and backward pass for the batches of one shape, without an update.

        Call it inside a `tf.function`. XLA compiles the program of each replica when this function
        runs, because it computes the gradients of padding. The other replicas start after the first
        one, to find its program on disk.

        Args:
            rows: rows of a replica, an int32 scalar.
            source_length: length of the source sentences, an int32 scalar.
            target_length: length of the target sentences, an int32 scalar.

        Returns:
            A scalar that has a value as soon as the programs have run.
        """
        self._prepare_tracing()
        pad_id, parts = self.transformer.config.pad_id, self.config.num_microbatches
        rows = (rows + parts - 1) // parts
        earlier: list[tf.Tensor] = []

        def run_on_padding() -> tf.Tensor:
            source = tf.fill([rows, source_length], pad_id)
            target = tf.fill([rows, target_length], pad_id)
            inputs = {"source_ids": source, "target_ids": target}
            seed, scale = tf.zeros([2], tf.int64), tf.constant(1.0)
            with tf.control_dependencies(earlier):
                sums, _ = self.differentiate(inputs, target, seed, scale)
            earlier[:] = [sums.loss]
            return sums.loss

        losses = self.distribute_strategy.run(run_on_padding)
        return tf.add_n(self.distribute_strategy.experimental_local_results(losses))

    def _prepare_tracing(self) -> None:
        if self.xla_on_gpus and not tf.executing_eagerly():
            make_xla_cache_names_reproducible()

    def evaluate(self, x: Any, steps: int | None = None, **kwargs: Any) -> dict[str, float]:
        """Returns validation `loss`, `perplexity` and `accuracy` (share of tokens) over a dataset.

        The means are over all tokens, independent of batches and replicas. If the weights have a
        moving average, the average is evaluated. Other arguments of Keras are ignored.
        """
        if isinstance(x, tf.data.Dataset):
            x = self.distribute_strategy.experimental_distribute_dataset(x)
        total = LossSums(0.0, 0.0, 0.0)
        with self.update.averages_in_place():
            for data in itertools.islice(x, steps):
                sums = self._evaluate_batch(data)
                total = LossSums(*(a + float(b) for a, b in zip(total, sums, strict=True)))
        tokens = max(total.tokens, 1.0)
        return {
            "loss": total.loss / tokens,
            "perplexity": math.exp(min(-total.log_likelihood / tokens, 700.0)),
            "accuracy": total.correct / tokens,
        }

    def _evaluation_sums(self, data: Any) -> LossSums:
        strategy = self.distribute_strategy
        sums = strategy.run(self._replica_evaluation, args=(data,))
        return LossSums(*(strategy.reduce("SUM", part, axis=None) for part in sums))

    def _replica_evaluation(self, data: Any) -> LossSums:
        inputs, labels = data
        features = self.output_map.flat(self.transformer.features(inputs, training=False))
        return self._loss(features, self.output_map.predictable(labels), None)[0]

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Returns the logits of the Transformer, as callbacks that predict expect."""
        return self.transformer(inputs, training=training)

    def save(self, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
        """Saves the Transformer, as `ModelCheckpoint` does during a run."""
        self.transformer.save(filepath, overwrite=overwrite, **kwargs)

    def save_weights(self, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
        self.transformer.save_weights(filepath, overwrite=overwrite, **kwargs)

    @property
    def step(self) -> int:
        """Number of batches so far. `optimizer.iterations` of them have updated the weights."""
        return int(tf.convert_to_tensor(self.update.step.value))

    def state_by_path(self) -> dict[str, keras.Variable]:
        """The training state, except the weights and their averages, by path."""
        variables = [*self.optimizer.variables, *self.update.counters]
        return {variable.path: variable for variable in variables}

    def ema_by_path(self) -> dict[str, keras.Variable]:
        """The moving average of every weight, by the path of the weight; empty without averages."""
        return dict(self.update.averages)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        # Everything is built in __init__. Keras would average a batch over the replicas, which
        # turns ids into floats, and open the dataset once more.
        del iterator, data_batch


class _OutputMap:
    """The map from features to logits as one float32 matrix `[V, d]`, with tied weights or without.

    A bias is an additional column of the matrix, and a constant 1 is an additional feature.
    """

    def __init__(self, transformer: EncoderDecoder):
        self._kernel, self._bias = transformer.output_weights()
        self._transposed = transformer.config.tie_embeddings == "none"
        self._paths = {id(v): path for path, v in transformer.weights_by_path().items()}
        self._on_gpus = uses_gpus(tf.distribute.get_strategy())
        self._pad_id = transformer.config.pad_id

    def matrix(self) -> tf.Tensor:
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

    def excluded(self) -> tf.Tensor | None:
        """Returns which tokens are never predicted, bool `[V]`; None if there can be none."""
        return None if self._bias is None else is_excluded(self._bias.value)

    def predictable(self, labels: tf.Tensor) -> tf.Tensor:
        """Returns labels, with padding instead of tokens that are never predicted.

        A single such label would add 10,000 to the loss and hide all others.
        """
        excluded = self.excluded()
        if excluded is None:
            return labels
        return tf.where(tf.gather(excluded, labels), self._pad_id, labels)

    def slice_rows(self, labels: tf.Tensor) -> tf.Tensor | None:
        """Returns the rows of logits to compute at once for flat labels; None on a CPU."""
        if not self._on_gpus:
            return None
        num_classes = self._kernel.shape[-1 if self._transposed else 0]
        return gpu_slice_rows(tf.shape(labels)[0], num_classes)

    def gradients(self, by_matrix: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the gradients of the weights, by path, from the gradient of the matrix."""
        if self._bias is None:
            by_kernel, by_bias = by_matrix, {}
        else:
            by_kernel, by_bias = by_matrix[:, :-1], {self._paths[id(self._bias)]: by_matrix[:, -1]}
        by_kernel = tf.transpose(by_kernel) if self._transposed else by_kernel
        return {self._paths[id(self._kernel)]: by_kernel, **by_bias}


def _trained_weights(transformer: EncoderDecoder, freeze: str) -> dict[str, keras.Variable]:
    """Returns the weights of trainable layers that no pattern of `freeze` matches.

    Patterns are separated by commas.
    """
    weights = transformer.weights_by_path()
    trainable = {id(variable) for variable in transformer.trainable_variables}
    trained = {path: weight for path, weight in weights.items() if id(weight) in trainable}
    for pattern in filter(None, map(str.strip, freeze.split(","))):
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


def _check_auxiliary_loss(
    transformer: EncoderDecoder, config: TrainingConfig, auxiliary_loss: AuxiliaryLoss | None
) -> None:
    problem = f"training.auxiliary_loss_weight is {config.auxiliary_loss_weight}, but"
    if auxiliary_loss is None:
        raise InputError(
            f"{problem} the data has no alignments. Train on data with alignments, or set "
            "training.auxiliary_loss_weight to 0."
        )
    if not transformer.can_return_attention:
        raise InputError(
            f"{problem} this model does not return attention in training. Use a Transformer "
            "without model.attention_window, or set training.auxiliary_loss_weight to 0."
        )
