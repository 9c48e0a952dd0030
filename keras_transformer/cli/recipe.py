r"""Follows a recipe: prepares a corpus, trains, chooses on validation, exports, tests.

Examples:
    bin/recipe.py --recipe=multi30k_en_de --corpus_dir=multi30k/tok --work_dir=build/multi30k
    bin/recipe.py --recipe=wmt14_en_de_base --variant=rehearsal --corpus_dir=corpora \
        --work_dir=build/rehearsal
    bin/recipe.py --recipe=multi30k_en_de --variant=diversified \
        --corpus_dir=multi30k/tok --work_dir=build/diversified --seeds=1,2
    bin/recipe.py --recipe=multi30k_en_de --variant=back_translation --corpus_dir=multi30k/tok \
        --work_dir=build/bt --synthetic_from=back_translation=build/multi30k_de_en/seed-1/export/1

Leaves data, a folder for each seed with run, export/1 and results.json, and the results of
all in the work directory; of a recipe with synthetic pairs also these (synthetic/KIND), and the
models that wrote them (writers/KIND), which are trained first unless --synthetic_from
names others. The same command again continues. The last line of standard output is
results.json.
"""

from __future__ import annotations

import json
from pathlib import Path

from absl import flags

from keras_transformer.cli import app
from keras_transformer.errors import InputError

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_string(
        "recipe", None, "name of a recipe, or a folder with recipe.json", required=True
    )
    flags.DEFINE_string("corpus_dir", None, "directory of the corpus files", required=True)
    flags.DEFINE_string("work_dir", None, "directory for all that is made", required=True)
    flags.DEFINE_list("seeds", ["1"], "a run for each, as in 1,2,3; of several also the ensemble")
    flags.DEFINE_string(
        "variant",
        None,
        "one of the recipe's, or several, as in short+wide; rehearsal: all in small",
    )
    flags.DEFINE_multi_string(
        "synthetic_from",
        [],
        "KIND=EXPORT: writes synthetic pairs of a kind, not the recipe's writer",
    )
    flags.DEFINE_integer(
        "accumulate_steps", None, "parts to compute a batch in, for memory", lower_bound=1
    )
    flags.DEFINE_float("max_minutes", None, "end this call's training after so many minutes")


def main() -> None:
    """Runs `run_recipe` with the flags."""
    app.load_tensorflow()
    from keras_transformer.paper.recipes import recipe, run, synthetic
    from keras_transformer.paper.recipes import results as recipe_results

    # A path names a recipe of the user's; the models that it needs are described beside it.
    path = Path(FLAGS.recipe)
    recipes_dir = path.parent if (path / "recipe.json").is_file() else app.data_folder("recipes")
    loaded = recipe.Recipe.load(recipes_dir, path.name)
    if not all(seed.isdecimal() for seed in FLAGS.seeds):
        raise InputError(f"--seeds is {','.join(FLAGS.seeds)!r}; expected numbers, as in 1,2,3")
    results = run.run_recipe(
        loaded if FLAGS.variant is None else loaded.varied(FLAGS.variant),
        FLAGS.corpus_dir,
        FLAGS.work_dir,
        seeds=[int(seed) for seed in FLAGS.seeds],
        synthetic_from=synthetic.parse_writers(FLAGS.synthetic_from),
        accumulate_steps=FLAGS.accumulate_steps,
        max_minutes=FLAGS.max_minutes,
    )
    print(recipe_results.summary(results))
    print(json.dumps(results))
