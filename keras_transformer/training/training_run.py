"""Trains a run from prepared data, or continues one."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_transformer.config import Config, RunConfig
from keras_transformer.data.batching.batches import BATCH_ORDER
from keras_transformer.data.batching.mixing import MixedBatches
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics as evaluation
from keras_transformer.inference import evaluate, loading
from keras_transformer.inference.translator import Translator
from keras_transformer.models.encoder_decoder import EncoderDecoder
from keras_transformer.models.transformer import Transformer
from keras_transformer.presets import preset, resolve_config
from keras_transformer.runs.atomic import exclusive_lock
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.vocabulary import Vocabulary
from keras_transformer.training import loop
from keras_transformer.training.callbacks import BleuValidation, EarlyStopping, StopTraining
from keras_transformer.training.data import TrainingData
from keras_transformer.training.devices import Platform, choose_platform, use_logical_cpus
from keras_transformer.training.loss import AuxiliaryLoss
from keras_transformer.training.multi_worker import Cluster
from keras_transformer.training.trainer import Trainer

log = logging.getLogger(__name__)


class Trained(NamedTuple):
    """How a call of `train` ended.

    `metrics` are of the last checkpoint: the logs of its last step, `val_…`, the
    best validation so far, and what the whole run has cost: `training_seconds`
    (validation and compiling included), `step_seconds` and real target `tokens`
    of the steps alone, and `peak_memory_mb`.
    """

    step: int
    finished: bool  # False where it was interrupted or out of time
    interrupted: bool
    stopped_early: str  # why training ended before its last step, or ""
    selected: str  # the weights that are evaluated and exported
    precision: str  # of products: float32, bfloat16 or float16
    metrics: dict[str, float]

    @property
    def tokens_per_second(self) -> float:
        return self.metrics.get("tokens", 0.0) / max(self.metrics.get("step_seconds", 0.0), 1e-9)

    def summary(self, run_dir: str | Path) -> str:
        """Returns the result in a few words, for a person."""
        how = "finished" if self.finished else "stopped (the same command continues)"
        parts = [f"{how} at step {self.step}"]
        if self.stopped_early:
            parts = [f"stopped early at step {self.step}: {self.stopped_early}"]
        if self.metrics:
            parts += [
                f"{self.metrics['training_seconds'] / 60:.1f} min of training",
                f"{self.tokens_per_second:,.0f} tokens/s",
                f"peak memory {self.metrics['peak_memory_mb']:,.0f} MB",
            ]
        if "val_perplexity" in self.metrics:
            parts.insert(2, f"validation perplexity {self.metrics['val_perplexity']:.2f}")
        return f"{', '.join(parts)}; {run_dir} (selected weights: {self.selected})"


class TrainOptions(NamedTuple):
    """How one call of `train` uses its data and its machine.

    Attributes:
        mix: the corpora's shares of the steps, as in "a:2,b:1", where a and b are the last
            parts of their paths. By default all pairs come equally often.
        mix_temperature: makes shares the corpora's sizes to the power of its inverse.
        init_from: another run, whose selected weights a new run begins with, or `RUN:NAME` for
            others of its weights.
        device: "cpu", "gpu", or "auto" for GPUs where there are any.
        logical_cpus: the number of replicas to split the CPU into.
        max_minutes: stop after this time in this call. The same call continues the run.
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
    preset_name: str | None = None,
    settings: Mapping[str, Any] | None = None,
    options: TrainOptions | None = None,
    *,
    architecture: type[EncoderDecoder] = Transformer,
    make_auxiliary_loss: Callable[[Vocabulary], AuxiliaryLoss | None] | None = None,
) -> Trained:
    """Trains, or continues training, the run in `run_dir` on the prepared data in `data_dir`.

    Args:
        data_dir: the directory that `prepare` wrote. Several, of one vocabulary, are mixed.
        run_dir: a new directory, or that of the same run, which is continued.
        preset_name: the configuration to begin with; by default the run's own, or "base".
        settings: changes of this configuration, as in `{"training.max_steps": 1000}`.
        options: how this call uses its data and its machine.
        architecture: the class of the model. One other than the Transformer has no presets, and
            begins with the defaults of its own configuration.
        make_auxiliary_loss: returns the loss that `training.guided_alignment` weighs, for the
            vocabulary of the data, or None if such data has none.

    Raises:
        InputError: for data, settings or a run directory that do not fit together,
            and where too many gradients were not finite.
    """
    options = options or TrainOptions()
    max_minutes = options.max_minutes
    if max_minutes is not None and not max_minutes > 0:
        raise InputError(f"max_minutes is {max_minutes}; expected more than 0")
    cluster = Cluster.from_environment()
    if options.logical_cpus is not None:
        _split_cpu(options.logical_cpus, cluster)
    strategy = cluster.connect(options.device)  # before TensorFlow runs anything
    with cluster.watch(), _own_run_dir(cluster, run_dir) as run_dir, exclusive_lock(run_dir):
        data = TrainingData.open(data_dir, options.mix, options.mix_temperature)
        vocabulary = data.tokenizer.vocabulary
        settings = dict(settings or {})
        config_type = architecture.run_config
        cluster.agree({
            "architecture": config_type.architecture, "preset": preset_name, **settings,
            "init_from": options.init_from, **data.facts,
        })  # fmt: skip

        def resolve() -> str:
            start = _first_config(run_dir, preset_name, config_type)
            return resolve_config(start, settings, vocabulary).to_json()

        config = config_type.from_json(cluster.from_chief(resolve))
        batches, valid_batches = data.batches(config.training)
        platform = choose_platform(config.training, len(batches.shapes), options.device, strategy)
        cluster.agree({"precision": platform.precision, "XLA": platform.jit_compile})
        auxiliary_loss = make_auxiliary_loss(vocabulary) if make_auxiliary_loss else None
        trainer = _make_trainer(architecture, config, platform, cluster, auxiliary_loss)
        run, metrics = _open_run(run_dir, cluster, trainer, config, data, options.init_from)
        stop = StopTraining(trainer.step, config.training.max_steps, max_minutes)
        early_stopping = EarlyStopping(config.training, metrics)
        _introduce(platform, trainer, config, batches, early_stopping)
        if trainer.step < config.training.max_steps and not early_stopping.stopped:
            try:
                metrics = loop.fit(
                    trainer, run, batches, valid_batches, metrics, stop,
                    [*_bleu_validation(cluster, trainer, run, data), early_stopping],
                    is_chief=cluster.is_chief,
                )  # fmt: skip
            except InputError:
                with contextlib.suppress(InputError):  # a disk that is full stays full
                    _write_report(run)
                raise
        trained = _finish(trainer, run, metrics, stop, early_stopping)
        cluster.finish()
        return trained


