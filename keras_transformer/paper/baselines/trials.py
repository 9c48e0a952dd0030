"""One model of a comparison: trained and scored in a process of its own, once.

NAME/trial.json    settings, data and tests that run/ began with
NAME/run/          a run, with its report
NAME/results.json  what it cost, its curve over training, and its scores
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.paper import child_process as process
from keras_transformer.paper.baselines.material import Material, Trial
from keras_transformer.runs.results import read_results, run_metadata, write_results
from keras_transformer.tf_import import load_tensorflow

log = logging.getLogger(__name__)


def run_trial(
    trial: Trial, material: Material, work_dir: Path, max_minutes: float | None = None
) -> dict[str, Any]:
    """Trains and scores one model, or goes on where an earlier call was stopped.

    Args:
        trial: the model.
        material: what it is trained and tested on.
        work_dir: gets a folder of the trial's name.
        max_minutes: end this call's training after so long; what comes after is done with the
            weights so far, and the next call trains on.

    Returns:
        What is in results.json; `finished` where it was trained to the end.

    Raises:
        InputError: for settings or data that do not fit, or a folder of something else.
        KeyboardInterrupt: where training was interrupted; a checkpoint is written.
    """
    directory = work_dir / trial.name
    check_same(trial, material, work_dir)
    existing = read_results(directory / "results.json")
    if existing.get("finished"):
        return existing
    log.info("%s: %s", trial.name, trial.title)
    own = _identity(trial, material)
    directory.mkdir(parents=True, exist_ok=True)
    if not _begun(directory):
        write_results(directory / "trial.json", own)
    found = process.call(_train_and_score, trial, material, directory / "run", max_minutes)
    results = {**run_metadata(), "name": trial.name, "title": trial.title}
    results |= {**own, **found}
    write_results(directory / "results.json", results)
    return results


def check_same(trial: Trial, material: Material, work_dir: Path) -> None:
    """Raises `InputError` for a trial that was begun with other settings, data or tests."""
    directory = work_dir / trial.name
    expected = _identity(trial, material)  # reads all of the material: what lacks is told first
    found = read_results(directory / "results.json")
    if not found and _begun(directory):  # and killed, before there were results
        found = read_results(directory / "trial.json")
    if found and any(found.get(name) != value for name, value in expected.items()):
        raise InputError(
            f"{directory} holds {trial.name} with other settings, data or tests; expected those "
            "that it was made with, the same for all models of a study, or another --work_dir"
        )


def _begun(directory: Path) -> bool:
    """Whether there is a run: settings that it refused have begun none."""
    return (directory / "run" / "config.json").is_file()


def _identity(trial: Trial, material: Material) -> dict[str, Any]:
    """All that results depend on besides code and machine."""
    return {
        "material": material.fingerprint,
        "architecture": trial.architecture,
        "settings": dict(trial.settings),
    }


def _train_and_score(*arguments: Any) -> dict[str, Any]:
    """`measuring.train_and_score`, in a process that has no TensorFlow yet."""
    # Late: what asks for models has none, which would hold the GPU that a model needs.
    load_tensorflow()
    from keras_transformer.paper.baselines.measuring import train_and_score

    return train_and_score(*arguments)
