"""Joins the modules above: trains a run from prepared data, or continues one."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from keras_transformer.config import Config, RunConfig, TrainingConfig
from keras_transformer.data.batching.mixing import MixedBatches, parse_mix
from keras_transformer.data.batching.subword_sampling import SubwordSampler
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics as evaluation
from keras_transformer.inference import loading, translate
from keras_transformer.inference.translator import Translator
from keras_transformer.models.encoder_decoder import EncoderDecoder
from keras_transformer.models.transformer import Transformer
from keras_transformer.paper.parsing.symbol_vocabulary import word_boundaries
from keras_transformer.presets import preset
from keras_transformer.runs.atomic import exclusive_lock
from keras_transformer.runs.run_directory import RunDirectory, data_report_name
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import Vocabulary
from keras_transformer.training import loop
from keras_transformer.training.alignment import GuidedAlignment
from keras_transformer.training.callbacks import StopTraining
from keras_transformer.training.devices import Platform, choose_platform, use_logical_cpus
from keras_transformer.training.multi_worker import Cluster
from keras_transformer.training.trainer import Trainer
from keras_transformer.training.validation import EarlyStopping

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


def train(
    data_dir: str | Path | Sequence[str | Path],
    run_dir: str | Path,
    preset_name: str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    mix: str | None = None,
    mix_temperature: float | None = None,
    init_from: str | None = None,
    device: str = "auto",
    logical_cpus: int | None = None,
    max_minutes: float | None = None,
    steps_after: int = 0,
    architecture: type[EncoderDecoder] = Transformer,
) -> Trained:
    """Trains, or continues training, the run in `run_dir` on the prepared data in `data_dir`.

    Args:
        data_dir: what `prepare` wrote; several, of one vocabulary, are mixed.
        run_dir: a new directory, or that of the same run, which is continued.
        preset_name: the configuration to begin with; by default the run's own, or "base".
        settings: what differs from it, as in `{"training.max_steps": 1000}`.
        mix: the corpora's shares of the steps, as in "a:2,b:1", where a and b are the last
            parts of their paths; by default all pairs come equally often.
        mix_temperature: makes shares the corpora's sizes to the power of its inverse.
        init_from: another run, with whose selected weights a new run begins, or
            `RUN:NAME` for others of its weights.
        device: "cpu", "gpu", or "auto" for GPUs where there are any.
        logical_cpus: split the CPU into so many replicas.
        max_minutes: stop after so much time in this call, to be continued.
        steps_after: of trainings that are to follow, for the time left that is shown.
        architecture: of the model. One other than the Transformer has no presets, and begins
            with the defaults of its own configuration.

    Raises:
        InputError: for data, settings or a run directory that do not fit together,
            and where too many gradients were not finite.
    """
    if max_minutes is not None and not max_minutes > 0:
        raise InputError(f"max_minutes is {max_minutes}; expected more than 0")
    cluster = Cluster.from_environment()
    if logical_cpus is not None:
        _split_cpu(logical_cpus, cluster)
    strategy = cluster.connect(device)  # before TensorFlow runs anything
    with cluster.watch(), _own_run_dir(cluster, run_dir) as run_dir, exclusive_lock(run_dir):
        data = _Data.open(data_dir, mix, mix_temperature)
        settings = dict(settings or {})
        config_type = architecture.run_config
        cluster.agree({
            "architecture": config_type.architecture, "preset": preset_name, **settings,
            "init_from": init_from, **data.facts,
        })  # fmt: skip
        first = functools.partial(_first_config, run_dir, preset_name, config_type)
        config = config_type.from_json(
            cluster.from_chief(lambda: data.tokenizer.vocabulary.fit(first(), settings).to_json())
        )
        batches, valid_batches = data.batches(config.training)
        platform = choose_platform(config.training, len(batches.shapes), device, strategy)
        cluster.agree({"precision": platform.precision, "XLA": platform.jit_compile})
        alignment = _alignment(data.tokenizer.vocabulary)
        trainer = _make_trainer(architecture, config, platform, cluster, alignment)
        run, metrics = _open_run(run_dir, cluster, trainer, config, data, init_from)
        stop = StopTraining(trainer.step, config.training.max_steps, max_minutes)
        early_stopping = EarlyStopping(config.training, metrics)
        _introduce(platform, trainer, config, batches, early_stopping)
        if trainer.step < config.training.max_steps and not early_stopping.stopped:
            try:
                metrics = loop.fit(
                    trainer, run, batches, valid_batches, metrics, stop, early_stopping,
                    bleu=_make_bleu(cluster, trainer, run, data),
                    is_chief=cluster.is_chief,
                    steps_after=steps_after,
                )  # fmt: skip
            except InputError:
                with contextlib.suppress(InputError):  # a disk that is full stays full
                    _write_report(run)
                raise
        trained = _finish(trainer, run, metrics, stop, early_stopping)
        cluster.finish()
        return trained


def data_fingerprint(data_dir: str | Path) -> str:
    """Returns what tells prepared data from other; a run that is trained on it alone keeps it.

    Raises:
        InputError: for a directory that `prepare` did not write.
    """
    return _Data.open(data_dir).fingerprint


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


class _Data(NamedTuple):
    """Prepared data, of one corpus or several, and the batches of it."""

    directories: list[Path]
    tokenizer: Tokenizer
    train: list[TokenStore]
    valid: list[TokenStore]
    weights: list[Fraction] | None
    temperature: float

    @classmethod
    def open(
        cls,
        data_dir: str | Path | Sequence[str | Path],
        mix: str | None = None,
        temperature: float | None = None,
    ) -> _Data:
        if isinstance(data_dir, str | Path):
            data_dir = [data_dir]
        directories = [Path(directory) for directory in data_dir]
        tokenizer = Tokenizer.load(directories[0])
        for other in directories[1:]:
            if Vocabulary.load(other).fingerprint != tokenizer.fingerprint:
                raise InputError(
                    f"{other} has another vocabulary than {directories[0]}; expected the same in "
                    f"corpora that are mixed: prepare it with --vocab_from={directories[0]}"
                )
        if mix is not None and temperature is not None:
            raise InputError(
                f"the mixture is given twice, by --mix={mix} and by --mix_temperature="
                f"{temperature}; expected one of them"
            )
        names = [
            directory.name if directory.name not in ("", "..") else directory.resolve().name
            for directory in directories
        ]
        return cls(
            directories,
            tokenizer,
            [TokenStore(directory / "train") for directory in directories],
            [TokenStore(directory / "valid") for directory in directories],
            None if mix is None else parse_mix(mix, names),
            1.0 if temperature is None else temperature,
        )

    @property
    def fingerprint(self) -> str:
        """Of what a run is trained and validated on."""
        both = zip(self.train, self.valid, strict=True)
        parts = [store.fingerprint for stores in both for store in stores]
        if len(parts) > 2:
            parts.append(self._mixture)
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    @property
    def _mixture(self) -> str:
        if self.weights is None:
            return f"temperature {self.temperature}"
        return " ".join(str(weight / sum(self.weights)) for weight in self.weights)

    @property
    def facts(self) -> dict[str, str]:
        """What several workers have to have in common."""
        return {
            "training data": " ".join(store.fingerprint for store in self.train),
            "validation data": " ".join(store.fingerprint for store in self.valid),
            "mixture": self._mixture,
            "vocabulary": self.tokenizer.fingerprint,
        }

    def batches(self, config: TrainingConfig) -> tuple[MixedBatches, MixedBatches]:
        """Returns those to train and those to validate on."""
        # Validation sentences may be longer than any that was trained on.
        longest = max(int(store.target_lengths.max(initial=0)) for store in self.valid)
        ids = (self.tokenizer.pad_id, self.tokenizer.start_id)
        sampler = None
        if config.subword_alpha is not None:
            sampler = SubwordSampler(self.tokenizer.vocabulary, config.subword_alpha)
        return (
            MixedBatches(
                self.train, config.batch_tokens, config.seed, *ids, sampler=sampler,
                weights=self.weights, temperature=self.temperature,
            ),
            MixedBatches(
                self.valid, max(config.batch_tokens, longest), config.seed, *ids, shuffle=False
            ),
        )  # fmt: skip


def _first_config(
    run_dir: str | Path, preset_name: str | None, config_type: type[RunConfig]
) -> RunConfig:
    """Returns what `settings` differ from."""
    if preset_name is None and RunDirectory.is_run(run_dir):
        return RunDirectory(run_dir, config_type).config
    if config_type is not Config:
        return config_type()
    return preset(preset_name or "base")


def _alignment(vocabulary: Vocabulary) -> GuidedAlignment | None:
    """Returns what words targets stand for; only the symbols of trees tell it."""
    boundaries = word_boundaries(vocabulary)
    return None if boundaries is None else GuidedAlignment(*boundaries, vocabulary.pad_id)


def _make_trainer(
    architecture: type[EncoderDecoder],
    config: RunConfig,
    platform: Platform,
    cluster: Cluster,
    alignment: GuidedAlignment | None,
) -> Trainer:
    keras.utils.set_random_seed(config.training.seed)
    with platform.strategy.scope():
        transformer = architecture(config.model, dtype=platform.policy())
        trainer = Trainer(transformer, config.training, platform.jit_compile, alignment)
    if cluster.num_workers > 1:
        trainer.stop_flag = tf.Variable(0, trainable=False)  # each worker's own
    return trainer


def _open_run(
    run_dir: Path,
    cluster: Cluster,
    trainer: Trainer,
    config: RunConfig,
    data: _Data,
    init_from: str | None,
) -> tuple[RunDirectory, dict[str, float]]:
    """Makes or continues the run, and puts what the chief has of it into every trainer.

    Returns:
        The run, and the metrics of the checkpoint that it continues from.
    """

    def create(init_from: str | None) -> RunDirectory:
        return RunDirectory.create(run_dir, config, data.tokenizer, data.fingerprint, init_from)

    def begin() -> dict[str, float]:
        if begins_from := _where_to_begin(run_dir, init_from, type(config)):
            loop.begin_from(begins_from, trainer, data.tokenizer)
        # Not before: a mistake found until here leaves no run directory behind.
        run = create(begins_from)
        _copy_reports(data.directories, run)
        return loop.restore(run, trainer)

    metrics = loop.begin_alike(cluster, trainer, begin)
    run = RunDirectory(run_dir, type(config)) if cluster.is_chief else create(None)
    run.trim_metrics(trainer.step)
    return run, metrics


def _make_bleu(
    cluster: Cluster, trainer: Trainer, run: RunDirectory, data: _Data
) -> Callable[[], float] | None:
    """What scores the validation set, on the chief, and tells every worker; None if not asked."""
    if not run.config.training.bleu_steps:
        return None
    score = _ValidationBleu(trainer, run, data.valid) if cluster.is_chief else float
    return functools.partial(cluster.from_chief, score)


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


def _copy_reports(directories: Sequence[Path], run: RunDirectory) -> None:
    """Keeps what `prepare` said of the data beside what is trained on it."""
    for number, directory in enumerate(directories, start=1):
        try:
            shutil.copyfile(directory / "report.json", run.path / data_report_name(number))
        except OSError as error:
            raise InputError(
                f"{directory / 'report.json'} cannot be copied to {run.path} ({error.strerror})"
            ) from error


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
        self._model = loading.Model(
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
        return translate.evaluate(self._model, self._sources, self._references).scores.bleu


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
