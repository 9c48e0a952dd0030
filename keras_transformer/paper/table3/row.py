"""One row of a table, trained and scored."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_transformer.errors import DivergedError

if TYPE_CHECKING:
    from keras_transformer.runs.run_directory import RunDirectory

log = logging.getLogger(__name__)


class Job(NamedTuple):
    """What is asked of a process.

    Attributes:
        data_dir: prepared data.
        run_dir: a new directory, or that of the same run, which is continued.
        preset_base: the configuration to begin with.
        settings: what differs from it.
        tokenize: sacreBLEU's tokenizer.
        lowercase: whether BLEU ignores case.
        max_minutes: stop training after so long, to be continued, or None.
    """

    data_dir: Path
    run_dir: Path
    preset_base: str
    settings: Mapping[str, Any]
    tokenize: str
    lowercase: bool
    max_minutes: float | None


def train_and_score(job: Job) -> dict[str, Any]:
    """Trains to the end, or continues to, and scores the last weights on the validation set.

    Returns:
        What is found of a row: `finished`, `steps`, and of one that is finished `perplexity` (a
        wordpiece, by the true labels alone), `bleu` and its `signature`, `parameters`, `minutes`
        of training and scoring, `precision`, `tokens_per_second`, `peak_memory_mb`, and
        `translations`.

    Raises:
        InputError: where the run cannot be continued.
        DivergedError: where it has diverged.
        KeyboardInterrupt: where training was interrupted; its checkpoint is written.
    """
    # Late: what asks for rows has no TensorFlow, which would hold the GPU that a row needs.
    from keras_transformer.tf_import import load_tensorflow

    load_tensorflow()
    from keras_transformer.data.token_store import TokenStore
    from keras_transformer.inference import evaluate, loading
    from keras_transformer.runs.run_directory import RunDirectory
    from keras_transformer.training import training_run

    trained = training_run.train(
        job.data_dir,
        job.run_dir,
        job.preset_base,
        job.settings,
        training_run.TrainOptions(max_minutes=job.max_minutes),
    )
    log.info(trained.summary(job.run_dir))
    if trained.interrupted:
        raise KeyboardInterrupt
    if not trained.finished:
        return {"finished": False, "steps": trained.step}
    run = RunDirectory(job.run_dir)
    check_converged(run, trained.step)
    store = TokenStore(job.data_dir / "valid")
    model = loading.load_model(run.path)
    scored = evaluate.evaluate(
        model, store.source_text(), store.target_text(),
        tokenize=job.tokenize, lowercase=job.lowercase,
    )  # fmt: skip
    log.info(scored.summary())
    metrics = trained.metrics
    return {
        "finished": True,
        "steps": trained.step,
        "perplexity": round(metrics["val_perplexity"], 4),
        "bleu": round(scored.scores.bleu, 2),
        "signature": scored.scores.signature,
        "parameters": run.config.model.num_parameters(),
        "minutes": round((metrics["training_seconds"] + scored.seconds) / 60, 1),
        "precision": trained.precision,
        "tokens_per_second": round(trained.tokens_per_second),
        "peak_memory_mb": round(metrics["peak_memory_mb"]),
        "translations": scored.hypotheses,
    }


def check_converged(run: RunDirectory, step: int) -> None:
    """Raises `DivergedError` for a run whose training has ended at `step` with no such checkpoint.

    None is written where the validation loss is not finite.
    """
    saved = run.checkpoints()
    if not saved or saved[-1].step != step:
        raise DivergedError(
            f"{run.path} has diverged: its validation loss at step {step} is not finite; expected "
            "a lower training.learning_rate"
        )
