"""One model of a comparison, trained by `training_run.train` and scored on every test."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import DivergedError
from keras_transformer.evaluation import metrics
from keras_transformer.inference import batching, loading, scoring, translate
from keras_transformer.models.encoder_decoder import get_architecture
from keras_transformer.paper.baselines import architectures  # noqa: F401  registers the baselines
from keras_transformer.paper.baselines.flop import training_flop
from keras_transformer.paper.baselines.material import Material, StudyModel
from keras_transformer.paper.experiment import check_converged
from keras_transformer.runs.report.history import Series, read_history
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.training import training_run

log = logging.getLogger(__name__)

# Of the curve: what metrics.jsonl calls it, at every validation.
_VALIDATION = ("val_loss", "val_perplexity", "val_bleu")


def train_and_score(
    directory: Path, max_minutes: float | None, model: StudyModel, material: Material
) -> dict[str, Any]:
    """Trains to the end, or so far as time allows, and scores the best weights there are.

    Args:
        directory: directory of the trial.
        max_minutes: stop training after so long, to be continued.
        model: the model.
        material: what it is trained and tested on.

    Returns:
        What is found of a model: whether it is `finished`, what it cost, its `curve` and, by
        name, its `tests`. Of one that has diverged, which is a result too: how, its curve until
        then, and no tests.

    Raises:
        InputError: for settings or data that do not fit.
        KeyboardInterrupt: where training was interrupted; a checkpoint is written.
    """
    run_dir = directory / "run"
    architecture = get_architecture(model.architecture)
    try:
        trained = training_run.train(
            material.data_dir,
            run_dir,
            settings=model.settings,
            options=training_run.TrainOptions(max_minutes=max_minutes),
            architecture=architecture,
        )
        log.info(trained.summary(run_dir))
        if trained.interrupted:
            raise KeyboardInterrupt
        run = RunDirectory(run_dir, architecture.run_config)
        check_converged(run, trained.step)
    except DivergedError as error:
        log.warning("%s: %s", model.name, error)
        run = RunDirectory(run_dir, architecture.run_config)
        return {
            "finished": True,
            "diverged": str(error),
            "parameters": run.config.model.num_parameters(),
            "steps": max((checkpoint.step for checkpoint in run.checkpoints()), default=0),
            "curve": curve(run, material.data_dir),
            "tests": {},
        }
    run.select("best" if run.best_checkpoints() else "last")
    return {
        "finished": trained.finished,
        "parameters": run.config.model.num_parameters(),
        "steps": trained.step,
        "tokens_per_second": round(trained.tokens_per_second),
        "training_minutes": round(trained.metrics["training_seconds"] / 60, 1),
        "peak_memory_mb": round(trained.metrics["peak_memory_mb"]),
        "weights": run.selected,
        "curve": curve(run, material.data_dir),
        "tests": _scores(model, run, material),
    }


def curve(run: RunDirectory, data_dir: Path) -> list[dict[str, float]]:
    """Returns every validation of a run: its `step`, what it had cost until then, its metrics.

    `flop` are those of the tokens trained on so far, by the mean of the corpus; `minutes` those
    of the steps, without validation.
    """
    store = TokenStore(data_dir / "train")
    flop = training_flop(run.config.model, store.source_lengths, store.target_lengths)
    flop_per_token = flop / int(store.target_lengths.sum())
    series = {
        name: _by_step(values)
        for name, values in read_history(run.path / "metrics.jsonl").series.items()
    }
    points = []
    for step, tokens in series.get("tokens", {}).items():
        validated = {name: series.get(name, {}).get(step) for name in _VALIDATION}
        if validated["val_loss"] is not None:
            points.append(
                {
                    "step": step,
                    "flop": tokens * flop_per_token,
                    "minutes": series["step_seconds"][step] / 60,
                    **{name: value for name, value in validated.items() if value is not None},
                }
            )
    return points


def _by_step(series: Series) -> dict[int, float]:
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def _scores(model: StudyModel, run: RunDirectory, material: Material) -> dict[str, Any]:
    """Translates and scores every test by the selected weights."""
    translator = loading.load_translator(run)
    loaded = loading.LoadedModel(
        str(run.path),
        translator.config.n_best,
        translator.translate,
        translator.lengths,
        translator,
    )
    scorer = scoring.Scorer(translator)
    results = {}
    for name, test in material.tests.items():
        sources, references = test.sources or [], test.references[0]
        log.info("%s: %s, %d sentences", model.name, name, len(references))
        hypotheses = [best.text for best, *_ in translate.translate_lines(loaded, sources)]
        scores = metrics.evaluate(hypotheses, test, tokenize=material.tokenize)
        pairs = scoring.score_pairs(scorer, sources, references)
        tokens = [count for count, _ in batching.token_counts(loaded.lengths, sources)]
        results[name] = {
            **dataclasses.asdict(scores),
            "perplexity": scoring.perplexity(pairs),
            "source_tokens": float(np.mean(tokens)),
            **_by_position(pairs),
        }
    return results


def _by_position(pairs: Sequence[scoring.PairScore]) -> dict[str, list[float]]:
    """Mean negative log-probability (nats) of the n-th target token, and how many there are."""
    longest = max(len(pair.ids) for pair in pairs)
    nats, counts = np.zeros(longest), np.zeros(longest, np.int64)
    for pair in pairs:
        nats[: len(pair.ids)] -= pair.token_log_probs
        counts[: len(pair.ids)] += 1
    return {
        "nats_by_position": (nats / counts).round(4).tolist(),
        "tokens_by_position": counts.tolist(),
    }
