"""The texts of a recipe: opened, checked before anything is trained, and kept beside results."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path

from keras_transformer.data.corpora.corpus import Corpus, ParallelFiles, TsvFile
from keras_transformer.data.corpora.splitting import TRAIN, split_by_source
from keras_transformer.data.corpora.tfds_corpus import tfds_corpus
from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics, test_sets
from keras_transformer.evaluation.test_sets import EvaluationSet
from keras_transformer.paper.recipes.recipe import Recipe, Text
from keras_transformer.runs.atomic import atomic_path


@dataclasses.dataclass(frozen=True)
class Texts:
    """The texts of a recipe."""

    train: Corpus
    valid: Corpus
    tests: Mapping[str, EvaluationSet]


def open_texts(
    recipe: Recipe, corpus_dir: Path, split_dir: Path, *, check_training: bool = False
) -> Texts:
    """Opens and checks the texts of a recipe.

    Args:
        recipe: the recipe.
        corpus_dir: directory of the files, or of TFDS.
        split_dir: directory for the parts that the recipe holds out.
        check_training: also reads the training text, for when it is not prepared next.

    Raises:
        InputError: for text that is missing or cannot be read, and for a missing package that
            the scoring needs.
    """
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
            pairs = [(s.decode(), t.decode()) for s, t in open_text(text).pairs()]
            test = EvaluationSet([[target for _, target in pairs]], [source for source, _ in pairs])
        first = dataclasses.replace(test, references=[each[:1] for each in test.references])
        metrics.assess(list(first.references[0]), first, **recipe.evaluate)
        tests[name] = test
    texts = Texts(train, open_text(recipe.valid), tests)
    for corpus in (texts.valid, *([train] if check_training else [])):
        for _ in corpus.pairs():
            pass
    return texts


def _corpus(text: Text, corpus_dir: Path) -> Corpus:
    if "tfds" in text:
        return tfds_corpus(text["tfds"], text["split"], text["source_language"], str(corpus_dir))
    if "tsv" in text:
        return TsvFile(corpus_dir / text["tsv"])
    return ParallelFiles(corpus_dir / text["source"], corpus_dir / text["target"])


def keep_text(path: Path, lines: Iterable[bytes]) -> None:
    """Writes lines to a file, each with its LF, unless the file already has the same lines.

    Raises:
        InputError: if the file has other lines, which other results depend on.
    """
    ended = (line + b"\n" for line in lines)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as partial, partial.open("wb") as file:
            file.writelines(ended)
        return
    with path.open("rb") as file:
        if any(line != before for line, before in itertools.zip_longest(ended, file)):
            raise InputError(
                f"{path} is of other text than the corpus; expected the same corpus, or another "
                "directory"
            )