def _split_cpu(logical_cpus: int, cluster: Cluster) -> None:
    if cluster.num_workers > 1:
        raise InputError(
            f"logical_cpus is {logical_cpus} where TF_CONFIG lists {cluster.num_workers} "
            "workers; expected one of them"
        )
    use_logical_cpus(logical_cpus)


@contextlib.contextmanager
def _own_run_dir(cluster: Cluster, run_dir: str | Path) -> Iterator[Path]:
    """The chief's is the user's; that of any other worker is thrown away."""
    if cluster.is_chief:
        yield Path(run_dir)
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder) / "run"


def _first_config(
    run_dir: str | Path, preset_name: str | None, config_type: type[RunConfig]
) -> RunConfig:
    """Returns what `settings` differ from."""
    if preset_name is None and RunDirectory.is_run(run_dir):
        return RunDirectory(run_dir, config_type).config
    if config_type is not Config:
        return config_type()
    return preset(preset_name or "base")


def _make_trainer(
    architecture: type[EncoderDecoder],
    config: RunConfig,
    platform: Platform,
    cluster: Cluster,
    auxiliary_loss: AuxiliaryLoss | None,
) -> Trainer:
    keras.utils.set_random_seed(config.training.seed)
    with platform.strategy.scope():
        transformer = architecture(config.model, dtype=platform.policy())
        trainer = Trainer(transformer, config.training, platform.jit_compile, auxiliary_loss)
    if cluster.num_workers > 1:
        trainer.stop_flag = tf.Variable(0, trainable=False)  # each worker's own
    return trainer


def _open_run(
    run_dir: Path,
    cluster: Cluster,
    trainer: Trainer,
    config: RunConfig,
    data: TrainingData,
    init_from: str | None,
) -> tuple[RunDirectory, dict[str, float]]:
    """Makes or continues the run, and puts what the chief has of it into every trainer.

    Returns:
        The run, and the metrics of the checkpoint that it continues from.
    """

    def create(init_from: str | None) -> RunDirectory:
        return RunDirectory.create(
            run_dir, config, data.tokenizer, data.fingerprint, init_from, BATCH_ORDER
        )

    def begin() -> dict[str, float]:
        if begins_from := _where_to_begin(run_dir, init_from, type(config)):
            loop.begin_from(begins_from, trainer, data.tokenizer)
        # Not before: a mistake found until here leaves no run directory behind.
        run = create(begins_from)
        data.copy_reports(run)
        metrics = loop.restore(run, trainer)
        early_stopping = EarlyStopping(config.training, metrics)
        if trainer.step < config.training.max_steps and not early_stopping.stopped:
            _check_batch_order(run)
        return metrics

    metrics = loop.begin_alike(cluster, trainer, begin)
    run = RunDirectory(run_dir, type(config)) if cluster.is_chief else create(None)
    run.trim_metrics(trainer.step)
    return run, metrics


def _check_batch_order(run: RunDirectory) -> None:
    """Refuses to train on in another order of batches than the run was begun with."""
    if run.batch_order != BATCH_ORDER:
        last = run.checkpoints()[-1]
        raise InputError(
            f"{run.path} was begun by a version of this program that ordered batches differently, "
            f"so it cannot be continued after step {last.step}. Finish it with that version, or "
            f"begin a new run with --init_from={run.path}:{last.path.name}. The run still "
            "evaluates and exports."
        )


