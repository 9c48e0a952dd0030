"""A Keras model whose `fit` takes the package's training steps."""

from __future__ import annotations

import itertools
import math
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.errors import InputError
from keras_transformer.models.encoder_decoder import EncoderDecoder
from keras_transformer.training.loss import AuxiliaryLoss, EvaluationSums, evaluation_sums
from keras_transformer.training.optimizer import make_optimizer
from keras_transformer.training.step import TrainingStep


class Trainer(keras.Model):
    """Trains a model through `fit`, under the strategy whose scope it is made in.

    Args:
        transformer: a `Transformer`, or another model, made in the same strategy's scope.
        config: how to train.
        jit_compile: compile forward and backward pass with XLA, per replica.
        auxiliary_loss: a loss to add to the cross entropy, `config.guided_alignment` times; it
            is needed, and computed, only where that is not 0.

    `fit` takes a dataset of `({"source_ids", "target_ids"}, labels)` with the
    rows of the *global* batch, a multiple of the number of replicas, or a
    distributed dataset with each replica's rows. It logs

    * `loss` (label-smoothed cross entropy, in nats per token, without the auxiliary loss),
    * `log_perplexity` (cross entropy of the true labels, in nats per token),
    * with an auxiliary loss, that in nats per token under its own name,
    * `tokens`, `learning_rate` and `gradient_norm`,
    * `skipped` (steps in a row, this one included, that changed no weight because gradients
      were not finite) and, with float16, `loss_scale`.

    Validation logs `val_loss`, `val_perplexity` and `val_accuracy`, of the moving average of
    the weights where there is one.

    Attributes:
        stop_flag: a variable that is 1 where this process wants training to end,
            or None. Its sum over replicas is logged as `stop`, so that all
            workers know of it after the same step.
        skip_validation: whether `evaluate` returns nothing, because a run was stopped between
            two validations.

    Raises:
        InputError: where `config.freeze` names no weight, or all of them; and where
            `config.guided_alignment` is not 0, but there is no auxiliary loss, or the model
            does not return its attention.
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
        self.skip_validation = False
        transformer.build()
        self.built = True
        if config.guided_alignment:
            _check_auxiliary_loss(transformer, config, auxiliary_loss)
        self.compile(
            optimizer=make_optimizer(config, transformer.config.d_model), jit_compile=False
        )
        self.training_step = TrainingStep(
            transformer,
            config,
            self.optimizer,
            self.add_weight,
            jit_compile,
            auxiliary_loss if config.guided_alignment else None,
        )
        self._with_xla = jit_compile  # `jit_compile` is Keras's: XLA around the whole strategy
        self._shapes_seen: set[tuple[int, ...]] = set()
        self._evaluation_function: Any = None

    @property
    def stop_flag(self) -> tf.Variable | None:
        return self.training_step.stop_flag

    @stop_flag.setter
    def stop_flag(self, flag: tf.Variable | None) -> None:
        self.training_step.stop_flag = flag

    @property
    def step(self) -> int:
        """Number of batches so far; of those, `optimizer.iterations` have moved the weights."""
        return int(tf.convert_to_tensor(self.training_step.counters["step"].value))

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
        return dict(self.training_step.trained)

    def state_by_path(self) -> dict[str, keras.Variable]:
        """All that the next step depends on besides the weights and their averages."""
        counters = self.training_step.counters.values()
        return {variable.path: variable for variable in [*self.optimizer.variables, *counters]}

    def ema_by_path(self) -> dict[str, keras.Variable]:
        """The moving average of every weight, by the weight's path; empty without one."""
        return dict(self.training_step.averages.by_path)

    def make_train_function(self, force: bool = False) -> Any:
        if getattr(self, "train_function", None) is None or force:

            @tf.function(reduce_retracing=True, autograph=False)
            def one_step(iterator: Any) -> tuple[dict[str, tf.Tensor], Any]:
                inputs, labels = next(iterator)
                local = self.distribute_strategy.experimental_local_results
                shapes = [tf.shape(local(ids)[0]) for ids in (inputs["source_ids"], labels)]
                return self.training_step((inputs, labels)), shapes

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
        with self.training_step.averages.in_place():
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

    def _global_evaluation(self, data: Any) -> EvaluationSums:
        strategy = self.distribute_strategy
        sums = strategy.run(self._replica_evaluation, args=(data,))
        return EvaluationSums(*(strategy.reduce("SUM", part, axis=None) for part in sums))

    def _replica_evaluation(self, data: Any) -> EvaluationSums:
        inputs, labels = data
        output = self.training_step.output
        return evaluation_sums(
            output.flat(self.transformer.features(inputs, training=False)),
            tf.reshape(labels, [-1]),
            output.matrix(),
            label_smoothing=self.config.label_smoothing,
            pad_id=self.transformer.config.pad_id,
        )

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        # Everything is built in __init__; Keras would average a batch over the replicas, turning
        # ids into floats, and open the dataset once more.
        del iterator, data_batch


def _check_auxiliary_loss(
    transformer: EncoderDecoder, config: TrainingConfig, auxiliary_loss: AuxiliaryLoss | None
) -> None:
    problem = f"training.guided_alignment is {config.guided_alignment}, but"
    if auxiliary_loss is None:
        raise InputError(
            f"{problem} nothing tells which source word a target token belongs to. Train on data "
            "that tells it, or set training.guided_alignment to 0."
        )
    if not transformer.can_return_attention:
        raise InputError(
            f"{problem} this model does not show its attention in training. Use a Transformer "
            "without model.attention_window, or set training.guided_alignment to 0."
        )
