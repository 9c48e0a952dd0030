"""Trains a run on prepared data, or resumes it."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_transformer import plugins
from keras_transformer.config import RunConfig
from keras_transformer.console import duration, info
from keras_transformer.data.batches import Batches
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import require
from keras_transformer.evaluation.metrics import evaluate
from keras_transformer.inference import translate
from keras_transformer.inference.engine import KerasEngine
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.models.encoder_decoder import EncoderDecoder
from keras_transformer.models.transformer import Transformer
from keras_transformer.presets import resolve_config
from keras_transformer.runs.atomic import exclusive_lock
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.training.data import TrainingData
from keras_transformer.training.devices import Platform, choose_platform, use_logical_cpus
from keras_transformer.training.multi_worker import Cluster
from keras_transformer.training.progress import StopRequest, early_stopping_reason, is_finished
from keras_transformer.training.start import RunStart
from keras_transformer.training.trainer import Rhythm, Trainer, fit
from keras_transformer.training.update import arrays

log = logging.getLogger(__name__)


class TrainingResult(NamedTuple):
    """The result of `train`.

    Attributes:
        step: last step.
        finished: False if training was interrupted or out of time.
        interrupted: True after a signal.
        stopped_early: reason of early stopping, or "".
        selected: name of the weights that are evaluated and exported.
        precision: precision of products: float32, bfloat16 or float16.
        metrics: metrics of the last checkpoint: the logs of its last step, `val_*`, the best
            validation and the cost of the whole run. `training_seconds` includes validation.
            `step_seconds` and `tokens` (real target tokens) do not. Both times include compilation.
    """

    step: int
    finished: bool
    interrupted: bool
    stopped_early: str
    selected: str
    precision: str
    metrics: dict[str, float]

    @property
    def tokens_per_second(self) -> float:
        return self.metrics.get("tokens", 0.0) / max(self.metrics.get("step_seconds", 0.0), 1e-9)

    def summary(self, run_dir: str | Path) -> str:
        """Returns a short summary of the result."""
        how = "finished" if self.finished else "stopped (the same command resumes)"
        parts = [f"{how} at step {self.step}"]
        if self.stopped_early:
            parts = [
                f"stopped early at step {self.step}: {self.stopped_early} (raise "
                "training.early_stopping to continue)"
            ]
        if self.metrics:
            parts += [
                f"{duration(self.metrics['training_seconds'])} of training",
                f"{self.tokens_per_second:,.0f} tokens/s",
                f"peak memory {self.metrics['peak_memory_mb']:,.0f} MB",
            ]
        if "val_perplexity" in self.metrics:
            parts.insert(2, f"validation perplexity {self.metrics['val_perplexity']:.2f}")
        return f"{', '.join(parts)}; {run_dir} (selected weights: {self.selected})"


class TrainOptions(NamedTuple):
    """How one call of `train` uses its data and its machine.

    Attributes:
        mix: share of the steps of each corpus, as in "a:2,b:1". a and b are the last parts of the
            paths. By default all pairs have the same frequency.
        mix_temperature: shares are the sizes of the corpora to the power of 1 / mix_temperature.
        init_from: another run. Its selected weights become the initial weights. `RUN@NAME`
            chooses other weights.
        device: "cpu", "gpu", or "auto" for GPUs if there are any.
        logical_cpus: the number of replicas to split the CPU into.
        max_minutes: minutes after which this call stops. The same call resumes the run.
    """

    mix: str | None = None
    mix_temperature: float | None = None
    init_from: str | None = None
    device: str = "auto"
    logical_cpus: int | None = None
    max_minutes: float | None = None


def train(
    data_dir: str | Path | Sequence[str | Path],
    run_dir: str | Path,
    preset: str | RunConfig | None = None,
    settings: Mapping[str, Any] | None = None,
    options: TrainOptions | None = None,
    *,
    architecture: type[EncoderDecoder] = Transformer,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> TrainingResult:
    """Trains the run in `run_dir` on prepared data, or resumes it.

    Args:
        data_dir: directory from `prepare`. Several directories with one vocabulary are mixed.
        run_dir: a new directory, or the directory of the same run, which is resumed.
        preset: initial configuration, or the name of a preset. None for the configuration of the
            run, or "base" with the model and the search of `options.init_from`.
        settings: changes to the configuration, such as `{"training.max_steps": 1000}`.
        options: use of the data and the machine. In the scope of a strategy, its devices are used.
        architecture: class of the model. Only the Transformer has presets.
        callbacks: further callbacks. An epoch is an interval of `training.checkpoint_steps`, and
            its logs contain the validation. The model that they see is the `Trainer`.
    """
    options = options or TrainOptions()
    for callback in callbacks:
        kinds = (keras.callbacks.ReduceLROnPlateau, keras.callbacks.LearningRateScheduler)
        require(
            not isinstance(callback, kinds),
            f"{type(callback).__name__} sets the learning rate, but a run computes it from the "
            "step, so that it can resume. Choose another training.schedule.",
        )
        require(
            not getattr(callback, "restore_best_weights", False),
            "restore_best_weights would change the model, but not the run, which keeps its best "
            "weights itself (RUN@best). Leave it out, or use early_stopping and best_metric.",
        )
    backend = keras.backend.backend()
    require(
        backend == "tensorflow",
        f"Keras uses the backend {backend}, but training runs need TensorFlow. Set "
        "KERAS_BACKEND=tensorflow, or train with `model.compile` and `model.fit`.",
    )
    cluster = Cluster.from_environment()
    if options.logical_cpus is not None:
        require(cluster.num_workers == 1, "logical_cpus cannot be combined with TF_CONFIG.")
        use_logical_cpus(options.logical_cpus)
    strategy = cluster.connect(options.device)  # must come before the first operation of TensorFlow
    if strategy is None and tf.distribute.has_strategy():  # the caller has entered its scope
        strategy = tf.distribute.get_strategy()
    run_dir = Path(run_dir)
    lock = exclusive_lock(run_dir) if cluster.is_chief else contextlib.nullcontext()
    with cluster.watch(), lock:
        data = TrainingData.open(data_dir, options.mix, options.mix_temperature)
        vocabulary = data.tokenizer.vocabulary
        settings = dict(settings or {})
        config_type = architecture.run_config
        start = RunStart(run_dir, config_type, options.init_from)
        config = cluster.from_chief(
            lambda: resolve_config(start.open(preset), settings, vocabulary),
            RunConfig.to_json,
            config_type.from_json,
        )
        batches, valid_batches = data.batches(config.training)
        platform = choose_platform(config.training, len(batches.shapes), options.device, strategy)
        cluster.check_equal_on_all_workers({
            "architecture": config_type.architecture, "preset": str(preset), **settings,
            "init_from": options.init_from, **data.facts,
            "precision": platform.precision, "XLA": platform.jit_compile,
        })  # fmt: skip
        auxiliary_loss = None
        if config.training.auxiliary_loss_weight:
            auxiliary_loss = plugins.auxiliary_loss(vocabulary, data.train)
            chosen = config.model.guided_alignment
            taught = getattr(auxiliary_loss, "aligns", chosen)
            require(
                chosen == taught,
                f"model.guided_alignment is {chosen}, but the auxiliary loss of this data is for "
                f"{taught}. Set it in a new run; init_from keeps the weights of this one.",
            )
        with platform.strategy.scope():
            # Initializers of Keras draw their seeds from `random`. `keras.utils.set_random_seed`
            # would also delete the resources of all tokenizers.
            state = random.getstate()
            random.seed(config.training.seed)
            transformer = architecture(config.model, dtype=platform.policy())
            random.setstate(state)
            trainer = Trainer(transformer, config.training, platform.jit_compile, auxiliary_loss)
        if cluster.num_workers > 1:
            # The flag is not created in the scope of the strategy, because each worker has its own.
            trainer.stop_flag = tf.Variable(0, trainable=False)
        metrics = cluster.from_chief(functools.partial(start.begin, trainer, config, data))
        cluster.copy_variables(trainer.update.variables())
        run = start.run
        _log_summary(platform, trainer, config, batches)
        stop = StopRequest(options.max_minutes)
        try:
            if not is_finished(trainer.step, config.training, metrics):
                valid = valid_batches.distributed(
                    platform.strategy, 0, valid_batches.steps_per_epoch
                )
                bleu = None
                if config.training.bleu_steps:
                    # The chief computes the score and sends it to every worker.
                    score = _bleu_scorer(trainer, run, data.valid) if run else float
                    bleu = functools.partial(cluster.from_chief, score)
                validate = functools.partial(trainer.evaluate, valid)
                rhythm = Rhythm(trainer, run, metrics, stop, validate, bleu)
                metrics = fit(trainer, batches, rhythm, callbacks)
        finally:
            if run is not None:
                plugins.call_all("after_training", run)
        cluster.finish()
        return TrainingResult(
            step=trainer.step,
            finished=is_finished(trainer.step, config.training, metrics),
            interrupted=stop.interrupted,
            stopped_early=early_stopping_reason(config.training, metrics),
            selected=run.selected if run else "",
            precision=trainer.transformer.compute_dtype,
            metrics=metrics,
        )


def _log_summary(platform: Platform, trainer: Trainer, config: RunConfig, batches: Batches) -> None:
    """Logs the devices, the model and the data before the first step."""
    training = config.training
    for reason in platform.reasons:
        info(reason)
    total = config.model.num_parameters()
    trained = sum(math.prod(weight.shape) for weight in trainer.update.trained.values())
    frozen = f", {trained:,} of them trained (training.freeze)" if trained < total else ""
    info(f"parameters: {total:,}{frozen}")
    count = training.num_microbatches
    parts = f", in {count} parts one after the other" if count > 1 else ""
    info(
        f"batches: about {training.batch_tokens:,} target tokens{parts}, {len(batches.shapes)} "
        f"shapes, {100 * batches.padding_share:.1f} % padding, {batches.steps_per_epoch} steps per "
        "epoch"
    )
    epochs = training.max_steps / batches.steps_per_epoch
    begin = f"resuming at step {trainer.step}" if trainer.step else "starting"
    info(f"{begin}, up to step {training.max_steps} ({epochs:.1f} epochs)")


def _bleu_scorer(
    trainer: Trainer, run: RunDirectory, stores: Sequence[TokenStore]
) -> Callable[[], float]:
    """Returns a function that scores validation sentences with the weights to be exported now.

    A translator in float32, outside of the training strategy, gets the weights of the trainer
    before each score.
    """
    config = run.config.training
    transformer = type(trainer.transformer)(run.config.model, dtype="float32")
    transformer.build()
    module = TranslationModule(transformer, run.tokenizer(), run.config.decoding)
    model = KerasEngine(module, str(run.path))
    # Equal numbers of sentences from all mixed corpora.
    share = -(-config.bleu_sentences // len(stores)) if config.bleu_sentences else None
    sources = [line for store in stores for line in store.source.text()[:share]]
    references = [line for store in stores for line in store.target.text()[:share]]
    own = evaluate(references, references)
    require(
        own.bleu >= 99.9 or config.best_metric != "bleu",
        f"training.best_metric is bleu, but the validation references score {own.bleu:.1f} against "
        f"themselves ({own.signature}). Use best_metric=loss.",
    )
    # The model can write only normalized text.
    normalize = run.tokenizer().vocabulary.normalized_target
    best = evaluate(normalize(references), references, normalize=normalize)
    beam = run.config.decoding.beam_size
    info(
        f"validation BLEU: {len(sources)} sentences, beam {beam}, {own.signature}; at most "
        f"{best.bleu:.1f}"
    )
    for remark in best.remarks:
        log.warning(remark)

    def score() -> float:
        weights = trainer.update.averages or trainer.transformer.weights_by_path()
        transformer.assign_weights(arrays(weights))
        return translate.evaluate(model, sources, references).scores.bleu

    return score
