"""The page that shows all that was drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from keras_transformer.runs.report.elements import Cell, document, facts, section, table, text
from keras_transformer.visualization.attention import TITLES, Attention
from keras_transformer.visualization.heads import MEASURES, HeadSummary, rows

_STYLE = """\
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
    return document("What the model does", parts, _STYLE)


def _image(picture: Picture) -> str:
    name = picture.file.removesuffix(".png").replace("_", " ")
    return f'<img src="{text(picture.file)}" alt="{text(name)}" loading="lazy">'


def _table(summary: HeadSummary) -> str:
    lines: list[list[Cell]] = [
        [TITLES[kind], str(layer), str(head), *(round(value, 3) for value in values)]
        for kind, layer, head, values in rows(summary)
    ]
    names = "\n".join(f"<li>{text(name)}: {text(what)}</li>" for name, what in MEASURES.items())
    counted = table(("attention", "layer", "head", *MEASURES), lines)
    return (
        f"\n<details><summary>All numbers: means over the rows of {summary.pairs:,} pairs"
        f"</summary>\n<ul>\n{names}\n</ul>\n{counted}\n</details>"
    )
