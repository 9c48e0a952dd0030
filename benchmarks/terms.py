#!/usr/bin/env python3
r"""Measures how often a translation has the terms of a glossary, and what they cost.

Examples:
    benchmarks/terms.py --model_dir=build/run --train=train.en,train.de \
        --test=multi30k/test_2016_flickr.en,multi30k/test_2016_flickr.de

IBM model 1, learned from the training text, finds one to three terms in each source, and their
translations in its reference. Each sentence has a separate glossary:

- `correct`: these terms with these translations;
- `wrong`: the same terms, each with the translation of a term of another sentence;
- `unseen`: the same terms with invented words, the letters of the translations in reverse order.

The model must be trained with `prepare --augment=terms:0.4`.

Prints one JSON object. For each condition, `surface` is the share of the terms whose translation is
in the output, and `stem` the same for the stems of its words, with hard terms, soft terms and no
glossary (`none`). `bleu` compares with references that have the translations of the glossary.
`per_cpu_second` is the number of sentences that a CPU translates in a second, also with `five`
arbitrary terms in each.
"""

from __future__ import annotations

import json
import re
import statistics
import time
from random import Random
from types import SimpleNamespace
from typing import Any

import command
import sacrebleu
import Stemmer
from absl import flags
from measuring import describe_machine

from keras_transformer.data.reading import read_text
from keras_transformer.extensions.augmentation.terms import TermAugmentation
from keras_transformer.extensions.documents.glossary import Glossary
from keras_transformer.text.symbols import TERM_SYMBOLS
from keras_transformer.text.vocabulary import Vocabulary

FLAGS = flags.FLAGS
flags.DEFINE_string("model_dir", None, "run directory of a model", required=True)
flags.DEFINE_list("test", None, "file of unseen sources, file of references", required=True)
flags.DEFINE_list("train", None, "the same of the training text", required=True)
flags.DEFINE_string("stemmer", "german", "Snowball stemmer for the references")

_TERM = re.compile("{} (.*?) {}".format(*TERM_SYMBOLS))


def terms_of(augment: TermAugmentation, pair: tuple[str, str], random_: Random) -> dict[str, str]:
    """Returns up to three terms of a pair with their translations."""
    changed = augment("terms", pair, ("", ""), random_) or pair
    parts = _TERM.split(changed[0])
    terms: Any = re.fullmatch("(.+?)".join(map(re.escape, parts[::2])), pair[0])
    return dict(zip(terms.groups(), parts[1::2], strict=True))


def score(outputs: list[str], terms: Any, references: list[str]) -> dict[str, float]:
    """Returns the shares of the terms in the outputs, and the BLEU score."""
    pairs = zip(outputs, terms.values(), strict=True)
    rows = [(text, term) for text, some in pairs for term in some.values()]
    stems_of = Stemmer.Stemmer(FLAGS.stemmer).stemWords
    stems = [[stems_of(re.findall(r"\w+", text.lower())) for text in row] for row in rows]
    surface = statistics.mean(bool(re.search(rf"\b{re.escape(b)}\b", a)) for a, b in rows)
    stem = statistics.mean(f" {' '.join(b)} " in f" {' '.join(a)} " for a, b in stems)
    bleu = sacrebleu.corpus_bleu(outputs, [references]).score
    return {"surface": round(surface, 3), "stem": round(stem, 3), "bleu": round(bleu, 2)}


def measure(model: Any, terms: Any, way: str, references: Any = None) -> dict[str, float]:
    """Translates sources, each with a mapping of its terms, as in `way`: hard, soft or none."""
    from keras_transformer.extensions.documents.protection import translate_texts

    found = {source: Glossary(some) for source, some in terms.items()}
    glossary = SimpleNamespace(find=lambda t, *args: found[t].find(t, *args), is_soft=way == "soft")
    model.glossary = None if way == "none" else glossary
    start = time.process_time()
    outputs, *_ = translate_texts(model, [*terms])
    speed = {"per_cpu_second": round(len(terms) / (time.process_time() - start), 2)}
    return speed | (score(outputs, terms, references) if references else {})


def main() -> None:
    """Prints the use of terms, the BLEU scores and the speed."""
    from keras_transformer.inference.loading import load_model

    model, random_ = load_model(FLAGS.model_dir), Random(1)
    lexicon = TermAugmentation.learn([*zip(*map(read_text, FLAGS.train), strict=True)])
    augment = TermAugmentation(lexicon, Vocabulary.load(FLAGS.model_dir))
    test = zip(*map(read_text, FLAGS.test), strict=True)
    correct = {pair: terms_of(augment, pair, random_) for pair in test}
    others = (term for terms in reversed(correct.values()) for term in terms.values())
    choose = {"correct": str, "wrong": lambda _: next(others), "unseen": lambda t: t[::-1].title()}
    ways, summary = ("none", "hard", "soft"), {"machine": describe_machine(), "pairs": len(correct)}
    for condition, choice in choose.items():
        terms, references = dict[str, dict[str, str]](), list[str]()
        for (source, reference), some in correct.items():
            terms[source] = {term: choice(translation) for term, translation in some.items()}
            for term, translation in some.items():
                reference = reference.replace(translation, terms[source][term], 1)
            references.append(reference)
        summary[condition] = {way: measure(model, terms, way, references) for way in ways}
    five = {source: dict.fromkeys(re.findall(r"\w+", source)[:10:2], "Haus") for source in terms}
    summary["five"] = {way: measure(model, five, way) for way in ways}
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    command.run(main)
