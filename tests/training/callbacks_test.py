"""Stopping and checkpoints, beside a real `fit`."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import keras
import pytest
import tensorflow as tf

from keras_transformer.training.callbacks import StopTraining
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


def test_every_interval_ends_with_validation_and_a_checkpoint(trainer: Trainer) -> None:
    recorded = fit(trainer)
    assert recorded.steps == [3, 6, 9, 12]
    for _, metrics in recorded.saved:
        assert {"loss", "val_loss", "val_perplexity", "val_accuracy"} <= metrics.keys()
        assert all(type(value) is float for value in metrics.values())


def test_the_logs_of_a_step_are_not_read_for_callbacks(trainer: Trainer) -> None:
    kinds: list[type] = []

    class Kinds(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            kinds.extend(type(value) for value in logs.values())

    fit(trainer, Kinds(), intervals=1)
    assert kinds and all(issubclass(kind, tf.Tensor) for kind in kinds)


@pytest.mark.parametrize("max_steps, steps", [(5, [3, 5]), (6, [3, 6]), (1, [1])])
def test_training_ends_at_the_last_step(trainer: Trainer, max_steps: int, steps: list[int]) -> None:
    with StopTraining(0, max_steps) as stop:
        recorded = fit(trainer, stop)
    assert recorded.steps == steps and "val_loss" in recorded.saved[-1][1]
    assert not (stop.interrupted or stop.out_of_time)


def test_training_ends_when_its_time_is_up(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("keras_transformer.training.callbacks.time.monotonic", lambda: now[0])

    def wait() -> None:
        now[0] += 60.0

    with StopTraining(0, 100, max_minutes=1.0) as stop:
        recorded = fit(trainer, At(4, wait), stop)
    assert recorded.steps == [3, 4] and "val_loss" not in recorded.saved[-1][1]
    assert stop.out_of_time and not stop.interrupted


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_training_with_a_checkpoint_and_no_validation_that_is_not_due(
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


def test_ignored_signals_stay_ignored_and_a_handler_that_is_not_pythons_is_no_mistake(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handlers = {signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: None}
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
    trainer.stop_flag = tf.Variable(0.0, trainable=False)
    with StopTraining(0, 100) as stop:
        recorded = fit(trainer, At(4, kill(signal.SIGTERM)), stop)
    assert stop.interrupted and recorded.steps == [3, 6]

    # Another worker's wish, of which only the sum over all replicas speaks.
    trainer.stop_flag.assign(0.0)
    back_to_step_0(trainer)
    with StopTraining(0, 100) as stop:
        recorded = fit(trainer, At(1, lambda: trainer.stop_flag.assign(1.0)), stop)
    assert not stop.interrupted and recorded.steps == [3]
