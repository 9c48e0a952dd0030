"""Runs a recipe: prepares, trains, selects on validation, exports, and scores the export.

data/                prepared text, with text/ for held-out parts
generators/KIND/     work directory of the recipe whose model generates pairs of a kind
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
experiment.json      recipe, variant, initial model, teacher, and models of the synthetic pairs
"""

from __future__ import annotations

import logging
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from keras_transformer.data.prepare import PrepareOptions, prepare
from keras_transformer.errors import DivergedError, InputError
from keras_transformer.extensions.paper import report, student
from keras_transformer.extensions.paper.experiment import Deadline, Experiment, Row
from keras_transformer.extensions.paper.recipe import Recipe, Synthetic
from keras_transformer.extensions.paper.recipe_models import (
    RecipeModels,
    initial_config,
    run_identity,
)
from keras_transformer.extensions.paper.texts import (
    Texts,
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


def run_recipe(
    recipe: Recipe,
    corpus_dir: str | Path,
    work_dir: str | Path,
    *,
    seeds: Sequence[int] = (1,),
    synthetic_from: Mapping[Synthetic, str | Path] | None = None,
    runs: Mapping[str, str] | None = None,
    num_microbatches: int | None = None,
    max_minutes: float | None = None,
) -> dict[str, Any]:
    """Runs a recipe with one or several seeds.

    Models that generate synthetic pairs are trained first, with their recipes. The same call
    resumes after an interruption and skips finished work. More seeds are added to the results.
    After a stop by `max_minutes`, the next call exports the next version.

    Args:
        recipe: the recipe.
        corpus_dir: directory of the files that its texts name.
        work_dir: directory of the results.
        seeds: seed of each run. Several also form an ensemble.
        synthetic_from: exports that generate kinds of synthetic pairs, instead of the models of the
            recipe. Back-translation needs an export of the other direction.
        runs: the run that the recipe needs, or `RUN@NAME` for other weights than the selected
            ones: as `init_from` the run that a recipe with `fine_tune` starts from, which is scored
            too; as `teacher` the run that teaches the model of a recipe with `teacher`.
        num_microbatches: parts of a batch, which need less memory.
        max_minutes: minutes after which training stops.

    Returns:
        The facts of the recipe; `rows`, the record of each row by name; and `finished`.
    """
    given = {kind: Path(path) for kind, path in (synthetic_from or {}).items()}
    run = _RecipeRun(recipe, Path(work_dir), seeds, given, runs)
    results = run.results()
    if results["finished"]:
        log.info("%s is finished.", work_dir)
        return results
    deadline = Deadline(max_minutes)
    run.check(Path(corpus_dir))  # reports errors before anything is trained
    computing = {} if num_microbatches is None else {"training.num_microbatches": num_microbatches}
    return run.run(deadline, computing)


class _RecipeRun:
    """A recipe in a work directory."""

    def __init__(
        self,
        recipe: Recipe,
        work_dir: Path,
        seeds: Sequence[int],
        given: Mapping[Synthetic, Path] | None = None,
        runs: Mapping[str, str] | None = None,
    ) -> None:
        self._recipe, self._work_dir, self._seeds = recipe, work_dir, seeds
        self._given, self._runs = dict(given or {}), dict(runs or {})
        self._init_from = self._runs.get("init_from")
        self._texts: Texts
        self._check_arguments()
        self._kinds = [kind for kind in get_args(Synthetic) if kind in recipe.synthetic]
        self._generators: dict[Synthetic, _RecipeRun] = {}
        generated_by = dict.fromkeys(self._kinds, "an export that was given")
        for kind in self._kinds:
            generator = recipe.generator(kind)
            if kind not in self._given:
                name = f"{generator.recipe.name} {generator.recipe.variant}".strip()
                generated_by[kind] = f"{name}, seeds {','.join(map(str, generator.seeds))}"
                if not has_written(self._pairs_dir(kind)):
                    directory = work_dir / "generators" / kind
                    self._generators[kind] = _RecipeRun(
                        generator.recipe, directory, generator.seeds
                    )
        written: dict[str, Any] = {"generated_by": generated_by} if self._kinds else {}
        for role, path in self._runs.items():
            written |= run_identity(role, path)
        facts = {"recipe": recipe.name, "variant": recipe.variant}
        facts |= {"recipe_sha256": recipe.fingerprint, **written}
        self._experiment = Experiment(work_dir, {**recipe.identity, **written}, facts)

    def _check_arguments(self) -> None:
        recipe = self._recipe
        if not self._seeds or len(set(self._seeds)) < len(self._seeds):
            raise InputError(f"The seeds are {list(self._seeds)}. Give at least one, each once.")
        for seed in self._seeds:
            recipe.config().updated({"training.seed": seed})
        if len(self._seeds) > 1 and set(",@") & set(str(self._work_dir)):
            raise InputError(
                f"{self._work_dir} contains a comma or an @, which separate the runs of an "
                "ensemble. Choose another directory, or one seed."
            )
        if not self._given.keys() <= recipe.synthetic.keys():
            raise InputError(
                f"The recipe {recipe.name} has "
                f"{' and '.join(recipe.synthetic) or 'no synthetic pairs'}, but --synthetic_from "
                f"has {' and '.join(self._given)}. Give only kinds of pairs that the recipe has."
            )
        for role, is_needed in {"init_from": recipe.fine_tune, "teacher": recipe.teacher}.items():
            if is_needed and role not in self._runs:
                raise InputError(f"The recipe {recipe.name} needs a run. Name it with --{role}.")
            if role in self._runs and not is_needed:
                raise InputError(f"The recipe {recipe.name} has no use for --{role}. Remove it.")

    def _pairs_dir(self, kind: Synthetic) -> Path:
        return self._work_dir / "synthetic" / kind

    def results(self) -> dict[str, Any]:
        """Returns the facts, and the results of all calls so far that belong to these seeds."""
        names = [f"seed-{seed}" for seed in self._seeds]
        names = ["initial"] * self._recipe.fine_tune + ["teacher"] * self._recipe.teacher + names
        names += [self._ensemble] * (len(self._seeds) > 1)
        names += [f"comparison-{seed}" for seed in self._seeds if self._recipe.teacher]
        records = self._experiment.records()
        rows = {name: records[name] for name in names if name in records}
        finished = all(records.get(name, {}).get("finished") for name in names)
        return {**self._experiment.facts, "finished": finished, "rows": rows}

    @property
    def _ensemble(self) -> str:
        return f"ensemble-{'-'.join(map(str, sorted(self._seeds)))}"

    def export(self) -> Path | None:
        """Returns the export that writes pairs, or None if it is not finished."""
        results = self.results()
        if not results["finished"]:
            return None
        name = self._ensemble if len(self._seeds) > 1 else f"seed-{self._seeds[0]}"
        return self._work_dir / results["rows"][name]["export"]

    def check(self, corpus_dir: Path, *, is_generator: bool = False) -> None:
        """Opens all texts, and reports errors that training would reach only after hours."""
        initial_config(self._recipe, self._init_from)
        if self._recipe.held_out:
            self._experiment.start()  # because the parts are written
        self._texts = open_texts(
            self._recipe,
            corpus_dir,
            self._work_dir / "text",
            check_training=is_generator or bool(self._kinds) or self._recipe.teacher,
        )
        for kind, model_dir in self._given.items():
            check_generator(self._pairs_dir(kind), model_dir)
        for kind, generator in self._generators.items():
            if (exported := generator.export()) is not None:
                check_generator(self._pairs_dir(kind), exported)
            elif generator_fingerprint(self._pairs_dir(kind)):
                raise InputError(
                    f"{self._pairs_dir(kind)} was generated by a model that no longer exists. "
                    f"Restore it in {generator._work_dir}, or delete {self._pairs_dir(kind)}."
                )
            else:
                generator.check(corpus_dir, is_generator=True)

    def run(self, deadline: Deadline, computing: Mapping[str, Any]) -> dict[str, Any]:
        """Trains and scores what `check` has opened; writes the table and returns the results."""
        self._experiment.start()
        if self._train_generators(deadline, computing):
            self._train(deadline, computing)
        else:
            log.info("Time is over before all generators are trained. The same command resumes.")
        results = self.results()
        write_text(self._work_dir / report.TABLE, summary(results))
        return results

    def _train_generators(self, deadline: Deadline, computing: Mapping[str, Any]) -> bool:
        """Trains the generators. Returns False if time was over before all were finished."""
        for kind, generator in self._generators.items():
            if generator.export() is None:
                if deadline.passed:
                    return False
                log.info("the generator of %s: %s", kind, generator._recipe.name)
                try:
                    results = generator.run(deadline, computing)
                except DivergedError as error:
                    raise InputError(f"the generator of {kind} has diverged: {error}") from error
                if not results["finished"]:
                    return False
        return True

    def _train(self, deadline: Deadline, computing: Mapping[str, Any]) -> None:
        recipe, texts, experiment = self._recipe, self._texts, self._experiment
        corpora = [texts.train] if recipe.has_targets else []
        pupil, given = None, dict(self._given)
        if recipe.teacher:
            valid = evaluation_set(texts.valid)
            pupil = student.Distillation(
                self._runs["teacher"], self._work_dir, valid, texts.tests, recipe.evaluate
            )
            found = experiment.run(Row("teacher", pupil.export_teacher), deadline)
            given = {"distillation": self._work_dir / found["export"]}
        for kind in [*self._kinds, *(["distillation"] if pupil else [])]:
            generator = self._generators.get(kind)
            model_dir = generator.export() if generator else given.get(kind)
            corpora.append(synthetic_pairs(kind, texts.train, model_dir, self._pairs_dir(kind)))
            hashes = experiment.facts.setdefault("generators_sha256", {})
            hashes[kind] = generator_fingerprint(self._pairs_dir(kind))
        given_run = next(iter(self._runs.values()), None)
        prepared = prepare(
            corpora,
            self._work_dir / "data",
            PrepareOptions(**recipe.prepare),
            valid_corpora=[texts.valid],
            vocab_from=given_run and RunDirectory.split_weights(given_run)[0],
        )
        log.info(prepared.summary())
        models = RecipeModels(recipe, self._work_dir, texts.tests, computing, self._init_from)
        if recipe.fine_tune:
            experiment.run(Row("initial", models.initial), deadline)
        seeds = {seed: Row(f"seed-{seed}", models.train, (seed,)) for seed in self._seeds}
        found = experiment.run_all([*seeds.values()], deadline)
        if len(found) < len(seeds) or not all(record["finished"] for record in found.values()):
            return
        if len(seeds) > 1:
            weights = {seed: found[f"seed-{seed}"]["weights"] for seed in sorted(seeds)}
            experiment.run(Row(self._ensemble, models.ensemble, (weights,)), deadline)
        for seed, row in seeds.items():
            if pupil:
                comparison = Row(f"comparison-{seed}", pupil.compare, (found[row.name],))
                experiment.run(comparison, deadline)


def summary(results: Mapping[str, Any]) -> str:
    """Returns tables of the BLEU of all tests, each next to the published figure of its measure."""
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
            is_shown = measure == "paper_bleu" and "paper_bleu" in scores
            named = "" if is_shown or measure == "bleu" else f" ({measure})"
            figure = f"{published['bleu']}{named}" if published else ""
            for key, of in (("bleu", "signature"), ("paper_bleu", "paper_signature")):
                if key in scores:
                    bleu = {"BLEU": f"{scores[key]:.2f}", "signature": scores[of]}
                    compared = figure if is_shown == (key == "paper_bleu") else ""
                    cells.append({"model": name, "test": test, **bleu, "published": compared})
    seeds = [record for name, record in models.items() if name.startswith("seed-")]
    for test in seeds[0]["tests"] if len(seeds) > 1 else ():
        bleu = [record["tests"][test]["bleu"] for record in seeds if test in record["tests"]]
        if len(bleu) > 1:
            shown = f"{statistics.mean(bleu):.2f} ± {statistics.stdev(bleu):.2f}"
            cells.append({"model": "mean of the seeds", "test": test, "BLEU": shown})
    tables = [report.table(cells, report.mixed_origins(models))]
    for name, record in results["rows"].items():
        if "models" in record:
            tables.append(f"{name}, on one core:\n\n{student.table(record['models'])}")
    return "\n".join(tables)
