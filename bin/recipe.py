#!/usr/bin/env python3
r"""Runs a recipe: prepares a corpus, trains, chooses on validation, exports, tests.

Example:
    bin/recipe.py --recipe=multi30k_en_de --corpus_dir=multi30k/tok \
        --work_dir=build/multi30k_en_de --max_minutes=30

Leaves data, run, export/1 and results.json in the work directory. The same
command again continues. The last line of standard output is results.json.
"""

import json
from pathlib import Path

import command_line

from absl import flags

FLAGS = flags.FLAGS

flags.DEFINE_string("recipe", None, "a folder of recipes/", required=True)
flags.DEFINE_string("corpus_dir", None, "directory of the corpus files", required=True)
flags.DEFINE_string("work_dir", None, "directory for all that is made", required=True)
flags.DEFINE_float("max_minutes", None, "end this call's training after so many minutes")


def main(argv: list[str]) -> None:
    """Runs `recipe.run_recipe` on what the flags name."""
    from keras_transformer import recipe  # late: --help stays quick

    recipes_dir = Path(__file__).resolve().parent.parent / "recipes"
    loaded = recipe.Recipe.load(recipes_dir, FLAGS.recipe)
    results = recipe.run_recipe(
        loaded, FLAGS.corpus_dir, FLAGS.work_dir, max_minutes=FLAGS.max_minutes
    )
    print(json.dumps(results))


if __name__ == "__main__":
    command_line.run(main)
