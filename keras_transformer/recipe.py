"""Recipes: a folder of data that says how a result is reached, and what runs it.

A recipe is `recipes/NAME/recipe.json`: which files of a corpus directory train,
validate and test; how they are prepared; a preset and what differs from it; how
many checkpoints are averaged; how test translations are scored.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_transformer import evaluation, experiment, inference, loading
from keras_transformer.data.corpus import ParallelFiles
from keras_transformer.data.prepare import PrepareOptions, prepare
from keras_transformer.data.reading import read_text
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.export import export
from keras_transformer.presets import preset
from keras_transformer.report import write_data_page
from keras_transformer.run_directory import RunDirectory

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What recipe.json says, by its own names.

    Attributes:
        name: the folder's name.
        description: one sentence.
        corpus: split ("train", "valid", "test") → source file and target file.
        prepare: fields of `PrepareOptions`.
        preset: name of the configuration to begin with.
        settings: what differs from it.
        average_last: number of the last checkpoints that are averaged.
        evaluate: `tokenize` and `lowercase` of the scores.
    """

    name: str
    description: str
    corpus: Mapping[str, list[str]]
    prepare: Mapping[str, Any]
    preset: str
    settings: Mapping[str, Any]
    average_last: int
    evaluate: Mapping[str, Any]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all fields but the description."""
        fields = {**dataclasses.asdict(self), "description": None}
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()

    @classmethod
    def load(cls, recipes_dir: str | Path, name: str) -> Recipe:
        """Reads `recipes_dir/name/recipe.json`.

        Raises:
            InputError: for a recipe that is not there, or that has other fields.
        """
        path = Path(recipes_dir) / name / "recipe.json"
        if not path.is_file():
            known = sorted(p.parent.name for p in Path(recipes_dir).glob("*/recipe.json"))
            raise InputError(f"there is no recipe {name!r}; expected one of {', '.join(known)}")
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InputError(f"{path} is no JSON: {error}") from None
        expected = {field.name for field in dataclasses.fields(cls)} - {"name"}
        if not isinstance(fields, dict) or fields.keys() != expected:
            raise InputError(f"{path} has other fields than {', '.join(sorted(expected))}")
        try:  # what training and scoring would only find later
            PrepareOptions(**fields["prepare"])
            preset(fields["preset"]).updated(fields["settings"])
            evaluation.evaluate(["a"], ["a"], **fields["evaluate"])
        except (InputError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: {error}") from None
        corpus, count = fields["corpus"], fields["average_last"]
        if not isinstance(corpus, dict) or corpus.keys() != {"train", "valid", "test"}:
            raise InputError(f"{path}: corpus has other splits than train, valid and test")
        for split, pair in corpus.items():
            if not isinstance(pair, list) or [type(name) for name in pair] != [str, str]:
                raise InputError(f"{path}: {split} is {pair!r}; expected a source and a target")
        if type(count) is not int or count < 1:
            raise InputError(f"{path}: average_last is {count!r}; expected 1 or more")
        return cls(name=name, **fields)


def run_recipe(
    recipe: Recipe,
    corpus_dir: str | Path,
    work_dir: str | Path,
    *,
    max_minutes: float | None = None,
) -> dict[str, Any]:
    """Prepares, trains, chooses on validation, exports, and scores the export on the test set.

    Leaves `data`, `run`, `export/1` and `results.json` in `work_dir`. What is
    done already is not done again, so the same call continues after a stop.
    After one by `max_minutes` the call that continues exports the next version;
    `results.json` names it.

    Args:
        recipe: what to run.
        corpus_dir: directory of the recipe's corpus files.
        work_dir: where everything is written.
        max_minutes: end this call's training after so long; what comes after is
            done with the weights so far, and the next call trains on.

    Returns:
        What is in results.json.

    Raises:
        InputError: for a corpus that cannot be read, or a `work_dir` of something else.
    """
    work_dir = Path(work_dir)
    results_path = work_dir / "results.json"
    results = _existing_results(results_path, recipe)
    if results.get("finished"):
        log.info("%s is finished: %s", work_dir, results_path)
        return dict(results)
    files = {
        split: ParallelFiles(*(Path(corpus_dir) / name for name in pair))
        for split, pair in recipe.corpus.items()
    }
    collections.deque(files["test"].pairs(), maxlen=0)  # its mistakes show before training
    prepared = prepare(
        [files["train"]],
        work_dir / "data",
        PrepareOptions(**recipe.prepare),
        valid_corpora=[files["valid"]],
    )
    log.info(prepared.summary())
    write_data_page(prepared.directory, dataclasses.asdict(PrepareOptions()))
    trained = experiment.train(
        work_dir / "data",
        work_dir / "run",
        recipe.preset,
        recipe.settings,
        max_minutes=max_minutes,
    )
    log.info(trained.summary(work_dir / "run"))
    if trained.interrupted:
        raise KeyboardInterrupt
    run = RunDirectory(work_dir / "run")
    validation = _choose_weights(run, recipe, work_dir / "data")
    exported = export(
        run, work_dir / "export", TokenStore(work_dir / "data" / "valid").source_text()
    )
    log.info("exported %s", exported.path)
    test = _score(exported.path, files["test"], recipe)
    results = _describe(recipe, trained, run, validation, exported.path, test)
    temporary = results_path.with_suffix(".tmp")
    temporary.write_text(json.dumps(results, indent=2) + "\n")
    temporary.replace(results_path)
    return results


def _existing_results(path: Path, recipe: Recipe) -> dict[str, Any]:
    """Returns what an earlier call of the same recipe has left, or nothing."""
    if not path.exists():
        return {}
    try:
        results = dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} is no JSON object ({error}); expected results, or none") from None
    if results.get("recipe") != recipe.name:
        raise InputError(
            f"{path} is of {results.get('recipe', 'something else')}, not of the recipe "
            f"{recipe.name}; expected another directory"
        )
    if results.get("recipe_sha256") != recipe.fingerprint:
        raise InputError(
            f"{path} is of another version of the recipe {recipe.name}; expected another directory"
        )
    return results


def _describe(
    recipe: Recipe,
    trained: experiment.Trained,
    run: RunDirectory,
    validation: Mapping[str, float],
    exported: Path,
    test: inference.Evaluation,
) -> dict[str, Any]:
    """Returns what results.json holds."""
    return {
        "recipe": recipe.name,
        "recipe_sha256": recipe.fingerprint,
        "command": shlex.join(sys.argv),
        "finished": trained.finished,
        "test": dataclasses.asdict(test.scores),
        "test_seconds": round(test.seconds, 1),
        "validation": dict(validation),
        "weights": run.selected,
        "steps": trained.step,
        "training_minutes": round(trained.metrics["training_seconds"] / 60, 1),
        "tokens_per_second": round(trained.tokens_per_second),
        "peak_memory_mb": round(trained.metrics["peak_memory_mb"]),
        "parameters": run.config.model.num_parameters(),
        "export": f"{exported.parent.name}/{exported.name}",
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("tensorflow", "keras", "tensorflow-text", "sacrebleu")
        },
        "machine": {"processor": _processor(), "cores": os.cpu_count()},
    }


def _processor() -> str:
    """The processor's name where the system tells it, else its kind."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def _choose_weights(run: RunDirectory, recipe: Recipe, data_dir: Path) -> dict[str, float]:
    """Selects the last weights or their average, whichever has more BLEU on validation."""
    store = TokenStore(data_dir / "valid")
    count = min(recipe.average_last, len(run.checkpoints()))
    candidates = ["last"]
    if count > 1:
        candidates.append(inference.average_checkpoints(run, count))
    bleu = {}
    for name in candidates:
        run.select(name)
        model = loading.load_model(run.path)
        scores = inference.evaluate(
            model, store.source_text(), store.target_text(), **recipe.evaluate
        ).scores
        bleu[name] = round(scores.bleu, 2)
        log.info("validation BLEU of %s: %.2f", name, scores.bleu)
    run.select(max(bleu, key=lambda name: bleu[name]))
    return bleu


def _score(model_dir: Path, files: ParallelFiles, recipe: Recipe) -> inference.Evaluation:
    sources, references = read_text(files.source), read_text(files.target)
    model = loading.load_model(model_dir)
    result = inference.evaluate(model, sources, references, **recipe.evaluate)
    log.info("test: %s", result.summary())
    return result
