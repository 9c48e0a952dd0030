"""Averages of the weights of checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.runs.checkpoints import Arrays
from keras_transformer.runs.run_directory import RunDirectory


def average_checkpoints(
    run: RunDirectory, last: int | None = None, *, best: int | None = None
) -> str:
    """Averages the weights (no EMA) of checkpoints, saves the mean and selects it."""
    if last is not None and best is not None:
        raise InputError(
            f"The last {last} and the best {best} checkpoints were both requested. Choose one of "
            "the two."
        )
    kind, count = ("best", best) if best is not None else ("last", last or 0)
    checkpoints = run.best_checkpoints() if kind == "best" else run.checkpoints()[::-1]
    if not 1 <= count <= len(checkpoints):
        with_metric = f" with a validation {run.config.training.best_metric}" * (kind == "best")
        raise InputError(
            f"The number of the {kind} checkpoints to average is {count}, but it must be at least "
            f"1, and {run.path} has {len(checkpoints)} checkpoints{with_metric}."
        )
    chosen = checkpoints[:count]
    name = f"average-{kind}-{count}-step-{max(checkpoint.step for checkpoint in chosen)}"
    run.save_average(name, average_weights(run.read_weights(checkpoint) for checkpoint in chosen))
    return name


def average_weights(many: Iterable[Arrays]) -> Arrays:
    """Returns the mean of sets of weights, computed in float64, in the dtypes of the last set."""
    total: Arrays = {}
    dtypes: dict[str, Any] = {}
    count = 0
    for weights in many:
        count += 1
        for path, weight in weights.items():
            dtypes[path] = weight.dtype
            total[path] = total.get(path, 0.0) + weight.astype(np.float64)
    return {path: (array / count).astype(dtypes[path]) for path, array in total.items()}
