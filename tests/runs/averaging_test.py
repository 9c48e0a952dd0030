"""Averages of checkpoints."""

import shutil

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.runs import averaging
from keras_transformer.runs.run_directory import RunDirectory
from tests.messages import mentions


@pytest.fixture
def own_run(run_directory, tmp_path):
    """A copy of the run, which a test may change."""
    return RunDirectory(shutil.copytree(run_directory.path, tmp_path / "run"))


class TestAverageCheckpoints:
    def test_is_the_mean_and_is_selected(self, own_run):
        name = averaging.average_checkpoints(own_run, 2)
        assert own_run.selected == name == "average-last-2-step-300"
        averaged = own_run.selected_weights()
        parts = [own_run.read_weights(c) for c in own_run.checkpoints()[-2:]]
        assert averaged.keys() == parts[0].keys()
        for path, weight in averaged.items():
            mean = np.mean([part[path].astype(np.float64) for part in parts], axis=0)
            np.testing.assert_array_equal(weight, mean.astype(np.float32))

    def test_the_best_by_validation(self, own_run):
        weights = {c.step: own_run.read_weights(c) for c in own_run.checkpoints()}
        for step, loss in ((100, 1.0), (200, 3.0), (300, 2.0)):
            own_run.save_checkpoint(step, weights[step], {}, {"val_loss": loss})
        name = averaging.average_checkpoints(own_run, best=2)
        assert own_run.selected == name == "average-best-2-step-300"
        expected = averaging.average_weights([weights[100], weights[300]])
        averaged = own_run.selected_weights()
        for path, weight in averaged.items():
            np.testing.assert_array_equal(weight, expected[path])

    @pytest.mark.parametrize(
        ("counts", "message"),
        [
            ({"last": 0}, "last .* 0.* at least 1"),
            ({"last": 4}, mentions("3", "checkpoints", "4")),
            ({"best": 1}, mentions("0", "checkpoints", "validation", "loss", "1")),
            ({"last": 1, "best": 2}, "last 1 and the best 2 "),
        ],
    )
    def test_too_few(self, own_run, counts, message):
        with pytest.raises(InputError, match=message):
            averaging.average_checkpoints(own_run, **counts)
        assert own_run.selected == "last"


class TestAverageWeights:
    def test_is_taken_in_float64_one_set_at_a_time(self):
        ones = [np.float32([1.0]), np.float32([1e8]), np.float32([-1e8]), np.float32([3.0])]
        averaged = averaging.average_weights({"a/b": one} for one in ones)
        assert averaged["a/b"].dtype == np.float32 and averaged["a/b"] == [1.0]
        assert ones[0] == [1.0]

    def test_weights_of_different_models(self):
        one = {"a": np.ones(2), "b": np.ones(3)}
        for other, message in (
            ({"a": np.ones(2), "b": np.ones(1)}, r"b with the shape \(1,\)"),
            ({**one, "c": np.ones(1)}, r"c with the shape \(1,\)"),
        ):
            with pytest.raises(InputError, match=message):
                averaging.average_weights([one, other])
        with pytest.raises(InputError, match=mentions("one set of weights")):
            averaging.average_weights([])
