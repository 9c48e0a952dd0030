"""An answer as parts of the page: the n-best, the alignment, the attention to explore."""

from __future__ import annotations

import math

from keras_transformer.runs.report.elements import text
from keras_transformer.visualization.attention import Attention
from keras_transformer.visualization.pages import attention_page
from keras_transformer.visualization.playground.models import Hypothesis, Translated


def choices(translated: Translated) -> list[tuple[str, int]]:
    """Returns a label and an index for each of the n-best."""
    return [
        (f"{hypothesis.score:.3f}   {hypothesis.text or '(empty)'}", index)
        for index, hypothesis in enumerate(translated.hypotheses)
    ]


def heading(place: str) -> str:
    """Returns the name of a model, to stand above its answers."""
    return f"<h3>{text(place)}</h3>"


def answered(source: str, seconds: float) -> str:
    """Returns what was translated, and how long it took."""
    shown = source if len(source) <= 200 else f"{source[:200]}…"
    return f'<p class="legend">“{text(shown)}” in {1000 * seconds:,.0f} ms</p>'


def remarks(sentences: list[str]) -> str:
    """Returns what is to be known of an answer, a paragraph each."""
    return "".join(f'<p class="remark">{text(each)}.</p>' for each in sentences)


def failure(sentence: str) -> str:
    """Returns what went wrong, in words."""
    return f'<p class="remark" role="alert">{text(sentence)}</p>'


def alignment(source_tokens: list[str], hypothesis: Hypothesis) -> str:
    """Returns a column for each target token: itself, the source token that it attends to, P."""
    columns = []
    for token, place, log_prob in zip(
        hypothesis.tokens, hypothesis.alignment, hypothesis.log_probs, strict=True
    ):
        probability = math.exp(min(log_prob, 0.0))
        known = 0 <= place < len(source_tokens)
        columns.append(
            f'<li style="--sure:{probability:.3f}"><b>{_piece(token)}</b>'
            f"<span>{_piece(source_tokens[place]) if known else '–'}</span>"
            f"<small>{100 * probability:.0f} %</small></li>"
        )
    return (
        '<p class="legend">Each token of the translation; below it the source token that it '
        "attends to most (mean of the last layer's heads), and its probability.</p>"
        f'<ol class="alignment">{"".join(columns)}</ol>'
    )


def explorer(attention: Attention, model: str, source: str, target: str) -> str:
    """Returns the page of `visualization.pages` in a frame that can reach nothing outside."""
    page = attention_page(attention, model, source, target)
    return (
        '<iframe class="explorer" title="Attention, to explore" sandbox="allow-scripts" '
        f'srcdoc="{text(page)}"></iframe>'
    )


def _piece(piece: str) -> str:
    return text(piece.replace("\N{LOWER ONE EIGHTH BLOCK}", "_"))
