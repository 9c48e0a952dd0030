"""The training step: one exact update from a global batch, however it is spread.

Stock Keras divides by each replica's own token count, wraps XLA around the whole
strategy, and gives every replica the same dropout mask. Here the replicas first
agree on the number of target tokens, then each computes the gradients of its
share of the sum (inside XLA if asked, in several parts if asked), and the
optimizer sees their total, if it is finite.
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import math
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.errors import InputError
from keras_transformer.layers import dropout_seed
from keras_transformer.models.encoder_decoder import EncoderDecoder
from keras_transformer.training.alignment import GuidedAlignment
from keras_transformer.training.loss import (
    EvaluationSums,
    LossSums,
    evaluation_sums,
    loss_and_gradients,
    real_tokens,
)
from keras_transformer.training.optimizer import make_optimizer

_FIRST_LOSS_SCALE = 2.0**15
_MAX_LOSS_SCALE = 2.0**24
_STEPS_TO_DOUBLE_SCALE = 2000


class Trainer(keras.Model):
    """Trains a model through `fit`, under the strategy whose scope it is made in.

    Args:
        transformer: a `Transformer`, or another model, made in the same strategy's scope.
        config: how to train.
        jit_compile: compile forward and backward pass with XLA, per replica.
        alignment: tells the source word that each target token belongs to; needed for
            `config.guided_alignment`.

    `fit` takes a dataset of `({"source_ids", "target_ids"}, labels)` with the
    rows of the *global* batch, a multiple of the number of replicas, or a
    distributed dataset with each replica's rows. It logs `loss` (label-smoothed,
    nats a token), `log_perplexity` (of the true labels, likewise), with a guided
    alignment `alignment_loss` (likewise; `loss` is without it), `tokens`,
    `learning_rate`, `gradient_norm`, `skipped` (steps in a row, this one
    included, that changed no weight since gradients were not finite) and with
    float16 `loss_scale`; validation logs `val_loss`, `val_perplexity` and
    `val_accuracy`, of the moving average of the weights where there is one.

    Attributes:
        stop_flag: a variable that is 1 where this process wants training to end,
            or None. Its sum over replicas is logged as `stop`, so that all
            workers know of it after the same step.
        skip_validation: whether `evaluate` has nothing to say: a run that is stopped
            between two validations is in a hurry.

    Raises:
        InputError: where `config.freeze` names no weight, or all of them, and for a guided
            alignment that is not known, or of a model whose attention is not at hand.
    """

    def __init__(
        self,
        transformer: EncoderDecoder,
        config: TrainingConfig,
        jit_compile: bool = False,
        alignment: GuidedAlignment | None = None,
    ):
        super().__init__(name="trainer")
        self.transformer = transformer
        self.config = config
        self.stop_flag: tf.Variable | None = None
        self.skip_validation = False
        transformer.build()
        self.built = True
        self._trained = _trained_weights(transformer, config.freeze)
        if config.guided_alignment:
            _check_alignment(transformer, config, alignment)
        self._alignment = alignment if config.guided_alignment else None
        self.compile(
            optimizer=make_optimizer(config, transformer.config.d_model), jit_compile=False
        )
        self.optimizer.build(list(self._trained.values()))
        self._untied = transformer.config.tie_embeddings == "none"
        self._counters = {"step": self._counter("step"), "skipped": self._counter("skipped")}
        self._needs_loss_scale = transformer.compute_dtype == "float16"
        if self._needs_loss_scale:
            self.loss_scale = self._counters["loss_scale"] = self.add_weight(
                name="loss_scale", initializer=keras.initializers.Constant(_FIRST_LOSS_SCALE),
                trainable=False, dtype="float32", autocast=False,
            )  # fmt: skip
            self.finite_steps = self._counters["finite_steps"] = self._counter("finite_steps")
        self._averages: dict[str, keras.Variable] = {}
        if config.ema_decay:
            for path, weight in transformer.weights_by_path().items():
                name = "average_of_" + path.replace("/", "_")
                self._averages[path] = self.add_weight(
                    shape=weight.shape, dtype=weight.dtype, trainable=False, name=name,
                    initializer="zeros", autocast=False,
                )  # fmt: skip
                self._averages[path].assign(weight.value)
        self._with_xla = jit_compile  # `jit_compile` is Keras's: XLA around the whole strategy
        self._differentiate = tf.function(
            self._loss_and_gradients, jit_compile=jit_compile, autograph=False
        )
        self._evaluation_function: Any = None
        self._shapes_seen: set[tuple[int, ...]] = set()

    def _counter(self, name: str) -> keras.Variable:
        return self.add_weight(
            shape=(), name=name, initializer="zeros", trainable=False, dtype="int32"
        )

    @property
    def step(self) -> int:
        """Number of batches so far; of those, `optimizer.iterations` have moved the weights."""
        return int(tf.convert_to_tensor(self._counters["step"].value))

    @property
    def num_compiles(self) -> int:
        """How many programs XLA has compiled in this process: each batch shape on each replica."""
        return len(self._shapes_seen) * self.local_replicas

    @property
    def local_replicas(self) -> int:
        """Number of this process's replicas, each of which XLA compiles for."""
        return len(self.distribute_strategy.extended.worker_devices)

    def trained_by_path(self) -> dict[str, keras.Variable]:
        """The weights that steps move, by path: all but the frozen ones."""
        return dict(self._trained)

    def state_by_path(self) -> dict[str, keras.Variable]:
        """All that the next step depends on besides the weights and their averages."""
        counters = self._counters.values()
        return {variable.path: variable for variable in [*self.optimizer.variables, *counters]}

    def ema_by_path(self) -> dict[str, keras.Variable]:
        """The moving average of every weight, by the weight's path; empty without one."""
        return dict(self._averages)

    def _output_kernel(self) -> tf.Tensor:
        """Float32 `[V, d_model]`; a bias is one more column."""
        kernel, bias = self.transformer.output_weights()
        values = tf.convert_to_tensor(kernel.value)
        if self._untied:
            values = tf.transpose(values)  # --> [V, d_model]
        return values if bias is None else tf.concat([values, bias.value[:, None]], axis=1)

    def _features(self, inputs: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Features `[B, T, d_model]` of a step, and the loss of the alignment."""
        if self._alignment is None:
            return self.transformer.features(inputs, training=True), tf.constant(0.0)
        model: Any = self.transformer  # one that tells its attention, which is not every one
        memory = model.encode(inputs["source_ids"], training=True)
        decoded = model.decode(
            inputs["target_ids"], memory, return_attention_scores=True, training=True
        )
        return decoded.features, self._alignment.loss(inputs, decoded.attention)

    def _flat(self, features: tf.Tensor) -> tf.Tensor:
        """Features `[N, d_model]`, and a constant 1 for the bias if there is one."""
        features = tf.reshape(features, [-1, features.shape[-1]])
        if self.transformer.output_weights()[1] is not None:
            features = tf.concat([features, tf.ones_like(features[:, :1])], axis=1)
        return features

    def _loss_and_gradients(
        self, inputs: dict[str, tf.Tensor], labels: tf.Tensor, seed: tf.Tensor, scale: tf.Tensor
    ) -> tuple[LossSums, list[tf.Tensor]]:
        """This replica's sums, and `scale` times the gradients of its loss, in float32."""
        if self.config.r_drop:  # two passes in one batch, in which no row is dropped as another
            inputs, labels = tf.nest.map_structure(
                lambda ids: tf.concat([ids, ids], axis=0), (inputs, labels)
            )
        with tf.GradientTape() as tape, dropout_seed(seed):
            features, alignment_loss = self._features(inputs)
            features = self._flat(features)
        sums, by_output = loss_and_gradients(
            features,
            tf.reshape(labels, [-1]),
            self._output_kernel(),
            label_smoothing=self.config.label_smoothing,
            pad_id=self.transformer.config.pad_id,
            scale=scale,
            r_drop=self.config.r_drop,
        )
        passes = 2 if self.config.r_drop else 1
        gradients = tape.gradient(
            [features, alignment_loss],
            [variable.value for variable in self._trained.values()],
            output_gradients=[by_output.features, self.config.guided_alignment * scale / passes],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        # Embeddings' gradients come as IndexedSlices; dense ones can be summed over replicas
        # and with the share of the output map.
        total = {
            path: tf.cast(tf.convert_to_tensor(gradient), tf.float32)
            for path, gradient in zip(self._trained, gradients, strict=True)
        }
        kernel, bias = self._output_paths
        width = self.transformer.config.d_model
        if kernel in total:
            by_kernel = by_output.kernel[:, :width]
            total[kernel] += tf.transpose(by_kernel) if self._untied else by_kernel
        if bias in total:
            total[bias] += by_output.kernel[:, width]
        return sums._replace(alignment=alignment_loss / passes), list(total.values())

    @property
    def _output_paths(self) -> tuple[str, str | None]:
        """The paths of `transformer.output_weights()`."""
        paths = {id(v): path for path, v in self.transformer.weights_by_path().items()}
        kernel, bias = self.transformer.output_weights()
        return paths[id(kernel)], None if bias is None else paths[id(bias)]

    def _accumulate(
        self, inputs: dict[str, tf.Tensor], labels: tf.Tensor, seed: tf.Tensor, scale: tf.Tensor
    ) -> tuple[LossSums, list[tf.Tensor]]:
        """`_loss_and_gradients` in `accumulate_steps` parts of the rows, one after the other."""
        count = self.config.accumulate_steps
        if count == 1:
            return self._differentiate(inputs, labels, seed, scale)

        def split(ids: tf.Tensor) -> tf.Tensor:
            rows, length = tf.unstack(tf.shape(ids))
            pad_id = self.transformer.config.pad_id
            ids = tf.pad(ids, [[0, -rows % count], [0, 0]], constant_values=pad_id)
            return tf.reshape(ids, [count, -1, length])

        parts = tf.nest.map_structure(split, (inputs, labels))

        def add_part(i: tf.Tensor, total: Any) -> Any:
            part = tf.nest.map_structure(lambda ids: ids[i], parts)
            more = self._differentiate(*part, seed + [0, tf.cast(i, tf.int64)], scale)
            return i + 1, tf.nest.map_structure(tf.add, total, more)

        zeros = [tf.zeros(weight.shape, tf.float32) for weight in self._trained.values()]
        start = (LossSums(*[tf.constant(0.0)] * len(LossSums._fields)), zeros)
        _, total = tf.while_loop(
            lambda i, _: i < count, add_part, (tf.constant(0), start), parallel_iterations=1
        )
        return total

    def _replica_step(
        self, data: Any, first_seed: tf.Tensor, loss_scale: tf.Tensor
    ) -> tuple[dict[str, tf.Tensor], list[tf.Tensor]]:
        """What every replica does: gradients of its rows, summed over all replicas."""
        inputs, labels = data
        context = tf.distribute.get_replica_context()
        total = tf.distribute.ReduceOp.SUM
        tokens = tf.reduce_sum(real_tokens(labels, self.transformer.config.pad_id))
        stop = tf.constant(0.0) if self.stop_flag is None else tf.cast(self.stop_flag, tf.float32)
        tokens, stop = tf.unstack(context.all_reduce(total, tf.stack([tokens, stop])))
        # A step without a token has gradients of 0, not NaN.
        scale = loss_scale / tf.maximum(tokens, 1.0)
        replica = tf.cast(context.replica_id_in_sync_group, tf.int64)
        seed = first_seed + [0, replica * self.config.accumulate_steps]
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
        if self._alignment is not None:
            logs["alignment_loss"] = sums.alignment / tf.maximum(tokens, 1.0)
        if self.stop_flag is not None:
            logs["stop"] = stop
        return logs, gradients

    def _global_step(self, data: Any) -> dict[str, tf.Tensor]:
        """One update: called outside the replicas, once for all of them."""
        strategy = self.distribute_strategy
        parts = strategy.num_replicas_in_sync * self.config.accumulate_steps
        step, skipped = self._counters["step"].value, self._counters["skipped"].value
        # Dropout is a function of (seed, step, replica and part) and, in the layer, of its path.
        first_seed = tf.stack(
            [tf.constant(self.config.seed << 32, tf.int64), tf.cast(step, tf.int64) * parts]
        )
        # Read now: the log is of this step, and the scale is changed below.
        scale = tf.convert_to_tensor(self.loss_scale) if self._needs_loss_scale else 1.0
        learning_rate = tf.convert_to_tensor(self.optimizer.learning_rate)
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
        if self._needs_loss_scale:
            self._adapt_loss_scale(finite)
            logs["loss_scale"] = scale
        return logs

    def _update(
        self, gradients: list[Any], norm: tf.Tensor, scale: Any, learning_rate: tf.Tensor
    ) -> None:
        """Moves the weights by gradients that every replica has in full.

        `optimizer.apply` would sum them over the replicas once more; this is
        what it does after that.
        """
        strategy, optimizer = self.distribute_strategy, self.optimizer
        clip_norm = self.config.clip_norm
        factor = clip_norm / tf.maximum(norm, clip_norm) if clip_norm > 0 else 1.0
        rescaled = clip_norm > 0 or self._needs_loss_scale

        def update_one(variable: Any, gradient: tf.Tensor) -> None:
            if rescaled:
                gradient = gradient * (factor / scale)
            optimizer.update_step(gradient, variable, learning_rate)

        with strategy.scope():
            for variable, gradient in zip(self._trained.values(), gradients, strict=True):
                strategy.extended.update(variable.value, update_one, args=(gradient,), group=False)
            optimizer.iterations.assign_add(1)
            self._update_averages()

    def _update_averages(self) -> None:
        """Moves each average towards its weight; in the first steps faster, to forget the start."""
        if not self._averages:
            return
        updates = tf.cast(self.optimizer.iterations.value, tf.float32)
        rate = 1.0 - tf.minimum(self.config.ema_decay, (1.0 + updates) / (10.0 + updates))

        def update_one(average: Any, weight: tf.Tensor) -> None:
            average.assign_sub((average - weight) * rate)

        for path, weight in self.transformer.weights_by_path().items():
            self.distribute_strategy.extended.update(
                self._averages[path].value, update_one, args=(weight.value,), group=False
            )

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

            @tf.function(reduce_retracing=True, autograph=False)
            def one_step(iterator: Any) -> tuple[dict[str, tf.Tensor], Any]:
                inputs, labels = next(iterator)
                local = self.distribute_strategy.experimental_local_results
                shapes = [tf.shape(local(ids)[0]) for ids in (inputs["source_ids"], labels)]
                return self._global_step((inputs, labels)), shapes

            def train_function(iterator: Any) -> dict[str, tf.Tensor]:
                logs, shapes = one_step(iterator)
                if self._with_xla:  # shapes are on the host: reading them waits for no GPU
                    self._shapes_seen.add(tuple(int(n) for shape in shapes for n in shape))
                return logs

            self.train_function = train_function
        return self.train_function

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        batch_size: int | None = None,
        steps: int | None = None,
        **kwargs: Any,
    ) -> dict[str, float]:
        """Validation `loss`, `perplexity` and `accuracy` (share of tokens) over a whole dataset.

        `fit(validation_data=...)` calls it; sums are over all of its tokens,
        so that neither batches nor replicas weigh more than their tokens. Where
        the weights have a moving average, that is what is evaluated.

        Args:
            x: a dataset of inputs and labels, or the inputs, arrays.
            y: the labels of such.
            batch_size: their rows in a batch, 32 where it is not given.
            steps: evaluate no more batches than that.
            **kwargs: what else Keras's `fit` hands over, which changes nothing here.
        """
        if self._evaluation_function is None:
            self._evaluation_function = tf.function(
                self._global_evaluation, reduce_retracing=True, autograph=False
            )
        strategy = self.distribute_strategy
        sums = [0.0] * len(EvaluationSums._fields)
        if self.skip_validation:
            return {}
        if y is not None:
            x = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch_size or 32)
        if isinstance(x, tf.data.Dataset):
            x = strategy.experimental_distribute_dataset(x)
        with self._averages_in_place():
            for data in itertools.islice(x, steps):
                batch_sums = self._evaluation_function(data)
                sums = [total + float(part) for total, part in zip(sums, batch_sums, strict=True)]
        total = EvaluationSums(*sums)
        tokens = max(total.tokens, 1.0)
        return {
            "loss": total.loss / tokens,
            "perplexity": math.exp(min(-total.log_likelihood / tokens, 700.0)),
            "accuracy": total.correct / tokens,
        }

    @contextlib.contextmanager
    def _averages_in_place(self) -> Iterator[None]:
        """Exchanges weights and averages, and back again."""

        def exchange() -> None:
            weights = self.transformer.weights_by_path()
            for path, average in self._averages.items():
                weight = tf.identity(weights[path].value)
                weights[path].assign(average.value)
                average.assign(weight)

        exchange()
        try:
            yield
        finally:
            exchange()

    def _global_evaluation(self, data: Any) -> EvaluationSums:
        strategy = self.distribute_strategy
        sums = strategy.run(self._replica_evaluation, args=(data,))
        return EvaluationSums(*(strategy.reduce("SUM", part, axis=None) for part in sums))

    def _replica_evaluation(self, data: Any) -> EvaluationSums:
        inputs, labels = data
        features = self._flat(self.transformer.features(inputs, training=False))
        labels = tf.reshape(labels, [-1])
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


def _trained_weights(transformer: EncoderDecoder, freeze: str) -> dict[str, keras.Variable]:
    """Every weight that `freeze`, patterns with commas between them, leaves to be trained."""
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


def _check_alignment(
    transformer: EncoderDecoder, config: TrainingConfig, alignment: GuidedAlignment | None
) -> None:
    """Refuses a guided alignment that cannot be."""
    told = f"training.guided_alignment is {config.guided_alignment}, but"
    if alignment is None:
        raise InputError(
            f"{told} nothing tells which source word a target token belongs to; expected data of "
            "bin/prepare_trees.py, whose tags tell it, or 0"
        )
    if not transformer.can_return_attention:
        raise InputError(
            f"{told} this model does not show its attention in training; expected a Transformer "
            "without model.attention_window, or 0"
        )
