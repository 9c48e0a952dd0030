"""What is to be drawn, as the user says it, and the text that it is drawn of."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NamedTuple

from keras_transformer.data.corpora.reading import read_text
from keras_transformer.errors import InputError
from keras_transformer.visualization.attention import Attention


@dataclasses.dataclass(frozen=True)
class Wanted:
    """What is to be drawn, of a sentence, of a file, or of both.

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


class Sentences(NamedTuple):
    """The lines of the files that are used: the first of those that are not empty."""

    sources: list[str]
    targets: list[str] | None  # None for the model's own translations
    total: int  # that there are
    empty: int  # lines that were left out


def read_sentences(wanted: Wanted) -> Sentences:
    """Reads the files, if there are any.

    Raises:
        InputError: for what `read_text` refuses, different numbers of lines, or nothing but
            empty ones.
    """
    if wanted.source_file is None:
        return Sentences([], None, 0, 0)
    sources = read_text(wanted.source_file)
    targets = sources if wanted.target_file is None else read_text(wanted.target_file)
    if len(sources) != len(targets):
        raise InputError(
            f"{wanted.source_file} has {len(sources):,} lines and {wanted.target_file} "
            f"{len(targets):,}; expected the same number"
        )
    lines = zip(sources, targets, strict=True)
    pairs = [(source, target) for source, target in lines if source.strip() and target.strip()]
    if not pairs:
        raise InputError(f"{wanted.source_file} has no sentence; expected one a line")
    used = pairs[: wanted.max_sentences]
    return Sentences(
        [source for source, _ in used],
        None if wanted.target_file is None else [target for _, target in used],
        len(pairs),
        len(sources) - len(pairs),
    )
