"""Stopping, validation and early stopping."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import keras
import pytest
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.training.callbacks import (
    EarlyStopping,
    StopTraining,
    Validation,
    bleu_is_due,
    ends_interval,
)
from keras_transformer.training.trainer import Trainer
from tests.messages import tells
from tests.training.fitting import At, back_to_step_0, fit, kill
from tests.training.tiny_model import make_trainer


@pytest.fixture(scope="module")
def shared_trainer() -> Trainer:
    return make_trainer()


@pytest.fixture
def trainer(shared_trainer: Trainer) -> Iterator[Trainer]:
    back_to_step_0(shared_trainer)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield shared_trainer
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_intervals_end_with_a_validation_and_steps_do_not_read_their_logs(
    trainer: Trainer,
) -> None:
    kinds: list[type] = []

    class Kinds(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            kinds.extend(type(value) for value in logs.values())

    recorded = fit(trainer, Kinds())
    assert recorded.steps == [3, 6, 9, 12]
    for _, metrics in recorded.saved:
        assert {"loss", "val_loss", "val_perplexity", "val_accuracy"} <= metrics.keys()
    assert kinds and all(issubclass(kind, tf.Tensor) for kind in kinds)


@pytest.mark.parametrize("max_steps, steps", [(5, [3, 5]), (6, [3, 6]), (1, [1])])
def test_training_ends_at_the_last_step(trainer: Trainer, max_steps: int, steps: list[int]) -> None:
    with StopTraining(0, max_steps) as stop:
        recorded = fit(trainer, stop, max_steps=max_steps)
    assert recorded.steps == steps and "val_loss" in recorded.saved[-1][1]
    assert not (stop.interrupted or stop.out_of_time)


def test_training_ends_after_max_minutes(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("keras_transformer.training.callbacks.time.monotonic", lambda: now[0])

    def wait() -> None:
        now[0] += 60.0

    with StopTraining(0, 100, max_minutes=1.0) as stop:
        recorded = fit(trainer, At(4, wait), stop)
    assert recorded.steps == [3, 4] and "val_loss" not in recorded.saved[-1][1]
    assert stop.out_of_time and not stop.interrupted


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_stops_training_with_a_checkpoint_but_without_validation(
    trainer: Trainer, number: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with StopTraining(0, 100) as stop:
        recorded = fit(trainer, At(4, kill(number)), stop)
    assert recorded.steps == [3, 4] and "val_loss" not in recorded.saved[-1][1]
    assert stop.interrupted
    assert tells(capfd.readouterr().err, "stopping", "step")


def test_a_signal_during_validation_ends_training_with_its_checkpoint(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate = trainer.evaluate

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        kill(signal.SIGTERM)()
        return evaluate(*args, **kwargs)

    monkeypatch.setattr(trainer, "evaluate", interrupted)
    with StopTraining(0, 100) as stop:
        recorded = fit(trainer, stop)
    assert recorded.steps == [3] and "val_loss" in recorded.saved[-1][1]


def test_a_second_signal_stops_at_once(trainer: Trainer) -> None:
    def twice() -> None:
        kill(signal.SIGINT)()
        kill(signal.SIGINT)()

    with pytest.raises(KeyboardInterrupt), StopTraining(0, 100) as stop:
        fit(trainer, At(2, twice), stop)
    assert trainer.step == 2


def test_ignored_signals_and_foreign_handlers_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handlers = dict.fromkeys((signal.SIGINT, signal.SIGHUP), signal.SIG_IGN) | {
        signal.SIGTERM: None
    }
    set_to = []

    def put(number: int, handler: Any) -> Any:
        set_to.append((number, handler))
        return handlers[signal.Signals(number)]

    monkeypatch.setattr(signal, "getsignal", handlers.__getitem__)
    monkeypatch.setattr(signal, "signal", put)
    with StopTraining(0, 100) as stop:
        pass
    assert set_to == [(signal.SIGTERM, stop._interrupt), (signal.SIGTERM, signal.SIG_DFL)]


def test_several_workers_end_after_the_step_that_all_know_of() -> None:
    trainer = make_trainer()
    flag = trainer.training_step.stop_flag = tf.Variable(0.0, trainable=False)
    with StopTraining(0, 100) as stop:
        recorded = fit(trainer, At(4, kill(signal.SIGTERM)), stop)
    assert stop.interrupted and recorded.steps == [3, 6]

    # The request of another worker, as the sum over all replicas.
    flag.assign(0.0)
    back_to_step_0(trainer)
    with StopTraining(0, 100) as stop:
        recorded = fit(trainer, At(1, lambda: flag.assign(1.0)), stop)
    assert not stop.interrupted and recorded.steps == [3]


def config(**fields: Any) -> TrainingConfig:
    return TrainingConfig(**{"max_steps": 100, "checkpoint_steps": 10, **fields})


def validate(callback: keras.callbacks.Callback, step: int, **logs: float) -> dict[str, float]:
    """Ends an interval with these logs, and returns the logs after the callback."""
    evaluate = {"data": {"loss": 3.0}}.__getitem__
    callback.set_model(SimpleNamespace(step=step, stop_training=False, evaluate=evaluate))
    callback.on_epoch_end(0, logs)
    return logs


@pytest.mark.parametrize(
    "bleu_steps, due",
    [
        (0, []),
        (10, [10, 20, 30, 40]),  # no multiple has passed between 40 and 45
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
    assert [step for step in range(1, 46) if ends_interval(step, training)] == [10, 20, 30, 40, 45]
    assert [step for step in range(1, 46) if bleu_is_due(step, training)] == due


def test_validation_adds_loss_and_bleu_at_their_intervals() -> None:
    scores = iter([20.0, 30.0])
    callback = Validation("data", config(bleu_steps=20), lambda: next(scores))
    assert validate(callback, 10) == {"val_loss": 3.0}
    assert validate(callback, 20, loss=2.0) == {"loss": 2.0, "val_loss": 3.0, "val_bleu": 20.0}
    assert validate(callback, 40 - 7) == {}  # stopped there, so validation is not due
    assert validate(callback, 40)["val_bleu"] == 30.0


class TestEarlyStopping:
    def test_stops_after_several_validations_without_improvement(self) -> None:
        callback = EarlyStopping(config(early_stopping=2), {})
        for step, loss, since in [
            (10, 3.0, 0),
            (20, 3.5, 1),
            (30, 2.0, 0),
            (40, 2.5, 1),
            (50, 2.0, 2),
        ]:
            assert not callback.stopped
            logs = validate(callback, step, val_loss=loss)
            assert logs["validations_since_best"] == since
            assert callback.model.stop_training == (since == 2)
        assert (logs["best_val_loss"], logs["best_step"]) == (2.0, 30.0)
        assert callback.stopped
        assert tells(callback.reason(), "val_loss", "2 validations", "step 30")

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
        assert logs["validations_since_best"] == 0.0  # recorded in every checkpoint
        validate(callback, 40, val_loss=4.0, val_bleu=9.0)
        assert not callback.stopped
        logs = validate(callback, 60, val_loss=5.0, val_bleu=10.0)
        assert callback.stopped and logs["best_val_bleu"] == 10.0

    def test_nan_is_not_better(self) -> None:
        callback = EarlyStopping(config(early_stopping=2), {})
        validate(callback, 10, val_loss=3.0)
        validate(callback, 20, val_loss=math.nan)
        validate(callback, 30, val_loss=math.nan)
        assert callback.stopped and callback.best is not None and callback.best.step == 10

    @pytest.mark.parametrize("stopped_at", [10, 17, 20, 25, 29, 30, 34])
    def test_resumes_after_a_stop(self, stopped_at: int) -> None:
        """A resumed run makes the same decisions as an uninterrupted run."""
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

    def test_a_resumed_run_remembers_that_it_has_stopped(self) -> None:
        saved = {"best_val_loss": 2.0, "best_step": 20.0, "validations_since_best": 3.0}
        assert EarlyStopping(config(early_stopping=3), saved).stopped
        assert not EarlyStopping(config(early_stopping=4), saved).stopped
        assert not EarlyStopping(config(early_stopping=0), saved).stopped
        other = config(early_stopping=3, best_metric="bleu", bleu_steps=10)
        assert EarlyStopping(other, saved).best is None
