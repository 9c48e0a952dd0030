"""Everything that is drawn of a model, as the files of one directory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from keras_transformer.console import progress_bar
from keras_transformer.data.corpora.reading import read_text
from keras_transformer.errors import InputError
from keras_transformer.export.request_params import Status
from keras_transformer.inference.batching import map_batches
from keras_transformer.runs.atomic import atomic_path
from keras_transformer.runs.report.elements import write_page
from keras_transformer.visualization.attention import (
    TITLES,
    Attention,
    HeadSummary,
    attention,
    format_tsv,
    read_attention,
    summarize_heads,
)
from keras_transformer.visualization.embeddings import embed, project
from keras_transformer.visualization.pages import (
    Picture,
    attention_page,
    embeddings_page,
    index_page,
)
from keras_transformer.visualization.pictures import (
    draw_embeddings,
    draw_head,
    draw_heads,
    draw_layers,
    draw_positions,
    draw_summary,
    write_png,
)
from keras_transformer.visualization.visible_model import VisibleModel, open_model

_ROWS = 16  # pairs asked for at once: attention of 64 tokens in 48 heads has 2.4 MB
_POSITIONS = 128  # that are drawn
_FEWEST = 3  # sentences: two lie on a line however they are


@dataclasses.dataclass(frozen=True)
class VisualizationOptions:
    """What to draw: a sentence, a file, or both.

    * `source` and `target`: the pair whose attention is drawn; without a source the file's first,
      without a target the model's own translation.
    * `source_file` and `target_file`: sentences, one a line, of which the heads are summarized
      and the embeddings drawn: the first `max_sentences` of them.
    * `layer` and `head`, counted from 1: these alone are drawn; of a head a large picture.
    """

    source: str | None = None
    target: str | None = None
    source_file: str | Path | None = None
    target_file: str | Path | None = None
    layer: int | None = None
    head: int | None = None
    max_sentences: int = 1000

    def __post_init__(self) -> None:
        if self.source is None and self.source_file is None:
            raise InputError("there is nothing to draw; expected a source, or a file of sources")
        for name in ("source", "target"):
            _check_sentence(name, getattr(self, name))
        for name, needs in (("target", "source"), ("target_file", "source_file")):
            if getattr(self, name) is not None and getattr(self, needs) is None:
                raise InputError(f"there is a {name}, but no {needs}; expected both, or neither")
        if self.max_sentences < 1:
            raise InputError(f"max_sentences is {self.max_sentences}; expected at least 1")

    def check_heads(self, pair: Attention) -> None:
        """Raises InputError for a layer or a head that is not there."""
        encoder, decoder = len(pair.encoder), len(pair.decoder)
        if self.layer is not None and not 1 <= self.layer <= max(encoder, decoder):
            known = f"1 to {encoder}"
            if encoder != decoder:
                known += f" of the encoder, or 1 to {decoder} of the decoder"
            raise InputError(f"the layer is {self.layer}; expected {known}")
        heads = pair.encoder.shape[1]
        if self.head is not None and not 1 <= self.head <= heads:
            raise InputError(f"the head is {self.head}; expected 1 to {heads}")

    def layers(self, count: int) -> range:
        """Returns those to be drawn of so many layers, counted from 0."""
        if self.layer is None:
            return range(count)
        return range(self.layer - 1, min(self.layer, count))  # the other stack may have more


def _check_sentence(name: str, sentence: str | None) -> None:
    if sentence is None:
        return
    if not sentence.strip():
        raise InputError(f"the {name} is blank; expected a sentence")
    try:
        sentence.encode()
    except UnicodeEncodeError as error:  # as Python reads other bytes of a command line
        raise InputError(f"the {name} is no UTF-8 ({error.reason}); expected a sentence") from None


class SelectedSentences(NamedTuple):
    """The lines of the files that are used: the first of those that are not empty."""

    sources: list[str]
    targets: list[str] | None  # None for the model's own translations
    total: int  # that there are
    empty: int  # lines that were left out


def read_sentences(options: VisualizationOptions) -> SelectedSentences:
    """Reads the files, if there are any.

    Raises:
        InputError: for what `read_text` refuses, different numbers of lines, or nothing but
            empty ones.
    """
    if options.source_file is None:
        return SelectedSentences([], None, 0, 0)
    sources = read_text(options.source_file)
    targets = sources if options.target_file is None else read_text(options.target_file)
    if len(sources) != len(targets):
        raise InputError(
            f"{options.source_file} has {len(sources):,} lines and {options.target_file} "
            f"{len(targets):,}; expected the same number"
        )
    lines = zip(sources, targets, strict=True)
    pairs = [(source, target) for source, target in lines if source.strip() and target.strip()]
    if not pairs:
        raise InputError(f"{options.source_file} has no sentence; expected one a line")
    used = pairs[: options.max_sentences]
    return SelectedSentences(
        [source for source, _ in used],
        None if options.target_file is None else [target for _, target in used],
        len(pairs),
        len(sources) - len(pairs),
    )


class VisualizationResult(NamedTuple):
    """What was drawn."""

    path: Path
    files: list[str]  # within the path, the index page first
    sentences: SelectedSentences
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


def visualize(
    model_dir: str | Path, output_dir: str | Path, options: VisualizationOptions
) -> VisualizationResult:
    """Draws a model: attention of a pair, summaries of its heads, positions, embeddings.

    Args:
        model_dir: what `loading.load_model` takes, but LiteRT models.
        output_dir: a new directory, which is there when all is drawn.
        options: what to draw.

    Raises:
        InputError: for a directory that is there already or cannot be written, files that
            cannot be read, a model that does not show its attention, or a layer or a head that
            it does not have.
    """
    path = Path(output_dir)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} is there already; expected a new directory")
    sentences = read_sentences(options)
    model = open_model(model_dir)
    source, target = options.source, options.target
    if source is None:
        source = sentences.sources[0]
        target = None if sentences.targets is None else sentences.targets[0]
    pair = attention(model.attention, source, target)
    options.check_heads(pair)
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as unfinished:
            unfinished.mkdir()
            gallery = _Gallery(unfinished, model)
            gallery.add_attention(pair, options)
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
    return VisualizationResult(path, gallery.files, sentences, gallery.remarks)


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

    def add_attention(self, pair: Attention, options: VisualizationOptions) -> None:
        """Draws each kind: all of it and the heads of every layer, or what is wanted of them."""
        self.remarks += pair.remarks()
        todo = list(_attention_pictures(pair, options))
        with progress_bar(len(todo), "pictures") as bar:
            for name, kind, draw in todo:
                self._add_picture(name, TITLES[kind], draw())
                bar.update()

    def add_heads(self, pair: Attention, sentences: SelectedSentences) -> None:
        """Draws and writes the summary of the heads: over the file, or of the pair alone."""
        cut: list[Status] = []

        def pairs() -> Iterator[Attention]:
            for each in _attentions(self._model, sentences):
                if each.status & (Status.SOURCE_CUT | Status.TARGET_CUT):
                    cut.append(each.status)
                yield each

        self._summary = summarize_heads(pairs() if sentences.sources else [pair])
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

    def add_embeddings(self, sentences: SelectedSentences) -> None:
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
    pair: Attention, options: VisualizationOptions
) -> Iterator[tuple[str, str, Callable[[], Figure]]]:
    """Yields the file, the kind, and what draws it."""
    for kind in TITLES:
        if options.layer is None and options.head is None:
            yield f"{kind}.png", kind, partial(draw_layers, pair, kind)
        for layer in options.layers(len(pair.weights(kind))):
            name = f"{kind}_layer_{layer + 1}"
            if options.head is None:
                yield f"{name}.png", kind, partial(draw_heads, pair, kind, layer)
            else:
                draw = partial(draw_head, pair, kind, layer, options.head - 1)
                yield f"{name}_head_{options.head}.png", kind, draw


def _attentions(model: VisibleModel, sentences: SelectedSentences) -> Iterator[Attention]:
    """Yields the attention of all pairs, those of similar lengths together."""
    sources = sentences.sources
    targets = sentences.targets or [""] * len(sources)

    def read_batch(batch: list[int]) -> list[Attention]:
        pairs = {"source": [sources[i] for i in batch], "target": [targets[i] for i in batch]}
        return list(read_attention(model.attention(pairs)))

    for _, attentions in map_batches(read_batch, sources, max_lines=_ROWS, unit="pairs"):
        yield from attentions
