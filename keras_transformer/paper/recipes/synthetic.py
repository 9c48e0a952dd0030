"""Pairs of which a model has written one side.

Back-translation (Sennrich et al., 2016) has a model of the other direction write sources for
targets that are real; sequence-level distillation (Kim and Rush, 2016) has a better model, or an
ensemble, write the targets that a smaller one learns. Both of the same text, by models that were
trained on it, are data diversification (Nguyen et al., 2020).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from keras_transformer.data.corpora.corpus import Corpus, ParallelFiles
from keras_transformer.errors import InputError
from keras_transformer.inference.corpus_translation import (
    check_export,
    model_fingerprint,
    translate_corpus,
)
from keras_transformer.inference.loading import load_model
from keras_transformer.paper.recipes.recipe import Synthetic
from keras_transformer.paper.recipes.texts import keep_text
from keras_transformer.runs.atomic import atomic_path

log = logging.getLogger(__name__)

_WRITER = "writer"  # a file with the fingerprint of the model that writes


def parse_writers(texts: Sequence[str]) -> dict[Synthetic, str]:
    """Returns the exports that `KIND=EXPORT` of the command line name, by kind.

    Raises:
        InputError: for another form, an unknown kind, and one that is named twice.
    """
    writers: dict[Synthetic, str] = {}
    for text in texts:
        name, _, model_dir = text.partition("=")
        [kind] = [kind for kind in get_args(Synthetic) if kind == name] or [None]
        if kind is None or not model_dir:
            raise InputError(
                f"--synthetic_from is {text!r}; expected KIND=EXPORT with a kind of "
                f"{' or '.join(get_args(Synthetic))}"
            )
        if kind in writers:
            raise InputError(f"--synthetic_from names {kind} twice; expected one export for each")
        writers[kind] = model_dir
    return writers


def check_writer(directory: Path, model_dir: str | Path) -> None:
    """Raises `InputError` for a model that cannot write, and where another one writes.

    Where none has begun in `directory` yet, the model is read: hours of the work that comes
    before its own may depend on it.
    """
    if has_written(directory) and not Path(model_dir).exists():
        return  # an export may be removed when it has written all
    check_export(model_dir)
    begun = writer_fingerprint(directory)
    if not begun:
        load_model(model_dir)
    elif begun != model_fingerprint(Path(model_dir)):
        raise InputError(
            f"{directory} is written by another model than {model_dir}; expected the same, or "
            "another directory"
        )


def has_written(directory: Path) -> bool:
    """True if a model has written all pairs in `directory`, and is not needed any more."""
    return (directory / "written").exists()


def writer_fingerprint(directory: Path) -> str:
    """Returns the SHA-256 of the model that has begun to write in `directory`, "" for none."""
    writer = directory / _WRITER
    return writer.read_text(encoding="utf-8") if writer.exists() else ""


def synthetic_pairs(
    kind: Synthetic, corpus: Corpus, model_dir: str | Path | None, directory: Path
) -> ParallelFiles:
    """Returns the pairs of `corpus` with one side as a model writes it, line by line.

    Args:
        kind: "back_translation", whose sources the model writes, or "distillation", whose targets.
        corpus: the pairs.
        model_dir: an export; for back-translation one that translates targets to sources. None
            where it is not needed any more, since all is written.
        directory: keeps both sides; a call that was stopped is continued by the same one.

    Raises:
        InputError: for a model that is no export, or another than has begun to write, and a
            `directory` of other text.
    """
    given, writer = directory / "given.txt", directory / _WRITER
    if model_dir is not None:
        check_writer(directory, model_dir)
    side = 1 if kind == "back_translation" else 0
    keep_text(given, (pair[side] for pair in corpus.pairs()))
    if model_dir is not None and not has_written(directory):
        # Before what it writes, which another would throw away.
        with atomic_path(writer) as partial:
            partial.write_text(model_fingerprint(Path(model_dir)), encoding="utf-8")
        log.info("%s: %s writes the other side of %s", kind, model_dir, given)
        translate_corpus(model_dir, given, directory / "written")
    written = directory / "written" / "translations.txt"
    return ParallelFiles(*((written, given) if kind == "back_translation" else (given, written)))
