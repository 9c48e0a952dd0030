"""Learning rates against their formulas in NumPy."""

from typing import get_args

import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.config import Schedule
from keras_transformer.training.schedules import LearningRate

WARMUP, STEPS, D_MODEL = 40, 200, 64
ALL = get_args(Schedule)


def rates(schedule, factor=1.0, warmup=WARMUP, steps=range(STEPS)):
    rate = LearningRate(schedule, factor, warmup, STEPS, D_MODEL)
    return np.array(rate(np.array(steps)), np.float64)


def expected_rates(schedule, warmup):
    n, peak = np.arange(1, STEPS + 1, dtype=np.float64), max(warmup, 1)
    up, left = np.minimum(n / peak, 1), np.minimum((STEPS - n + 1) / (STEPS - peak + 1), 1)
    return {
        "noam": D_MODEL**-0.5 * np.minimum(n**-0.5, n * peak**-1.5),  # equation 3
        "inverse_sqrt": np.minimum(n / peak, (peak / n) ** 0.5),
        "linear": up * left,
        "cosine": up * (1 - np.cos(np.pi * left)) / 2,
        "constant": up,
    }[schedule]


@pytest.mark.parametrize("schedule", ALL)
@pytest.mark.parametrize("warmup", [WARMUP, 1, 0])
def test_rates_are_the_formulas(schedule, warmup):
    values, expected = rates(schedule, 0.3, warmup), 0.3 * expected_rates(schedule, warmup)
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-7)
    assert (values > 0).all()
    if schedule != "noam":  # the peak is the learning rate, and it is at the end of the warm-up
        assert values.max() == values[max(warmup, 1) - 1] == pytest.approx(0.3)
    later = rates(schedule, 0.3, warmup, (STEPS, STEPS + 1, 10 * STEPS))
    assert np.isfinite(later).all() and (later >= 0).all()
    assert not later.any() or schedule not in ("linear", "cosine")


@pytest.mark.parametrize(
    "rate",
    [*(LearningRate(name, 0.7, 3, 11, 32) for name in ALL), kt.schedules.Noam(32, 3, factor=0.7)],
)
def test_config_round_trip(rate):
    restored = keras.optimizers.schedules.deserialize(keras.optimizers.schedules.serialize(rate))
    assert type(restored) is type(rate) and restored.get_config() == rate.get_config()
    assert [float(restored(s)) for s in range(5)] == [float(rate(s)) for s in range(5)]


def test_an_unknown_schedule_is_refused():
    with pytest.raises(ValueError, match="steep"):
        rates("steep")
