"""Models of a recipe: each is trained, chosen on validation, exported, and scored by its export."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics
from keras_transformer.evaluation.test_sets import EvaluationSet
from keras_transformer.export import export
from keras_transformer.inference import loading, translate
from keras_transformer.paper.recipes.recipe import Recipe, Scoring
from keras_transformer.runs import averaging
from keras_transformer.runs.results import circumstances, read_results, write_lines, write_results
from keras_transformer.runs.run_directory import RunDirectory, training_alone
from keras_transformer.training import training_run

log = logging.getLogger(__name__)

_PENALTY = "decoding.length_penalty"


class RecipeModels:
    """The models of a recipe: of each seed one, and all of them as an ensemble.

    Attributes:
        facts: what results say of the recipe and of where it is followed.
    """

    def __init__(
        self,
        recipe: Recipe,
        work_dir: Path,
        tests: Mapping[str, EvaluationSet],
        computing: Mapping[str, Any],
        facts: Mapping[str, Any],
    ) -> None:
        self._recipe = recipe
        self._settings = {**recipe.settings, **computing}
        self._work_dir = work_dir
        self._tests = tests
        # Now: a checkout or an update while it trains changes nothing of what is trained.
        self.facts = {**facts, **circumstances()}
        store = TokenStore(work_dir / "data" / "valid")
        self._sources, self._references = store.source_text(), store.target_text()
        for name, test in tests.items():
            if not test.name:
                _keep(work_dir / "tests" / f"{name}.source", test.sources or [])
                _keep(work_dir / "tests" / f"{name}.reference", test.references[0])

    def run(self, seed: int, max_minutes: float | None, steps_after: int) -> dict[str, Any]:
        """Trains, chooses, exports and scores by one seed; returns its results.

        Raises:
            InputError: where another process is at the same seed.
        """
        directory = self._work_dir / f"seed-{seed}"
        with training_alone(directory):  # until its results are there, not just while it trains
            return self._run(seed, directory, max_minutes, steps_after)

    def _run(
        self, seed: int, directory: Path, max_minutes: float | None, steps_after: int
    ) -> dict[str, Any]:
        existing = read_results(directory / "results.json")
        if existing.get("finished"):
            return existing
        trained = training_run.train(
            self._work_dir / "data",
            directory / "run",
            self._recipe.preset,
            {**self._settings, "training.seed": seed},
            training_run.TrainOptions(max_minutes=max_minutes),
        )
        log.info(trained.summary(directory / "run"))
        if trained.interrupted:
            raise KeyboardInterrupt
        run, done = RunDirectory(directory / "run"), trained.finished
        validation, penalty = self._choose(run)
        results = {
            **self.facts,
            "seed": seed,
            "finished": done,
            "validation": validation,
            # A stop by time is not validated.
            "validation_perplexity": trained.metrics.get("val_perplexity"),
            "weights": run.selected,
            "length_penalty": penalty,
            # Not at a stop by time: what is chosen there would be chosen by the tests.
            **self._export_and_score(run, directory, penalty, self._tests if done else {}),
            "steps": trained.step,
            "training_minutes": round(trained.metrics["training_seconds"] / 60, 1),
            "tokens_per_second": round(trained.tokens_per_second),
            "peak_memory_mb": round(trained.metrics["peak_memory_mb"]),
            "parameters": run.config.model.num_parameters(),
        }
        write_results(directory / "results.json", results)
        return results

    def ensemble(self, weights: Mapping[int, str]) -> dict[str, Any]:
        """Exports runs as one model, and scores it; returns the results.

        Args:
            weights: by seed, the name of those that were chosen for it.

        Raises:
            InputError: where another process is at it.
        """
        directory = self._work_dir / "ensemble"
        with training_alone(directory):
            return self._ensemble(weights, directory)

    def _ensemble(self, weights: Mapping[int, str], directory: Path) -> dict[str, Any]:
        members = ",".join(
            f"{self._work_dir / f'seed-{seed}' / 'run'}@{name}" for seed, name in weights.items()
        )
        by_penalty = self._by_penalty(members, self._recipe.config().decoding.length_penalty)
        penalty = _best(by_penalty)
        results = {
            **self.facts,
            "weights": {str(seed): name for seed, name in weights.items()},
            "validation": {f"length penalty {a:g}": bleu for a, bleu in by_penalty.items()},
            "length_penalty": penalty,
            **self._export_and_score(members, directory, penalty, self._tests),
        }
        write_results(directory / "results.json", results)
        return results

    def _choose(self, run: RunDirectory) -> tuple[dict[str, float], float]:
        """Selects the weights that have the most BLEU on validation, then a length penalty."""
        checkpoints = len(run.checkpoints())
        counts = sorted({min(count, checkpoints) for count in self._recipe.average_last} - {0, 1})
        names = ["last", *(averaging.average_checkpoints(run, count) for count in counts)]
        if run.config.training.ema_decay:
            names.append("ema")
        default = run.config.decoding.length_penalty
        bleu = {}
        for name in names:
            run.select(name)
            bleu[name] = self._validate(run.path, default)
            log.info("validation BLEU of %s: %.2f", name, bleu[name])
        run.select(_best(bleu))
        by_penalty = self._by_penalty(run.path, default, bleu[run.selected])
        for penalty, score in by_penalty.items():
            if penalty != default:
                bleu[f"{run.selected}, length penalty {penalty:g}"] = score
        return bleu, _best(by_penalty)

    def _by_penalty(
        self, model_dir: str | Path, default: float, known: float | None = None
    ) -> dict[float, float]:
        """Returns BLEU on the validation set by length penalty; the default's may be known."""
        bleu = {} if known is None else {default: known}
        for penalty in (default, *self._recipe.length_penalties):
            if penalty not in bleu:
                bleu[penalty] = self._validate(model_dir, penalty)
                log.info("validation BLEU with α %g: %.2f", penalty, bleu[penalty])
        return bleu

    def _validate(self, model_dir: str | Path, penalty: float) -> float:
        """Returns BLEU on the validation set."""
        model = loading.load_model(model_dir, {_PENALTY: penalty})
        hypotheses = _translations(model, self._sources)
        scoring: Scoring = {**self._recipe.evaluate, "as_in_paper": False}
        return round(metrics.assess(hypotheses, self._references, **scoring).scores.bleu, 2)

    def _export_and_score(
        self,
        run: RunDirectory | str,
        directory: Path,
        penalty: float,
        tests: Mapping[str, EvaluationSet],
    ) -> dict[str, Any]:
        """Exports, and translates and scores every test by the export."""
        exported = export(run, directory / "export", self._sources, settings={_PENALTY: penalty})
        log.info("exported %s", exported.path)
        model = loading.load_model(exported.path)
        results = {}
        for name, test in tests.items():
            start = time.perf_counter()
            hypotheses = _translations(model, test.sources or [])
            seconds = time.perf_counter() - start
            assessment = metrics.assess(hypotheses, test, **self._recipe.evaluate)
            log.info("%s: %s", name, assessment.summary())
            results[name] = {
                **assessment.fields(),
                "seconds": round(seconds, 1),
                "published": self._recipe.published.get(name),
                "repeat": self._evaluate_command(name, test, exported.path),
            }
            write_lines(directory / f"{name}.translations", hypotheses)
        return {"tests": results, "export": str(exported.path.relative_to(self._work_dir))}

    def _evaluate_command(self, name: str, test: EvaluationSet, model_dir: Path) -> str:
        """Returns the command that scores an export on a test again."""
        flags = [f"--model_dir={model_dir}"]
        if test.name:
            flags += [f"--test_set={test.name}", f"--language_pair={test.language_pair}"]
        else:
            for side in ("source", "reference"):
                flags.append(f"--{side}={self._work_dir / 'tests' / f'{name}.{side}'}")
        scoring = self._recipe.evaluate
        if scoring.get("tokenize"):
            flags.append(f"--tokenize={scoring['tokenize']}")
        flags += ["--lowercase"] * bool(scoring.get("lowercase"))
        flags += ["--paper_bleu"] * bool(scoring.get("as_in_paper"))
        return shlex.join(["bin/evaluate.py", *flags])


def _keep(path: Path, lines: Sequence[str]) -> None:
    """Writes a text that is scored on; raises `InputError` where another has been before."""
    if not path.exists():
        write_lines(path, lines)
    elif path.read_bytes() != "".join(f"{line}\n" for line in lines).encode():
        raise InputError(
            f"{path} is of other text than the corpus; expected the same corpus, or another "
            "directory"
        )


def _translations(model: loading.LoadedModel, sources: Sequence[str]) -> list[str]:
    return [best.text for best, *_ in translate.translate_lines(model, sources)]


def _best(bleu: Mapping[Any, float]) -> Any:
    return max(bleu, key=lambda name: bleu[name])
