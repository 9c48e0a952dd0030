"""Learning rates against their formulas in NumPy."""

import math
from typing import get_args

import keras
import numpy as np
import pytest

from keras_transformer.config import SCHEDULES_OVER_MAX_STEPS, Schedule
from keras_transformer.training.schedules import LearningRate

WARMUP, STEPS = 40, 200
ALL = get_args(Schedule)
LINEAR_WARM_UP = sorted({*SCHEDULES_OVER_MAX_STEPS, "constant"})


def rates(schedule, factor=1.0, warmup=WARMUP):
    rate = LearningRate(schedule, factor, warmup, STEPS, d_model=64)
    return np.array([float(rate(step)) for step in range(STEPS)])


def test_noam_is_equation_3_with_its_peak_at_the_end_of_the_warm_up():
    n = np.arange(1, STEPS + 1, dtype=np.float64)
    expected = 64**-0.5 * np.minimum(n**-0.5, n * WARMUP**-1.5)
    np.testing.assert_allclose(rates("noam"), expected, rtol=1e-6)
    np.testing.assert_allclose(rates("noam", 2.0), 2 * expected, rtol=1e-6)
    assert rates("noam").argmax() == WARMUP - 1  # step 40, counted from 1


def test_inverse_sqrt_has_the_papers_shape_and_the_given_peak():
    values = rates("inverse_sqrt", 0.3)
    assert values.argmax() == WARMUP - 1 and values.max() == pytest.approx(0.3, rel=1e-6)
    np.testing.assert_allclose(values / values[0], rates("noam") / rates("noam")[0], rtol=1e-5)


@pytest.mark.parametrize("schedule", LINEAR_WARM_UP)
def test_warm_up_is_linear_up_to_the_peak(schedule):
    values = rates(schedule, 0.3)
    expected = 0.3 * np.arange(1, WARMUP + 1) / WARMUP
    np.testing.assert_allclose(values[:WARMUP], expected, rtol=1e-5)


@pytest.mark.parametrize(
    "schedule, expected",
    [
        ("linear", np.linspace(0.3, 0, STEPS - WARMUP + 2)),
        ("cosine", 0.15 * (1 + np.cos(np.linspace(0, math.pi, STEPS - WARMUP + 2)))),
        ("constant", np.full(STEPS - WARMUP + 2, 0.3)),
    ],
)
def test_rates_after_the_warm_up(schedule, expected):
    at_the_end = float(LearningRate(schedule, 0.3, WARMUP, STEPS, 64)(STEPS))
    after = np.append(rates(schedule, 0.3)[WARMUP - 1 :], at_the_end)
    np.testing.assert_allclose(after, expected, atol=1e-6)


@pytest.mark.parametrize("schedule", LINEAR_WARM_UP)
def test_without_warm_up_the_first_step_has_the_peak(schedule):
    assert rates(schedule, 0.3, warmup=0)[0] == pytest.approx(0.3, rel=1e-6)


@pytest.mark.parametrize("schedule", ALL)
def test_rates_are_finite_and_never_negative_even_beyond_the_end(schedule):
    rate = LearningRate(schedule, 0.3, WARMUP, STEPS, 64)
    later = np.array([float(rate(step)) for step in (STEPS, STEPS + 1, 10 * STEPS)])
    assert np.isfinite(later).all() and (later >= 0).all()
    assert (rates(schedule) > 0).all()


@pytest.mark.parametrize("schedule", ALL)
def test_config_round_trip(schedule):
    rate = LearningRate(schedule, 0.7, 3, 11, 32)
    restored = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(rate))
    assert isinstance(restored, LearningRate) and restored.get_config() == rate.get_config()
    assert [float(restored(s)) for s in range(5)] == [float(rate(s)) for s in range(5)]


def test_an_unknown_schedule_is_refused():
    with pytest.raises(ValueError, match="steep"):
        rates("steep")
