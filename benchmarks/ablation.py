#!/usr/bin/env python3
r"""What each option of a recipe gains on its validation set, from short runs of equal length.

Example:
    benchmarks/ablation.py --recipe=multi30k_en_de --corpus_dir=multi30k/tok --base=short \
        --variants=r_drop,dropout_0.3 --work_dir=build/ablation

Follows the variant --base, then the base with each of --variants on top, one after the other.
Each has a directory in --work_dir; what is done is not done again, so the same command continues,
and one with more variants adds to what is there. The base names no tests: nothing is
chosen by them. Models that write synthetic pairs are trained once for all, in writers/KIND, unless
--synthetic_from names others.

Prints a Markdown table on standard error after each, and last one JSON object: for each the BLEU of
the last weights, of the best weights with the best length penalty, their gain over the base,
the minutes and the validation perplexity; of one that has diverged that it has. Weights (last,
averages, EMA) and length penalties are compared within each run.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import command
from absl import flags

from keras_transformer.errors import DivergedError, InputError
from keras_transformer.paper.recipes.recipe import Recipe, Synthetic, Writer
from keras_transformer.paper.recipes.run import run_recipe, steps_to_train
from keras_transformer.paper.recipes.synthetic import check_writer, parse_writers
from keras_transformer.runs.results import mixed_origins

FLAGS = flags.FLAGS


def ablate(
    recipe: Recipe,
    corpus_dir: str,
    work_dir: Path,
    *,
    base: str,
    variants: Sequence[str],
    writers: Mapping[Synthetic, str],
) -> dict[str, dict[str, Any]]:
    """Follows the base and its variants; returns what is measured, by name, the base first.

    Raises:
        InputError: for what cannot be compared, before anything is followed, where a recipe
            is stopped, and where the base diverges.
    """
    names = [base, *(f"{base}+{variant}" for variant in variants)]
    varied = {name: recipe.varied(name) for name in names}
    check(varied.values(), writers, work_dir)
    measured: dict[str, dict[str, Any]] = {}
    for number, (name, each) in enumerate(varied.items(), 1):
        steps = _steps_after(each, list(varied.values())[number:], work_dir, writers)
        try:
            measured[name] = measure(each, corpus_dir, work_dir, writers, steps)
        except DivergedError as error:  # a result, too, and no reason to leave out the others
            if name == base:
                raise
            measured[name] = {"diverged": str(error)}
        print(f"\n{table(measured)}\n", file=sys.stderr, flush=True)
    return measured


def _steps_after(
    recipe: Recipe, later: Sequence[Recipe], work_dir: Path, writers: Mapping[Synthetic, str]
) -> int:
    """Returns the steps of trainings that follow a recipe and its own writers."""
    own: dict[Synthetic, Writer] = {  # trained once for all
        kind: other.writer(kind)
        for other in later
        for kind in other.synthetic
        if kind not in writers and kind not in recipe.synthetic
    }
    return sum(steps_to_train(other, work_dir / other.variant, [1]) for other in later) + sum(
        steps_to_train(writer.recipe, work_dir / "writers" / kind, writer.seeds)
        for kind, writer in own.items()
    )


def check(recipes: Collection[Recipe], writers: Mapping[Synthetic, str], work_dir: Path) -> None:
    """Raises `InputError` for what would else show after hours, when a recipe's turn comes."""
    own: dict[Synthetic, Writer] = {}
    for recipe in recipes:
        if recipe.tests:
            raise InputError(
                f"the variant {recipe.variant} has tests; expected a --base with tests {{}}, "
                "since nothing may be chosen by them"
            )
        for kind in recipe.synthetic:
            if kind in writers:
                check_writer(work_dir / recipe.variant / "synthetic" / kind, writers[kind])
            elif own.setdefault(kind, recipe.writer(kind)) != recipe.writer(kind):
                raise InputError(
                    f"the variant {recipe.variant} has another writer of {kind} than one before; "
                    "expected one writer for all, or an ablation of its own"
                )
    for kind in writers:
        if not any(kind in recipe.synthetic for recipe in recipes):
            raise InputError(f"no variant has pairs of {kind}, which --synthetic_from names")


def measure(
    recipe: Recipe,
    corpus_dir: str,
    work_dir: Path,
    writers: Mapping[Synthetic, str],
    steps_after: int,
) -> dict[str, Any]:
    """Follows a recipe and returns what is told of it."""
    results = run_recipe(
        recipe,
        corpus_dir,
        work_dir / recipe.variant,
        synthetic_from={kind: writers[kind] for kind in recipe.synthetic if kind in writers},
        writers_dir=work_dir / "writers",
        steps_after=steps_after,
    )
    [result] = results["seeds"].values()
    return {
        "last": result["validation"]["last"],
        "best": max(result["validation"].values()),
        "validation": result["validation"],
        "perplexity": round(result["validation_perplexity"], 3),
        "steps": result["steps"],
        "minutes": result["training_minutes"],
        "tokens_per_second": result["tokens_per_second"],
        "parameters": result["parameters"],
        "commit": result["commit"],
        "processor": result["machine"]["processor"],
    }


def table(measured: dict[str, dict[str, Any]]) -> str:
    """Returns the Markdown table of what is measured, the base first."""
    base = next(iter(measured.values()))
    lines = [
        "| variant | last | gain | best | gain | perplexity | parameters | steps | minutes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, row in measured.items():
        if "diverged" in row:
            lines.append(f"| `{name}` | diverged | | | | | | | |")
            continue
        last, best = (f"{row[key] - base[key]:+.2f}" for key in ("last", "best"))
        lines.append(
            f"| `{name}` | {row['last']:.2f} | {last} | {row['best']:.2f} | {best} | "
            f"{row['perplexity']:.2f} | {row['parameters']:,} | {row['steps']:,} | "
            f"{row['minutes']:.0f} |"
        )
    rows = {name: row for name, row in measured.items() if "diverged" not in row}
    mixed = mixed_origins(
        {f"`{name}`": (row["commit"], row["processor"]) for name, row in rows.items()}
    )
    return "\n".join([*lines, *(["", mixed] if mixed else [])])


def main() -> int:
    """Prints the measurements."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    recipes_dir = Path(__file__).resolve().parent.parent / "recipes"
    try:
        measured = ablate(
            Recipe.load(recipes_dir, FLAGS.recipe),
            FLAGS.corpus_dir,
            Path(FLAGS.work_dir),
            base=FLAGS.base,
            variants=FLAGS.variants,
            writers=parse_writers(FLAGS.synthetic_from),
        )
    except KeyboardInterrupt:
        print("stopped; the same command continues", file=sys.stderr)
        return 130
    print(json.dumps(measured))
    return 0


if __name__ == "__main__":
    # Only here: other benchmarks have flags of these names, and tests import several of them.
    flags.DEFINE_string("recipe", None, "a folder of recipes/", required=True)
    flags.DEFINE_string("corpus_dir", None, "directory of the corpus files", required=True)
    flags.DEFINE_string("work_dir", None, "directory for all that is made", required=True)
    flags.DEFINE_string("base", "short", "the variant that all others are compared with")
    flags.DEFINE_list("variants", None, "what is changed, each for itself", required=True)
    flags.DEFINE_multi_string(
        "synthetic_from", [], "KIND=EXPORT: who writes a variant's synthetic pairs of a kind"
    )
    command.run(main)
