"""Everything that is drawn of a model, as the files of one directory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from keras_transformer.errors import InputError
from keras_transformer.export.request_params import Status
from keras_transformer.inference.translate import batches, progress
from keras_transformer.runs.atomic import atomic_path
from keras_transformer.runs.report.elements import write_page
from keras_transformer.visualization.attention import (
    TITLES,
    Attention,
    attention,
    read_attention,
)
from keras_transformer.visualization.attention_pictures import (
    draw_head,
    draw_heads,
    draw_layers,
)
from keras_transformer.visualization.embeddings import embed, project
from keras_transformer.visualization.heads import HeadSummary, format_tsv, summarize
from keras_transformer.visualization.index_page import Picture, index_page
from keras_transformer.visualization.pages import attention_page, embeddings_page
from keras_transformer.visualization.style import write_png
from keras_transformer.visualization.summary_pictures import (
    draw_embeddings,
    draw_positions,
    draw_summary,
)
from keras_transformer.visualization.visible_model import VisibleModel, open_model
from keras_transformer.visualization.wanted import Sentences, Wanted, read_sentences

_ROWS = 16  # pairs asked for at once: attention of 64 tokens in 48 heads has 2.4 MB
_POSITIONS = 128  # that are drawn
_FEWEST = 3  # sentences: two lie on a line however they are


class Drawn(NamedTuple):
    """What was drawn."""

    path: Path
    files: list[str]  # within the path, the index page first
    sentences: Sentences
    remarks: list[str]  # a sentence for each thing that is not as was asked for

    def summary(self) -> str:
        """Returns in a few words what there is, for a person."""
        used, total = len(self.sentences.sources), self.sentences.total
        of = f", heads and embeddings of the first {used:,} of {total:,} sentences"
        return f"drawn: {self.path / 'index.html'}{of if used < total else ''}"

    def fields(self) -> dict[str, Any]:
        """Returns what a program wants to know, for JSON."""
        used = len(self.sentences.sources)
        return {"output_dir": str(self.path), "files": self.files, "sentences": used}


def visualize(model_dir: str | Path, output_dir: str | Path, wanted: Wanted) -> Drawn:
    """Draws a model: attention of a pair, summaries of its heads, positions, embeddings.

    Args:
        model_dir: what `loading.load_model` takes, but LiteRT models.
        output_dir: a new directory, which is there when all is drawn.
        wanted: what is to be drawn.

    Raises:
        InputError: for a directory that is there already or cannot be written, files that
            cannot be read, a model that does not show its attention, or a layer or a head that
            it does not have.
    """
    path = Path(output_dir)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} is there already; expected a new directory")
    sentences = read_sentences(wanted)
    model = open_model(model_dir)
    source, target = wanted.source, wanted.target
    if source is None:
        source = sentences.sources[0]
        target = None if sentences.targets is None else sentences.targets[0]
    pair = attention(model.attention, source, target)
    wanted.check_heads(pair)
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as unfinished:
            unfinished.mkdir()
            gallery = _Gallery(unfinished, model)
            gallery.add_attention(pair, wanted)
            gallery.add_page(
                "attention.html",
                "Attention, to explore",
                attention_page(pair, model.place, source, target),
            )
            gallery.add_heads(pair, sentences)
            gallery.add_positions()
            if sentences.sources:
                gallery.add_embeddings(sentences)
            gallery.add_index(pair, source, target)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror})") from error
    return Drawn(path, gallery.files, sentences, gallery.remarks)


class _Gallery:
    """Files of a directory, added one after the other; the index last."""

    def __init__(self, path: Path, model: VisibleModel):
        self.files: list[str] = []
        self.remarks: list[str] = []
        self._path = path
        self._model = model
        self._pictures: list[Picture] = []
        self._pages: dict[str, str] = {}
        self._summary = HeadSummary({}, 0)
        self._without_font: set[str] = set()

    def add_page(self, name: str, title: str, page: str) -> None:
        write_page(self._path / name, page)
        self._pages[name] = title
        self.files.append(name)

    def _add_picture(self, name: str, section: str, figure: Figure) -> None:
        self._without_font |= write_png(figure, self._path / name)
        self._pictures.append(Picture(name, section))
        self.files.append(name)

    def add_attention(self, pair: Attention, wanted: Wanted) -> None:
        """Draws each kind: all of it and the heads of every layer, or what is wanted of them."""
        self.remarks += pair.remarks()
        todo = list(_attention_pictures(pair, wanted))
        with progress(len(todo), "picture") as bar:
            for name, kind, draw in todo:
                self._add_picture(name, TITLES[kind], draw())
                bar.update()

    def add_heads(self, pair: Attention, sentences: Sentences) -> None:
        """Draws and writes the summary of the heads: over the file, or of the pair alone."""
        cut: list[Status] = []

        def pairs() -> Iterator[Attention]:
            for each in _attentions(self._model, sentences):
                if each.status & (Status.SOURCE_CUT | Status.TARGET_CUT):
                    cut.append(each.status)
                yield each

        self._summary = summarize(pairs() if sentences.sources else [pair])
        if cut:
            self.remarks.append(
                "pairs of the file that were cut, being longer than what attention is told of: "
                f"{len(cut):,} of {len(sentences.sources):,}"
            )
        if sentences.empty:
            self.remarks.append(f"lines of the file that were left out, empty: {sentences.empty:,}")
        (self._path / "heads.tsv").write_text(format_tsv(self._summary), encoding="utf-8")
        self.files.append("heads.tsv")
        self._add_picture("heads.png", "Heads", draw_summary(self._summary))

    def add_positions(self) -> None:
        encodings = self._model.positions(_POSITIONS)
        self._add_picture("positions.png", "Positional encodings", draw_positions(encodings))

    def add_embeddings(self, sentences: Sentences) -> None:
        """Draws the sentences of the file, if there are enough of them."""
        if len(sentences.sources) < _FEWEST:
            self.remarks.append(f"no embeddings were drawn of fewer than {_FEWEST} sentences")
            return
        projection = project(embed(self._model.embed, sentences.sources))
        figure = draw_embeddings(projection, sentences.sources)
        self._add_picture("embeddings.png", "Sentence embeddings", figure)
        page = embeddings_page(projection, sentences.sources, self._model.place)
        self.add_page("embeddings.html", "Sentence embeddings, to explore", page)

    def add_index(self, pair: Attention, source: str, target: str | None) -> None:
        """Adds the page that shows all else."""
        if self._without_font:
            signs = "".join(sorted(self._without_font))
            self.remarks.append(
                f"no font here has {len(signs)} of the signs ({signs[:20]}), which are boxes in "
                "the pictures; the pages to explore show them"
            )
        page = index_page(
            self._model.place,
            pair,
            source,
            target,
            pictures=self._pictures,
            pages=self._pages,
            summary=self._summary,
            remarks=self.remarks,
        )
        write_page(self._path / "index.html", page)
        self.files.insert(0, "index.html")


def _attention_pictures(
    pair: Attention, wanted: Wanted
) -> Iterator[tuple[str, str, Callable[[], Figure]]]:
    """Yields the file, the kind, and what draws it."""
    for kind in TITLES:
        if wanted.layer is None and wanted.head is None:
            yield f"{kind}.png", kind, partial(draw_layers, pair, kind)
        for layer in wanted.layers(len(pair.weights(kind))):
            name = f"{kind}_layer_{layer + 1}"
            if wanted.head is None:
                yield f"{name}.png", kind, partial(draw_heads, pair, kind, layer)
            else:
                draw = partial(draw_head, pair, kind, layer, wanted.head - 1)
                yield f"{name}_head_{wanted.head}.png", kind, draw


def _attentions(model: VisibleModel, sentences: Sentences) -> Iterator[Attention]:
    """Yields the attention of all pairs, those of similar lengths together."""
    sources = sentences.sources
    targets = sentences.targets or [""] * len(sources)
    with progress(len(sources), "pair") as bar:
        for batch in batches(sources, at_least=math.ceil(len(sources) / _ROWS)):
            inputs = {
                "source": [sources[i] for i in batch],
                "target": [targets[i] for i in batch],
            }
            yield from read_attention(model.attention(inputs))
            bar.update(len(batch))
