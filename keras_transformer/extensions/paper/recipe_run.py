"""Runs a recipe: prepares, trains, selects on validation, exports, and scores the export.

data/                prepared text, with text/ for held-out parts
synthetic/KIND/      pairs with one generated side
initial/             translations of the model that fine-tuning starts from
teacher/             exports for CPUs of the model that teaches
seed-1/run/          a run, with its report
seed-1/export/1/     the SavedModel of its best weights
comparison-1/        exports for CPUs of a student and of its teacher, and a chart of them
ensemble-1-2/        the export of the ensemble of these seeds
tests/               sources and references of the tests
results.jsonl        scores of each model on each test, and its settings
table.md             the results as a table
experiment.json      recipe, variant, initial model and teacher
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.data.corpus import Corpus
from keras_transformer.data.prepare import PrepareOptions, prepare
from keras_transformer.data.workers import Workers
from keras_transformer.errors import InputError
from keras_transformer.extensions.paper import report, student
from keras_transformer.extensions.paper.experiment import Experiment, Row
from keras_transformer.extensions.paper.recipe import Recipe, Synthetic
from keras_transformer.extensions.paper.recipe_models import (
    RecipeModels,
    initial_config,
    run_identity,
)
from keras_transformer.extensions.paper.texts import (
    check_generator,
    evaluation_set,
    generator_fingerprint,
    has_written,
    open_texts,
    synthetic_pairs,
)
from keras_transformer.runs.atomic import write_text
from keras_transformer.runs.run_directory import RunDirectory

log = logging.getLogger(__name__)


def run_recipe(  # noqa: PLR0913  each is a flag of the command
    recipe: Recipe,
    corpus_dir: str | Path,
    work_dir: str | Path,
    *,
    seeds: Sequence[int] = (1,),
    synthetic_from: Mapping[Synthetic, str | Path] | None = None,
    runs: Mapping[str, str] | None = None,
    num_microbatches: int | None = None,
    max_minutes: float | None = None,
    workers: Workers = 1,
) -> dict[str, Any]:
    """Runs a recipe with one or several seeds.

    The same call resumes after an interruption and skips finished work. More seeds are added to the
    results. After a stop by `max_minutes`, the next call exports the next version.

    `corpus_dir` has the files that the texts of the recipe name. Several seeds also form an
    ensemble. `synthetic_from` has the export that generates each kind of synthetic pairs. `runs`
    has the run, or `RUN@NAME`, that a recipe needs: `init_from` if it has `fine_tune`, and
    `teacher` if it has `teacher`. `workers` prepare the data and generate the synthetic pairs. The
    results are `recipe`, `variant`, `finished`, and `rows`, the record of each row by name.
    """
    work_dir, runs = Path(work_dir), dict(runs or {})
    synthetic_from = dict(synthetic_from or {})
    _check_arguments(recipe, work_dir, seeds, synthetic_from, runs)
    written: dict[str, Any] = {}
    for role, path in runs.items():
        written |= run_identity(role, path)
    facts = {"recipe": recipe.name, "variant": recipe.variant, **written}
    experiment = Experiment(
        work_dir, {**recipe.identity, **written}, facts, max_minutes=max_minutes
    )
    results = _results(experiment, recipe, seeds)
    if results["finished"]:
        log.info("%s is finished.", work_dir)
        return results
    initial_config(recipe, runs.get("init_from"))
    for kind, model_dir in synthetic_from.items():
        check_generator(work_dir / "synthetic" / kind, model_dir)
    if recipe.held_out:
        experiment.start()  # creates the directory of the parts
    train, valid, tests = open_texts(recipe, Path(corpus_dir), work_dir / "text")
    experiment.start()

    corpora: list[Corpus] = [train] if recipe.has_targets else []
    distillation: student.Distillation | None = None
    if recipe.teacher:
        distillation = student.Distillation(
            runs["teacher"], work_dir, evaluation_set(valid), tests, recipe.evaluate
        )
        found = experiment.run(Row("teacher", distillation.export_teacher))
        synthetic_from = {"distillation": work_dir / found["export"]}
    kinds: list[Synthetic] = ["distillation"] if recipe.teacher else [*recipe.synthetic]
    for kind in kinds:
        pairs_dir = work_dir / "synthetic" / kind
        corpora.append(synthetic_pairs(kind, train, synthetic_from.get(kind), pairs_dir, workers))
        hashes = experiment.facts.setdefault("generators_sha256", {})
        hashes[kind] = generator_fingerprint(pairs_dir)
    given_run = next(iter(runs.values()), None)
    prepared = prepare(
        corpora,
        work_dir / "data",
        PrepareOptions(**recipe.prepare),
        valid_corpora=[valid],
        vocab_from=given_run and RunDirectory.split_weights(given_run)[0],
        num_workers=workers,
    )
    log.info(prepared.summary())

    computing = {} if num_microbatches is None else {"training.num_microbatches": num_microbatches}
    models = RecipeModels(recipe, work_dir, tests, computing, runs.get("init_from"))
    if recipe.fine_tune:
        experiment.run(Row("initial", models.initial))
    rows = [Row(f"seed-{seed}", models.train, (seed,)) for seed in seeds]
    trained = experiment.run_all(rows)
    if len(trained) == len(seeds) and all(record["finished"] for record in trained.values()):
        if len(seeds) > 1:
            weights = {seed: trained[f"seed-{seed}"]["weights"] for seed in sorted(seeds)}
            experiment.run(Row(_ensemble(seeds), models.ensemble, (weights,)))
        if distillation is not None:
            for seed in seeds:
                arguments = (trained[f"seed-{seed}"],)
                row = Row(f"comparison-{seed}", distillation.compare, arguments)
                experiment.run(row)
    results = _results(experiment, recipe, seeds)
    write_text(work_dir / report.TABLE, summary(results))
    return results


def _check_arguments(
    recipe: Recipe,
    work_dir: Path,
    seeds: Sequence[int],
    synthetic_from: Mapping[Synthetic, str | Path],
    runs: Mapping[str, str],
) -> None:
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"The seeds are {list(seeds)}. Give at least one, each once.")
    for seed in seeds:
        recipe.config().updated({"training.seed": seed})
    if len(seeds) > 1 and set(",@") & set(str(work_dir)):
        raise InputError(
            f"{work_dir} contains a comma or an @, which separate the runs of an ensemble. Choose "
            "another directory, or one seed."
        )
    for kind, fields in recipe.synthetic.items():
        if kind not in synthetic_from and not has_written(work_dir / "synthetic" / kind):
            flags = f"--recipe={fields['recipe']}"
            flags += f" --variant={fields['variant']}" if "variant" in fields else ""
            flags += f" --seeds={','.join(map(str, fields.get('seeds', [1])))}"
            raise InputError(
                f"The recipe {recipe.name} needs a model for {kind}. Train it with "
                f"keras-transformer recipe {flags}, and give its export as "
                f"--synthetic_from={kind}=EXPORT."
            )
    needed = {"init_from": recipe.fine_tune, "teacher": recipe.teacher}
    if unneeded := [
        *(f"synthetic_from={kind}" for kind in synthetic_from if kind not in recipe.synthetic),
        *(role for role in runs if not needed[role]),
    ]:
        raise InputError(f"The recipe {recipe.name} has no use for --{unneeded[0]}. Remove it.")
    for role in needed:
        if needed[role] and role not in runs:
            raise InputError(f"The recipe {recipe.name} needs a run. Name it with --{role}.")


def _ensemble(seeds: Sequence[int]) -> str:
    return f"ensemble-{'-'.join(map(str, sorted(seeds)))}"


def _results(experiment: Experiment, recipe: Recipe, seeds: Sequence[int]) -> dict[str, Any]:
    """Returns the results of all calls so far that belong to these seeds."""
    names = ["initial"] * recipe.fine_tune + ["teacher"] * recipe.teacher
    names += [f"seed-{seed}" for seed in seeds]
    names += [_ensemble(seeds)] * (len(seeds) > 1)
    names += [f"comparison-{seed}" for seed in seeds if recipe.teacher]
    records = experiment.records()
    rows = {name: records[name] for name in names if name in records}
    finished = all(records.get(name, {}).get("finished") for name in names)
    identity = {"recipe": recipe.name, "variant": recipe.variant}
    return {**identity, "finished": finished, "rows": rows}


def summary(results: Mapping[str, Any]) -> str:
    """Returns tables of the BLEU of all tests, each next to the published figure."""
    models = {name: row for name, row in results["rows"].items() if "tests" in row}
    cells = []
    for name, record in models.items():
        if not record["tests"]:
            steps = "" if record["finished"] else f"validation, at step {record['steps']:,}"
            best = f"{max(record['validation'].values()):.2f}"
            cells.append({"model": name, "test": steps or "validation", "BLEU": best})
        for test, scores in record["tests"].items():
            published = scores["published"] or {}
            measure = published.get("measure", "bleu")
            compared, named = (measure, "") if measure in scores else ("bleu", f" ({measure})")
            for key, signature in (("bleu", "signature"), ("paper_bleu", "paper_signature")):
                if key in scores:
                    bleu = {"BLEU": f"{scores[key]:.2f}", "signature": scores[signature]}
                    cells.append({"model": name, "test": test, **bleu})
                    if published and key == compared:
                        cells[-1]["published"] = f"{published['bleu']}{named}"
    seeds = [record for name, record in models.items() if name.startswith("seed-")]
    for test in seeds[0]["tests"] if len(seeds) > 1 else ():
        values = [record["tests"][test]["bleu"] for record in seeds if test in record["tests"]]
        if len(values) > 1:
            shown = f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"
            cells.append({"model": "mean of the seeds", "test": test, "BLEU": shown})
    tables = [report.table(cells, report.mixed_origins(models))]
    for name, record in results["rows"].items():
        if "models" in record:
            tables.append(f"{name}, on one core:\n\n{student.table(record['models'])}")
    return "\n".join(tables)
