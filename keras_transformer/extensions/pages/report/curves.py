"""Draws the charts of a run's metrics as inline SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from keras_transformer.extensions.pages.report.elements import number, text
from keras_transformer.extensions.pages.report.history import (
    SCORES,
    History,
    Point,
    Series,
)

_MAX_POINTS = 300  # per curve, because a chart is about 360 pixels wide
_MAX_DOTS = 60  # curves with more points are drawn without dots
_WIDTH, _HEIGHT = 360, 172
_LEFT, _RIGHT, _TOP, _BOTTOM = 38, 310, 8, 150  # edges of the plot area, in pixels


class _Chart(NamedTuple):
    title: str
    unit: str
    metrics: tuple[str, ...]
    log: bool = False


_CHARTS = (
    _Chart("Loss", "label-smoothed, nats per token", ("loss", "val_loss"), log=True),
    _Chart("Perplexity", "of the true labels", ("perplexity", "val_perplexity"), log=True),
    _Chart("BLEU", "of the validation set", ("val_bleu",)),
    _Chart("Token accuracy", "of the validation set", ("val_accuracy",)),
    _Chart("Auxiliary loss", "before weighting, nats per target token", ("auxiliary_loss",)),
    _Chart("Learning rate", "", ("learning_rate",)),
    _Chart("Gradient norm", "before clipping", ("gradient_norm",), log=True),
    _Chart("Speed", "target tokens per second", ("tokens_per_second",)),
    _Chart("Loss scale", "", ("loss_scale",), log=True),
)


class Curve(NamedTuple):
    """The values of a metric, the data ("training" or "validation"), and the best point."""

    series: Series
    kind: str
    best: Point | None = None


def curves_section(history: History) -> str:
    """Returns the charts of all metrics of a run as HTML, or "" if there are none."""
    figures = [figure for chart in _CHARTS if (figure := _figure(chart, history))]
    if not figures:
        return ""
    charts = "\n".join(figures)
    return (
        f'<div class="charts">\n{charts}\n</div>\n<p class="muted"><small>A circle marks the best '
        "validation. A long curve shows means, with a band from the lowest to the highest value."
        "</small></p>"
    )


def _figure(chart: _Chart, history: History) -> str:
    curves = []
    for metric in chart.metrics:
        if metric in history.series:
            series = history.series[metric]
            kind = "validation" if metric.startswith("val_") else "training"
            best = series.best(SCORES[metric].higher_is_better) if metric in SCORES else None
            curves.append(Curve(series, kind, best))
    if not curves:
        return ""
    keys = [f'<span class="{curve.kind}">{curve.kind}</span>' for curve in curves]
    caption = " ".join([f"<b>{chart.title}</b>", *(keys if len(chart.metrics) > 1 else [])])
    svg = line_chart(chart.title, curves, history.last_step, chart.log)
    return (
        f'<figure>\n<figcaption>{caption} <span class="unit">{chart.unit}</span></figcaption>\n'
        f"{svg}\n</figure>"
    )


def line_chart(title: str, curves: Sequence[Curve], last_step: int, log: bool = False) -> str:
    """Draws curves over the training steps, with the last value of each curve at the right.

    Args:
        title: the accessible name of the chart.
        curves: at least one. A long curve is drawn as means, with a band from the lowest to the
            highest value.
        last_step: the last step on the horizontal axis.
        log: use a logarithmic scale if all values are positive and differ by a factor of 10.

    Returns:
        An `<svg>` element without fonts, scripts or links.
    """
    thinned = [curve.series.thinned(_MAX_POINTS) for curve in curves]
    values = np.concatenate([part for points in thinned for part in (points.low, points.high)])
    low, high = (values.min(), values.max()) if len(values) else (0.0, 1.0)
    log = bool(log and low > 0 and high >= 10 * low)
    if log:
        ticks, low, high = _log_ticks(low, high), math.log10(low), math.log10(high)
    # If all values are almost equal, the curve is a line in the middle of the chart.
    size = max(abs(low), abs(high))
    margin = 0.06 * (high - low) if high - low > 1e-6 * size + 1e-30 else 0.05 * size + 1e-9
    low, high = low - margin, high + margin
    if not log:
        ticks = _linear_ticks(low, high)

    def x(step: npt.ArrayLike) -> npt.NDArray[np.float64]:
        return _LEFT + np.asarray(step) / max(last_step, 1) * (_RIGHT - _LEFT)

    def y(value: npt.ArrayLike) -> npt.NDArray[np.float64]:
        scaled = np.log10(value) if log else np.asarray(value)
        return _BOTTOM - (scaled - low) / (high - low) * (_BOTTOM - _TOP)

    parts = []
    for tick in ticks:
        parts.append(f'<path class="grid" d="M{_LEFT} {y(tick):.1f}H{_RIGHT}"/>')
        parts.append(
            f'<text class="left" x="{_LEFT - 5}" y="{y(tick) + 3:.1f}">{_tick(tick)}</text>'
        )
    for tick in _linear_ticks(0, max(last_step, 1)):
        parts.append(
            f'<text class="below" x="{x(tick):.1f}" y="{_BOTTOM + 14}">{_tick(tick)}</text>'
        )
    for curve, points in zip(curves, thinned, strict=True):
        line = _path(x(points.steps), y(points.mean))
        parts.append(f'<g class="{curve.kind}">')
        if len(points.steps) < len(curve.series.steps):
            across = np.concatenate([points.steps, points.steps[::-1]])
            band = np.concatenate([points.low, points.high[::-1]])
            parts.append(f'<path class="band" d="{_path(x(across), y(band))}"/>')
        parts.append(f'<path class="line" d="{line}"/>')
        if len(points.steps) <= _MAX_DOTS:
            dots = zip(x(points.steps), y(points.mean), strict=True)
            parts += [f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="1.6"/>' for cx, cy in dots]
        if curve.best and curve.best.value in values:
            cx, cy = x(curve.best.step), y(curve.best.value)
            parts.append(f'<circle class="best" cx="{cx:.1f}" cy="{cy:.1f}" r="4"/>')
        parts.append("</g>")
    heights = [(float(y(points.mean[-1])), curve) for curve, points
               in zip(curves, thinned, strict=True) if len(points.mean)]  # fmt: skip
    lowest = -math.inf
    for height, curve in sorted(heights, key=lambda label: label[0]):
        lowest = max(height, lowest + 12)  # the labels do not overlap
        label = f'x="{_RIGHT + 6}" y="{lowest + 3:.1f}"'
        parts.append(f'<text class="{curve.kind}" {label}>{_value(curve.series.last.value)}</text>')
    content = "\n".join(parts)
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{text(title)}">\n{content}\n</svg>'
    )


def _path(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> str:
    return "M" + " ".join(f"{cx:.1f},{cy:.1f}" for cx, cy in zip(x, y, strict=True))


def _linear_ticks(low: float, high: float) -> list[float]:
    """Returns three to six round numbers from `low` to `high`."""
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = next(f * power for f in (1, 2, 5, 10) if (high - low) / (f * power) <= 5.5)
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Returns the powers of ten from `low` to `high`, and for a small range 2 and 5 times each."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    powers = range(first, last + 1, max((last - first) // 5, 1))
    return [f * 10.0**p for p in powers for f in factors if low <= f * 10.0**p <= high]


def _tick(value: float) -> str:
    """Formats the label of a tick.

    Example:
    >>> _tick(0.30000000000000004), _tick(5000), _tick(1500000.0)
    ('0.3', '5k', '1.5M')
    """
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if unit <= abs(value) < 1e9:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"


def _value(value: float) -> str:
    return number(value) if value == 0 or abs(value) >= 0.01 else f"{value:.3g}"