def _bleu_validation(
    cluster: Cluster, trainer: Trainer, run: RunDirectory, data: TrainingData
) -> list[BleuValidation]:
    """Returns the callback that scores the validation set, if the configuration asks for it.

    The chief computes the score, and tells every worker.
    """
    if not run.config.training.bleu_steps:
        return []
    score = _ValidationBleu(trainer, run, data.valid) if cluster.is_chief else float
    return [BleuValidation(functools.partial(cluster.from_chief, score), run.config.training)]


def _where_to_begin(
    run_dir: str | Path, init_from: str | None, config_type: type[RunConfig]
) -> str | None:
    """Returns what a run that has no checkpoint yet begins from, if anything."""
    if not RunDirectory.is_run(run_dir):
        return init_from
    run = RunDirectory(run_dir, config_type)
    if init_from is not None and init_from != run.init_from:
        raise InputError(
            f"{run_dir} began from {run.init_from or 'random weights'}, not from {init_from}; "
            "expected another --run_dir for another beginning"
        )
    return None if run.checkpoints() else run.init_from


def _introduce(
    platform: Platform,
    trainer: Trainer,
    config: RunConfig,
    batches: MixedBatches,
    early_stopping: EarlyStopping,
) -> None:
    """Says where, how and what is trained, before the first step."""
    training = config.training
    for reason in platform.reasons:
        log.info(reason)
    total = config.model.num_parameters()
    trained = sum(math.prod(weight.shape) for weight in trainer.trained_by_path().values())
    frozen = f", {trained:,} of them trained (training.freeze)" if trained < total else ""
    log.info("parameters: %s%s", f"{total:,}", frozen)
    parts = training.accumulate_steps
    log.info(
        "batches: about %s target tokens%s, %d shapes, %.1f %% padding (%s filler rows), "
        "%d steps a pass",
        f"{training.batch_tokens:,}",
        f", in {parts} parts one after the other" if parts > 1 else "",
        len(batches.shapes),
        100 * batches.padding_share,
        f"{batches.filler_rows:,}",
        batches.steps_per_epoch,
    )
    passes = training.max_steps / batches.steps_per_epoch
    begin = f"continuing at step {trainer.step}" if trainer.step else "starting"
    if early_stopping.stopped:
        log.info(
            "stopped early at step %d, and not continued: %s; expected a training.early_stopping "
            "of more, or 0, to continue", trainer.step, early_stopping.reason(),
        )  # fmt: skip
    else:
        log.info(
            "%s, up to step %d (%.1f passes over the corpus)", begin, training.max_steps, passes
        )


class _ValidationBleu:
    """BLEU of validation sentences by the weights that would be exported now.

    One translator in float32, outside of the training strategy, as after an
    export; the trainer's weights are put into it before each score.
    """

    def __init__(self, trainer: Trainer, run: RunDirectory, stores: Sequence[TokenStore]):
        self._trainer = trainer
        self._transformer = type(trainer.transformer)(run.config.model, dtype="float32")
        self._transformer.build()
        decoding = run.config.decoding
        translator = Translator(self._transformer, run.tokenizer(), decoding)
        self._model = loading.LoadedModel(
            str(run.path), decoding.n_best, translator.translate, translator.lengths, translator
        )
        # Where corpora are mixed, as many of each.
        count = run.config.training.bleu_sentences
        each = -(-count // len(stores)) if count else None
        self._sources = [line for store in stores for line in store.source_text()[:each]]
        self._references = [line for store in stores for line in store.target_text()[:each]]
        signature = evaluation.evaluate(self._references[:1], self._references[:1]).signature
        log.info(
            "validation BLEU: %d sentences, beam %d, %s",
            len(self._sources), decoding.beam_size, signature,
        )  # fmt: skip

    def __call__(self) -> float:
        weights = self._trainer.ema_by_path() or self._trainer.transformer.weights_by_path()
        self._transformer.assign_weights(loop.arrays(weights))
        return evaluate.evaluate(self._model, self._sources, self._references).scores.bleu


def _write_report(run: RunDirectory) -> None:
    from keras_transformer.runs.report import write_report  # late: drawing takes a second to load

    write_report(run)


def _finish(
    trainer: Trainer,
    run: RunDirectory,
    metrics: dict[str, float],
    stop: StopTraining,
    early_stopping: EarlyStopping,
) -> Trained:
    """Writes the report of the run, and returns how it ended."""
    _write_report(run)
    stopped_early = early_stopping.reason() if early_stopping.stopped else ""
    return Trained(
        step=trainer.step,
        finished=trainer.step >= run.config.training.max_steps or bool(stopped_early),
        interrupted=stop.interrupted,
        stopped_early=stopped_early,
        selected=run.selected,
        precision=trainer.transformer.compute_dtype,
        metrics=metrics,
    )
