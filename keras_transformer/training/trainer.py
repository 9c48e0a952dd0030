"""Training from top to bottom: what happens in a step, and what happens between steps.

* A step is `Trainer.train_step`: batch, forward pass, loss, gradients, update.
* An interval of `training.checkpoint_steps` steps is an epoch of Keras's `fit`. It ends in
  `Rhythm.on_train_batch_end`: log, validate, write a checkpoint, stop.

Keras divides by the token count of each replica, compiles the whole strategy with XLA, and gives
every replica the same dropout mask. Here, the replicas first add up their target tokens. Then each
computes the gradients of its rows, with XLA and in several parts if configured, and updates its
weights by the sum of all gradients if it is finite. So an update does not depend on the devices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.console import warn
from keras_transformer.data.batches import Batches
from keras_transformer.errors import require
from keras_transformer.layers import dropout_seed
from keras_transformer.layers.base import sum_over_replicas
from keras_transformer.models.encoder_decoder import EncoderDecoder
from keras_transformer.runs.machine import signal_handlers
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.training.devices import (
    explained_errors,
    make_xla_cache_names_reproducible,
    replica_function,
    uses_gpus,
)
from keras_transformer.training.dropout_masks import hashed_masks, philox_masks
from keras_transformer.training.loss import AuxiliaryLoss, LossSums, OutputProjection, real_tokens
from keras_transformer.training.progress import (
    Progress,
    StopRequest,
    bleu_is_due,
    compare_with_best,
    ends_interval,
    is_finished,
)
from keras_transformer.training.update import Update, arrays, make_optimizer, trained_weights


class Trainer(keras.Model):
    """Trains a model with `fit`, under the strategy in whose scope it was created.

    `fit` takes a dataset of `({"source_ids", "target_ids"}, labels)` with the rows of the *global*
    batch, a multiple of the number of replicas, or a distributed dataset with the rows of each
    replica.

    The logs of a step are `loss` (without the auxiliary loss), `log_perplexity` (of the true
    labels) and `auxiliary_loss` (before its factor), all in nats per token; `tokens`,
    `learning_rate` and `gradient_norm`; `skipped`, the number of steps in a row, including this
    one, without an update, because gradients were not finite; and with float16 `loss_scale`.

    `jit_compile` compiles the forward and backward pass with XLA; on GPUs the update, too.

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
        # `ModelCheckpoint` saves the Transformer.
        self.save, self.save_weights = transformer.save, transformer.save_weights
        self.config = config
        transformer.build()
        self.built = True
        self.auxiliary_loss = auxiliary_loss if config.auxiliary_loss_weight else None
        if config.auxiliary_loss_weight:
            require(
                auxiliary_loss is not None and transformer.can_return_attention,
                f"training.auxiliary_loss_weight is {config.auxiliary_loss_weight}, which needs "
                "a loss that an extension has for this vocabulary, and a Transformer without "
                "model.attention_window.",
            )
        self.compile(
            optimizer=make_optimizer(config, transformer.config.d_model),
            jit_compile=False,  # Keras would compile the whole strategy
        )
        self.num_replicas = self.distribute_strategy.num_replicas_in_sync
        self.xla = jit_compile
        self.xla_on_gpus = jit_compile and uses_gpus(self.distribute_strategy)
        trained = trained_weights(transformer, config.freeze)
        self.optimizer.build(list(trained.values()))
        self.update = Update(
            transformer.weights_by_path(), trained, self.optimizer, config, self.add_weight,
            scales_loss=transformer.compute_dtype == "float16", as_one_program=self.xla_on_gpus,
        )  # fmt: skip
        self.projection = OutputProjection(transformer, config.label_smoothing)
        self.stop_flag: tf.Variable | None = None
        self.steps_to_pass = 0
        self.differentiate = replica_function(
            self._forward_and_backward, lambda: transformer.variables, jit_compile or None
        )
        self.train_function = self._make_train_function()
        self._evaluate_batch = tf.function(
            self._evaluation_sums, reduce_retracing=True, autograph=False
        )

    # A step, from the batch to the update.

    def _make_train_function(self) -> Callable[[Any], dict[str, tf.Tensor]]:
        """Returns a function that takes the next step. Keras's `fit` calls it in a loop."""
        strategy = self.distribute_strategy

        @tf.function(reduce_retracing=True, autograph=False)
        def next_step(iterator: Any) -> dict[str, tf.Tensor]:
            if self.xla_on_gpus:
                make_xla_cache_names_reproducible()
            logs = strategy.run(self.train_step, args=(next(iterator),))
            # All replicas have the same logs, but Keras would reduce them.
            return strategy.experimental_local_results(logs)[0]

        def train_function(iterator: Any) -> dict[str, tf.Tensor]:
            if self.steps_to_pass:
                self.steps_to_pass -= 1
                return {}
            return next_step(iterator)

        return train_function

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Takes a step in one replica, with the rows of this replica."""
        inputs, labels = data
        labels = self.projection.predictable(labels)
        tokens = tf.reduce_sum(real_tokens(labels, self.transformer.config.pad_id))
        stop = tf.constant(0.0) if self.stop_flag is None else tf.cast(self.stop_flag, tf.float32)
        if self.num_replicas > 1:
            tokens, stop = tf.unstack(sum_over_replicas(tf.stack([tokens, stop])))
        # A step without a token has gradients of 0, not NaN.
        loss_scale, divisor = self.update.scale(), tf.maximum(tokens, 1.0)
        arguments = inputs, labels, self._seed(), loss_scale / divisor
        if self.config.num_microbatches == 1:
            sums, gradients = self.differentiate(*arguments)
        else:
            sums, gradients = self._accumulate(*arguments)
        # One collective: TensorFlow packs all tensors of a call into one buffer.
        totals = sum_over_replicas([*sums, *gradients])
        sums, gradients = LossSums(*totals[: len(sums)]), totals[len(sums) :]
        norm = self.update.global_norm(gradients) / loss_scale
        if self.num_replicas > 1:  # workers with different processors differ in the last bit
            norm = sum_over_replicas(norm / self.num_replicas)
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

    def _accumulate(
        self, inputs: dict[str, tf.Tensor], labels: tf.Tensor, seed: tf.Tensor, scale: tf.Tensor
    ) -> tuple[LossSums, list[tf.Tensor]]:
        """Calls `differentiate` for `num_microbatches` parts of the rows, one after the other."""
        count = self.config.num_microbatches

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

    def _forward_and_backward(
        self, inputs: dict[str, tf.Tensor], labels: tf.Tensor, seed: tf.Tensor, scale: tf.Tensor
    ) -> tuple[LossSums, list[tf.Tensor]]:
        """Returns the sums of these rows, and the float32 gradients of their loss times `scale`."""
        trained = self.update.trained
        model: Any = self.transformer  # an auxiliary loss needs a model that returns its attention
        draw_mask = hashed_masks(seed) if self.xla else philox_masks(seed)
        with tf.GradientTape() as tape, dropout_seed(seed, draw_mask):
            memory = model.encode(inputs["source_ids"], training=True)
            with_weights = self.auxiliary_loss is not None
            features, attention = model.decode(
                inputs["target_ids"], memory, return_attention_scores=with_weights, training=True
            )
            auxiliary = tf.constant(0.0)
            if self.auxiliary_loss is not None:
                auxiliary = self.auxiliary_loss(inputs, features, attention)
        sums, by_features, by_projection = self.projection.loss_and_gradients(
            features, labels, scale
        )
        gradients = tape.gradient(
            [features, auxiliary],
            [variable.value for variable in trained.values()],
            output_gradients=[by_features, self.config.auxiliary_loss_weight * scale],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        # Gradients of embeddings are IndexedSlices. Dense ones can be summed over replicas, and
        # with the gradients of the output projection.
        total = {
            path: tf.cast(tf.convert_to_tensor(gradient), tf.float32)
            for path, gradient in zip(trained, gradients, strict=True)
        }
        for path in by_projection.keys() & total.keys():
            total[path] += by_projection[path]
        return sums._replace(auxiliary=auxiliary), list(total.values())

    def _seed(self) -> tf.Tensor:
        """Returns the dropout seed of the first part of this replica: seed and count, int64 `[2]`.

        Dropout is a function of it and, in the layer, of its path.
        """
        parts = self.config.num_microbatches
        count = tf.convert_to_tensor(self.update.step.value) * (self.num_replicas * parts)
        if self.num_replicas > 1:
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            count += tf.cast(replica, tf.int64) * parts
        return tf.stack([tf.constant(self.config.seed << 32, tf.int64), count])

    # Validation.

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
        sums = strategy.run(self.test_step, args=(data,))
        return LossSums(*(strategy.reduce("SUM", part, axis=None) for part in sums))

    def test_step(self, data: Any) -> LossSums:
        """Returns the sums of the loss in one replica."""
        inputs, labels = data
        memory = self.transformer.encode(inputs["source_ids"], training=False)
        features, _ = self.transformer.decode(inputs["target_ids"], memory, training=False)
        labels = self.projection.predictable(labels)
        return self.projection.loss_and_gradients(features, labels, scale=None)[0]

    # The state, and methods that callbacks of users call.

    @property
    def step(self) -> int:
        """Number of batches so far. `optimizer.iterations` of them have updated the weights."""
        return int(tf.convert_to_tensor(self.update.step.value))

    def state_by_path(self) -> dict[str, keras.Variable]:
        """The training state, except the weights and their averages, by path."""
        variables = [*self.optimizer.variables, *self.update.counters]
        return {variable.path: variable for variable in variables}

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Returns the logits of the Transformer, as callbacks that predict expect."""
        return self.transformer(inputs, training=training)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Does nothing, because everything is built in `__init__`.

        Keras would average a batch over the replicas, and open the dataset once more. It has no
        public option against this.
        """


class Rhythm(keras.callbacks.Callback):
    """Logs, validates, writes checkpoints and ends training.

    It acts at the ends of steps, before other callbacks see the end of an epoch. So its position
    among them does not matter, and they find the validation in the logs of an epoch. Training
    always ends with a checkpoint. In the middle of an interval this is without a validation, so
    that validations and early stopping do not depend on interruptions. Only the chief has a run
    directory.
    """

    def __init__(
        self,
        trainer: Trainer,
        run: RunDirectory | None,
        metrics: Mapping[str, float],
        stop: StopRequest,
        validate: Callable[[], Mapping[str, float]],
        bleu: Callable[[], float] | None = None,
    ):
        super().__init__()
        self.run, self.stop = run, stop
        self.metrics = dict(metrics)  # metrics of the newest checkpoint
        self.progress = Progress(trainer.step, trainer.config, run, metrics)
        self._config = trainer.config
        self._validation, self._bleu = validate, bleu
        self._step_of_checkpoint = trainer.step
        self._first_step = trainer.step + 1  # the first step of this process
        self._previous_logs: Mapping[str, Any] | None = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.progress.restart_clock()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.progress.add(logs)
        step = self.progress.step
        is_end = ends_interval(step, self._config)
        if is_end or step % self._config.log_steps == 0:
            self.progress.report()
        elif step == self._first_step:
            self.progress.show_loss(logs)
        if is_end:
            self._validate(logs)
            self._write_checkpoint(logs)
        if self._is_stop_requested(logs) or is_finished(step, self._config, self.metrics):
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.progress.step > self._step_of_checkpoint:  # training has stopped inside an interval
            self.progress.report()
            self._write_checkpoint(dict(logs or {}))

    def _validate(self, logs: dict[str, Any]) -> None:
        """Adds the metrics of a validation to the logs."""
        metrics = {f"val_{name}": value for name, value in self._validation().items()}
        if self._bleu is not None and bleu_is_due(self.progress.step, self._config):
            metrics["val_bleu"] = self._bleu()
        self.progress.report_validation(metrics)
        logs |= metrics

    def _write_checkpoint(self, logs: dict[str, Any]) -> None:
        """Writes a checkpoint, with the cost of the whole run so far."""
        model, step = self.model, self.progress.step
        self._step_of_checkpoint = step
        logs |= compare_with_best(step, self._config, logs, self.metrics)
        costs = self.progress.costs()
        self.metrics = {**{name: float(value) for name, value in logs.items()}, **costs}
        if self.run is None:
            return
        # The metrics come before the checkpoint: a resumed run drops metrics that come after it.
        self.run.append_metrics({"step": step, **costs})
        if not math.isfinite(self.metrics.get("val_loss", 0.0)):
            warn(f"Step {step}: no checkpoint, because the validation loss is not finite.")
            return
        self.run.save_checkpoint(
            step,
            arrays(model.transformer.weights_by_path()),
            arrays(model.state_by_path()),
            self.metrics,
            ema=arrays(model.update.averages),
        )

    def _is_stop_requested(self, logs: Mapping[str, Any]) -> bool:
        stop, flag = bool(self.stop), self.model.stop_flag
        if flag is None:
            return stop
        # All workers stop after the same step: two steps after the first one was asked to.
        if stop:
            flag.assign(1)
        # Read the logs of the previous step, because a GPU may not have finished this one.
        before, self._previous_logs = self._previous_logs, logs
        return before is not None and float(before["stop"]) > 0


def fit(
    trainer: Trainer,
    batches: Batches,
    rhythm: Rhythm,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> dict[str, float]:
    """Trains until the run is finished or stopped; returns the metrics of its last checkpoint."""
    step, config = trainer.step, trainer.config
    epoch, trainer.steps_to_pass = divmod(step, config.checkpoint_steps)
    epochs = math.ceil(config.max_steps / config.checkpoint_steps)
    stop = rhythm.stop
    with explained_errors(config, stop), signal_handlers(stop.handle_signal), rhythm.progress:
        trainer.fit(
            batches.distributed(trainer.distribute_strategy, step),
            initial_epoch=epoch,
            epochs=epochs,
            steps_per_epoch=config.checkpoint_steps,
            callbacks=_CallbackList(
                [rhythm, *callbacks], add_history=True, model=trainer, epochs=epochs,
                steps=config.checkpoint_steps, verbose=0,
            ),
            shuffle=False,
            verbose=0,
        )  # fmt: skip
    return rhythm.metrics


class _CallbackList(keras.callbacks.CallbackList):
    """A list of callbacks that passes on the logs of a step as tensors.

    Keras would convert them to numbers after every step, and a GPU would wait for Python. Callbacks
    do not see the steps that are passed over, which have no logs.
    """

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        for callback in self.callbacks:
            if not callback.model.steps_to_pass:
                callback.on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        for callback in self.callbacks if logs else ():
            callback.on_train_batch_end(batch, logs)
