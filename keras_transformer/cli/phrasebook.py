"""Writes an English-German corpus of short phrases, made from the Unicode CLDR.

Example:
    bin/phrasebook.py --output_dir=build/phrasebook

Writes {train,valid,test}.{en,de}; no phrase held out occurs in training. Also
prints what is scored on the test phrases without learning: by copying the
source, and by the translation of the most similar training phrase. The last
line is one JSON object. The same command again changes nothing.
"""

from __future__ import annotations

import json

from absl import flags

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_string("output_dir", None, "new directory for the corpus", required=True)
    flags.DEFINE_integer("seed", 1, "of the phrases and of those held out")


def main() -> None:
    """Writes the corpus and prints its sizes and the baselines."""
    from keras_transformer.data.corpora import phrasebook  # late: an extra

    parts = phrasebook.write_corpus(FLAGS.output_dir, FLAGS.seed)
    sizes = {name: len(part) for name, part in parts._asdict().items()}
    counts = {"templates": len(phrasebook.TEMPLATES), "phrases": sum(sizes.values()), **sizes}
    nearest = phrasebook.nearest_phrase_exact_match(parts.train, parts.test)
    scores = {
        "copy_exact_match": phrasebook.copy_exact_match(parts.test),
        "nearest_phrase_exact_match": nearest,
    }
    for name, count in counts.items():
        print(f"{name:<28}{count:>8,}")
    for name, score in scores.items():
        print(f"{name:<28}{score:>8.1%}")
    print(json.dumps({**counts, **scores}))
