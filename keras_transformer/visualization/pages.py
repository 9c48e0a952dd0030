"""HTML pages: attention and sentence embeddings to explore, and the index of all pictures.

The first two are single files that need no other.
"""

from __future__ import annotations

import base64
import importlib.resources
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.runs.report.elements import Cell, document, facts, section, table, text
from keras_transformer.visualization.attention import (
    MEASURES,
    TITLES,
    Attention,
    HeadSummary,
    head_rows,
)
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


# The index.

_INDEX_STYLE = """\
<style>
body { max-width: 90rem; }
.pictures {
  display: grid;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 36rem), 1fr));
  gap: 1rem;
  align-items: start;
}
img { max-width: 100%; height: auto; background: #fff; }
</style>
"""


class Picture(NamedTuple):
    """A picture beside the page, and the section that it belongs to."""

    file: str
    section: str


def index_page(
    model: str,
    pair: Attention,
    source: str,
    target: str | None,
    *,
    pictures: Sequence[Picture],
    pages: Mapping[str, str],
    summary: HeadSummary,
    remarks: Sequence[str],
) -> str:
    """Returns the page.

    Args:
        model: where it was read.
        pair: whose attention is drawn.
        source, target: its texts; no target for the model's own.
        pictures: in their order, those of a section together.
        pages: titles by file.
        summary: of the heads, as a table.
        remarks: what is not as was asked for.
    """
    known = {
        "Model": text(model),
        "Source": text(source),
        "Target" if target else "Target, the model's own": text(target or pair.target_text),
    }
    links = "\n".join(
        f'<li><a href="{text(file)}">{text(title)}</a></li>' for file, title in pages.items()
    )
    notices = "\n".join(f'<p class="notice">{text(each)}.</p>' for each in remarks)
    parts = [
        f"<header>\n<h1>What the model does</h1>\n{facts(known, 'facts counts')}\n{notices}\n"
        f"<ul>\n{links}\n</ul>\n</header>"
    ]
    for name, some in groupby(pictures, key=lambda picture: picture.section):
        images = "\n".join(_image(each) for each in some)
        counted = _table(summary) if name == "Heads" else ""
        parts.append(section(name, f'<div class="pictures">\n{images}\n</div>{counted}'))
    return document("What the model does", parts, _INDEX_STYLE)


def _image(picture: Picture) -> str:
    name = picture.file.removesuffix(".png").replace("_", " ")
    return f'<img src="{text(picture.file)}" alt="{text(name)}" loading="lazy">'


def _table(summary: HeadSummary) -> str:
    lines: list[list[Cell]] = [
        [TITLES[kind], str(layer), str(head), *(round(value, 3) for value in values)]
        for kind, layer, head, values in head_rows(summary)
    ]
    names = "\n".join(f"<li>{text(name)}: {text(what)}</li>" for name, what in MEASURES.items())
    counted = table(("attention", "layer", "head", *MEASURES), lines)
    return (
        f"\n<details><summary>All numbers: means over the rows of {summary.pairs:,} pairs"
        f"</summary>\n<ul>\n{names}\n</ul>\n{counted}\n</details>"
    )
