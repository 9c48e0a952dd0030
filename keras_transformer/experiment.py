"""Joins the rooms above: trains a run from prepared data, or continues one."""

from __future__ import annotations

import logging
import math
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import keras

from keras_transformer.config import Config
from keras_transformer.data.batches import Batches
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.model import Transformer
from keras_transformer.presets import preset
from keras_transformer.run_directory import RunDirectory
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training.callbacks import Checkpoints, Progress, StopTraining
from keras_transformer.training.platform import Platform, choose_platform, use_logical_cpus
from keras_transformer.training.trainer import Trainer

log = logging.getLogger(__name__)


class Trained(NamedTuple):
    """How a call of `train` ended.

    `metrics` are of the last checkpoint: the logs of its interval, `val_…`, and
    what the whole run has cost: `training_seconds` (validation and compiling
    included), `step_seconds` and real target `tokens` of the steps alone, and
    `peak_memory_mb`.
    """

    step: int
    finished: bool  # False where it was interrupted or out of time
    interrupted: bool
    selected: str  # the weights that are evaluated and exported
    metrics: dict[str, float]

    @property
    def tokens_per_second(self) -> float:
        return self.metrics.get("tokens", 0.0) / max(self.metrics.get("step_seconds", 0.0), 1e-9)

    def summary(self, run_dir: str | Path) -> str:
        """Returns the result in a few words, for a person."""
        how = "finished" if self.finished else "stopped (the same command continues)"
        parts = [f"{how} at step {self.step}"]
        if self.metrics:
            parts += [
                f"{self.metrics['training_seconds'] / 60:.1f} min of training",
                f"validation perplexity {self.metrics['val_perplexity']:.2f}",
                f"{self.tokens_per_second:,.0f} tokens/s",
                f"peak memory {self.metrics['peak_memory_mb']:,.0f} MB",
            ]
        return f"{', '.join(parts)}; {run_dir} (selected weights: {self.selected})"


def train(
    data_dir: str | Path,
    run_dir: str | Path,
    preset_name: str | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    logical_cpus: int | None = None,
    max_minutes: float | None = None,
) -> Trained:
    """Trains, or continues training, the run in `run_dir` on the prepared data in `data_dir`.

    Args:
        data_dir: what `prepare` wrote.
        run_dir: a new directory, or that of the same run, which is continued.
        preset_name: the configuration to begin with; by default the run's own, or "base".
        settings: what differs from it, as in `{"training.max_steps": 1000}`.
        logical_cpus: split the CPU into so many replicas.
        max_minutes: stop after so much time in this call, to be continued.

    Raises:
        InputError: for data, settings or a run directory that do not fit together.
    """
    if max_minutes is not None and not max_minutes > 0:
        raise InputError(f"max_minutes is {max_minutes}; expected more than 0")
    if logical_cpus is not None:
        use_logical_cpus(logical_cpus)
    data_dir = Path(data_dir)
    tokenizer = Tokenizer.load(data_dir)
    store, valid_store = TokenStore(data_dir / "train"), TokenStore(data_dir / "valid")
    config = _configure(run_dir, preset_name, dict(settings or {}), tokenizer)
    batches, valid_batches = (
        Batches(
            each,
            # Validation sentences may be longer than any that was trained on.
            max(config.training.batch_tokens, int(each.target_lengths.max(initial=0)))
            if each is valid_store
            else config.training.batch_tokens,
            config.training.seed,
            tokenizer.pad_id,
            tokenizer.start_id,
            shuffle=each is store,
        )
        for each in (store, valid_store)
    )
    platform = choose_platform(config.training, len(batches.shapes))
    _check_replicas(platform)
    run = RunDirectory.create(run_dir, config, tokenizer, store.fingerprint)

    keras.utils.set_random_seed(config.training.seed)
    with platform.strategy.scope():
        transformer = Transformer(config.model, dtype=platform.policy())
        trainer = Trainer(transformer, config.training, platform.jit_compile)
    metrics = _restore(run, trainer)
    run.trim_metrics(trainer.step)
    first_step = trainer.step
    _introduce(platform, config, batches, first_step)
    return _fit(trainer, run, batches, valid_batches, metrics, max_minutes)


