"""Averages of checkpoints."""

import numpy as np

from keras_transformer.runs import averaging
from tests.builders import refuses
from tests.runs.checkpoints_test import assert_equal


def test_the_mean_of_the_last_is_selected(own_run):
    name = averaging.average_checkpoints(own_run, 2)
    assert own_run.selected == name == "average-last-2-step-300"
    averaged = own_run.named_weights()
    parts = [own_run.read_weights(c) for c in own_run.checkpoints()[-2:]]
    assert averaged.keys() == parts[0].keys()
    for path, weight in averaged.items():
        mean = np.mean([part[path].astype(np.float64) for part in parts], axis=0)
        np.testing.assert_array_equal(weight, mean.astype(np.float32))


def test_the_best_by_validation(own_run):
    weights = {c.step: own_run.read_weights(c) for c in own_run.checkpoints()}
    for step, loss in ((100, 1.0), (200, 3.0), (300, 2.0)):
        own_run.save_checkpoint(step, weights[step], {}, {"val_loss": loss})
    name = averaging.average_checkpoints(own_run, 2, "best")
    assert own_run.selected == name == "average-best-2-step-300"
    expected = averaging.average_weights([weights[100], weights[300]])
    assert_equal(own_run.named_weights(), expected)


def test_wrong_numbers(run_directory):
    for count, kind, *facts in (
        (0, "last", "0", "at least 1"),
        (4, "last", "3", "checkpoints", "4"),
        (1, "best", "0", "checkpoints", "validation", "loss", "1"),
    ):
        changes = {"run": run_directory, "count": count, "kind": kind}
        refuses(averaging.average_checkpoints, changes, kind, *facts)
    assert run_directory.selected == "last"


def test_the_mean_is_taken_in_float64():
    ones = [np.float32([1.0]), np.float32([1e8]), np.float32([-1e8]), np.float32([3.0])]
    averaged = averaging.average_weights({"a/b": one} for one in ones)
    assert averaged["a/b"].dtype == np.float32 and averaged["a/b"] == [1.0]
