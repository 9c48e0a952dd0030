"""HTML pages: interactive attention and sentence embeddings, and the index of all files.

The interactive pages are single files that load nothing.
"""

from __future__ import annotations

import base64
import importlib.resources
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer.extensions.pages.attention import (
    MEASURES,
    TITLES,
    Attention,
)
from keras_transformer.extensions.pages.embeddings import Projection
from keras_transformer.extensions.pages.report.elements import (
    document,
    facts,
    section,
    text,
)

# The pages load nothing. This policy also protects them from text that looks like markup.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def pair_header(
    title: str, attention: Attention, model: str, source: str, target: str | None
) -> str:
    """Returns the title of a page, with the model, the pair of sentences and its problems.

    Args:
        target: the given target text, or None for the model's translation.
    """
    known = {
        "Model": text(model),
        "Source": text(source),
        "Target" if target else "Target (by the model)": text(target or attention.target_text),
    }
    return f"<h1>{title}</h1>\n{facts(known, 'facts counts')}\n{notices(attention.remarks())}"


def notices(sentences: Sequence[str]) -> str:
    """Returns a highlighted paragraph for each sentence."""
    return "\n".join(f'<p class="notice">{text(sentence)}</p>' for sentence in sentences)


def attention_page(attention: Attention, model: str, source: str, target: str | None) -> str:
    """Returns the interactive page of one pair: lines and a matrix for a chosen layer and head.

    Args:
        target: the given target text, or None for the model's translation.
    """
    data = {"attentions": {kind: _data(attention, kind) for kind in TITLES}}
    kinds = "\n".join(
        f'<label><input type="radio" name="kind" value="{kind}"'
        f"{' checked' * (kind == 'encoder')}> {name}</label>"
        for kind, name in TITLES.items()
    )
    sections = [
        f"<header>\n{pair_header('Attention', attention, model, source, target)}\n</header>",
        f'<form id="choice">\n<fieldset>\n<legend>Attention</legend>\n{kinds}\n</fieldset>\n'
        '<label>Layer <select name="layer"></select></label>\n'
        '<label>Head <select name="head"></select></label>\n</form>',
        _VIEWS,
        _script("attention.js", data),
    ]
    return document("Attention", sections, _head("attention.css"))


_VIEWS = """\
<p class="muted"><small>“_” begins a word. In the decoder, “a → b” is the position that reads a and
predicts b. Weights are rounded to 1/255.</small></p>
<noscript><p class="notice">This page needs JavaScript.</p></noscript>
<main class="views">
<div class="drawing">
<ol id="queries" class="queries" aria-label="Tokens that attend"></ol>
<svg id="lines" class="lines" preserveAspectRatio="none" aria-hidden="true"></svg>
<ol id="keys" aria-label="Tokens that are attended to"></ol>
</div>
<section id="weights">
<p id="help" class="muted">Point at a token on the left to see what it attends to, or on the right
to see what attends to it. Tab and the arrow keys work as well. Click or press Enter to keep a
token. Escape releases it.</p>
<h2 id="of"></h2>
<div class="wide"><table>
<thead><tr><th scope="col" class="number">weight</th><th scope="col">token</th>
<th scope="col" class="number">position</th></tr></thead>
<tbody></tbody></table></div>
<p id="said" class="unseen" aria-live="polite"></p>
</section>
<svg id="matrix" class="matrix" role="img"
 aria-label="Matrix of the weights: rows attend to columns"></svg>
</main>"""


def embeddings_page(projection: Projection, sentences: Sequence[str], model: str) -> str:
    """Returns the interactive page with a point for each sentence."""
    first, second = (f"{100 * share:.1f} %" for share in projection.explained)
    known = {
        "Model": text(model),
        "Sentences": f"{len(sentences):,}",
        "Variance shown": f"{first} horizontally, {second} vertically",
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


def index_page(header: str, pages: Mapping[str, str], pictures: Mapping[str, Sequence[str]]) -> str:
    """Returns the page that shows all pictures and links the other pages."""
    links = "\n".join(f'<li><a href="{file}">{title}</a></li>' for file, title in pages.items())
    parts = [f"<header>\n{header}\n<ul>\n{links}\n</ul>\n</header>"]
    for title, files in pictures.items():
        images = "\n".join(f'<img src="{file}" alt="{file}" loading="lazy">' for file in files)
        parts.append(section(title, f'<div class="pictures">\n{images}\n</div>'))
    names = "\n".join(f"<li>{name}: {meaning}</li>" for name, meaning in MEASURES.items())
    parts.append(section("Columns of heads.tsv", f"<ul>\n{names}\n</ul>"))
    return document("Visualization", parts, _INDEX_STYLE)


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
    # In JSON "<" occurs only in strings. As \u003c it cannot end the element.
    content = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<script type="application/json" id="data">{content}</script>\n'
        f"<script>\n{_resource(name)}</script>"
    )


def _resource(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text("utf-8")
