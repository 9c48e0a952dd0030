"""The section of the curves: which metrics share a chart, and what is said of each."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, NamedTuple

from keras_transformer.errors import MissingExtra
from keras_transformer.runs.report.history import SCORES, History

if TYPE_CHECKING:
    from keras_transformer.runs.report.charts import Kind, Scale


class _Chart(NamedTuple):
    title: str
    unit: str
    metrics: tuple[str, ...]
    scale: Scale = "linear"
    settling: float = 0.0


# In the first steps some fall so far that nothing else would be seen.
_SETTLING = 0.05

_CHARTS = (
    _Chart("Loss", "label-smoothed, nats a token", ("loss", "val_loss"), "log", _SETTLING),
    _Chart("Perplexity", "of the true labels", ("perplexity", "val_perplexity"), "log", _SETTLING),
    _Chart("BLEU", "of the validation set", ("val_bleu",)),
    _Chart("Token accuracy", "of the validation set", ("val_accuracy",)),
    _Chart("Alignment loss", "of a guided alignment, nats a token", ("alignment_loss",)),
    _Chart("Learning rate", "", ("learning_rate",)),
    _Chart("Gradient norm", "before clipping", ("gradient_norm",), "log", _SETTLING),
    _Chart("Speed", "target tokens a second", ("tokens_per_second",), "amount"),
    _Chart("Loss scale", "", ("loss_scale",), "binary"),
)


def curves_section(history: History) -> str:
    """Returns the charts of the metrics that there are, as HTML; "" where there are none.

    Without Matplotlib, an extra, it is a sentence that says how to install it: a run ends with
    its report all the same.
    """
    try:
        figures = [figure for chart in _CHARTS if (figure := _figure(chart, history))]
    except MissingExtra as error:
        return f'<p class="muted">{html.escape(str(error))}</p>'
    if not figures:
        return ""
    note = (
        "A circle marks the best validation. A curve of many values shows means, in a band from "
        "the least to the greatest. Loss, perplexity and gradient norm may begin outside of their "
        "charts."
    )
    if history.skipped_steps:
        note += ' <span class="skipped">|</span> marks skipped steps.'
    charts = "\n".join(figures)
    return f'<div class="charts">\n{charts}\n</div>\n<p class="muted"><small>{note}</small></p>'


def _figure(chart: _Chart, history: History) -> str:
    from keras_transformer.runs.report.charts import Curve, line_chart  # late: it needs an extra

    curves, keys = [], [f"<b>{chart.title}</b>"]
    for metric in chart.metrics:
        if metric not in history.series:
            continue
        series, kind = history.series[metric], _kind(metric)
        best = series.best(SCORES[metric].highest) if metric in SCORES else None
        curves.append(Curve(series, kind, best))
        if len(chart.metrics) > 1:
            keys.append(f'<span class="{kind}">{kind}</span>')
    if not curves:
        return ""
    keys.append(f'<span class="unit">{chart.unit}</span>')
    skipped = history.skipped_steps if _kind(chart.metrics[0]) == "training" else []
    svg = line_chart(chart.title, curves, history.last_step, chart.scale, chart.settling, skipped)
    return f"<figure>\n<figcaption>{' '.join(keys)}</figcaption>\n{svg}\n</figure>"


def _kind(metric: str) -> Kind:
    return "validation" if metric.startswith("val_") else "training"