def _configure(
    run_dir: str | Path, preset_name: str | None, settings: dict[str, Any], tokenizer: Tokenizer
) -> Config:
    if preset_name is None and RunDirectory.is_run(run_dir):
        config = RunDirectory(run_dir).config
    else:
        config = preset(preset_name or "base")
    joint = tokenizer.joint
    if not joint and config.model.tie_embeddings == "all":
        # Two vocabularies cannot share one matrix; the paper's other tie is left.
        settings.setdefault("model.tie_embeddings", "target")
    return config.updated(
        {
            "model.source_vocab_size": tokenizer.source_vocab_size,
            "model.target_vocab_size": tokenizer.target_vocab_size,
            "model.pad_id": tokenizer.pad_id,
            "model.unknown_id": tokenizer.unknown_id,
            "model.start_id": tokenizer.start_id,
            "model.end_id": tokenizer.end_id,
            **settings,
        }
    )


def _check_replicas(platform: Platform) -> None:
    replicas = platform.strategy.num_replicas_in_sync
    if 8 % replicas:
        raise InputError(
            f"{replicas} replicas cannot share batches whose rows are multiples of 8; "
            "expected 1, 2, 4 or 8 devices"
        )


def _restore(run: RunDirectory, trainer: Trainer) -> dict[str, float]:
    """Puts the newest checkpoint into the trainer, and returns its metrics."""
    checkpoints = run.checkpoints()
    if not checkpoints:
        return {}
    weights, state = run.read_checkpoint(checkpoints[-1])
    trainer.transformer.assign_weights(weights)
    own = trainer.state_by_path()
    if own.keys() != state.keys():
        raise InputError(
            f"{checkpoints[-1].path} was written in another precision or by another optimizer; "
            "expected the machine and the flags that the run began with"
        )
    for path, variable in own.items():
        variable.assign(state[path])
    return run.read_metrics(checkpoints[-1])


def _introduce(platform: Platform, config: Config, batches: Batches, first_step: int) -> None:
    for reason in platform.reasons:
        log.info(reason)
    log.info("parameters: %s", f"{config.model.num_parameters():,}")
    log.info(
        "batches: about %s target tokens, %d shapes, %.1f %% padding, %d steps a pass",
        f"{config.training.batch_tokens:,}",
        len(batches.shapes),
        100 * batches.padding_share,
        batches.steps_per_epoch,
    )
    steps = config.training.max_steps
    passes = steps / batches.steps_per_epoch
    begin = f"continuing at step {first_step}" if first_step else "starting"
    log.info("%s, up to step %d (%.1f passes over the corpus)", begin, steps, passes)


def _fit(
    trainer: Trainer,
    run: RunDirectory,
    batches: Batches,
    valid_batches: Batches,
    metrics: dict[str, float],
    max_minutes: float | None,
) -> Trained:
    config = run.config.training
    first_step = trainer.step
    started = time.monotonic()
    progress = Progress(
        first_step, config.max_steps, config.log_steps, run.append_metrics,
        run.tensorboard_directory,
    )  # fmt: skip
    stop = StopTraining(first_step, config.max_steps, max_minutes)
    before = dict(metrics)

    def save(step: int, logs: Mapping[str, float]) -> None:
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        costs = {  # of the whole run, however often it was continued
            "training_seconds": time.monotonic() - started + before.get("training_seconds", 0.0),
            "step_seconds": progress.seconds + before.get("step_seconds", 0.0),
            "tokens": progress.tokens + before.get("tokens", 0.0),
            "peak_memory_mb": max(peak_mb, before.get("peak_memory_mb", 0.0)),
        }
        metrics.update({**logs, **costs})
        weights = trainer.transformer.weights_by_path()
        run.save_checkpoint(
            step,
            {path: keras.ops.convert_to_numpy(v) for path, v in weights.items()},
            {path: keras.ops.convert_to_numpy(v) for path, v in trainer.state_by_path().items()},
            metrics,
        )

    if first_step < config.max_steps:
        intervals = math.ceil((config.max_steps - first_step) / config.checkpoint_steps)
        try:
            trainer.fit(
                batches.dataset(first_step),
                epochs=intervals,
                steps_per_epoch=config.checkpoint_steps,
                validation_data=valid_batches.dataset(0, valid_batches.steps_per_epoch),
                callbacks=[stop, progress, Checkpoints(save)],
                shuffle=False,
                verbose=0,
            )
        finally:
            stop.restore_signals()
    step = trainer.step
    return Trained(
        step=step,
        finished=step >= config.max_steps,
        interrupted=stop.interrupted,
        selected=run.selected,
        metrics=metrics,
    )
