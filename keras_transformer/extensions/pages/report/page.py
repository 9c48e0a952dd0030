"""The report of a training run: its scores, curves, configuration, data and checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sacrebleu.metrics.bleu import BLEU

from keras_transformer.config import RunConfig
from keras_transformer.console import duration
from keras_transformer.errors import InputError
from keras_transformer.extensions.pages.report.curves import curves_section
from keras_transformer.extensions.pages.report.data_page import (
    data_headline,
    data_parts,
    read_data_report,
)
from keras_transformer.extensions.pages.report.elements import (
    Cell,
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
from keras_transformer.extensions.pages.report.history import (
    SCORES,
    History,
    read_history,
)
from keras_transformer.runs.run_directory import RunDirectory


class _Saved(NamedTuple):
    """A checkpoint. Its metrics are empty if it is damaged."""

    name: str
    step: int
    metrics: dict[str, float]


def write_report(run_dir: str | Path) -> Path:
    """Writes report.html into a run directory, before, during or after training.

    The page needs no other file and no network. The same run gives the same page.

    Returns:
        The path of the page.

    Raises:
        InputError: if the run cannot be read, or the page cannot be written.
    """
    run = RunDirectory(run_dir)
    history = read_history(run.path / "metrics.jsonl")
    checkpoints = []
    for checkpoint in run.checkpoints():
        metrics: dict[str, float] = {}
        with contextlib.suppress(InputError):  # damaged, or removed in the meantime
            metrics = run.read_metrics(checkpoint)
        checkpoints.append(_Saved(checkpoint.path.name, checkpoint.step, metrics))
    name = run.path.resolve().name
    sections = [
        f"<header>\n<h1>{text(name)}</h1>\n{_headline(run, history, checkpoints)}\n</header>",
        section("Curves", curves_section(history)),
        section("Configuration", settings(_values(run.config), _values(type(run.config)()))),
        section("Data", _data(run.data_reports())),
        section("Checkpoints", _checkpoint_table(run, checkpoints)),
    ]
    return write_page(run.path / "report.html", document(f"{name} · training report", sections))


def _values(config: RunConfig) -> dict[str, object]:
    """Returns the settings of a configuration by name, such as `model.d_model`."""
    return {
        f"{part}.{field.name}": getattr(getattr(config, part), field.name)
        for part in ("model", "training", "decoding")
        for field in dataclasses.fields(getattr(config, part))
    }


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


def _headline(run: RunDirectory, history: History, checkpoints: Sequence[_Saved]) -> str:
    costs = next((each.metrics for each in reversed(checkpoints) if each.metrics), {})
    step = max([history.last_step, *(each.step for each in checkpoints)])
    parts = [f"<p>{_state(run.config, step, costs)}</p>"]
    scores = {
        f"Validation {name}": _score(history, metric, higher_is_better)
        for metric, (name, higher_is_better) in SCORES.items()
        if metric in history.series
    }
    if scores:
        parts.append(facts(scores, "scores"))
    parts.append(facts(_run_facts(run, step, history, costs)))
    if "val_bleu" in history.series:
        parts.append(f'<p class="muted"><small>{_bleu_signature(run.config)}</small></p>')
    if history.ignored:
        lines = "1 line" if history.ignored == 1 else f"{history.ignored:,} lines"
        parts.append(f'<p class="notice">{lines} of metrics.jsonl could not be read.</p>')
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


def _score(history: History, metric: str, higher_is_better: bool) -> str:
    series = history.series[metric]
    best, last = series.best(higher_is_better), series.last
    if best is None or best.step == last.step:
        return f"<b>{number(last.value)}</b><small>last, step {last.step:,}</small>"
    return (
        f"<b>{number(best.value)}</b><small>best, step {best.step:,}<br>"
        f"last {number(last.value)}</small>"
    )


def _run_facts(
    run: RunDirectory, step: int, history: History, costs: Mapping[str, float]
) -> dict[str, str]:
    entries = {"Steps": f"{step:,}"}
    skipped = history.series.get("skipped")
    if skipped is not None and (total := float(skipped.values[skipped.values > 0].sum())):
        entries["Skipped steps"] = f'<span class="skipped">{number(total, 0)}</span>'
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


def _checkpoint_table(run: RunDirectory, checkpoints: Sequence[_Saved]) -> str:
    if not checkpoints:
        return '<p class="muted">None yet.</p>'
    best = run.best_checkpoints()
    best_name, newest = best[0].path.name if best else "", checkpoints[-1].name
    selected = {"last": newest, "ema": newest, "best": best_name}.get(run.selected, run.selected)
    marks = {"best": best_name, "last": newest, f"selected ({run.selected})": selected}
    metrics = [metric for metric in SCORES if any(metric in each.metrics for each in checkpoints)]
    rows: list[tuple[Cell, ...]] = []
    for each in checkpoints:
        notes = [mark for mark, name in marks.items() if name == each.name]
        if not each.metrics:
            notes.append("without metrics")
        rows.append((each.step, *map(each.metrics.get, metrics), ", ".join(notes)))
    return table(("step", *(SCORES[metric].name for metric in metrics), ""), rows)
