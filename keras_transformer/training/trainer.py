"""A Keras model whose `fit` runs the training step of this package."""

from __future__ import annotations

import itertools
import math
from typing import Any

import keras
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.errors import InputError
from keras_transformer.models.encoder_decoder import EncoderDecoder
from keras_transformer.training.compilation import BackgroundCompilation
from keras_transformer.training.loss import AuxiliaryLoss, EvaluationSums, evaluation_sums
from keras_transformer.training.optimizer import make_optimizer
from keras_transformer.training.step import TrainingStep


class Trainer(keras.Model):
    """Trains a model with `fit`, under the strategy in whose scope it was created.

    Args:
        transformer: a `Transformer`, or another model, created in the scope of the same strategy.
        config: configuration of the training.
        jit_compile: compile the forward and backward pass with XLA, per replica.
        auxiliary_loss: a loss that is added with the factor `config.auxiliary_loss_weight`. It is
            only used if the factor is not 0.

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

    Validation logs `val_loss`, `val_perplexity` and `val_accuracy`, with the moving average of the
    weights if there is one.

    Example:
    >>> from keras_transformer import Transformer, preset
    >>> config = preset("tiny").replace(model__d_model=8, model__num_heads=2)
    >>> trainer = Trainer(Transformer(config.model), config.training)
    >>> ids = tf.constant([[5, 6, 3]])
    >>> batch = {"source_ids": ids, "target_ids": tf.constant([[2, 5, 6]])}, ids
    >>> history = trainer.fit(tf.data.Dataset.from_tensors(batch), verbose=0)
    >>> trainer.step, history.history["tokens"]
    (1, [3.0])

    Attributes:
        transformer: the model.
        training_step: one update of the weights.
        compilation: takes the steps until it has compiled all shapes; None compiles each shape at
            its first step.

    Raises:
        InputError: if `config.freeze` matches no weight or all weights, or if
            `config.auxiliary_loss_weight` is not 0 but the auxiliary loss or the attention of the
            model is missing.
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
        if config.auxiliary_loss_weight:
            _check_auxiliary_loss(transformer, config, auxiliary_loss)
        self.compile(
            optimizer=make_optimizer(config, transformer.config.d_model),
            jit_compile=False,  # Keras would compile the whole strategy
        )
        self.training_step = TrainingStep(
            transformer,
            config,
            self.optimizer,
            self.add_weight,
            jit_compile,
            auxiliary_loss if config.auxiliary_loss_weight else None,
        )
        self.compilation: BackgroundCompilation | None = None
        self._evaluation_function: Any = None

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Raises `InputError`: the optimizer and the loss follow from the configuration."""
        if self.compiled:
            raise InputError(
                "A Trainer has the optimizer and the loss of its configuration, so it cannot be "
                "compiled. Change the configuration, or compile the Transformer."
            )
        super().compile(*args, **kwargs)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Returns the logits of the Transformer, as callbacks that predict expect."""
        return self.transformer(inputs, training=training)

    @property
    def step(self) -> int:
        """Number of batches so far. `optimizer.iterations` of them have updated the weights."""
        return int(tf.convert_to_tensor(self.training_step.counters["step"].value))

    def trained_by_path(self) -> dict[str, keras.Variable]:
        """The trained weights by path: all except frozen ones."""
        return dict(self.training_step.trained)

    def state_by_path(self) -> dict[str, keras.Variable]:
        """The training state, except the weights and their averages, by path."""
        counters = self.training_step.counters.values()
        return {variable.path: variable for variable in [*self.optimizer.variables, *counters]}

    def ema_by_path(self) -> dict[str, keras.Variable]:
        """The moving average of every weight, by the path of the weight; empty without averages."""
        return dict(self.training_step.averages.by_path)

    def make_train_function(self, force: bool = False) -> Any:
        if getattr(self, "train_function", None) is None or force:

            @tf.function(reduce_retracing=True, autograph=False)
            def next_step(iterator: Any) -> dict[str, tf.Tensor]:
                data = next(iterator)
                if len(data) != 2:
                    raise InputError(
                        f"A batch has {len(data)} parts. A Trainer needs (inputs, labels): it has "
                        "no weights of samples."
                    )
                if self.compilation is not None:  # its step has been traced
                    return self.compilation.step_with_xla(data)
                return self.training_step(data)

            def train_function(iterator: Any) -> dict[str, tf.Tensor]:
                try:
                    if self.compilation is None or self.compilation.finished:
                        return next_step(iterator)
                    return self.compilation.take_step(iterator)
                except tf.errors.OutOfRangeError as error:
                    if "End of sequence" in error.message:
                        raise  # the end of the dataset
                    # Keras would end the training without an error. XLA raises this for a damaged
                    # file in its folder of programs.
                    raise tf.errors.InternalError(
                        error.node_def, error.op, error.message
                    ) from error

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
        """Returns validation `loss`, `perplexity` and `accuracy` (share of tokens) over a dataset.

        `fit(validation_data=...)` calls it. The means are over all tokens, independent of batches
        and replicas. If the weights have a moving average, the average is evaluated.

        Args:
            x: a dataset of inputs and labels, or arrays of inputs.
            y: arrays of labels.
            batch_size: rows of a batch of arrays; 32 by default.
            steps: maximum number of batches.
            **kwargs: other arguments of Keras, which are ignored.
        """
        if self._evaluation_function is None:
            self._evaluation_function = tf.function(
                self._global_evaluation, reduce_retracing=True, autograph=False
            )
        strategy = self.distribute_strategy
        sums = [0.0] * len(EvaluationSums._fields)
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

    def save(self, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
        """Saves the Transformer, as `ModelCheckpoint` does during a run."""
        self.transformer.save(filepath, overwrite=overwrite, **kwargs)

    def save_weights(self, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
        """Saves the weights of the Transformer."""
        self.transformer.save_weights(filepath, overwrite=overwrite, **kwargs)

    def _global_evaluation(self, data: Any) -> EvaluationSums:
        strategy = self.distribute_strategy
        sums = strategy.run(self._replica_evaluation, args=(data,))
        return EvaluationSums(*(strategy.reduce("SUM", part, axis=None) for part in sums))

    def _replica_evaluation(self, data: Any) -> EvaluationSums:
        inputs, labels = data
        output = self.training_step.output
        labels = output.predictable(tf.reshape(labels, [-1]))
        return evaluation_sums(
            output.flat(self.transformer.features(inputs, training=False)),
            labels,
            output.matrix(),
            label_smoothing=self.config.label_smoothing,
            pad_id=self.transformer.config.pad_id,
            excluded=output.excluded(),
            slice_rows=output.slice_rows(labels),
        )

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        # Everything is built in __init__. Keras would average a batch over the replicas, which
        # turns ids into floats, and open the dataset once more.
        del iterator, data_batch


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
