"""The report of a training run: its scores, curves, configuration, data and checkpoints."""

from __future__ import annotations

import collections
import contextlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sacrebleu.metrics.bleu import BLEU

from keras_transformer.config import RunConfig
from keras_transformer.console import duration
from keras_transformer.errors import InputError
from keras_transformer.extensions.pages.report.data_page import (
    data_headline,
    data_parts,
    read_data_report,
)
from keras_transformer.extensions.pages.report.elements import (
    details,
    document,
    facts,
    number,
    section,
    settings,
    table,
    text,
    write_page,
)
from keras_transformer.runs.run_directory import RunDirectory

History = Mapping[str, Mapping[int, float]]  # the values of each metric, by step

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
# The colors suit light and dark pages.
_COLORS = {"training": "#4a8bd0", "validation": "#d9662b"}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",  # the same run gives the same page
    "font.size": 8,
    **dict.fromkeys(("text.color", "axes.edgecolor", "xtick.color", "ytick.color"), "#808890"),
}


class _Checkpoint(NamedTuple):
    """A checkpoint. Its metrics are empty if it is damaged."""

    name: str
    step: int
    metrics: Mapping[str, float]


def write_report(run_dir: str | Path) -> Path:
    """Writes report.html into a run directory, before, during or after training.

    The page needs no other file and no network. The same run gives the same page.
    """
    run = RunDirectory(run_dir)
    history = read_history(run.path / "metrics.jsonl")
    checkpoints = []
    for checkpoint in run.checkpoints():
        metrics: dict[str, float] = {}
        with contextlib.suppress(InputError):  # damaged, or removed in the meantime
            metrics = run.read_metrics(checkpoint)
        checkpoints.append(_Checkpoint(checkpoint.path.name, checkpoint.step, metrics))
    name = run.path.resolve().name
    sections = [
        f"<header>\n<h1>{text(name)}</h1>\n{_headline(run, history, checkpoints)}\n</header>",
        section("Curves", _curves(history)),
        section("Configuration", settings(run.config.settings(), type(run.config)().settings())),
        section("Data", _data(run.data_reports())),
        section("Checkpoints", _checkpoint_table(run, checkpoints)),
    ]
    return write_page(run.path / "report.html", document(f"{name} · training report", sections))


def read_history(path: Path) -> History:
    """Reads metrics.jsonl: the values of each metric by step. A missing file has no metrics.

    Lines that a kill has cut off are left out. If a step occurs twice, the later line counts.
    """
    history: dict[str, dict[int, float]] = collections.defaultdict(dict)
    lines = path.read_bytes().splitlines() if path.is_file() else []
    for line in lines:
        try:
            entry = json.loads(line)
            step = int(entry.pop("step"))
        except (ValueError, KeyError, AttributeError, TypeError):
            continue
        for name, value in entry.items():
            history[name][step] = float(value)
    return {name: dict(sorted(values.items())) for name, values in history.items()}


def _best(values: Mapping[int, float], higher_is_better: bool) -> int | None:
    """Returns the first step with the best finite value."""
    finite = [step for step, value in values.items() if math.isfinite(value)]
    sign = -1 if higher_is_better else 1
    return min(finite, key=lambda step: sign * values[step], default=None)


