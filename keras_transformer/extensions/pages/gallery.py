"""Writes all pictures and pages of a model into a directory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from keras_transformer.data.reading import read_text
from keras_transformer.errors import InputError
from keras_transformer.extensions.pages.attention import (
    TITLES,
    Attention,
    HeadSummary,
    attention,
    format_tsv,
    read_attention,
    summarize_heads,
)
from keras_transformer.extensions.pages.embeddings import embed, project
from keras_transformer.extensions.pages.pages import (
    attention_page,
    embeddings_page,
    index_page,
    notices,
    pair_header,
)
from keras_transformer.extensions.pages.pictures import (
    draw_heads,
    draw_layers,
    draw_positions,
    draw_summary,
    write_png,
)
from keras_transformer.extensions.pages.report.elements import write_page
from keras_transformer.extensions.pages.visible_model import (
    VisibleModel,
    model_name,
    open_visible_model,
)
from keras_transformer.inference.batching import map_batches
from keras_transformer.runs.atomic import atomic_path

_BATCH_SIZE = 16  # pairs: the attention of 64 tokens in 48 heads has 2.4 MB
_POSITIONS = 128  # positional encodings in the picture


@dataclasses.dataclass(frozen=True)
class VisualizationOptions:
    """The sentences to visualize: a pair, files, or both.

    Attributes:
        sentence: the sentence whose attention is shown. None uses the first pair of the files.
        translation: its translation. None uses the model's translation.
        source: a file of sentences, one per line, for the statistics of the heads and the
            embeddings.
        target: a file of their translations. None uses the model's translations.
        max_sentences: at most this many lines of the files are used.
    """

    sentence: str | None = None
    translation: str | None = None
    source: str | Path | None = None
    target: str | Path | None = None
    max_sentences: int = 1000

    def __post_init__(self) -> None:
        if self.sentence is None and self.source is None:
            raise InputError("There is nothing to draw. Give a sentence, or a source file.")
        for name in ("sentence", "translation"):
            _check_sentence(name, getattr(self, name))
        for name, needs in (("translation", "sentence"), ("target", "source")):
            if getattr(self, name) is not None and getattr(self, needs) is None:
                raise InputError(f"There is a {name} but no {needs}. Give both, or neither.")
        if self.max_sentences < 1:
            raise InputError(f"max_sentences is {self.max_sentences}, but it must be at least 1.")


def _check_sentence(name: str, sentence: str | None) -> None:
    if sentence is None:
        return
    if not sentence.strip():
        raise InputError(f"The {name} is blank. Give a sentence.")
    try:
        sentence.encode()
    except (
        UnicodeEncodeError
    ) as error:  # Python uses surrogates for invalid bytes of the command line
        raise InputError(f"The {name} is not valid UTF-8 ({error.reason}).") from None


class SelectedSentences(NamedTuple):
    """The lines of the files that are used.

    Attributes:
        sources: sentences.
        targets: their translations, or None for the model's translations.
        empty: the number of pairs that were left out because a side is empty.
    """

    sources: list[str]
    targets: list[str] | None
    empty: int


def read_sentences(options: VisualizationOptions) -> SelectedSentences:
    """Reads the files, if there are any."""
    if options.source is None:
        return SelectedSentences([], None, 0)
    sources = read_text(options.source)
    targets = sources if options.target is None else read_text(options.target)
    if len(sources) != len(targets):
        raise InputError(
            f"{options.source} has {len(sources):,} lines, but {options.target} has "
            f"{len(targets):,}. Both need the same number."
        )
    lines = zip(sources, targets, strict=True)
    pairs = [(source, target) for source, target in lines if source.strip() and target.strip()]
    if not pairs:
        raise InputError(f"{options.source} has no sentence. It must have one per line.")
    used = pairs[: options.max_sentences]
    return SelectedSentences(
        [source for source, _ in used],
        None if options.target is None else [target for _, target in used],
        len(sources) - len(pairs),
    )


class VisualizationResult(NamedTuple):
    """The files that were written.

    Attributes:
        path: their directory.
        files: their names, the index page first.
        sentences: the number of sentences of the files that were used.
        remarks: a sentence for each problem.
    """

    path: Path
    files: list[str]
    sentences: int
    remarks: list[str]

    def fields(self) -> dict[str, Any]:
        """Returns the result for JSON."""
        return {
            "output_dir": str(self.path), "files": self.files, "sentences": self.sentences
        }  # fmt: skip


def visualize(
    model_dir: str | Path, output_dir: str | Path, options: VisualizationOptions
) -> VisualizationResult:
    """Draws the attention of a pair, statistics of the heads, positions and embeddings."""
    path = Path(output_dir)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} already exists. Choose a new directory.")
    sentences = read_sentences(options)
    model = open_visible_model(model_dir)
    source, target = options.sentence, options.translation
    if source is None:
        source = sentences.sources[0]
        target = None if sentences.targets is None else sentences.targets[0]
    pair = attention(model.attention, source, target)
    name = model_name(model.place)
    pages = {"attention.html": attention_page(pair, name, source, target)}
    titles = {"attention.html": "Interactive attention", "heads.tsv": "Statistics of all heads"}
    if sentences.sources:
        projection = project(embed(model.embed, sentences.sources))
        pages["embeddings.html"] = embeddings_page(projection, sentences.sources, name)
        titles["embeddings.html"] = "Interactive sentence embeddings"
    summary = summarize_heads(_attentions(model, sentences) if sentences.sources else [pair])
    remarks = []
    if sentences.sources and summary.truncated:
        remarks.append(f"{summary.truncated:,} of {summary.pairs:,} pairs are truncated.")
    if sentences.empty:
        remarks.append(f"{sentences.empty:,} pairs are left out because a side is empty.")
    pictures: dict[str, list[str]] = {}
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as directory:
            directory.mkdir()
            for title, file, figure in _pictures(pair, summary, model.positions(_POSITIONS)):
                write_png(figure, directory / file)
                pictures.setdefault(title, []).append(file)
            header = pair_header("Visualization", pair, name, source, target)
            pages["index.html"] = index_page(header + notices(remarks), titles, pictures)
            for file, page in pages.items():
                write_page(directory / file, page)
            (directory / "heads.tsv").write_text(format_tsv(summary), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}).") from error
    files = ["index.html", *titles, *(name for names in pictures.values() for name in names)]
    return VisualizationResult(path, files, len(sentences.sources), pair.remarks() + remarks)


def _pictures(
    pair: Attention, summary: HeadSummary, encodings: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, str, Figure]]:
    """Yields the section, the file and the content of each picture."""
    for kind, title in TITLES.items():
        yield title, f"{kind}.png", draw_layers(pair, kind)
        for layer in range(len(pair.weights(kind))):
            yield title, f"{kind}_layer_{layer + 1}.png", draw_heads(pair, kind, layer)
    yield "Heads", "heads.png", draw_summary(summary)
    yield "Positional encodings", "positions.png", draw_positions(encodings)


def _attentions(model: VisibleModel, sentences: SelectedSentences) -> Iterator[Attention]:
    """Yields the attention of all pairs, in batches of similar lengths."""
    sources = sentences.sources
    targets = sentences.targets or [""] * len(sources)

    def read_batch(batch: list[int]) -> list[Attention]:
        pairs = {"source": [sources[i] for i in batch], "target": [targets[i] for i in batch]}
        return read_attention(model.attention(pairs))

    for _, attentions in map_batches(read_batch, sources, max_lines=_BATCH_SIZE, unit="pairs"):
        yield from attentions
