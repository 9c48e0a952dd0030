"""Averages of the weights of checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np

from keras_transformer.errors import require
from keras_transformer.runs.checkpoints import Arrays
from keras_transformer.runs.run_directory import RunDirectory


def average_checkpoints(
    run: RunDirectory, count: int, kind: Literal["last", "best"] = "last"
) -> str:
    """Averages the weights (no EMA) of checkpoints, saves the mean and selects it."""
    checkpoints = run.best_checkpoints() if kind == "best" else run.checkpoints()[::-1]
    with_metric = f" with a validation {run.config.training.best_metric}" * (kind == "best")
    require(
        1 <= count <= len(checkpoints),
        f"The number of the {kind} checkpoints to average is {count}, but it must be at least 1, "
        f"and {run.path} has {len(checkpoints)} checkpoints{with_metric}.",
    )
    chosen = checkpoints[:count]
    name = f"average-{kind}-{count}-step-{max(checkpoint.step for checkpoint in chosen)}"
    run.save_average(name, average_weights(run.read_weights(checkpoint) for checkpoint in chosen))
    return name


def average_weights(many: Iterable[Arrays]) -> Arrays:
    """Returns the mean of sets of weights, computed in float64, in the dtypes of the last set."""
    total: Arrays = {}
    count = 0
    for weights in many:
        count += 1
        for path, weight in weights.items():
            total[path] = total.get(path, 0.0) + weight.astype(np.float64)
    return {path: (total[path] / count).astype(weight.dtype) for path, weight in weights.items()}
