"""Pages to explore, each one file that needs no other: attention, and sentence embeddings."""

from __future__ import annotations

import base64
import importlib.resources
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.runs.report.elements import document, facts, text
from keras_transformer.visualization.attention import TITLES, Attention
from keras_transformer.visualization.embeddings import Projection

# Nothing is loaded from anywhere, and nothing of the text could be a program.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def attention_page(attention: Attention, model: str, source: str, target: str | None) -> str:
    """Returns the page of one pair: lines and matrix of a layer and head that are chosen there.

    Args:
        attention: of the pair.
        model: what the page says of where it is from.
        source: the text that was read.
        target: the text that was given, or None for the model's own translation.
    """
    known = {
        "Model": text(model),
        "Source": text(source),
        "Target" if target else "Target, the model's own": text(target or attention.target_text),
    }
    data = {"attentions": {kind: _data(attention, kind) for kind in TITLES}}
    kinds = "\n".join(
        f'<label><input type="radio" name="kind" value="{kind}"'
        f"{' checked' * (kind == 'encoder')}> {name}</label>"
        for kind, name in TITLES.items()
    )
    remarks = "".join(f'<p class="notice">{text(each)}.</p>\n' for each in attention.remarks())
    sections = [
        f"<header>\n<h1>Attention</h1>\n{facts(known, 'facts counts')}\n{remarks}</header>",
        f'<form id="choice">\n<fieldset>\n<legend>Attention</legend>\n{kinds}\n</fieldset>\n'
        '<label>Layer <select name="layer"></select></label>\n'
        '<label>Head <select name="head"></select></label>\n</form>',
        _NOTE,
        _VIEWS,
        _script("attention.js", data),
    ]
    return document("Attention", sections, _head("attention.css"))


_NOTE = """\
<p class="muted"><small>“_” begins a word. In the decoder “a → b” is the place where a is read and b
is predicted. Weights are rounded to 1/255.</small></p>
<noscript><p class="notice">This page needs JavaScript; the pictures do not.</p></noscript>"""

_VIEWS = """\
<main class="views">
<div class="drawing">
<ol id="queries" class="queries" aria-label="Tokens that attend"></ol>
<svg id="lines" class="lines" preserveAspectRatio="none" aria-hidden="true"></svg>
<ol id="keys" aria-label="Tokens that are attended to"></ol>
</div>
<section id="weights">
<p id="help" class="muted">Point at a token, or go to it by Tab and the arrow keys, to see what it
attends to, or, on the right, what attends to it. A click, or Enter, keeps it chosen; Escape lets
it go.</p>
<h2 id="of"></h2>
<div class="wide"><table>
<thead><tr><th scope="col" class="number">weight</th><th scope="col">token</th>
<th scope="col" class="number">place</th></tr></thead>
<tbody></tbody></table></div>
<p id="said" class="unseen" aria-live="polite"></p>
</section>
<svg id="matrix" class="matrix" role="img"
 aria-label="Matrix of the weights: tokens that attend by those attended to"></svg>
</main>"""


def embeddings_page(projection: Projection, sentences: Sequence[str], model: str) -> str:
    """Returns the page of sentences in two dimensions, a point each, with their texts.

    Args:
        projection: of their embeddings.
        sentences: as many texts.
        model: what the page says of where it is from.
    """
    first, second = (f"{100 * share:.1f} %" for share in projection.explained)
    known = {
        "Model": text(model),
        "Sentences": f"{len(sentences):,}",
        "Variance shown": f"{first} across, {second} up",
    }
    points = np.round(projection.points, 5).tolist()
    sections = [
        f"<header>\n<h1>Sentence embeddings</h1>\n{facts(known, 'facts counts')}\n</header>",
        '<form id="choice"><label>Find <input type="search" name="find"></label>'
        '<span id="found" class="muted" role="status"></span></form>',
        '<main class="views">\n<svg id="points" role="img" '
        'aria-label="A point for each sentence of the list"></svg>\n'
        '<section>\n<p id="sentence" class="muted">Point at a sentence.</p>\n'
        '<ol id="sentences"></ol>\n</section>\n</main>',
        _script("embeddings.js", {"points": points, "sentences": list(sentences)}),
    ]
    return document("Sentence embeddings", sections, _head("embeddings.css"))


def _data(attention: Attention, kind: str) -> dict[str, Any]:
    weights = attention.weights(kind)
    layers, heads = weights.shape[:2]
    rounded = np.round(255 * np.clip(weights, 0, 1)).astype(np.uint8)
    return {
        "queries": attention.queries(kind),
        "keys": attention.keys(kind),
        "layers": layers,
        "heads": heads,
        "weights": base64.b64encode(rounded.tobytes()).decode(),
    }


def _head(style: str) -> str:
    return (
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<style>\n{_resource(style)}</style>\n"
    )


def _script(name: str, data: Any) -> str:
    # In JSON a "<" stands only in strings; as \u003c it can end no element.
    content = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<script type="application/json" id="data">{content}</script>\n'
        f"<script>\n{_resource(name)}</script>"
    )


def _resource(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text("utf-8")
