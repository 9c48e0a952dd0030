#!/usr/bin/env python3
r"""Alignment error rates of IBM model 1, eflomal and the attention of models, as JSON.

Example:
    benchmarks/alignments.py --source=train.en --target=train.de \
        --model_dir=build/plain --model_dir=build/guided --eflomal=/tmp/venv/bin/python

--gold has lines with a source, a target and the links of their words, separated by tabs. A link
such as 2-3 is sure, and 2?3 is possible. The error rate is 1 - (|A & S| + |A & P|) / (|A| + |S|)
for found links A, sure links S and all links P (Och and Ney, 2003).

IBM model 1 and eflomal learn from the training pairs. Their links are those of both directions. A
model is forced to write the target, and aligns each token with the one that has most attention.
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import command
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_string("gold", "tests/fixtures/alignments_en_de.tsv", "pairs with their links")
flags.DEFINE_string("source", None, "training sentences, one per line", required=True)
flags.DEFINE_string("target", None, "their translations", required=True)
flags.DEFINE_multi_string("model_dir", [], "a run directory or an export; repeatable")
flags.DEFINE_string("eflomal", None, "a Python interpreter that has the package eflomal")

Links: TypeAlias = set[tuple[int, int]]
_WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")
_EFLOMAL = """
import sys, eflomal
eflomal.Aligner().align(*map(open, sys.argv[1:3]), *sys.argv[3:])
"""


def read_gold(path: str) -> list[tuple[str, str, Links, Links]]:
    """Returns the source, the target, the sure links and all links of each line."""
    rows = []
    for line in Path(path).read_text("utf-8").splitlines():
        source, target, text = line.split("\t")
        links = [re.split("([-?])", link) for link in text.split()]
        every = {(int(i), int(j)) for i, _, j in links}
        rows.append((source, target, {(int(i), int(j)) for i, k, j in links if k == "-"}, every))
    return rows


def rates(found: Sequence[Links], gold: Sequence[tuple[str, str, Links, Links]]) -> dict[str, Any]:
    """Returns the error rate of links, their precision and their recall, in percent."""
    links = sum(map(len, found))
    correct = sum(len(a & p) for a, (*_, p) in zip(found, gold, strict=True))
    hits = sum(len(a & s) for a, (_, _, s, _) in zip(found, gold, strict=True))
    sure = sum(len(s) for _, _, s, _ in gold)
    values = {
        "error_rate": 1 - (hits + correct) / (links + sure),
        "precision": correct / max(1, links),
        "recall": hits / sure,
    }
    return {name: round(100 * value, 1) for name, value in values.items()}


def words_of_pieces(pieces: Sequence[str], text: str) -> list[int | None]:
    """Returns the index of the word with the first character of each piece, or None."""
    words = [i for i, word in enumerate(_WORD.findall(text)) for _ in word]
    position, found = 0, list[int | None]()
    for piece in pieces:
        characters = piece.replace("▁", "")
        inside = bool(characters) and position < len(words)
        found.append(words[position] if inside else None)
        position += len(characters)
    return found


def model_links(path: str, pairs: Sequence[tuple[str, str]]) -> list[Links]:
    """Returns the aligned words of pairs, by a model that is forced to write the targets."""
    import keras_transformer as kt

    sources, targets = map(list, zip(*pairs, strict=True))
    results = kt.load(path).translate(sources, prefixes=targets, return_details=True)
    links = []
    for source, target, (best, *_) in zip(sources, targets, results, strict=True):
        assert best.details is not None
        of_source = words_of_pieces(best.details["source_tokens"][:-1], source) + [None]
        of_target = words_of_pieces(best.details["tokens"], target)
        aligned = zip(best.details["alignment"], of_target, strict=True)
        links.append({(of_source[i], j) for i, j in aligned if j is not None})
    return [{(i, j) for i, j in some if i is not None} for some in links]


def eflomal_links(python: str, pairs: Sequence[tuple[str, str]]) -> list[Links]:
    """Returns the links of both directions for pairs of texts, by eflomal."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / name for name in ("source", "target", "forward", "backward")]
        for file, texts in zip(files, zip(*pairs, strict=True), strict=False):
            lines = (" ".join(_WORD.findall(text.lower())) + "\n" for text in texts)
            file.write_text("".join(lines), "utf-8")
        subprocess.run([python, "-c", _EFLOMAL, *map(str, files)], check=True, stdout=2)
        forward, backward = (file.read_text().splitlines() for file in files[2:])
    return [
        {tuple(map(int, link.split("-"))) for link in {*a.split()} & {*b.split()}}
        for a, b in zip(forward, backward, strict=True)
    ]


def main() -> int:
    """Prints the rates of all aligners."""
    from keras_transformer.extensions.augmentation.alignment import aligned_words, learn_lexicon

    gold = read_gold(FLAGS.gold)
    pairs = [(source, target) for source, target, _, _ in gold]
    lines = (Path(path).read_text("utf-8").splitlines() for path in (FLAGS.source, FLAGS.target))
    corpus = [*zip(*lines, strict=True)]
    lexicon = learn_lexicon(corpus)
    links = [{*aligned_words(*map(_WORD.findall, pair), lexicon)} for pair in pairs]
    results = {"ibm_model_1": rates(links, gold)}
    if FLAGS.eflomal:
        found = eflomal_links(FLAGS.eflomal, [*pairs, *corpus])
        results["eflomal"] = rates(found[: len(pairs)], gold)
    for path in FLAGS.model_dir:
        results[path] = rates(model_links(path, pairs), gold)
    print(json.dumps({"pairs": len(gold), "rates": results}))
    return 0


if __name__ == "__main__":
    command.run(main)
