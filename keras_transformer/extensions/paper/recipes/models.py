"""The models of a recipe: trained, selected on validation, exported, and scored by the export."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.config import Config, RunConfig
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics
from keras_transformer.evaluation.test_sets import EvaluationSet
from keras_transformer.export import export
from keras_transformer.extensions.paper import experiment
from keras_transformer.extensions.paper.recipes.recipe import Recipe, Scoring
from keras_transformer.extensions.paper.recipes.texts import keep_text
from keras_transformer.extensions.paper.results import write_lines
from keras_transformer.inference import loading, translate
from keras_transformer.presets import preset
from keras_transformer.runs import averaging
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.training import training_run

log = logging.getLogger(__name__)

_PENALTY = "decoding.length_penalty"


class RecipeModels:
    """Trains and scores one model for each seed, and all of them as an ensemble."""

    def __init__(
        self,
        recipe: Recipe,
        work_dir: Path,
        tests: Mapping[str, EvaluationSet],
        settings: Mapping[str, Any],
        init_from: str | None = None,
    ) -> None:
        self._recipe = recipe
        self._init_from = init_from
        self._config = initial_config(recipe, init_from)
        self._settings = {**recipe.settings, **settings}
        self._work_dir = work_dir
        self._tests = tests
        store = TokenStore(work_dir / "data" / "valid")
        self._sources, self._references = store.source_text(), store.target_text()
        for name, test in tests.items():
            if not test.name:  # sacreBLEU stores its own test sets
                for side, lines in (("source", test.sources), ("reference", test.references[0])):
                    encoded = (line.encode() for line in lines or [])
                    keep_text(work_dir / "tests" / f"{name}.{side}", encoded)

    def train(self, directory: Path, max_minutes: float | None, seed: int) -> dict[str, Any]:
        """Trains, selects weights and a length penalty, exports and scores the model of a seed.

        This is the function of a `Trial`. Tests are scored after training and selection, so test
        scores do not affect either.
        """
        trained = training_run.train(
            self._work_dir / "data",
            directory / "run",
            self._config,
            {**self._settings, "training.seed": seed},
            training_run.TrainOptions(init_from=self._init_from, max_minutes=max_minutes),
        )
        log.info(trained.summary(directory / "run"))
        if trained.interrupted:
            raise KeyboardInterrupt
        run = RunDirectory(directory / "run")
        validation, penalty = self._choose(run)
        return {
            "seed": seed,
            "finished": trained.finished,
            "validation": validation,
            # Missing if `max_minutes` stopped the training.
            "validation_perplexity": trained.metrics.get("val_perplexity"),
            "weights": run.selected,
            "length_penalty": penalty,
            **self._export_and_score(run, directory, penalty, trained.finished),
            **experiment.costs(trained, run),
        }

    def initial(self, directory: Path, max_minutes: float | None) -> dict[str, Any]:
        """Scores the model that fine-tuning starts from, with its own search.

        It is the function of a `Trial`.
        """
        model = loading.load_model(str(self._init_from))
        hypotheses = _translations(model, self._sources)
        return {
            "finished": True,
            "validation": {"initial": self._validation_bleu(hypotheses)},
            "tests": self._score_tests(model, str(self._init_from), directory),
        }

    def ensemble(
        self, directory: Path, max_minutes: float | None, weights: Mapping[int, str]
    ) -> dict[str, Any]:
        """Exports several runs as one model, and scores it.

        It is the function of a `Trial`.
        """
        members = ",".join(
            f"{self._work_dir / f'seed-{seed}' / 'run'}@{name}" for seed, name in weights.items()
        )
        default = self._config.updated(self._settings).decoding.length_penalty
        by_penalty = self._by_penalty(members, default)
        penalty = _best(by_penalty)
        return {
            "weights": {str(seed): name for seed, name in weights.items()},
            "validation": {f"length penalty {a:g}": bleu for a, bleu in by_penalty.items()},
            "length_penalty": penalty,
            **self._export_and_score(members, directory, penalty, True),
        }

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
        """Returns validation BLEU by length penalty. `known` is BLEU with the default."""
        bleu = {} if known is None else {default: known}
        for penalty in (default, *self._recipe.length_penalties):
            if penalty not in bleu:
                bleu[penalty] = self._validate(model_dir, penalty)
                log.info("validation BLEU with α %g: %.2f", penalty, bleu[penalty])
        return bleu

    def _validate(self, model_dir: str | Path, penalty: float) -> float:
        """Returns BLEU on the validation set."""
        model = loading.load_model(model_dir, {_PENALTY: penalty})
        return self._validation_bleu(_translations(model, self._sources))

    def _validation_bleu(self, hypotheses: Sequence[str]) -> float:
        scoring: Scoring = {**self._recipe.evaluate, "as_in_paper": False}
        return round(metrics.assess(hypotheses, self._references, **scoring).scores.bleu, 2)

    def _export_and_score(
        self,
        run: RunDirectory | str,
        directory: Path,
        penalty: float,
        with_tests: bool,
    ) -> dict[str, Any]:
        """Exports, and scores every test by the export if `with_tests`."""
        exported = export(run, directory / "export", self._sources, settings={_PENALTY: penalty})
        log.info("exported %s", exported.path)
        exports = {"export": exported.path}
        for name in self._recipe.more_formats:
            version = export(
                run, directory / name, self._sources, format=name, settings={_PENALTY: penalty}
            )
            log.info("exported %s", version.path)
            exports[name] = version.path
        model = loading.load_model(exported.path)
        results = self._score_tests(model, exported.path, directory) if with_tests else {}
        relative = {name: str(path.relative_to(self._work_dir)) for name, path in exports.items()}
        return {"tests": results, **relative}

    def _score_tests(
        self, model: loading.LoadedModel, model_dir: str | Path, directory: Path
    ) -> dict[str, Any]:
        """Translates and scores every test, and writes the translations to a directory."""
        results = {}
        for name, test in self._tests.items():
            start = time.perf_counter()
            hypotheses = _translations(model, test.sources or [])
            seconds = time.perf_counter() - start
            assessment = metrics.assess(hypotheses, test, **self._recipe.evaluate)
            log.info("%s: %s", name, assessment.summary())
            results[name] = {
                **assessment.fields(),
                "seconds": round(seconds, 1),
                "published": self._recipe.published.get(name),
                "repeat": self._evaluate_command(name, test, model_dir),
            }
            write_lines(directory / f"{name}.translations", hypotheses)
        return results

    def _evaluate_command(self, name: str, test: EvaluationSet, model_dir: str | Path) -> str:
        """Returns the command that scores a model on a test again."""
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
        return shlex.join(["keras-transformer", "evaluate", *flags])


def initial_config(recipe: Recipe, init_from: str | None) -> RunConfig:
    """Returns the configuration that the settings of a recipe change."""
    config: RunConfig = preset(recipe.preset)
    if init_from is None:
        return config
    run, weights = _open_given("init_from", init_from)
    run.named_weights(weights)  # reports damaged weights before anything is prepared
    return dataclasses.replace(config, model=run.config.model, decoding=run.config.decoding)


def run_identity(role: str, path: str) -> dict[str, str]:
    """Returns the path of a run that the user gives, and a SHA-256 of its model."""
    run, weights = _open_given(role, path)
    _, name = RunDirectory.split_weights(path)
    content = [
        run.config.model.as_dict(),
        run.config.decoding.as_dict(),
        run.tokenizer().vocabulary.fingerprint,
        run.weights_crc32(weights),
    ]
    return {
        role: str(run.path.resolve()) + (f"@{name}" if name else ""),
        f"{role}_sha256": hashlib.sha256(json.dumps(content).encode()).hexdigest(),
    }


def _open_given(role: str, given: str) -> tuple[RunDirectory, str]:
    """Returns a run that the user gives, and the name of its weights."""
    path, name = RunDirectory.split_weights(given)
    if not RunDirectory.is_run(path):
        raise InputError(
            f"--{role} is {given}, which is not a run. Convert a model of another toolkit "
            "first, with keras-transformer convert."
        )
    run = RunDirectory(path, Config)
    return run, name or run.selected


def _translations(model: loading.LoadedModel, sources: Sequence[str]) -> list[str]:
    return [best.text for best, *_ in translate.translate_lines(model, sources)]


def _best(bleu: Mapping[Any, float]) -> Any:
    return max(bleu, key=lambda name: bleu[name])
