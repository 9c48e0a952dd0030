"""The texts of a recipe: files, held-out parts, test sets, and pairs that a model generates.

In back-translation (Sennrich et al., 2016), a model of the other direction generates sources for
real targets. In sequence-level distillation (Kim and Rush, 2016), a better model or an ensemble
generates the targets for a smaller model. Both on the training text of the models are data
diversification (Nguyen et al., 2020).
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

from keras_transformer import plugins
from keras_transformer.data.corpus import Corpus, ParallelFiles, TsvFile
from keras_transformer.data.workers import Workers
from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics, test_sets
from keras_transformer.evaluation.test_sets import EvaluationSet
from keras_transformer.extensions.corpora.monolingual import (
    check_export,
    model_fingerprint,
    translate_corpus,
)
from keras_transformer.extensions.paper.recipe import (
    TRAIN,
    Recipe,
    Synthetic,
    Text,
    split_by_source,
)
from keras_transformer.inference.loading import load_model
from keras_transformer.runs.atomic import atomic_path, write_text

log = logging.getLogger(__name__)


def open_texts(
    recipe: Recipe, corpus_dir: Path, split_dir: Path
) -> tuple[Corpus, Corpus, dict[str, EvaluationSet]]:
    """Opens the texts for training, validation and tests. Reads those that training reads last."""
    train, parts = _corpus(recipe.train, corpus_dir), {}
    if recipe.held_out:
        parts = split_by_source(train, split_dir, recipe.held_out)
        train = parts[TRAIN]

    def open_text(text: Text) -> Corpus:
        return parts[text["held_out"]] if "held_out" in text else _corpus(text, corpus_dir)

    tests = {}
    for name, text in recipe.tests.items():
        if "sacrebleu" in text:
            test = test_sets.sacrebleu_set(text["sacrebleu"], text["language_pair"])
        else:
            test = evaluation_set(open_text(text))
        first = dataclasses.replace(test, references=[lines[:1] for lines in test.references])
        metrics.evaluate(list(first.references[0]), first, **recipe.evaluate)
        tests[name] = test
    valid = open_text(recipe.valid)
    for _ in valid.pairs():
        pass
    return train, valid, tests


def evaluation_set(corpus: Corpus) -> EvaluationSet:
    """Returns the pairs of a corpus as sources and references."""
    pairs = [(source.decode(), target.decode()) for source, target in corpus.pairs()]
    return EvaluationSet([[target for _, target in pairs]], [source for source, _ in pairs])


def _corpus(text: Text, corpus_dir: Path) -> Corpus:
    if "tfds" in text:
        reader = plugins.find("corpora", "tfds")
        options = reader.options(
            source_language=text["source_language"], tfds_data_dir=str(corpus_dir)
        )
        corpus: Corpus
        [corpus] = reader.read(f"{text['tfds']}@{text['split']}", options)
        return corpus
    if "tsv" in text:
        return TsvFile(corpus_dir / text["tsv"])
    # Without targets, only the sources are used.
    return ParallelFiles(
        corpus_dir / text["source"], corpus_dir / text.get("target", text["source"])
    )


def keep_text(path: Path, lines: Iterable[bytes]) -> None:
    """Writes lines to a file, each with an LF, unless the file already has the same lines."""
    ended = (line + b"\n" for line in lines)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as partial, partial.open("wb") as file:
            file.writelines(ended)
        return
    with path.open("rb") as file:
        if any(line != before for line, before in itertools.zip_longest(ended, file)):
            raise InputError(
                f"{path} does not match the corpus. Use the same corpus, or another directory."
            )


def parse_generators(texts: Sequence[str]) -> dict[Synthetic, str]:
    """Returns the exports of `--synthetic_from`, by kind."""
    generators: dict[Synthetic, str] = {}
    kinds: dict[str, Synthetic] = {kind: kind for kind in get_args(Synthetic)}
    for text in texts:
        name, _, model_dir = text.partition("=")
        if name not in kinds or not model_dir or name in generators:
            raise InputError(
                f"--synthetic_from is {text!r}. Use KIND=EXPORT, once for each KIND: "
                f"{' or '.join(kinds)}."
            )
        generators[kinds[name]] = model_dir
    return generators


def check_generator(directory: Path, model_dir: str | Path) -> None:
    """Checks that a model can generate the pairs in a directory, or resume.

    If no model has started there, the model is loaded, because its first use may be after hours of
    training.
    """
    if has_written(directory) and not Path(model_dir).exists():
        return  # an export may be removed after it has written everything
    check_export(model_dir)
    existing = generator_fingerprint(directory)
    if not existing:
        load_model(model_dir)
    elif existing != model_fingerprint(Path(model_dir)):
        raise InputError(
            f"{directory} was generated by a different model, not by {model_dir}. Use the same "
            "model, or another directory."
        )


def has_written(directory: Path) -> bool:
    """True if all pairs in `directory` exist, so that the model is no longer needed."""
    return (directory / "written").exists()


def generator_fingerprint(directory: Path) -> str | None:
    """Returns the SHA-256 of the model that has started in `directory`, or None."""
    path = directory / "generator"
    return path.read_text(encoding="utf-8") if path.exists() else None


def synthetic_pairs(
    kind: Synthetic,
    corpus: Corpus,
    model_dir: str | Path | None,
    directory: Path,
    workers: Workers = 1,
) -> ParallelFiles:
    """Returns the pairs of `corpus` with one generated side."""
    given, written = directory / "given.txt", directory / "written" / "translations.txt"
    if model_dir is not None:
        check_generator(directory, model_dir)
    side = 1 if kind == "back_translation" else 0
    keep_text(given, (pair[side] for pair in corpus.pairs()))
    if model_dir is not None and not has_written(directory):
        # Written first, because a different model must not reuse these pairs.
        write_text(directory / "generator", model_fingerprint(Path(model_dir)))
        log.info("%s: %s generates the other side of %s", kind, model_dir, given)
        translate_corpus(model_dir, given, directory / "written", workers)
    return ParallelFiles(*((written, given) if kind == "back_translation" else (given, written)))
