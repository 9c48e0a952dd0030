#!/usr/bin/env python3
r"""Measures whether a translation has tags at the right words, in both ways.

Examples:
    benchmarks/tags.py --model_dir=build/run --train_source=train.en --train_target=train.de \
        --source=multi30k/test_2016_flickr.en --reference=multi30k/test_2016_flickr.de

IBM model 1, learned from the training text, puts one or two tags around words of each source and
the words of its reference that translate them. Pairs in which no words are certain are left out.
The sources are translated like files: with pairs of symbols (`symbols`), if the vocabulary has
them, and without, by alignment (`aligned`).

Prints one JSON object: for each way `exact`, the share of tags around the words that the reference
has in this tag; `right_word`, the same share of those tags whose words the output has once, so that
the choice of words by the model does not matter; and the BLEU score of the text without tags.
`untagged_bleu` is that of the translations of sources without tags.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import command
import regex
import sacrebleu
from absl import flags
from measuring import describe_machine

from keras_transformer.data.reading import read_text
from keras_transformer.errors import InputError
from keras_transformer.extensions.augmentation.alignment import learn_lexicon
from keras_transformer.extensions.augmentation.symbols import SymbolAugmentation
from keras_transformer.text.vocabulary import Vocabulary

FLAGS = flags.FLAGS
flags.DEFINE_string("model_dir", None, "run directory of a model", required=True)
flags.DEFINE_string("source", None, "sources that training has not seen", required=True)
flags.DEFINE_string("reference", None, "their translations", required=True)
flags.DEFINE_string("train_source", None, "training text, for word alignments", required=True)
flags.DEFINE_string("train_target", None, "its translations", required=True)
flags.DEFINE_integer("seed", 1, "selects the words in tags")

_ELEMENT = regex.compile(r"<t(\d)>(.*?)</t\1>")


def tagged_pairs() -> list[tuple[str, str, str, str]]:
    """Returns (source, reference, tagged source, tagged reference) of each pair with tags."""
    vocabulary = Vocabulary.load(FLAGS.model_dir)
    if vocabulary.symbol_ids is None:
        raise InputError("The vocabulary has no symbols of tags (keras-transformer prepare).")
    train = zip(read_text(FLAGS.train_source), read_text(FLAGS.train_target), strict=True)
    augment = SymbolAugmentation(learn_lexicon([*train]), vocabulary)
    random_, pairs = Random(FLAGS.seed), []
    for pair in zip(read_text(FLAGS.source), read_text(FLAGS.reference), strict=True):
        if changed := augment("tags", pair, pair, random_):
            pairs.append((*pair, *map(_with_elements, changed)))
    return pairs


def _with_elements(text: str) -> str:
    """Returns a text with elements instead of symbols, without the spaces inside of them."""
    text = regex.sub(r"｟b(\d)｠ ", r"<t\1>", text)
    return regex.sub(r" ｟e(\d)｠", r"</t\1>", text)


def contents(text: str) -> dict[str, list[str]]:
    """Returns the words of each element."""
    matches = _ELEMENT.finditer(text, overlapped=True)
    return {match[1]: words_of(match[2]) for match in matches}


def words_of(text: str) -> list[str]:
    """Returns the lowercase words of a text."""
    return regex.findall(r"\w+", regex.sub(r"<[^>]*>", "", text).lower())


def score(outputs: Sequence[str], pairs: Sequence[tuple[str, str, str, str]]) -> dict[str, Any]:
    """Returns the shares and the BLEU score of one way."""
    tags = exact = once = right = 0
    for output, (*_, reference) in zip(outputs, pairs, strict=True):
        found, text = contents(output), f" {' '.join(words_of(output))} "
        for name, words in contents(reference).items():
            is_exact = found.get(name) == words
            tags, exact = tags + 1, exact + is_exact
            if text.count(f" {' '.join(words)} ") == 1:
                once, right = once + 1, right + is_exact
    plain = [regex.sub(r"</?t\d>", "", output) for output in outputs]
    bleu = sacrebleu.corpus_bleu(plain, [[reference for _, reference, *_ in pairs]])
    return {
        "tags": tags,
        "exact": round(exact / tags, 3),
        "found_once": once,
        "right_word": round(right / once, 3) if once else None,
        "bleu": round(bleu.score, 2),
    }


def main() -> None:
    """Translates the tagged sources in both ways, and scores the outputs."""
    # These import TensorFlow, which --help does not need.
    from keras_transformer.extensions.documents.markup import tokenize
    from keras_transformer.extensions.documents.protection import translate_tokens
    from keras_transformer.inference.loading import load_model
    from keras_transformer.inference.translate import translate_lines

    pairs = tagged_pairs()
    model = load_model(FLAGS.model_dir)
    fragments = [tokenize(tagged) for *_, tagged, _ in pairs]
    results = {"aligned": score(translate_tokens(model, fragments)[0], pairs)}
    untagged = [best.text for best, *_ in translate_lines(model, [pair[0] for pair in pairs])]
    model.translate_verbose = None  # without alignments, a model places pairs of symbols
    results["symbols"] = score(translate_tokens(model, fragments)[0], pairs)
    bleu = sacrebleu.corpus_bleu(untagged, [[pair[1] for pair in pairs]])
    summary = {"machine": describe_machine(), "pairs": len(pairs), **results}
    print(json.dumps(summary | {"untagged_bleu": round(bleu.score, 2)}, indent=2))


if __name__ == "__main__":
    command.run(main)
