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
    """Averages the weights (no EMA) of checkpoints, saves the mean and selects it.

    Args:
        run: the run.
        last: how many of the newest (the paper, section 6.1, takes 5, of big 20).
        best: or how many of the best by `training.best_metric`, of those that the run still has.

    Returns:
        The average's name, `average-last-N-step-S` or `average-best-N-step-S`, where
        S is the newest step of them.

    Raises:
        InputError: for fewer checkpoints than that, a number below 1, both
            numbers, or a damaged checkpoint.
    """
    if last is not None and best is not None:
        raise InputError(
            f"the last {last} and the best {best} checkpoints cannot both be averaged; expected "
            "one of the two"
        )
    kind, count = ("best", best) if best is not None else ("last", last or 0)
    if count < 1:
        raise InputError(f"the {kind} {count} checkpoints cannot be averaged; expected at least 1")
    checkpoints = run.best_checkpoints() if kind == "best" else run.checkpoints()[::-1]
    if len(checkpoints) < count:
        with_metric = f" with a validation {run.config.training.best_metric}" * (kind == "best")
        raise InputError(
            f"{run.path} has {len(checkpoints)} checkpoints{with_metric}; expected the {count} to "
            "average"
        )
    chosen = checkpoints[:count]
    name = f"average-{kind}-{count}-step-{max(checkpoint.step for checkpoint in chosen)}"
    run.save_average(name, average_weights(run.read_weights(checkpoint) for checkpoint in chosen))
    return name


def average_weights(many: Iterable[Arrays]) -> Arrays:
    """Returns the mean of sets of weights, taken in float64 and in the dtypes of the last.

    Args:
        many: arrays by path, in each the same paths and shapes; only one set at a
            time is in memory beside their sum.

    Raises:
        InputError: for no weights, or those of different models.
    """
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
                "weights of different models cannot be averaged; expected all to have, or none, "
                f"{path} of shape {shape}"
            )
        for path, weight in weights.items():
            total[path] += weight
        count += 1
    if not count:
        raise InputError("there are no weights to average; expected at least one set")
    return {path: (total[path] / count).astype(weight.dtype) for path, weight in weights.items()}
