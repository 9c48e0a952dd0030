r"""Runs a recipe: prepares a corpus, trains, selects on validation, exports and tests.

Examples:
    keras-transformer recipe --recipe=multi30k_en_de --corpus_dir=multi30k/tok \
        --work_dir=build/multi30k
    keras-transformer recipe --recipe=wmt14_en_de_base --variant=rehearsal \
        --corpus_dir=corpora --work_dir=build/rehearsal
    keras-transformer recipe --recipe=multi30k_en_de --variant=back_translation \
        --corpus_dir=multi30k/tok --work_dir=build/bt \
        --synthetic_from=back_translation=build/multi30k_de_en/seed-1/export/1
    keras-transformer recipe --recipe=finetune_opus_mt --init_from=build/en-de \
        --corpus_dir=my_pairs --work_dir=build/tuned
    keras-transformer recipe --recipe=student --teacher=build/en-de --corpus_dir=my_text \
        --work_dir=build/student

Writes the data, a folder for each seed (run, export/1), results.jsonl and table.md to the work
directory. Recipes with synthetic pairs (synthetic/KIND) need the exports that generate them
(--synthetic_from). Recipes that fine-tune a model need its run (--init_from) and also score it.
Recipes with a teacher need its run (--teacher), and compare it with the student in quality and in
speed. With --ray, a cluster prepares the data and generates synthetic pairs. The same command
resumes after an interruption. The last line of standard output is a JSON object with the results.
"""

from __future__ import annotations

import json
from pathlib import Path

from absl import flags

from keras_transformer.cli import app, config_flags
from keras_transformer.errors import InputError, needs_extra

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_string(
        "recipe", None, "name of a recipe, or a folder with recipe.json", required=True
    )
    flags.DEFINE_string("corpus_dir", None, "directory of the corpus files", required=True)
    config_flags.define_path_flags("work_dir", required=True)
    flags.DEFINE_list(
        "seeds", ["1"], "seed of each run, as in 1,2,3; several also form an ensemble"
    )
    flags.DEFINE_string(
        "variant",
        None,
        "a variant, or several, such as short+wide; rehearsal: a small run of everything",
    )
    flags.DEFINE_multi_string(
        "synthetic_from", [], "KIND=EXPORT: the model that generates the synthetic pairs of a kind"
    )
    flags.DEFINE_string("teacher", None, "the run that teaches the model, or RUN@WEIGHTS")
    flags.DEFINE_integer(
        "num_microbatches", None, config_flags.FIELDS["num_microbatches"][1], lower_bound=1
    )
    config_flags.define_option_flags("init_from", "symbols", "max_minutes")
    config_flags.define_cluster_flags()


def main() -> None:
    """Runs `run_recipe` with the flags."""
    app.load_tensorflow()
    from keras_transformer.extensions.paper import recipe_run, texts
    from keras_transformer.extensions.paper.recipe import Recipe

    # A path names the recipe of a user. The models that it needs are next to it.
    path = Path(FLAGS.recipe)
    recipes_dir = path.parent if (path / "recipe.json").is_file() else app.data_folder("recipes")
    recipe = Recipe.load(recipes_dir, path.name)
    if not all(seed.isdecimal() for seed in FLAGS.seeds):
        raise InputError(f"--seeds is {','.join(FLAGS.seeds)!r}. Give numbers, as in 1,2,3.")
    if FLAGS.variant is not None:
        recipe = recipe.with_variant(FLAGS.variant)
    if FLAGS.symbols:
        recipe = recipe.with_symbols(config_flags.parse_symbols(FLAGS.symbols))
    if recipe.teacher:
        with needs_extra("plots", "the chart of the comparison"):
            import matplotlib  # noqa: F401
    runs = {"init_from": FLAGS.init_from, "teacher": FLAGS.teacher}
    results = recipe_run.run_recipe(
        recipe,
        FLAGS.corpus_dir,
        FLAGS.work_dir,
        seeds=[int(seed) for seed in FLAGS.seeds],
        synthetic_from=texts.parse_generators(FLAGS.synthetic_from),
        runs={role: path for role, path in runs.items() if path is not None},
        num_microbatches=FLAGS.num_microbatches,
        max_minutes=FLAGS.max_minutes,
        workers=config_flags.workers() or 1,
    )
    print(recipe_run.summary(results))
    print(json.dumps(results))