def _curves(history: History) -> str:
    """Draws all metrics as one SVG image, or says what is missing."""
    charts = [
        (title, [name for name in names if name in history], log) for title, names, log in _CHARTS
    ]
    charts = [chart for chart in charts if chart[1]]
    if not charts:
        return ""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        return '<p class="muted">Curves need the extra plots (matplotlib).</p>'
    with matplotlib.rc_context(_STYLE):
        rows = -(-len(charts) // 2)
        figure = Figure((9.6, 2.3 * rows), layout="constrained", facecolor="none")
        for index, (title, names, log) in enumerate(charts):
            axes = figure.add_subplot(rows, 2, index + 1, facecolor="none")
            axes.set_title(title, loc="left", fontsize=9)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", linewidth=0.3)
            for name in names:
                kind = "validation" if name.startswith("val_") else "training"
                values = {s: v for s, v in history[name].items() if abs(v) < 1e30}  # no NaN
                if not values:
                    continue
                axes.plot(*zip(*values.items(), strict=True), color=_COLORS[kind], label=kind)
                best = _best(values, _SCORES[name][1]) if name in _SCORES else None
                if best is not None:
                    axes.plot(best, values[best], "o", mfc="none", color=_COLORS[kind])
                if log and max(values.values()) >= 10 * min(values.values()) > 0:
                    axes.set_yscale("log")
            if len(axes.get_legend_handles_labels()[0]) > 1:
                axes.legend(frameon=False)
        image = io.StringIO()
        figure.savefig(image, format="svg", metadata={"Date": None})
    svg = image.getvalue()
    return (
        f'<div class="wide">{svg[svg.index("<svg") :]}</div>\n'
        '<p class="muted"><small>A circle marks the best validation.</small></p>'
    )


def _data(paths: Sequence[Path]) -> str:
    """Returns the reports of the training data as HTML, numbered if there are several."""
    parts = []
    for index, path in enumerate(paths, start=1):
        if len(paths) > 1:
            parts.append(f"<h3>Corpus {index}</h3>")
        try:
            report = read_data_report(path)
        except InputError:
            parts.append(f'<p class="notice">{text(path.name)} could not be read.</p>')
            continue
        parts.append(data_headline(report))
        parts += [details(title, content) for title, content in data_parts(report).items()]
    return "\n".join(filter(None, parts))


def _headline(run: RunDirectory, history: History, checkpoints: Sequence[_Checkpoint]) -> str:
    costs = next((each.metrics for each in reversed(checkpoints) if each.metrics), {})
    logged = [step for values in history.values() for step in values]
    step = max([0, *logged, *(checkpoint.step for checkpoint in checkpoints)])
    parts = [f"<p>{_state(run.config, step, costs)}</p>"]
    scores = {
        f"Validation {name}": _score(history[metric], higher_is_better)
        for metric, (name, higher_is_better) in _SCORES.items()
        if metric in history
    }
    if scores:
        parts.append(facts(scores, "scores"))
    parts.append(facts(_run_facts(run, step, history, costs)))
    if "val_bleu" in history:
        parts.append(f'<p class="muted"><small>{_bleu_signature(run.config)}</small></p>')
    return "\n".join(parts)


def _state(config: RunConfig, step: int, metrics: Mapping[str, float]) -> str:
    training = config.training
    validations = metrics.get("validations_since_best", 0)
    if step >= training.max_steps:
        return f"Finished after {step:,} steps."
    if 0 < training.early_stopping <= validations:
        return (
            f"Stopped early at step {step:,} of {training.max_steps:,}: "
            f"{validations:.0f} validations without a better val_{training.best_metric}."
        )
    if not step:
        return f"Not started yet: step 0 of {training.max_steps:,}."
    return f"Not finished: step {step:,} of {training.max_steps:,}."


def _score(values: Mapping[int, float], higher_is_better: bool) -> str:
    best, last = _best(values, higher_is_better), max(values)
    if best is None or best == last:
        return f"<b>{number(values[last])}</b><small>last, step {last:,}</small>"
    return (
        f"<b>{number(values[best])}</b><small>best, step {best:,}<br>"
        f"last {number(values[last])}</small>"
    )


def _run_facts(
    run: RunDirectory, step: int, history: History, costs: Mapping[str, Any]
) -> dict[str, str]:
    entries = {"Steps": f"{step:,}"}
    if skipped := sum(history.get("skipped", {}).values()):
        entries["Skipped steps"] = f'<span class="skipped">{number(skipped, 0)}</span>'
    if "tokens" in costs:
        entries["Target tokens"] = number(costs["tokens"], 0)
    if "training_seconds" in costs:
        entries["Training time"] = duration(costs["training_seconds"])
    if costs.get("step_seconds", 0) > 0 and "tokens" in costs:
        entries["Speed"] = f"{number(costs['tokens'] / costs['step_seconds'], 0)} tokens/s"
    if "peak_memory_mb" in costs:
        entries["Peak memory"] = f"{number(costs['peak_memory_mb'], 0)} MB"
    entries["Parameters"] = f"{run.config.model.num_parameters():,}"
    entries["Selected weights"] = text(run.selected)
    if run.init_from is not None:
        entries["Initialized from"] = text(run.init_from)
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
    return f"BLEU of {which}, {beam}: {text(bleu.get_signature())}"


def _checkpoint_table(run: RunDirectory, checkpoints: Sequence[_Checkpoint]) -> str:
    if not checkpoints:
        return '<p class="muted">None yet.</p>'
    best = run.best_checkpoints()
    best_name, newest = best[0].path.name if best else "", checkpoints[-1].name
    selected = {"last": newest, "ema": newest, "best": best_name}.get(run.selected, run.selected)
    marks = {"best": best_name, "last": newest, f"selected ({run.selected})": selected}
    metrics = [metric for metric in _SCORES if any(metric in c.metrics for c in checkpoints)]
    rows = []
    for checkpoint in checkpoints:
        notes = [mark for mark, name in marks.items() if name == checkpoint.name]
        if not checkpoint.metrics:
            notes.append("without metrics")
        rows.append((checkpoint.step, *map(checkpoint.metrics.get, metrics), ", ".join(notes)))
    return table(("step", *(_SCORES[metric][0] for metric in metrics), ""), rows)
