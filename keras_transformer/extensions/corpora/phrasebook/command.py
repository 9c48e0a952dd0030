"""Writes an English-German corpus of short phrases, made from the Unicode CLDR.

Example:
    keras-transformer phrasebook --output_dir=build/phrasebook

Writes {train,valid,test}.{en,de}, where no test phrase is in the training set. The last line of
the output is one JSON object. Running the same command again changes nothing.
"""

from __future__ import annotations

import json

from absl import flags

from keras_transformer.cli import config_flags

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    config_flags.define_path_flags("output_dir", required=True)
    config_flags.define_option_flags(seed=1)


def main() -> None:
    """Writes the corpus and prints its sizes."""
    from keras_transformer.extensions.corpora import phrasebook  # an extra

    parts = phrasebook.write_corpus(FLAGS.output_dir, FLAGS.seed)
    sizes = {name: len(part) for name, part in parts.items()}
    counts = {"templates": len(phrasebook.TEMPLATES), "phrases": sum(sizes.values()), **sizes}
    for name, count in counts.items():
        print(f"{name:<12}{count:>8,}")
    print(json.dumps(counts))
