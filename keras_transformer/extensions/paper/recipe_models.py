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
from keras_transformer.extensions.paper.recipe import Recipe, Scoring
from keras_transformer.extensions.paper.texts import keep_text
from keras_transformer.inference import loading, translate
from keras_transformer.inference.engine import Engine
from keras_transformer.presets import preset
from keras_transformer.runs import averaging
from keras_transformer.runs.run_directory import RunDirectory

log = logging.getLogger(__name__)

_PENALTY = "decoding.length_penalty"


class RecipeModels:
    """Trains and scores one model for each seed, and all of them as an ensemble.

    `train`, `initial` and `ensemble` are functions of rows.
    """

    def __init__(
        self,
        recipe: Recipe,
        work_dir: Path,
        tests: Mapping[str, EvaluationSet],
        settings: Mapping[str, Any],
        init_from: str | None = None,
    ) -> None:
        self._recipe, self._work_dir, self._tests = recipe, work_dir, tests
        self._init_from = init_from
        self._config = initial_config(recipe, init_from)
        self._settings = {**recipe.settings, **settings}
        store = TokenStore(work_dir / "data" / "valid")
        self._sources, self._references = store.source.text(), store.target.text()
        for name, test in tests.items():
            if not test.name:  # sacreBLEU stores its own test sets
                for side, lines in (("source", test.sources), ("reference", test.references[0])):
                    encoded = (line.encode() for line in lines or [])
                    keep_text(work_dir / "tests" / f"{name}.{side}", encoded)

    def train(self, directory: Path, max_minutes: float | None, seed: int) -> dict[str, Any]:
        """Trains, selects weights and a length penalty, exports and scores the model of a seed.

        Tests are scored after training and selection, so test scores do not affect either.
        """
        trained, run = experiment.train(
            directory, max_minutes, self._work_dir / "data", self._config,
            {**self._settings, "training.seed": seed}, init_from=self._init_from,
        )  # fmt: skip
        saved, penalty = len(run.checkpoints()), run.config.decoding.length_penalty
        counts = sorted({min(count, saved) for count in self._recipe.average_last} - {0, 1})
        names = ["last", *(averaging.average_checkpoints(run, count) for count in counts)]
        names += ["ema"] * bool(run.config.training.ema_decay)
        by_weights = {}
        for name in names:
            run.select(name)
            by_weights[name] = self._validate(run.path, penalty)
        run.select(_best(by_weights))
        others = {
            other: self._validate(run.path, other)
            for other in self._recipe.length_penalties
            if other != penalty
        }
        chosen = _best({penalty: by_weights[run.selected], **others})
        by_penalty = {f"{run.selected}, length penalty {a:g}": bleu for a, bleu in others.items()}
        return {
            "seed": seed,
            "finished": trained.finished,
            "validation": {**by_weights, **by_penalty},
            # Missing if `max_minutes` stopped the training.
            "validation_perplexity": trained.metrics.get("val_perplexity"),
            "weights": run.selected,
            "length_penalty": chosen,
            **self._export_and_score(run, directory, chosen, trained.finished),
            **experiment.costs(trained, run),
        }

    def initial(self, directory: Path, max_minutes: float | None) -> dict[str, Any]:
        """Scores the model that fine-tuning starts from, with its own search."""
        model = loading.load_model(str(self._init_from))
        return {
            "finished": True,
            "validation": {"initial": self._validation_bleu(model)},
            "tests": self._score_tests(model, str(self._init_from), directory),
        }

    def ensemble(
        self, directory: Path, max_minutes: float | None, weights: Mapping[int, str]
    ) -> dict[str, Any]:
        """Exports several runs as one model, and scores it."""
        members = ",".join(
            f"{self._work_dir / f'seed-{seed}' / 'run'}@{name}" for seed, name in weights.items()
        )
        default = self._config.updated(self._settings).decoding.length_penalty
        penalties = dict.fromkeys((default, *self._recipe.length_penalties))
        bleu = {penalty: self._validate(members, penalty) for penalty in penalties}
        penalty = _best(bleu)
        return {
            "finished": True,
            "weights": {str(seed): name for seed, name in weights.items()},
            "validation": {f"length penalty {a:g}": score for a, score in bleu.items()},
            "length_penalty": penalty,
            **self._export_and_score(members, directory, penalty, True),
        }

    def _validate(self, model_dir: str | Path, penalty: float) -> float:
        """Returns BLEU on the validation set."""
        bleu = self._validation_bleu(loading.load_model(model_dir, {_PENALTY: penalty}))
        log.info("validation BLEU of %s with α %g: %.2f", model_dir, penalty, bleu)
        return bleu

    def _validation_bleu(self, model: Engine) -> float:
        scoring: Scoring = {**self._recipe.evaluate, "as_in_paper": False}
        scored = metrics.evaluate(_translations(model, self._sources), self._references, **scoring)
        return round(scored.bleu, 2)

    def _export_and_score(
        self, run: RunDirectory | str, directory: Path, penalty: float, with_tests: bool
    ) -> dict[str, Any]:
        """Exports, and scores every test by the SavedModel if `with_tests`."""
        paths = {}
        for name in ("export", *self._recipe.more_formats):
            format_ = "saved_model" if name == "export" else name
            version = export(
                run, directory / name, self._sources, format=format_, settings={_PENALTY: penalty}
            )
            log.info("exported %s", version.path)
            paths[name] = version.path
        model = loading.load_model(paths["export"])
        results = self._score_tests(model, paths["export"], directory) if with_tests else {}
        relative = {name: str(path.relative_to(self._work_dir)) for name, path in paths.items()}
        return {"tests": results, **relative}

    def _score_tests(self, model: Engine, model_dir: str | Path, directory: Path) -> dict[str, Any]:
        """Translates and scores every test, and writes the translations to a directory."""
        results = {}
        for name, test in self._tests.items():
            start = time.perf_counter()
            hypotheses = _translations(model, test.sources or [])
            seconds = time.perf_counter() - start
            scores = metrics.evaluate(hypotheses, test, **self._recipe.evaluate)
            log.info("%s: %s", name, scores.summary())
            results[name] = {
                **scores.fields(),
                "seconds": round(seconds, 1),
                "published": self._recipe.published.get(name),
                "repeat": self._evaluate_command(name, test, model_dir),
            }
            experiment.write_lines(directory / f"{name}.translations", hypotheses)
        return results

    def _evaluate_command(self, name: str, test: EvaluationSet, model_dir: str | Path) -> str:
        """Returns the command that scores a model on a test again."""
        files = self._work_dir / "tests" / name
        flags = [f"--model_dir={model_dir}"]
        if test.name:
            flags += [f"--test_set={test.name}", f"--language_pair={test.language_pair}"]
        else:
            flags += [f"--source={files}.source", f"--reference={files}.reference"]
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


def _translations(model: Engine, sources: Sequence[str]) -> list[str]:
    return [best.text for best, *_ in translate.translate_lines(model, sources)]


def _best(bleu: Mapping[Any, float]) -> Any:
    return max(bleu, key=lambda name: bleu[name])
