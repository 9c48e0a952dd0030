"""Compares the Transformer with other architectures, as the paper's Table 2 does.

The work directory of a comparison has

experiment.json    the settings, the data and the test set of the comparison
NAME/run/          the run of a model, with its report
NAME/results.json  its cost, its validation metrics over training, and its scores
results.json       the results of all models
table.md           a table of them
chart.svg          a chart of them
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer.console import warn
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import DivergedError, InputError
from keras_transformer.evaluation import metrics
from keras_transformer.evaluation.test_sets import EvaluationSet
from keras_transformer.extensions.paper import experiment, report
from keras_transformer.extensions.paper.experiment import (
    RESULTS,
    Deadline,
    Trial,
    open_experiment,
    results_of,
    run_trials,
)
from keras_transformer.extensions.paper.results import mixed_origins, write_results
from keras_transformer.runs.atomic import write_text
from keras_transformer.tf_import import load_tensorflow

if TYPE_CHECKING:  # it loads TensorFlow
    from keras_transformer.runs.run_directory import RunDirectory

log = logging.getLogger(__name__)

# BLEU from German to English of the notebooks of bentrevett/pytorch-seq2seq, with greedy search and
# torchtext's BLEU. The models have 9, 37 and 20 million parameters.
PUBLISHED_BLEU = {"transformer": 36.5, "convolutional": 34.1, "gru": 28.1}

_VALIDATION_METRICS = ("val_loss", "val_perplexity", "val_bleu")

# XLA takes longer to compile the batch shapes than these short runs gain by it.
_SETTINGS: dict[str, Any] = {
    "training.batch_tokens": 2048,
    "training.schedule": "linear",
    "training.learning_rate": 0.001,
    "training.warmup_steps": 300,
    "training.clip_norm": 1.0,
    "training.mixed_precision": "float32",
    "training.jit_compile": "false",
    "training.keep_checkpoints": 1,
    "training.keep_best": 1,
    "training.max_steps": 3000,
    "training.checkpoint_steps": 300,
    "training.bleu_steps": 300,
    "training.best_metric": "bleu",
}


@dataclasses.dataclass(frozen=True)
class ComparedModel:
    """A model of the comparison.

    Attributes:
        name: name of its directory.
        title: name in the chart.
        architecture: name of the architecture in `config.json`.
        settings: settings that differ from the defaults of the architecture.
    """

    name: str
    title: str
    architecture: str
    settings: Mapping[str, Any]


# About 9 million parameters each, with a vocabulary of 4,000.
MODELS = (
    ComparedModel(
        "transformer",
        "Transformer",
        "transformer",
        {
            **_SETTINGS,
            "model.num_encoder_layers": 4,
            "model.num_decoder_layers": 4,
            "model.d_model": 256,
            "model.d_ff": 1152,
            "model.num_heads": 4,
            "model.embedding_dropout": 0.3,
            "model.residual_dropout": 0.3,
            "model.norm_position": "pre",
        },
    ),
    ComparedModel("convolutional", "ConvS2S", "convolutional", _SETTINGS),
    ComparedModel("gru", "GRU with attention", "gru", _SETTINGS),
)


@dataclasses.dataclass(frozen=True)
class ComparisonData:
    """The data of a comparison.

    Attributes:
        data_dir: directory of prepared data.
        test: sentences with one reference each.
        tokenize: sacreBLEU's tokenizer; None for its default.
    """

    data_dir: Path
    test: EvaluationSet
    tokenize: str | None = None

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the data, the test set and the tokenizer."""
        stores = [TokenStore(self.data_dir / part).fingerprint for part in ("train", "valid")]
        test = [self.test.sources, self.test.references]
        content = json.dumps([stores, test, self.tokenize], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


def run_comparison(
    data: ComparisonData,
    work_dir: Path,
    *,
    only: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    max_minutes: float | None = None,
) -> dict[str, Any]:
    """Trains and scores the models one after the other, and draws their results.

    Each model is trained in a separate process. The same call resumes after an interruption, and
    skips finished models.
    """
    models = {
        model.name: dataclasses.replace(model, settings={**model.settings, **(settings or {})})
        for model in MODELS
    }
    if unknown := [name for name in only or () if name not in models]:
        raise InputError(f"The model {unknown[0]!r} is unknown. Choose one of {', '.join(models)}.")
    deadline = Deadline(max_minutes)
    metrics.evaluate(["a"], ["a"], tokenize=data.tokenize)  # checks the tokenizer
    descriptions = {
        name: {"architecture": model.architecture, "settings": model.settings}
        for name, model in models.items()
    }
    trials = {
        name: Trial(
            name,
            _train_model,
            (model, data),
            model.title,
            facts={"name": name, "title": model.title, **descriptions[name]},
            in_child=True,
        )
        for name, model in models.items()
    }
    with open_experiment(work_dir, {"data and test": data.fingerprint, "models": descriptions}):
        run_trials([trials[name] for name in only or trials], work_dir, deadline)
        found = results_of(trials.values(), work_dir)
        finished = len(found) == len(trials) and all(each["finished"] for each in found.values())
        results = {"finished": finished, "trials": found}
        write_results(work_dir / RESULTS, results)
        write_text(work_dir / report.TABLE, summary(results))
        draw(results, work_dir / report.CHART)
    return results


def _train_model(
    directory: Path, max_minutes: float | None, model: ComparedModel, data: ComparisonData
) -> dict[str, Any]:
    """Trains a model, and scores the weights with the best validation."""
    load_tensorflow()  # here, because the parent process must not hold the GPU
    from keras_transformer.extensions.paper.baselines import architectures  # noqa: F401  registers them
    from keras_transformer.models.encoder_decoder import get_architecture
    from keras_transformer.runs.run_directory import RunDirectory

    architecture = get_architecture(model.architecture)
    try:
        trained, run = experiment.train(
            directory, max_minutes, data.data_dir, model.settings, architecture=architecture
        )
    except DivergedError as error:
        warn(f"{model.name}: {error}")
        run = RunDirectory(directory / "run", architecture.run_config)
        return {
            "finished": True,
            "diverged": str(error),
            "parameters": run.config.model.num_parameters(),
            "steps": max((checkpoint.step for checkpoint in run.checkpoints()), default=0),
            "curve": curve(run, data.data_dir),
            "test": None,
        }
    run.select("best" if run.best_checkpoints() else "last")
    return {
        "finished": trained.finished,
        **experiment.costs(trained, run),
        "weights": run.selected,
        "curve": curve(run, data.data_dir),
        "test": _score(run, data),
    }


def curve(run: RunDirectory, data_dir: Path) -> list[dict[str, float]]:
    """Returns the cost and the metrics of each validation of a run.

    Returns:
        For each validation: `step`; `flop`, from the mean FLOP per token of the corpus;
        `minutes` of the training steps; and the metrics.
    """
    from keras_transformer.extensions.pages.report import read_history
    from keras_transformer.extensions.paper.baselines.flop import training_flop

    store = TokenStore(data_dir / "train")
    flop = training_flop(run.config.model, store.source_lengths, store.target_lengths)
    flop_per_token = flop / int(store.target_lengths.sum())
    series = read_history(run.path / "metrics.jsonl")
    return [
        {
            "step": step,
            "flop": series["tokens"][step] * flop_per_token,
            "minutes": series["step_seconds"][step] / 60,
            **{name: series[name][step] for name in _VALIDATION_METRICS if step in series[name]},
        }
        for step in series.get("val_loss", {})
    ]


def _score(run: RunDirectory, data: ComparisonData) -> dict[str, Any]:
    """Returns the scores of the selected weights on the test set."""
    from keras_transformer.inference import loading, scoring, translate

    translator = loading.load_translator(run)
    loaded = loading.LoadedModel.of(translator, str(run.path))
    sources, references = data.test.sources or [], data.test.references[0]
    log.info("Translating %d sentences.", len(references))
    hypotheses = [best.text for best, *_ in translate.translate_lines(loaded, sources)]
    scores = metrics.evaluate(hypotheses, data.test, tokenize=data.tokenize)
    pairs = scoring.score_pairs(scoring.Scorer(translator), sources, references)
    return {**dataclasses.asdict(scores), "perplexity": scoring.perplexity(pairs)}


def summary(results: Mapping[str, Any]) -> str:
    """Returns a table of the results of `run_comparison`."""
    head = ["model", "parameters", "steps", "minutes", "training FLOP", "BLEU", "perplexity"]
    rows, notes = [], []
    for name, result in results["trials"].items():
        last, test = result["curve"][-1] if result["curve"] else {}, result["test"]
        rows.append(
            [
                name,
                f"{result['parameters']:,}",
                f"{result['steps']:,}",
                f"{last.get('minutes', 0.0):.1f}",
                f"{last.get('flop', 0.0):.2e}",
                f"{test['bleu']:.2f}" if test else "",
                f"{test['perplexity']:.2f}" if test else "",
                f"{PUBLISHED_BLEU[name]}",
            ]
        )
        if "diverged" in result:
            notes.append(f"{name} diverged: {result['diverged']}")
        elif not result["finished"]:
            notes.append(f"{name} is not finished.")
    trials = results["trials"]
    signatures = {trial["test"]["signature"] for trial in trials.values() if trial["test"]}
    notes += filter(None, [*sorted(signatures), mixed_origins(trials)])
    return report.table([*head, "published"], rows, notes)


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draws validation BLEU over training FLOP and over minutes."""
    panels: dict[str, list[report.Series]] = {"training FLOP": [], "minutes of training": []}
    for result in results["trials"].values():
        reached = f"BLEU {result['test']['bleu']:.1f}" if result["test"] else "diverged"
        label = f"{result['title']}, {result['parameters'] / 1e6:.1f} M: {reached}"
        points = [point for point in result["curve"] if "val_bleu" in point]
        for name, series in zip(("flop", "minutes"), panels.values(), strict=True):
            line = [(point[name], point["val_bleu"]) for point in points]
            series.append(report.Series(label, line))
    report.draw(path, panels, "validation BLEU (13a)", log_scale=["training FLOP"])
