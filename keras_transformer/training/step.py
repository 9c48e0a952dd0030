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
from keras_transformer.models.transformer import is_excluded
from keras_transformer.tf_import import program_cache
from keras_transformer.training.averages import WeightAverages
from keras_transformer.training.devices import renumber_functions, uses_gpus
from keras_transformer.training.dropout_masks import hashed_masks, philox_masks
from keras_transformer.training.loss import (
    AuxiliaryLoss,
    LossSums,
    gpu_slice_rows,
    loss_and_gradients,
    real_tokens,
)
from keras_transformer.training.replica_function import replica_function
from keras_transformer.training.update import LossScale, TrainingState, Update, add_counter


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

    def excluded(self) -> tf.Tensor | None:
        """Returns which tokens are never predicted, bool `[V]`; None if there can be none."""
        return None if self._bias is None else is_excluded(self._bias.value)

    def predictable(self, labels: tf.Tensor) -> tf.Tensor:
        """Returns labels, with padding in place of tokens that are never predicted.

        The loss of one of them would be 10,000, and hide the loss of all others.
        """
        excluded = self.excluded()
        if excluded is None:
            return labels
        return tf.where(tf.gather(excluded, labels), self._pad_id, labels)

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


class TrainingStep:
    """Updates the weights by one global batch, under the strategy in whose scope it was created.

    Args:
        transformer: a built model.
        config: how to train.
        optimizer: gets the gradients.
        add_weight: adds a variable to the Keras model that trains, as `keras.Model.add_weight`.
        jit_compile: compile forward and backward pass with XLA, per replica. On GPUs, compile the
            update, too.
        auxiliary_loss: a second loss, with the weight `config.auxiliary_loss_weight`.

    Attributes:
        trained: the weights that are trained, by path: all except frozen ones.
        counters: other state than weights and optimizer, by name.
        averages: the moving averages of the weights.
        output: the map from features to logits.
        num_replicas: number of replicas.
        on_gpus: whether the replicas are on GPUs.
        jit_compile: whether XLA compiles `differentiate`.
        differentiate: the forward and backward pass of the rows of one replica, a function of
            `replica_function`.
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
        self.num_replicas = self._strategy.num_replicas_in_sync
        self.trained = _trained_weights(transformer, config.freeze)
        self.output = _OutputMap(transformer)
        self.stop_flag: tf.Variable | None = None
        optimizer.build(list(self.trained.values()))
        self.counters = {name: add_counter(add_weight, name) for name in ("step", "skipped")}
        loss_scale = LossScale(add_weight) if transformer.compute_dtype == "float16" else None
        if loss_scale is not None:
            self.counters["loss_scale"] = loss_scale.scale
            self.counters["finite_steps"] = loss_scale.finite_steps
        self.averages = WeightAverages(transformer.weights_by_path(), config.ema_decay, add_weight)
        state = TrainingState(self.trained, self.averages, self.counters, loss_scale)
        self.on_gpus = uses_gpus(self._strategy)
        self._update = Update(state, optimizer, config.clip_norm, jit_compile and self.on_gpus)
        self.jit_compile = jit_compile
        self.differentiate, self._differentiate_without_xla = (
            replica_function(self._loss_and_gradients, lambda: transformer.variables, by_xla)
            for by_xla in (jit_compile, None)
        )

    def __call__(self, data: Any, use_xla: bool = True) -> dict[str, tf.Tensor]:
        """Takes one step, and returns its logs. Call it once, outside of the replicas.

        Args:
            data: the inputs and labels of a global batch, distributed over the replicas.
            use_xla: False runs the same forward and backward pass with the graph executor, although
                `jit_compile` is on. Only the rounding differs.
        """
        strategy = self._strategy
        self._renumber_functions()
        logs, gradients = strategy.run(self._replica_step, args=(data, use_xla))
        # All replicas have the same logs.
        logs = {name: strategy.experimental_local_results(log)[0] for name, log in logs.items()}
        if not self._update.compiled:
            logs |= self._update.step(gradients, logs["gradient_norm"])
        return logs

    @property
    def on_several_workers(self) -> bool:
        """True if other processes take part in every step."""
        return isinstance(self._strategy, tf.distribute.MultiWorkerMirroredStrategy)

    def local_shape(self, ids: Any) -> tuple[int, ...]:
        """Returns the shape of the rows of one replica in a distributed batch."""
        return tuple(self._strategy.experimental_local_results(ids)[0].shape)

    def compile_shape(
        self, rows: tf.Tensor, source_length: tf.Tensor, target_length: tf.Tensor
    ) -> tf.Tensor:
        """Compiles the forward and backward pass for the batches of one shape, without an update.

        Call it inside a `tf.function`. XLA compiles the program of each replica when this function
        runs, because it computes the gradients of a batch of padding. If XLA keeps its programs on
        disk, the other replicas start after the first one, to find its program there. A call of
        `differentiate` outside of the strategy would compile another program.

        Args:
            rows: rows of a replica, an int32 scalar.
            source_length: length of the source sentences, an int32 scalar.
            target_length: length of the target sentences, an int32 scalar.

        Returns:
            A scalar that has a value as soon as the programs have run.
        """
        self._renumber_functions()
        pad_id, parts = self._transformer.config.pad_id, self._config.num_microbatches
        rows = (rows + parts - 1) // parts
        earlier: list[tf.Tensor] = []

        def run_on_padding() -> tf.Tensor:
            source = tf.fill([rows, source_length], pad_id)
            target = tf.fill([rows, target_length], pad_id)
            inputs = {"source_ids": source, "target_ids": target}
            seed, scale = tf.zeros([2], tf.int64), tf.constant(1.0)
            with tf.control_dependencies(earlier):
                sums, _ = self.differentiate(inputs, target, seed, scale)
            if program_cache() and not earlier:
                earlier.append(sums.loss)
            return sums.loss

        losses = self._strategy.run(run_on_padding)
        return tf.add_n(self._strategy.experimental_local_results(losses))

    def _renumber_functions(self) -> None:
        if self._update.compiled and not tf.executing_eagerly():  # while the step is traced
            renumber_functions()

    def _replica_step(
        self, data: Any, use_xla: bool
    ) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        """Returns the logs of the step, and the gradients if they have not been applied. Both are
        sums over all replicas.
        """
        inputs, labels = data
        labels = self.output.predictable(labels)
        tokens = tf.reduce_sum(real_tokens(labels, self._transformer.config.pad_id))
        stop = tf.constant(0.0) if self.stop_flag is None else tf.cast(self.stop_flag, tf.float32)
        if self.num_replicas > 1:
            tokens, stop = tf.unstack(self._sum(tf.stack([tokens, stop])))
        # A step without a token has gradients of 0, not NaN.
        loss_scale, divisor = self._update.loss_scale(), tf.maximum(tokens, 1.0)
        differentiate = self.differentiate if use_xla else self._differentiate_without_xla
        sums, gradients = self._accumulate(
            differentiate, inputs, labels, self._seed(), loss_scale / divisor
        )
        # One collective: TensorFlow packs all tensors of a call into one buffer.
        totals = self._sum([*sums, *gradients])
        sums, gradients = LossSums(*totals[: len(sums)]), totals[len(sums) :]
        norm = self._update.global_norm(gradients) / loss_scale
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
        if self._auxiliary_loss is not None:
            logs["auxiliary_loss"] = sums.auxiliary / divisor
        if self.stop_flag is not None:
            logs["stop"] = stop
        if not self._update.compiled:
            return logs, gradients
        return logs | self._update.compiled_step(gradients, norm), []

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
        parts = self._config.num_microbatches
        step = tf.convert_to_tensor(self.counters["step"].value)
        count = step * (self.num_replicas * parts)
        if self.num_replicas > 1:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            count += tf.cast(replica, tf.int64) * parts
        return tf.stack([tf.constant(self._config.seed << 32, tf.int64), count])

    def _accumulate(
        self,
        differentiate: Callable[..., tuple[LossSums, list[tf.Tensor]]],
        inputs: dict[str, tf.Tensor],
        labels: tf.Tensor,
        seed: tf.Tensor,
        scale: tf.Tensor,
    ) -> tuple[LossSums, list[tf.Tensor]]:
        """Calls `differentiate` for `num_microbatches` parts of the rows, one after the other."""
        count = self._config.num_microbatches
        if count == 1:
            return differentiate(inputs, labels, seed, scale)

        def split(ids: tf.Tensor) -> tf.Tensor:
            rows, length = tf.unstack(tf.shape(ids))
            pad_id = self._transformer.config.pad_id
            ids = tf.pad(ids, [[0, -rows % count], [0, 0]], constant_values=pad_id)
            return tf.reshape(ids, [count, -1, length])

        parts = tf.nest.map_structure(split, (inputs, labels))

        def add_part(i: tf.Tensor, total: Any) -> Any:
            part = tf.nest.map_structure(lambda ids: ids[i], parts)
            more = differentiate(*part, seed + [0, tf.cast(i, tf.int64)], scale)
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
            excluded=self.output.excluded(),
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
