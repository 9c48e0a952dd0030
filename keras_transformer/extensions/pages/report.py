"""The reports of training runs and of prepared data: a page of HTML each."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from sacrebleu.metrics.bleu import BLEU

from keras_transformer.config import RunConfig
from keras_transformer.console import duration
from keras_transformer.data.prepare import PrepareOptions
from keras_transformer.errors import InputError
from keras_transformer.extensions.pages.page import number, render, write_page
from keras_transformer.runs.run_directory import RunDirectory

History = Mapping[str, Mapping[int, float]]  # the values of each metric, by step

# For each reason to drop a pair: its meaning, and the option that is its limit.
REASONS: dict[str, tuple[str, str]] = {
    "bad_utf8": ("a side is not valid UTF-8", ""),
    "too_many_bytes": ("a side has more than {} bytes", "max_bytes"),
    "empty": ("a side is empty, or has only invisible characters", ""),
    "length_ratio": ("a side is more than {} times as long as the other", "max_length_ratio"),
    "identical": ("both sides are identical", ""),
    "repetitive": ("two to eight words are repeated three times in a row", ""),
    "low_score": ("the translation has a lower score than --min_score", ""),
    "wrong_language": ("a side seems to be in a language other than {}", "check_languages"),
    "duplicate": ("the same pair occurred before", ""),
    "too_many_tokens": ("a side has more than {} tokens", "max_tokens"),
}
# The validation metrics: their names, and whether higher is better.
_SCORES = {
    "val_perplexity": ("perplexity", False),
    "val_loss": ("loss", False),
    "val_bleu": ("BLEU", True),
    "val_accuracy": ("accuracy", True),
}
# The charts: title, metrics, and whether a logarithmic scale suits a wide range.
_CHARTS = (
    ("Loss (label-smoothed)", ("loss", "val_loss"), True),
    ("Perplexity", ("perplexity", "val_perplexity"), True),
    ("Validation BLEU", ("val_bleu",), False),
    ("Validation token accuracy", ("val_accuracy",), False),
    ("Auxiliary loss", ("auxiliary_loss",), False),
    ("Learning rate", ("learning_rate",), False),
    ("Gradient norm before clipping", ("gradient_norm",), True),
    ("Target tokens per second", ("tokens_per_second",), False),
    ("Loss scale", ("loss_scale",), True),
)


def write_data_page(directory: str | Path) -> Path:
    """Writes report.html into a directory of prepared data, from its report.json."""
    directory = Path(directory)
    page = render(
        "data",
        name=directory.resolve().name,
        report=_read_data_report(directory / "report.json"),
        reasons=REASONS,
        defaults=dataclasses.asdict(PrepareOptions()),
    )
    return write_page(directory / "report.html", page)


def _read_data_report(path: Path) -> dict[str, Any]:
    try:
        report: dict[str, Any] = json.loads(path.read_bytes())
        sides = [
            report[split][side] for split in ("train", "valid") for side in ("source", "target")
        ]
        longest = max((side["length_histogram"] for side in sides), key=len)
        return {**report, "length_ranges": list(longest)}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not the report of prepared data ({error!r}). Give a directory that "
            "keras-transformer prepare has written."
        ) from None


def write_report(run: RunDirectory) -> Path:
    """Writes report.html into a run directory, before, during or after training.

    The same run gives the same page.
    """
    history = read_history(run.path / "metrics.jsonl")
    checkpoints: dict[str, tuple[int, Mapping[str, float]]] = {}
    for checkpoint in run.checkpoints():
        metrics: dict[str, float] = {}
        with contextlib.suppress(InputError):  # the file is damaged, or was removed
            metrics = run.read_metrics(checkpoint)
        checkpoints[checkpoint.path.name] = checkpoint.step, metrics
    costs = next((m for _, m in reversed(checkpoints.values()) if m), {})
    logged = [step for values in history.values() for step in values]
    step = max([0, *logged, *(step for step, _ in checkpoints.values())])
    shown = [name for name in _SCORES if any(name in m for _, m in checkpoints.values())]
    notes = _notes(run, list(checkpoints))
    page = render(
        "run",
        name=run.path.resolve().name,
        state=_state(run.config, step, costs),
        scores=[
            {"name": name, "values": values, "best": _best(values, is_better), "last": max(values)}
            for metric, (name, is_better) in _SCORES.items()
            if (values := history.get(metric))
        ],
        facts_of_run=_facts(run, step, history, costs),
        bleu=_bleu_signature(run.config) if "val_bleu" in history else "",
        curves=_curves(history),
        config=run.config.settings(),
        defaults=type(run.config)().settings(),
        data_reports=[_read_data_report(path) for path in run.data_reports()],
        reasons=REASONS,
        metrics=[_SCORES[name][0] for name in shown],
        checkpoints=[
            (step, [metrics.get(name) for name in shown], notes[name])
            for name, (step, metrics) in checkpoints.items()
        ],
    )
    return write_page(run.path / "report.html", page)


def read_history(path: Path) -> History:
    """Reads metrics.jsonl: the values of each metric by step. A missing file has no metrics.

    A line that a kill has cut off is left out. If a step occurs twice, the later line counts.
    """
    history: dict[str, dict[int, float]] = collections.defaultdict(dict)
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        with contextlib.suppress(ValueError):
            entry = json.loads(line)
            step = int(entry.pop("step"))
            for name, value in entry.items():
                history[name][step] = float(value)
    return {name: dict(sorted(values.items())) for name, values in history.items()}


def _curves(history: History) -> Markup:
    """Draws all metrics as one SVG image."""
    charts: list[Any] = []
    for title, names, is_log in _CHARTS:
        lines: list[Any] = []
        for name in names:
            # NaN cannot be drawn.
            values = {s: v for s, v in history.get(name, {}).items() if abs(v) < 1e30}
            best = _best(values, _SCORES[name][1]) if name in _SCORES else None
            kind = "validation" if name.startswith("val_") else "training"
            lines += [(kind, values, best)] if values else []
        charts += [(title, lines, is_log)] if lines else []
    if not charts:
        return Markup()
    from keras_transformer.extensions.pages.pictures import draw_curves  # loads Matplotlib

    return Markup(draw_curves(charts))


def _best(values: Mapping[int, float], higher_is_better: bool) -> int | None:
    """Returns the first step with the best finite value."""
    finite = [step for step, value in values.items() if math.isfinite(value)]
    sign = -1 if higher_is_better else 1
    return min(finite, key=lambda step: sign * values[step], default=None)


def _state(config: RunConfig, step: int, costs: Mapping[str, float]) -> str:
    training = config.training
    validations = costs.get("validations_since_best", 0)
    if step >= training.max_steps:
        return f"Finished after {step:,} steps."
    if 0 < training.early_stopping <= validations:
        return (
            f"Stopped early at step {step:,} of {training.max_steps:,}: "
            f"{validations:.0f} validations without a better val_{training.best_metric}."
        )
    start = "Not finished" if step else "Not started yet"
    return f"{start}: step {step:,} of {training.max_steps:,}."


def _facts(
    run: RunDirectory, step: int, history: History, costs: Mapping[str, Any]
) -> dict[str, str]:
    entries = {"Steps": f"{step:,}"}
    if skipped := sum(history.get("skipped", {}).values()):
        entries["Skipped steps"] = number(skipped, 0)
    if "tokens" in costs:
        entries["Target tokens"] = number(costs["tokens"], 0)
        entries["Training time"] = duration(costs["training_seconds"])
        entries["Speed"] = (
            f"{number(costs['tokens'] / max(costs['step_seconds'], 1e-9), 0)} tokens/s"
        )
        entries["Peak memory"] = f"{number(costs['peak_memory_mb'], 0)} MB"
    entries["Parameters"] = f"{run.config.model.num_parameters():,}"
    entries["Selected weights"] = run.selected
    if run.init_from is not None:
        entries["Initialized from"] = str(run.init_from)
    return entries


def _bleu_signature(config: RunConfig) -> str:
    first = config.training.bleu_sentences
    which = f"the first {first:,} validation sentences" if first else "the validation set"
    bleu = BLEU()
    bleu.corpus_score(["."], [["."]])  # without a score there is no signature
    decoding = config.decoding
    beam = f"beam {decoding.beam_size}, length penalty {decoding.length_penalty:g}"
    if decoding.length_penalty_formula == "power":
        beam += " (length^α)"
    return f"BLEU of {which}, {beam}: {bleu.get_signature()}"


def _notes(run: RunDirectory, names: Sequence[str]) -> dict[str, list[str]]:
    """Returns which checkpoints are the best, the last and the selected one."""
    best = run.best_checkpoints()
    marks = {"best": best[0].path.name if best else "", "last": names[-1] if names else ""}
    selected = marks["last"] if run.selected == "ema" else marks.get(run.selected, run.selected)
    marks[f"selected ({run.selected})"] = selected
    return {name: [mark for mark, marked in marks.items() if marked == name] for name in names}
