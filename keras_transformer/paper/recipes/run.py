"""Follows a recipe: prepares, trains, chooses on validation, exports, and scores the export.

data/                the prepared text; text/ with its parts where some are held out
writers/KIND/        another recipe's work directory, whose model writes one side of pairs of a kind
synthetic/KIND/      pairs of which a model has written one side, where the recipe asks for them
seed-1/run/          a run, with its report
seed-1/export/1/     the SavedModel of its best weights
seed-1/results.json  scores of the export on each test, and how they came about
ensemble/            the same, of the runs of several seeds together
tests/               the sources and references that are scored
results.json         those of the seeds that were last asked for, their mean and deviation
experiment.json      the recipe and the variant that the directory is of, and the writers
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from keras_transformer.data.preparation.pipeline import PrepareOptions
from keras_transformer.data.preparation.prepare import prepare
from keras_transformer.errors import DivergedError, InputError
from keras_transformer.paper.experiment import (
    RESULTS,
    Deadline,
    Trial,
    begun,
    check_identity,
    mean_and_std,
    run_trial,
    run_trials,
)
from keras_transformer.paper.recipes.models import RecipeModels
from keras_transformer.paper.recipes.recipe import Recipe, Synthetic
from keras_transformer.paper.recipes.synthetic import (
    check_writer,
    has_written,
    synthetic_pairs,
    writer_fingerprint,
)
from keras_transformer.paper.recipes.texts import Texts, open_texts
from keras_transformer.runs.report import write_data_page
from keras_transformer.runs.results import read_results, run_metadata, write_results

log = logging.getLogger(__name__)


def run_recipe(
    recipe: Recipe,
    corpus_dir: str | Path,
    work_dir: str | Path,
    *,
    seeds: Sequence[int] = (1,),
    synthetic_from: Mapping[Synthetic, str | Path] | None = None,
    accumulate_steps: int | None = None,
    max_minutes: float | None = None,
) -> dict[str, Any]:
    """Prepares, and for each seed trains, chooses on validation, exports and scores the export.

    Models that write a recipe's synthetic pairs are trained first, each by its own recipe.
    What is done already is not done again, so the same call continues after a stop, and one
    with more seeds adds to what is there. After a stop by `max_minutes` the call that
    continues exports the next version; `results.json` names it.

    Args:
        recipe: the recipe.
        corpus_dir: directory of the recipe's corpus files.
        work_dir: where everything is written.
        seeds: of one run each; the exports of several are also scored as an ensemble.
        synthetic_from: exports that write kinds of the recipe's synthetic pairs, instead of the
            models that the recipe says: for back-translation one of the other direction.
        accumulate_steps: parts that a batch is computed in where the recipe's are too large for
            this machine's memory; the result is the same but for rounding and dropout.
        max_minutes: end this call's training after so long; what it has is chosen by the
            validation set and exported, and the next call trains on. Tests are scored when
            training is finished. While writers are trained, there are no results of seeds yet.

    Returns:
        The content of results.json. Its `peak_memory_mb` is of this process so far: of writers
        that it has trained, too.

    Raises:
        InputError: for a corpus that cannot be read, or a `work_dir` of something else.

    Example:
    >>> recipe = Recipe.load("recipes", "multi30k_en_de")
    >>> run_recipe(recipe, "multi30k/tok", "build/multi30k", seeds=[1, 2])  # doctest: +SKIP
    """
    given = {kind: Path(model_dir) for kind, model_dir in (synthetic_from or {}).items()}
    experiment = _RecipeExperiment(recipe, Path(work_dir), seeds, given)
    if results := experiment.finished_results():
        log.info("%s is finished: %s", work_dir, experiment.work_dir / RESULTS)
        return results
    experiment.check(Path(corpus_dir))  # mistakes show before anything is trained
    computing = {} if accumulate_steps is None else {"training.accumulate_steps": accumulate_steps}
    return experiment.run(Deadline(max_minutes), computing)


class _RecipeExperiment:
    """A recipe in a work directory.

    Args:
        recipe: the recipe.
        work_dir: the work directory.
        seeds: of one run each.
        given: exports that write kinds of synthetic pairs.

    Raises:
        InputError: for seeds, exports or a directory that do not fit the recipe or its writers.
    """

    def __init__(
        self, recipe: Recipe, work_dir: Path, seeds: Sequence[int], given: Mapping[Synthetic, Path]
    ) -> None:
        self.work_dir = work_dir
        self._recipe = recipe
        self._seeds = seeds
        self._given = given
        self._texts: Texts
        self._check_seeds()
        if not given.keys() <= recipe.synthetic.keys():
            raise InputError(
                f"the recipe {recipe.name} has "
                f"{' and '.join(recipe.synthetic) or 'no synthetic pairs'}, and --synthetic_from "
                f"has {' and '.join(given)}; expected only kinds of pairs that the recipe has"
            )
        self._kinds = [kind for kind in get_args(Synthetic) if kind in recipe.synthetic]
        self._writers: dict[Synthetic, _RecipeExperiment] = {}
        written_by = dict.fromkeys(self._kinds, "an export that was given")
        for kind in self._kinds:
            writer = recipe.writer(kind)
            if kind not in given:
                name = f"{writer.recipe.name} {writer.recipe.variant}".strip()
                written_by[kind] = f"{name}, seeds {','.join(map(str, writer.seeds))}"
                if not has_written(self._pairs_dir(kind)):
                    self._writers[kind] = _RecipeExperiment(
                        writer.recipe, work_dir / "writers" / kind, writer.seeds, {}
                    )
        written = {"written_by": written_by} if self._kinds else {}
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
            raise InputError(
                f"the seeds are {list(self._seeds)}; expected different ones, at least one"
            )
        for seed in self._seeds:
            self._recipe.config().updated({"training.seed": seed})
        if len(self._seeds) > 1 and set(",@") & set(str(self.work_dir)):
            raise InputError(
                f"{self.work_dir} has a comma or an @, which stand between the runs of an "
                "ensemble; expected another directory, or one seed"
            )

    def _pairs_dir(self, kind: Synthetic) -> Path:
        return self.work_dir / "synthetic" / kind

    def finished_results(self) -> dict[str, Any] | None:
        """Returns the results of an earlier call if they are of all seeds, and only of them."""
        results = read_results(self.work_dir / RESULTS)
        same_seeds = results.get("seeds", {}).keys() == {str(seed) for seed in self._seeds}
        return results if results.get("finished") and same_seeds else None

    def export(self) -> Path | None:
        """Returns the export that writes pairs, or None if it is not finished."""
        results = self.finished_results()
        if results is None:
            return None
        try:
            several = len(self._seeds) > 1
            result = results["ensemble"] if several else results["seeds"][str(self._seeds[0])]
            return self.work_dir / result["export"]
        except (KeyError, TypeError):
            raise InputError(
                f"{self.work_dir / RESULTS} is finished and names no export; expected one"
            ) from None

    def check(self, corpus_dir: Path, *, is_writer: bool = False) -> None:
        """Opens all texts, and finds mistakes that would show after hours of training."""
        with begun(self.work_dir, self._identity):  # parts that are held out are written
            self._texts = open_texts(
                self._recipe,
                corpus_dir,
                self.work_dir / "text",
                check_training=is_writer or bool(self._kinds),
            )
        for kind, model_dir in self._given.items():
            check_writer(self._pairs_dir(kind), model_dir)
        for kind, writer in self._writers.items():
            if (exported := writer.export()) is not None:
                check_writer(self._pairs_dir(kind), exported)
            elif writer_fingerprint(self._pairs_dir(kind)):
                raise InputError(
                    f"{self._pairs_dir(kind)} was begun by a model that is gone; expected it in "
                    f"{writer.work_dir}, or no {self._pairs_dir(kind)}"
                )
            else:
                writer.check(corpus_dir, is_writer=True)

    def run(self, deadline: Deadline, computing: Mapping[str, Any]) -> dict[str, Any]:
        """Trains and scores what `check` has opened; writes and returns the results."""
        with begun(self.work_dir, self._identity):
            if self._train_writers(deadline, computing):
                results = self._run(deadline, computing)
            else:
                log.info("time is over before all writers are trained; the same command continues")
                seeds = read_results(self.work_dir / RESULTS).get("seeds", {})  # of other calls
                results = {**self._facts, **run_metadata(), "finished": False, "seeds": seeds}
            write_results(self.work_dir / RESULTS, results)
        return results

    def _train_writers(self, deadline: Deadline, computing: Mapping[str, Any]) -> bool:
        """Trains the models that write pairs; False if time was over before they were finished."""
        for kind, writer in self._writers.items():
            if writer.export() is None:
                if deadline.passed:
                    return False
                log.info("the writer of %s: %s", kind, self._facts["written_by"][kind])
                try:
                    results = writer.run(deadline, computing)
                except DivergedError as error:
                    raise InputError(f"the writer of {kind} has diverged: {error}") from error
                if not results["finished"]:
                    return False
        return True

    def _run(self, deadline: Deadline, computing: Mapping[str, Any]) -> dict[str, Any]:
        metadata = run_metadata()
        corpora = [self._texts.train]
        for kind in self._kinds:
            writer = self._writers.get(kind)
            model_dir = writer.export() if writer else self._given.get(kind)
            corpora.append(
                synthetic_pairs(kind, self._texts.train, model_dir, self._pairs_dir(kind))
            )
        facts = dict(self._facts)
        if self._kinds:
            facts["writers_sha256"] = {
                kind: writer_fingerprint(self._pairs_dir(kind)) for kind in self._kinds
            }
        prepared = prepare(
            corpora,
            self.work_dir / "data",
            PrepareOptions(**self._recipe.prepare),
            valid_corpora=[self._texts.valid],
        )
        log.info(prepared.summary())
        write_data_page(prepared.directory, dataclasses.asdict(PrepareOptions()))
        models = RecipeModels(self._recipe, self.work_dir, self._texts.tests, computing)
        trials = {
            str(seed): Trial(f"seed-{seed}", models.train, (seed,), facts=facts)
            for seed in self._seeds
        }
        found = run_trials(list(trials.values()), self.work_dir, deadline)
        by_seed = {seed: found[trial.name] for seed, trial in trials.items() if trial.name in found}
        results = {**facts, **metadata, "finished": False, "seeds": by_seed}
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
            results["finished"] = True
        return results
