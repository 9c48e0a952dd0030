"""Stopping, progress and checkpoints, beside a real `fit`."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from keras_transformer.training.callbacks import Checkpoints, Progress, StopTraining
from keras_transformer.training.trainer import Trainer
from tests.training.tiny_model import batches, dataset, make_trainer


@pytest.fixture(scope="module")
def shared_trainer() -> Trainer:
    return make_trainer()


@pytest.fixture
def trainer(shared_trainer: Trainer) -> Iterator[Trainer]:
    """One trainer for all tests, since tracing its step takes seconds; back at step 0."""
    shared_trainer.optimizer.iterations.assign(0)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield shared_trainer
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == handlers


class Recorded:
    """What `save` of `Checkpoints` was called with."""

    def __init__(self) -> None:
        self.saved: list[tuple[int, dict[str, float]]] = []

    def __call__(self, step: int, metrics: Any) -> None:
        self.saved.append((step, dict(metrics)))

    @property
    def steps(self) -> list[int]:
        return [step for step, _ in self.saved]


def fit(
    trainer: Trainer, *callbacks: keras.callbacks.Callback, interval: int = 3, intervals: int = 4
) -> Recorded:
    """At most 12 steps, with a checkpoint every 3."""
    recorded = Recorded()
    trainer.fit(
        dataset(batches(interval * intervals)),
        epochs=intervals, steps_per_epoch=interval, shuffle=False, verbose=0,
        validation_data=dataset(batches(2)),
        callbacks=[*callbacks, Checkpoints(recorded)],
    )  # fmt: skip
    return recorded


class At(keras.callbacks.Callback):
    """Does something at the end of a step."""

    def __init__(self, step: int, action: Any):
        super().__init__()
        self.step, self.action = step, action

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.model.step == self.step:
            self.action()


def kill(number: int) -> Any:
    return lambda: os.kill(os.getpid(), number)


def test_every_interval_ends_with_validation_and_a_checkpoint(trainer: Trainer) -> None:
    recorded = fit(trainer)
    assert recorded.steps == [3, 6, 9, 12]
    for _, metrics in recorded.saved:
        assert {"loss", "val_loss", "val_perplexity", "val_accuracy"} <= metrics.keys()
        assert all(type(value) is float for value in metrics.values())


@pytest.mark.parametrize("max_steps, steps", [(5, [3, 5]), (6, [3, 6]), (1, [1])])
def test_training_ends_at_the_last_step(trainer: Trainer, max_steps: int, steps: list[int]) -> None:
    stop = StopTraining(0, max_steps)
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

    stop = StopTraining(0, 100, max_minutes=1.0)
    recorded = fit(trainer, At(4, wait), stop)
    assert recorded.steps == [3, 4] and "val_loss" in recorded.saved[-1][1]
    assert stop.out_of_time and not stop.interrupted


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_training_with_validation_and_a_checkpoint(
    trainer: Trainer, number: int, capfd: pytest.CaptureFixture[str]
) -> None:
    stop = StopTraining(0, 100)
    recorded = fit(trainer, At(4, kill(number)), stop)
    assert recorded.steps == [3, 4] and "val_loss" in recorded.saved[-1][1]
    assert stop.interrupted
    assert "stopping after this step" in capfd.readouterr().err


def test_a_second_signal_stops_at_once(trainer: Trainer) -> None:
    stop = StopTraining(0, 100)

    def twice() -> None:
        kill(signal.SIGINT)()
        kill(signal.SIGINT)()

    with pytest.raises(KeyboardInterrupt):
        fit(trainer, At(2, twice), stop)
    assert trainer.step == 2
    stop.restore_signals()


def test_progress_reports_means_over_tokens(
    trainer: Trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[dict[str, Any]] = []
    steps: list[dict[str, float]] = []

    class Steps(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            steps.append({name: float(value) for name, value in logs.items()})

    progress = Progress(0, 6, 2, lambda line: lines.append(dict(line)), tmp_path)
    fit(trainer, Steps(), progress, intervals=2)

    training = [line for line in lines if "tokens_per_second" in line]
    # Steps 2, 4 and 6, and 3 and 6, where the intervals end.
    assert [line["step"] for line in training] == [2, 3, 4, 6]
    assert steps[0]["tokens"] != steps[1]["tokens"]  # or the weights of the mean would not show
    tokens = steps[0]["tokens"] + steps[1]["tokens"]
    for name, recorded in (("loss", "loss"), ("log_perplexity", "perplexity")):
        mean = sum(step[name] * step["tokens"] for step in steps[:2]) / tokens
        mean = tf.exp(mean).numpy() if recorded == "perplexity" else mean
        assert training[0][recorded] == pytest.approx(mean, rel=1e-5)
    assert [line["learning_rate"] for line in training] == pytest.approx(
        [steps[i]["learning_rate"] for i in (1, 2, 3, 5)]
    )
    assert all(line["tokens_per_second"] > 0 for line in training)
    assert progress.tokens == sum(step["tokens"] for step in steps)
    assert progress.seconds > 0

    validation = [line for line in lines if "val_loss" in line]
    assert [line["step"] for line in validation] == [3, 6]
    for line in validation:
        assert line.keys() == {"step", "val_loss", "val_perplexity", "val_accuracy"}
    assert json.loads(json.dumps(lines)) == lines

    shown = capsys.readouterr().err
    assert "step 2 of 6: loss " in shown and " tokens/s, " in shown and "min left" in shown
    assert "validation after step 3: loss " in shown

    [events] = tmp_path.glob("events.out.tfevents.*")
    logged = {
        (event.step, value.tag)
        for event in tf.compat.v1.train.summary_iterator(str(events))
        for value in event.summary.value
    }
    assert {(2, "loss"), (4, "tokens_per_second"), (6, "perplexity"), (3, "val_accuracy")} <= logged


def test_validation_and_checkpoints_do_not_lower_tokens_per_second(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("keras_transformer.training.callbacks.time.monotonic", lambda: now[0])
    tokens: list[float] = []

    class Clock(keras.callbacks.Callback):
        """A second for a step, minutes for all else."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            tokens.append(float(logs["tokens"]))
            now[0] += 1.0

        def on_test_begin(self, logs: Any = None) -> None:
            now[0] += 600.0

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            now[0] += 60.0

    lines: list[dict[str, Any]] = []
    progress = Progress(0, 100, 2, lambda line: lines.append(dict(line)), tmp_path)
    fit(trainer, Clock(), StopTraining(0, 8), progress, intervals=3)
    speeds = {
        line["step"]: line["tokens_per_second"] for line in lines if "tokens_per_second" in line
    }
    # Intervals end with steps 3, 6 and 8; the last one early.
    expected = {2: tokens[0:2], 3: tokens[2:3], 4: tokens[3:4], 6: tokens[4:6], 8: tokens[6:8]}
    assert speeds == pytest.approx({step: sum(t) / len(t) for step, t in expected.items()})
    assert (progress.tokens, progress.seconds) == (sum(tokens), 8.0)
