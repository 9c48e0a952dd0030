"""The texts of recipes.

A text is `{"source": FILE, "target": FILE}`, `{"tsv": FILE}`, `{"tfds": NAME, "split": SPLIT,
"source_language": CODE}`, `{"held_out": PART}`, or, to test on, `{"sacrebleu": NAME,
"language_pair": PAIR}`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from keras_transformer.data.corpora.corpus import Corpus, ParallelFiles, TsvFile
from keras_transformer.data.corpora.splitting import TRAIN, split_by_source
from keras_transformer.data.corpora.tfds_corpus import tfds_corpus
from keras_transformer.evaluation import test_sets
from keras_transformer.evaluation.test_sets import EvaluationSet

Text = Mapping[str, str]

FORMS = (
    {"source", "target"},  # files of the corpus directory
    {"tsv"},  # such a file with both
    {"tfds", "split", "source_language"},  # a set whose data is in the corpus directory
    {"held_out"},  # a part of the training text
    {"sacrebleu", "language_pair"},  # a test set of sacreBLEU
)


@dataclasses.dataclass(frozen=True)
class Texts:
    """What a recipe is followed on."""

    train: Corpus
    valid: Corpus
    tests: Mapping[str, EvaluationSet]


def open_texts(
    train: Text,
    valid: Text,
    tests: Mapping[str, Text],
    held_out: Mapping[str, int],
    corpus_dir: str | Path,
    split_dir: str | Path,
) -> Texts:
    """Opens texts.

    Args:
        train: the text to train on, as it is before parts are held out.
        valid: the text to choose on.
        tests: texts to score in the end, by name.
        held_out: sentences of the parts that are taken out of `train`.
        corpus_dir: directory of the files, or of TFDS.
        split_dir: is written to where parts are held out.

    Raises:
        InputError: for text that is not there, and tests that cannot be read.
    """
    learned, parts = _corpus(train, Path(corpus_dir)), {}
    if held_out:
        parts = split_by_source(learned, split_dir, held_out)
        learned = parts[TRAIN]

    def of(text: Text) -> Corpus:
        part = text.get("held_out")
        return _corpus(text, Path(corpus_dir)) if part is None else parts[part]

    opened = {}
    for name, text in tests.items():
        if "sacrebleu" in text:
            opened[name] = test_sets.sacrebleu_set(text["sacrebleu"], text["language_pair"])
        else:
            opened[name] = _evaluation_set(of(text))
    return Texts(learned, of(valid), opened)


def _corpus(text: Text, corpus_dir: Path) -> Corpus:
    if "tfds" in text:
        return tfds_corpus(text["tfds"], text["split"], text["source_language"], str(corpus_dir))
    if "tsv" in text:
        return TsvFile(corpus_dir / text["tsv"])
    return ParallelFiles(corpus_dir / text["source"], corpus_dir / text["target"])


def _evaluation_set(corpus: Corpus) -> EvaluationSet:
    pairs = [(source.decode(), target.decode()) for source, target in corpus.pairs()]
    return EvaluationSet([[target for _, target in pairs]], [source for source, _ in pairs])
