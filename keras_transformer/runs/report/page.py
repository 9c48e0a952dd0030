"""The page: what a run reached, its curves, configuration, data and checkpoints."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.config import RunConfig
from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics as evaluation
from keras_transformer.runs.report.curves import curves_section
from keras_transformer.runs.report.elements import (
    Cell,
    document,
    facts,
    number,
    section,
    setting,
    settings,
    table,
    text,
    write_page,
)
from keras_transformer.runs.report.history import SCORES, History, read_history
from keras_transformer.runs.run_directory import RunDirectory

_SPLITS = {"train": "training", "valid": "validation"}
_BARS = "▁▂▃▄▅▆▇█"


class _Kept(NamedTuple):
    """A checkpoint that is there; without metrics where it is damaged."""

    name: str
    step: int
    metrics: dict[str, float]


def write_report(run: RunDirectory) -> Path:
    """Writes report.html into a run directory, at any time in the life of the run.

    The page needs no other file and no network. The same run gives the same page.

    Returns:
        The file, which is there whole or as it was.

    Raises:
        InputError: where the run cannot be read, or the page not be written.
    """
    return write_page(run.path / "report.html", _page(run))


def _page(run: RunDirectory) -> str:
    history = read_history(run.path / "metrics.jsonl")
    kept = _kept_checkpoints(run)
    name = run.path.resolve().name
    sections = [
        f"<header>\n<h1>{text(name)}</h1>\n{_headline(run, history, kept)}\n</header>",
        section("Curves", curves_section(history)),
        section("Configuration", _configuration(run.config)),
        section("Data", _data(run)),
        section("Checkpoints", _checkpoint_table(run, kept)),
    ]
    return document(f"{name} · training report", sections)


# The data.


def _data(run: RunDirectory) -> str:
    """Returns what is said of each corpus, with its number where there are several."""
    paths = run.data_reports()
    if len(paths) <= 1:
        return "".join(map(_data_report, paths))
    return "\n".join(
        f"<h3>Corpus {number}</h3>\n{_data_report(path)}"
        for number, path in enumerate(paths, start=1)
    )


def _data_report(path: Path) -> str:
    """Returns the report of `prepare` as HTML, without fields that are missing or malformed."""
    try:
        report = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        report = None
    if not isinstance(report, dict):
        return f'<p class="notice">{path.name} could not be read.</p>'
    parts = [
        _vocabulary(report),
        _splits(report),
        _cleaning(report),
        _inputs(report),
        _options(report),
    ]
    return "\n".join(filter(None, parts))


def _at(report: Any, *keys: str) -> Any:
    """Returns what lies under nested keys, or None."""
    for key in keys:
        report = report.get(key) if isinstance(report, dict) else None
    return report


def _count(report: Any, *keys: str) -> float | None:
    value = _at(report, *keys)
    return value if isinstance(value, (int, float)) and abs(value) < 1e300 else None


def _vocabulary(report: dict[str, Any]) -> str:
    vocabulary = _at(report, "vocabulary")
    source, target = _count(vocabulary, "source_size"), _count(vocabulary, "target_size")
    if source is None or target is None:
        return ""
    kind = text(_at(vocabulary, "type"))
    size = f"{number(source)} pieces" if kind == "joint" else (
        f"{number(source)} source and {number(target)} target pieces"
    )  # fmt: skip
    return f"<p>Vocabulary: {kind}, {size}.</p>"


def _splits(report: dict[str, Any]) -> str:
    """Tokens and lengths of both sides of the stores."""
    rows: list[tuple[Cell, ...]] = []
    for split, name in _SPLITS.items():
        for side in ("source", "target"):
            store = _at(report, split, side)
            rate = _count(store, "unknown_rate")
            if isinstance(store, dict):
                rows.append(
                    (
                        f"{name}, {side}",
                        _count(report, split, "pairs"),
                        _count(store, "tokens"),
                        _count(store, "mean_length"),
                        _count(store, "max_length"),
                        "–" if rate is None else f"{100 * rate:.3f} %",
                        _sparkline(_at(store, "length_histogram")),
                    )
                )
    head = ("", "pairs", "tokens", "mean length", "longest", "unknown", "lengths, by 16 tokens")
    return table(head, rows)


def _sparkline(histogram: Any) -> str:
    """Returns a bar for each count of {"1-16": 12, ...}, the 24 shortest lengths at most."""
    if not isinstance(histogram, dict):
        return ""
    counts = [n for n in histogram.values() if isinstance(n, int) and 0 <= n < 10**15][:24]
    top = max(counts, default=0)
    return "".join(_BARS[-(-n * (len(_BARS) - 1) // top)] for n in counts) if top else ""


def _cleaning(report: dict[str, Any]) -> str:
    rows: list[tuple[Cell, ...]] = []
    for split, name in _SPLITS.items():
        cleaning = _at(report, "cleaning", split)
        if not isinstance(cleaning, dict):
            continue
        dropped = _at(cleaning, "dropped")
        reasons = dropped.items() if isinstance(dropped, dict) else ()
        rows.append(
            (
                f"{name} corpus",
                _count(cleaning, "read"),
                _count(cleaning, "kept"),
                _count(cleaning, "control_characters_made_spaces"),
                ", ".join(f"{n} {reason.replace('_', ' ')}" for reason, n in reasons) or "none",
            )
        )
    held_out = _count(report, "held_out")
    note = (
        f"<p>{number(held_out)} pairs of the training corpus are held out for validation.</p>"
        if held_out
        else ""
    )
    head = ("", "pairs read", "kept", "control characters made spaces", "dropped")
    return f"{table(head, rows)}\n{note}".strip()


def _inputs(report: dict[str, Any]) -> str:
    rows: list[tuple[Cell, ...]] = []
    for split, name in _SPLITS.items():
        inputs = _at(report, "inputs", split)
        for entry in inputs if isinstance(inputs, list) else ():
            sha256 = _at(entry, "sha256")
            # Of each file; before, one of them all.
            hashes = sha256.values() if isinstance(sha256, dict) else [sha256]
            rows.append(
                (
                    name,
                    str(_at(entry, "name")),
                    _count(entry, "pairs"),
                    ", ".join(str(value)[:16] for value in hashes),
                )
            )
    return table(("used for", "corpus", "pairs", "SHA-256 begins with"), rows)


def _options(report: dict[str, Any]) -> str:
    options = _at(report, "options")
    if not isinstance(options, dict):
        return ""
    return f'<p class="muted">Prepared with:</p>\n{settings(options)}'


# The headline.


def _headline(run: RunDirectory, history: History, kept: list[_Kept]) -> str:
    config = run.config
    costs = next((entry.metrics for entry in reversed(kept) if entry.metrics), {})
    step = max([history.last_step, *(entry.step for entry in kept)])
    parts = [f"<p>{_state(config, step, costs)}</p>"]
    scores = {
        f"Validation {name}": _score(history, metric, highest)
        for metric, (name, highest) in SCORES.items()
        if metric in history.series
    }
    if scores:
        parts.append(facts(scores, "scores"))
    parts.append(facts(_run_facts(run, step, history, costs)))
    if "val_bleu" in history.series:
        parts.append(f'<p class="muted"><small>{_bleu_signature(config)}</small></p>')
    if history.ignored:
        lines = "1 line" if history.ignored == 1 else f"{history.ignored:,} lines"
        parts.append(f'<p class="notice">{lines} of metrics.jsonl could not be read.</p>')
    return "\n".join(parts)


def _state(config: RunConfig, step: int, metrics: Mapping[str, float]) -> str:
    training = config.training
    since = metrics.get("validations_since_best", 0)
    if step >= training.max_steps:
        return f"Finished after {step:,} steps."
    if 0 < training.early_stopping <= since:
        return (
            f"Ended early, at step {step:,} of {training.max_steps:,}: "
            f"{since:.0f} validations without a better val_{training.best_metric}."
        )
    if not step:
        return f"Not begun: nothing is logged yet of {training.max_steps:,} steps."
    return f"Not finished: at step {step:,} of {training.max_steps:,}."


def _score(history: History, metric: str, highest: bool) -> str:
    series = history.series[metric]
    best, last = series.best(highest), series.last
    if best is None:
        return f"<b>{number(last.value)}</b><small>at step {last.step:,}</small>"
    if best.step == last.step:
        return f"<b>{number(best.value)}</b><small>best and last, step {best.step:,}</small>"
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
        entries["Training time"] = _duration(costs["training_seconds"])
    if costs.get("step_seconds", 0) > 0 and "tokens" in costs:
        entries["Speed"] = f"{number(costs['tokens'] / costs['step_seconds'], 0)} tokens/s"
    if "peak_memory_mb" in costs:
        entries["Peak memory"] = f"{number(costs['peak_memory_mb'], 0)} MB"
    compiles = history.series.get("compiles")
    if compiles is not None:
        entries["XLA compilations"] = number(compiles.last.value, 0)
    entries["Parameters"] = f"{run.config.model.num_parameters():,}"
    entries["Selected weights"] = text(run.selected)
    if run.init_from is not None:
        entries["Began from"] = text(run.init_from)
    return entries


def _duration(seconds: float) -> str:
    """Returns "48 s", "12.5 min" or "3 h 07 min"."""
    if not 60 <= seconds < 1e9:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.1f} min"
    minutes = round(seconds / 60)
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def _bleu_signature(config: RunConfig) -> str:
    first = config.training.bleu_sentences
    which = f"the first {first:,} validation sentences" if first else "the validation set"
    signature = evaluation.evaluate(["."], ["."]).signature
    beam = f"beam {config.decoding.beam_size}, length penalty {config.decoding.length_penalty:g}"
    return f"BLEU of {which}, {beam}: {text(signature)}"


# The configuration.


def _configuration(config: RunConfig) -> str:
    changed, same = [], {}
    for part in ("model", "training", "decoding"):
        values, defaults = getattr(config, part), getattr(type(config)(), part)
        for field in dataclasses.fields(values):
            value, default = getattr(values, field.name), getattr(defaults, field.name)
            name = f"{part}.{field.name}"
            if value == default:
                same[name] = value
            else:
                changed.append((name, setting(value), setting(default)))
    return (
        table(("differs from the default", "value", "default"), changed)
        + '\n<p class="muted">As by default:</p>\n'
        + settings(same)
    )


# The checkpoints.


def _kept_checkpoints(run: RunDirectory) -> list[_Kept]:
    kept = []
    for checkpoint in run.checkpoints():
        metrics: dict[str, float] = {}
        # One that is damaged, or removed meanwhile, is still named.
        with contextlib.suppress(InputError):
            metrics = run.read_metrics(checkpoint)
        kept.append(_Kept(checkpoint.path.name, checkpoint.step, metrics))
    return kept


def _checkpoint_table(run: RunDirectory, kept: list[_Kept]) -> str:
    if not kept:
        return '<p class="muted">None yet.</p>'
    best = run.best_checkpoints()
    best_name, newest = best[0].path.name if best else "", kept[-1].name
    selected = {"last": newest, "ema": newest, "best": best_name}.get(run.selected, run.selected)
    marks = {"best": best_name, "last": newest, f"selected ({run.selected})": selected}
    metrics = [metric for metric in SCORES if any(metric in entry.metrics for entry in kept)]
    rows: list[tuple[Cell, ...]] = []
    for entry in kept:
        notes = [mark for mark, name in marks.items() if name == entry.name]
        if not entry.metrics:
            notes.append("without metrics")
        rows.append((entry.step, *map(entry.metrics.get, metrics), ", ".join(notes)))
    return table(("step", *(SCORES[metric].name for metric in metrics), ""), rows)
