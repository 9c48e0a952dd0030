"""Averages of the weights of checkpoints."""

from __future__ import annotations

from collections.abc import Iterable

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
    if count < 1:
        raise InputError(
            f"The number of the {kind} checkpoints to average is {count}, but it must be at least "
            "1."
        )
    checkpoints = run.best_checkpoints() if kind == "best" else run.checkpoints()[::-1]
    if len(checkpoints) < count:
        with_metric = f" with a validation {run.config.training.best_metric}" * (kind == "best")
        raise InputError(
            f"{run.path} has {len(checkpoints)} checkpoints{with_metric}, which is too few to "
            f"average {count}."
        )
    chosen = checkpoints[:count]
    name = f"average-{kind}-{count}-step-{max(checkpoint.step for checkpoint in chosen)}"
    run.save_average(name, average_weights(run.read_weights(checkpoint) for checkpoint in chosen))
    return name


def average_weights(many: Iterable[Arrays]) -> Arrays:
    """Returns the mean of sets of weights, computed in float64, in the dtypes of the last set."""
    total: Arrays = {}
    weights: Arrays = {}
    count = 0
    for weights in many:
        if not count:
            total = {path: np.zeros(weight.shape) for path, weight in weights.items()}
        first, other = ({(p, each[p].shape) for p in each} for each in (total, weights))
        if first != other:
            path, shape = min(first ^ other)
            raise InputError(
                f"Weights of different models cannot be averaged: not all have {path} with the "
                f"shape {shape}."
            )
        for path, weight in weights.items():
            total[path] += weight
        count += 1
    if not count:
        raise InputError("Give at least one set of weights to average.")
    return {path: (total[path] / count).astype(weight.dtype) for path, weight in weights.items()}
