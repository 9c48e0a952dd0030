"""Runs a recipe: prepares, trains, selects on validation, exports, and scores the export.

data/                prepared text, with text/ for held-out parts
generators/KIND/     work directory of the recipe whose model generates pairs of a kind
synthetic/KIND/      pairs with one generated side
initial/             scores of the model that fine-tuning starts from
teacher/             exports for CPUs of the model that teaches
seed-1/run/          a run, with its report
seed-1/export/1/     the SavedModel of its best weights
seed-1/results.json  scores of the export on each test, and its settings
comparison-1/        exports for CPUs of a student, and its quality and speed next to the teacher
ensemble/            the same as seed-1 for the ensemble of all seeds
tests/               sources and references of the tests
results.json         results of the seeds of the last call, their mean and deviation
experiment.json      recipe, variant, initial model, teacher, and models of the synthetic pairs
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from keras_transformer.data.prepare import PrepareOptions, prepare
from keras_transformer.errors import DivergedError, InputError
from keras_transformer.evaluation.test_sets import EvaluationSet
from keras_transformer.extensions.paper.experiment import (
    RESULTS,
    Deadline,
    Trial,
    check_identity,
    mean_and_std,
    open_experiment,
    run_trial,
    run_trials,
)
from keras_transformer.extensions.paper.recipes.models import (
    RecipeModels,
    initial_config,
    run_identity,
)
from keras_transformer.extensions.paper.recipes.recipe import Recipe, Synthetic
from keras_transformer.extensions.paper.recipes.student import Distillation, table
from keras_transformer.extensions.paper.recipes.texts import (
    Texts,
    check_generator,
    generator_fingerprint,
    has_written,
    open_texts,
    synthetic_pairs,
)
from keras_transformer.extensions.paper.results import (
    mixed_origins,
    read_results,
    run_metadata,
    write_results,
)
from keras_transformer.runs.run_directory import RunDirectory

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class GivenModels:
    """Trained models that the user gives to a recipe.

    Attributes:
        synthetic_from: exports that generate kinds of synthetic pairs, instead of the models of the
            recipe. Back-translation needs an export of the other direction.
        init_from: the run that a recipe with `fine_tune` starts from, or `RUN@NAME` for other
            weights than the selected ones. It is scored too.
        teacher: the run that teaches the model of a recipe with `teacher`, or `RUN@NAME`.
    """

    synthetic_from: Mapping[Synthetic, str | Path] = dataclasses.field(default_factory=dict)
    init_from: str | None = None
    teacher: str | None = None


def run_recipe(
    recipe: Recipe,
    corpus_dir: str | Path,
    work_dir: str | Path,
    *,
    seeds: Sequence[int] = (1,),
    given: GivenModels = GivenModels(),
    num_microbatches: int | None = None,
    max_minutes: float | None = None,
) -> dict[str, Any]:
    """Runs a recipe with one or several seeds.

    Models that generate synthetic pairs are trained first, with their recipes. The same call
    resumes after an interruption and skips finished work. More seeds are added to the results.
    After a stop by `max_minutes`, the next call exports the next version, and `results.json` names
    it.
    """
    experiment = _RecipeExperiment(recipe, Path(work_dir), seeds, given)
    if results := experiment.finished_results():
        log.info("%s is finished: %s", work_dir, experiment.work_dir / RESULTS)
        return results
    experiment.check(Path(corpus_dir))  # reports errors before anything is trained
    computing = {} if num_microbatches is None else {"training.num_microbatches": num_microbatches}
    return experiment.run(Deadline(max_minutes), computing)


class _RecipeExperiment:
    """A recipe in a work directory."""

    def __init__(
        self,
        recipe: Recipe,
        work_dir: Path,
        seeds: Sequence[int],
        given: GivenModels,
    ) -> None:
        self.work_dir = work_dir
        self._recipe = recipe
        self._seeds = seeds
        self._given = {kind: Path(path) for kind, path in given.synthetic_from.items()}
        self._init_from, self._teacher = given.init_from, given.teacher
        self._texts: Texts
        self._check_seeds()
        if not self._given.keys() <= recipe.synthetic.keys():
            raise InputError(
                f"The recipe {recipe.name} has "
                f"{' and '.join(recipe.synthetic) or 'no synthetic pairs'}, but --synthetic_from "
                f"has {' and '.join(self._given)}. Give only kinds of pairs that the recipe has."
            )
        runs: dict[str, str] = {}  # that the recipe needs, by the name of the flag
        for role, is_needed, path, need, refusal in (
            ("init_from", recipe.fine_tune, given.init_from, "fine-tunes a model",
             "trains from random weights"),
            ("teacher", recipe.teacher, given.teacher, "needs a teacher", "has no teacher"),
        ):  # fmt: skip
            if is_needed and path is None:
                raise InputError(f"The recipe {recipe.name} {need}. Name its run with --{role}.")
            if path is not None and not is_needed:
                raise InputError(f"The recipe {recipe.name} {refusal}. Remove --{role}.")
            if path is not None:
                runs[role] = path
        self._kinds = [kind for kind in get_args(Synthetic) if kind in recipe.synthetic]
        self._generators: dict[Synthetic, _RecipeExperiment] = {}
        generated_by = dict.fromkeys(self._kinds, "an export that was given")
        for kind in self._kinds:
            generator = recipe.generator(kind)
            if kind not in self._given:
                name = f"{generator.recipe.name} {generator.recipe.variant}".strip()
                generated_by[kind] = f"{name}, seeds {','.join(map(str, generator.seeds))}"
                if not has_written(self._pairs_dir(kind)):
                    self._generators[kind] = _RecipeExperiment(
                        generator.recipe,
                        work_dir / "generators" / kind,
                        generator.seeds,
                        GivenModels(),
                    )
        written: dict[str, Any] = {"generated_by": generated_by} if self._kinds else {}
        for role, path in runs.items():
            written |= run_identity(role, path)
        self._identity = {**recipe.identity, **written}
        self._facts: dict[str, Any] = {
            "recipe": recipe.name,
            "variant": recipe.variant,
            "recipe_sha256": recipe.fingerprint,
            **written,
        }
        check_identity(work_dir, self._identity)

    def _check_seeds(self) -> None:
        if not self._seeds or len(set(self._seeds)) < len(self._seeds):
            raise InputError(f"The seeds are {list(self._seeds)}. Give at least one, each once.")
        for seed in self._seeds:
            self._recipe.config().updated({"training.seed": seed})
        if len(self._seeds) > 1 and set(",@") & set(str(self.work_dir)):
            raise InputError(
                f"{self.work_dir} contains a comma or an @, which separate the runs of an "
                "ensemble. Choose another directory, or one seed."
            )

    def _pairs_dir(self, kind: Synthetic) -> Path:
        return self.work_dir / "synthetic" / kind

    def finished_results(self) -> dict[str, Any] | None:
        """Returns the results of an earlier call if it finished exactly these seeds."""
        results = read_results(self.work_dir / RESULTS)
        same_seeds = results.get("seeds", {}).keys() == {str(seed) for seed in self._seeds}
        return results if results.get("finished") and same_seeds else None

    def export(self) -> Path | None:
        """Returns the export that writes pairs, or None if it is not finished."""
        results = self.finished_results()
        if results is None:
            return None
        several = len(self._seeds) > 1
        result = results["ensemble"] if several else results["seeds"][str(self._seeds[0])]
        return self.work_dir / result["export"]

    def check(self, corpus_dir: Path, *, is_generator: bool = False) -> None:
        """Opens all texts, and reports errors that training would reach only after hours."""
        initial_config(self._recipe, self._init_from)
        with open_experiment(
            self.work_dir, self._identity
        ):  # because this writes the held-out parts
            self._texts = open_texts(
                self._recipe,
                corpus_dir,
                self.work_dir / "text",
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
                    f"Restore it in {generator.work_dir}, or delete {self._pairs_dir(kind)}."
                )
            else:
                generator.check(corpus_dir, is_generator=True)

    def run(self, deadline: Deadline, computing: Mapping[str, Any]) -> dict[str, Any]:
        """Trains and scores what `check` has opened; writes and returns the results."""
        with open_experiment(self.work_dir, self._identity):
            if self._train_generators(deadline, computing):
                results = self._run(deadline, computing)
            else:
                log.info(
                    "Time is over before all generators are trained. The same command resumes."
                )
                seeds = read_results(self.work_dir / RESULTS).get("seeds", {})  # from other calls
                results = {**self._facts, **run_metadata(), "finished": False, "seeds": seeds}
            write_results(self.work_dir / RESULTS, results)
        return results

    def _train_generators(self, deadline: Deadline, computing: Mapping[str, Any]) -> bool:
        """Trains the generators. Returns False if time was over before all were finished."""
        for kind, generator in self._generators.items():
            if generator.export() is None:
                if deadline.passed:
                    return False
                log.info("the generator of %s: %s", kind, self._facts["generated_by"][kind])
                try:
                    results = generator.run(deadline, computing)
                except DivergedError as error:
                    raise InputError(f"the generator of {kind} has diverged: {error}") from error
                if not results["finished"]:
                    return False
        return True

    def _run(self, deadline: Deadline, computing: Mapping[str, Any]) -> dict[str, Any]:
        metadata = run_metadata()
        corpora = [self._texts.train] if self._recipe.has_targets else []
        distillation = self._distillation()
        if distillation:
            trial = Trial("teacher", distillation.export_teacher, facts=self._facts)
            found = run_trial(trial, self.work_dir, deadline, metadata)
            self._kinds = ["distillation"]
            self._given = {"distillation": self.work_dir / found["export"]}
        for kind in self._kinds:
            generator = self._generators.get(kind)
            model_dir = generator.export() if generator else self._given.get(kind)
            corpora.append(
                synthetic_pairs(kind, self._texts.train, model_dir, self._pairs_dir(kind))
            )
        facts = dict(self._facts)
        if self._kinds:
            facts["generators_sha256"] = {
                kind: generator_fingerprint(self._pairs_dir(kind)) for kind in self._kinds
            }
        given_run = self._init_from or self._teacher
        prepared = prepare(
            corpora,
            self.work_dir / "data",
            PrepareOptions(**self._recipe.prepare),
            valid_corpora=[self._texts.valid],
            vocab_from=given_run and RunDirectory.split_weights(given_run)[0],
        )
        log.info(prepared.summary())
        models = RecipeModels(
            self._recipe, self.work_dir, self._texts.tests, computing, self._init_from
        )
        trials = {
            str(seed): Trial(f"seed-{seed}", models.train, (seed,), facts=facts)
            for seed in self._seeds
        }
        results = {**facts, **metadata, "finished": False}
        if self._recipe.fine_tune:
            trial = Trial("initial", models.initial, facts=facts)
            results["initial"] = run_trial(trial, self.work_dir, deadline, metadata)
        found = run_trials(list(trials.values()), self.work_dir, deadline)
        by_seed = {seed: found[trial.name] for seed, trial in trials.items() if trial.name in found}
        results["seeds"] = by_seed
        if len(by_seed) == len(trials) and all(each["finished"] for each in by_seed.values()):
            if len(trials) > 1:
                bleu = {
                    name: mean_and_std([each["tests"][name]["bleu"] for each in by_seed.values()])
                    for name in by_seed[str(self._seeds[0])]["tests"]
                }
                results["mean"] = {name: mean for name, (mean, _) in bleu.items()}
                results["standard_deviation"] = {name: std for name, (_, std) in bleu.items()}
                weights = {seed: by_seed[str(seed)]["weights"] for seed in sorted(self._seeds)}
                trial = Trial("ensemble", models.ensemble, (weights,), facts=facts)
                results["ensemble"] = run_trial(trial, self.work_dir, deadline, metadata)
            if distillation:
                results["comparison"] = {
                    seed: run_trial(
                        distillation.comparison(seed, each, facts),
                        self.work_dir, deadline, metadata,
                    )
                    for seed, each in by_seed.items()
                }  # fmt: skip
            results["finished"] = True
        return results

    def _distillation(self) -> Distillation | None:
        """Returns the teacher, or None if the recipe has none."""
        if self._teacher is None:
            return None
        pairs = [(s.decode(), t.decode()) for s, t in self._texts.valid.pairs()]
        valid = EvaluationSet([[target for _, target in pairs]], [source for source, _ in pairs])
        scoring = self._recipe.evaluate
        return Distillation(self._teacher, self.work_dir, valid, self._texts.tests, scoring)


def summary(results: Mapping[str, Any]) -> str:
    """Returns the BLEU of all tests, each with the published figure that it compares to."""
    models = {"initial": results["initial"]} if "initial" in results else {}
    models |= {f"seed {seed}": result for seed, result in results["seeds"].items()}
    if "ensemble" in results:
        models["ensemble"] = results["ensemble"]
    lines = []
    for name, result in models.items():
        if not result["tests"]:
            line = f"{name:<10} {'validation':<20} BLEU {max(result['validation'].values()):6.2f}"
            if not result.get("finished", True):
                line += f"  at step {result['steps']:,}; tests are scored when training is finished"
            lines.append(line)
        for test, scores in result["tests"].items():
            lines += [f"{name:<10} {test:<20} {line}" for line in _bleu_lines(scores)]
    for test, mean in results.get("mean", {}).items():
        deviation = results["standard_deviation"][test]
        lines.append(f"{'mean':<10} {test:<20} BLEU {mean:6.2f} ± {deviation:.2f}")
    for seed, comparison in results.get("comparison", {}).items():
        lines.append(f"\nseed {seed} and its teacher on one core (BLEU of the tests)")
        lines.append(table(comparison["models"]))
    return "\n".join(filter(None, [*lines, mixed_origins(models)]))


def _bleu_lines(scores: Mapping[str, Any]) -> list[str]:
    """Returns one line for each BLEU variant in the scores of a test set."""
    lines = {"bleu": f"BLEU {scores['bleu']:6.2f}  {scores['signature']}"}
    if "paper_bleu" in scores:
        lines["paper_bleu"] = f"BLEU {scores['paper_bleu']:6.2f}  {scores['paper_signature']}"
    published = scores["published"]
    if published:
        measure = published.get("measure", "bleu")
        if measure in lines:
            lines[measure] += f"  (published: {published['bleu']})"
        else:
            lines["bleu"] += f"  (published by {measure}: {published['bleu']})"
    return list(lines.values())
