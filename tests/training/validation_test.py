"""When BLEU is due, what is best so far, and when it has been enough."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import keras
import pytest

from keras_transformer.config import TrainingConfig
from keras_transformer.training.callbacks import (
    BleuValidation,
    EarlyStopping,
    bleu_is_due,
    ends_interval,
)
from tests.messages import tells


def config(**fields: Any) -> TrainingConfig:
    return TrainingConfig(**{"max_steps": 100, "checkpoint_steps": 10, **fields})


def validate(callback: keras.callbacks.Callback, step: int, **logs: float) -> dict[str, float]:
    """Ends an interval with these logs, and returns what the callback makes of them."""
    callback.set_model(SimpleNamespace(step=step, stop_training=False))
    callback.on_epoch_end(0, logs)
    return logs


def test_intervals_end_at_multiples_and_at_the_last_step() -> None:
    training = config(max_steps=25)
    assert [step for step in range(1, 26) if ends_interval(step, training)] == [10, 20, 25]


@pytest.mark.parametrize(
    "bleu_steps, due",
    [
        (0, []),
        (10, [10, 20, 30, 40]),  # none has passed between 40 and 45
        (20, [20, 40]),
        (15, [20, 30, 45]),
        (5, [10, 20, 30, 40, 45]),
        (45, [45]),
        (46, []),
    ],
)
def test_bleu_is_due_at_the_first_end_of_an_interval_after_each_multiple(
    bleu_steps: int, due: list[int]
) -> None:
    training = config(max_steps=45, bleu_steps=bleu_steps)
    assert [step for step in range(1, 46) if bleu_is_due(step, training)] == due


def test_bleu_is_added_to_the_logs_of_the_interval() -> None:
    scores = iter([20.0, 30.0])
    callback = BleuValidation(lambda: next(scores), config(bleu_steps=20))
    assert validate(callback, 10, val_loss=3.0) == {"val_loss": 3.0}
    assert validate(callback, 20, val_loss=2.0) == {"val_loss": 2.0, "val_bleu": 20.0}
    assert "val_bleu" not in validate(callback, 40 - 7)  # stopped there: not yet
    assert validate(callback, 40)["val_bleu"] == 30.0


class TestEarlyStopping:
    def test_ends_after_validations_without_a_better_one(self) -> None:
        callback = EarlyStopping(config(early_stopping=2), {})
        for step, loss, since in [(10, 3.0, 0), (20, 2.0, 0), (30, 2.5, 1), (40, 2.0, 2)]:
            assert not callback.stopped
            logs = validate(callback, step, val_loss=loss)
            assert logs["validations_since_best"] == since
            assert callback.model.stop_training == (since == 2)
        assert (logs["best_val_loss"], logs["best_step"]) == (2.0, 20.0)
        assert callback.stopped
        assert tells(callback.reason(), "val_loss", "2 validations", "step 20")

    def test_a_better_one_starts_the_count_again(self) -> None:
        callback = EarlyStopping(config(early_stopping=2), {})
        for step, loss in [(10, 3.0), (20, 3.5), (30, 2.9), (40, 3.0)]:
            validate(callback, step, val_loss=loss)
        assert not callback.stopped

    def test_never_by_default(self) -> None:
        callback = EarlyStopping(config(), {})
        for step in range(10, 100, 10):
            logs = validate(callback, step, val_loss=float(step))
        assert not callback.stopped and not callback.model.stop_training
        assert (logs["best_step"], logs["validations_since_best"]) == (10.0, 8.0)

    def test_by_bleu_counts_the_validations_with_bleu(self) -> None:
        training = config(early_stopping=2, best_metric="bleu", bleu_steps=20)
        callback = EarlyStopping(training, {})
        assert "best_step" not in validate(callback, 10, val_loss=1.0)
        validate(callback, 20, val_loss=2.0, val_bleu=10.0)
        logs = validate(callback, 30, val_loss=3.0)
        assert logs["validations_since_best"] == 0.0  # said in every checkpoint
        validate(callback, 40, val_loss=4.0, val_bleu=9.0)
        assert not callback.stopped
        logs = validate(callback, 60, val_loss=5.0, val_bleu=10.0)
        assert callback.stopped and logs["best_val_bleu"] == 10.0

    def test_what_is_no_number_is_not_better(self) -> None:
        callback = EarlyStopping(config(early_stopping=2), {})
        validate(callback, 10, val_loss=3.0)
        validate(callback, 20, val_loss=math.nan)
        validate(callback, 30, val_loss=math.nan)
        assert callback.stopped and callback.best is not None and callback.best.step == 10

    @pytest.mark.parametrize("stopped_at", [10, 17, 20, 25, 29, 30, 34])
    def test_goes_on_where_it_was_stopped(self, stopped_at: int) -> None:
        """A run that is stopped and continued decides as one that is not."""
        losses = {10: 3.0, 20: 2.0, 30: 2.5, 40: 2.2, 50: 2.1}
        training = config(early_stopping=3)

        def run(callback: EarlyStopping, steps: list[int]) -> Mapping[str, float]:
            logs: Mapping[str, float] = {}
            for step in steps:
                logs = validate(callback, step, val_loss=losses.get(step, 1.0))
            return logs

        whole = EarlyStopping(training, {})
        expected = run(whole, sorted(losses))
        before = [*(step for step in losses if step < stopped_at), stopped_at]
        saved = run(EarlyStopping(training, {}), before)
        continued = EarlyStopping(training, saved)
        found = run(continued, [step for step in losses if step > stopped_at])
        assert found == expected
        assert whole.stopped and continued.stopped and continued.reason() == whole.reason()

    def test_knows_when_it_is_continued_that_it_has_been_enough(self) -> None:
        saved = {"best_val_loss": 2.0, "best_step": 20.0, "validations_since_best": 3.0}
        assert EarlyStopping(config(early_stopping=3), saved).stopped
        assert not EarlyStopping(config(early_stopping=4), saved).stopped
        assert not EarlyStopping(config(early_stopping=0), saved).stopped

    def test_another_metric_begins_anew(self) -> None:
        saved = {"best_val_loss": 2.0, "best_step": 20.0, "validations_since_best": 3.0}
        training = config(early_stopping=3, best_metric="bleu", bleu_steps=10)
        assert EarlyStopping(training, saved).best is None
