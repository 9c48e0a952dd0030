"""Stopping, validation, early stopping, reports and checkpoints, with a real `fit`."""

import contextlib
import json
import math
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import keras
import pytest
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.errors import DivergedError
from keras_transformer.training.progress import (
    Progress,
    StopRequest,
    bleu_is_due,
    compare_with_best,
    early_stopping_reason,
    ends_interval,
)
from keras_transformer.training.trainer import Rhythm, fit
from tests.builders import eagerly
from tests.messages import tells
from tests.training.tiny_model import batches, distributed, make_trainer


class FakeRun:
    """A run directory in memory: the metrics, and the checkpoints as steps with their metrics."""

    def __init__(self, folder):
        self.path = folder
        self.lines = []
        self.saved = {}

    def append_metrics(self, metrics):
        self.lines.append(dict(metrics))

    def having(self, name):
        return [line for line in self.lines if name in line]

    def save_checkpoint(self, step, *arrays, ema):
        self.saved[step] = arrays[-1]

    def checkpoints(self):
        return [SimpleNamespace(path=Path("step-00000006"))]


class At(keras.callbacks.Callback):
    """Calls a function at the end of a step."""

    def __init__(self, step, action):
        super().__init__()
        self.step, self.action = step, action

    def on_train_batch_end(self, batch, logs=None):
        if self.model.step == self.step:
            self.action()


def kill(number):
    return lambda: os.kill(os.getpid(), number)


@pytest.fixture(scope="module")
def shared_trainer():
    return make_trainer()


@pytest.fixture
def trainer(shared_trainer):
    set_step(shared_trainer, 0)
    numbers = (signal.SIGINT, signal.SIGTERM)
    handlers = [signal.getsignal(number) for number in numbers]
    yield shared_trainer
    assert [signal.getsignal(number) for number in numbers] == handlers


def set_step(trainer, step):
    """Lets tests share a trainer, because tracing its step takes seconds."""
    for path, variable in trainer.state_by_path().items():
        if path.endswith(("iteration", "/step", "/skipped")):
            variable.assign(step if path.endswith("/step") else 0)


class Fit:
    """Trains from `step` in intervals of 3 steps. The trainer and the batches are real."""

    def __init__(
        self, trainer, folder, *callbacks, step=0, max_minutes=None, validate=None, **fields
    ):
        fields = {"max_steps": 12, "checkpoint_steps": 3, "log_steps": 100, **fields}
        config = TrainingConfig(**fields)
        strategy = trainer.distribute_strategy
        set_step(trainer, step)
        self.run = FakeRun(folder)
        self.stop = StopRequest(max_minutes)
        valid = distributed(strategy, batches(2))
        validate = validate or (lambda: trainer.evaluate(valid))
        data = SimpleNamespace(distributed=lambda *_: distributed(strategy, batches(16)))
        with mock.patch.object(trainer, "config", config):
            self.rhythm = Rhythm(trainer, self.run, {}, self.stop, validate)
            fit(trainer, data, self.rhythm, callbacks)

    @property
    def saved(self):
        return list(self.run.saved)

    @property
    def validated(self):
        return [step for step, metrics in self.run.saved.items() if "val_loss" in metrics]


@pytest.mark.parametrize(
    "step, max_steps, steps", [(0, 12, [3, 6, 9, 12]), (0, 1, [1]), (4, 9, [6, 9]), (5, 7, [6, 7])]
)
def test_intervals_end_with_a_validation_at_multiples_and_at_the_last_step(
    trainer, tmp_path, step, max_steps, steps
):
    seen, taken = [], []

    class Recorder(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            taken.append(batch)
            assert all(isinstance(log, tf.Tensor) for log in list(logs.values())[:4])

        def on_epoch_end(self, epoch, logs=None):
            seen.append((epoch, self.model.step, "val_loss" in logs))

    fitted = Fit(trainer, tmp_path, Recorder(), step=step, max_steps=max_steps)
    assert fitted.saved == fitted.validated == steps
    assert taken == [number % 3 for number in range(step, max_steps)]
    assert seen == [((last - 1) // 3, last, True) for last in steps]
    for metrics in fitted.run.saved.values():
        assert {"loss", "val_perplexity", "val_accuracy", "training_seconds"} <= metrics.keys()


def test_training_ends_after_max_minutes(trainer, tmp_path, monkeypatch):
    now = [1000.0]

    def read():
        now[0] += 1e-6
        return now[0]

    def wait():
        now[0] += 60.0

    monkeypatch.setattr("keras_transformer.training.progress.time.monotonic", read)

    fitted = Fit(trainer, tmp_path, At(3, wait), max_minutes=1.0)
    assert (fitted.saved, fitted.validated) == ([3, 4], [3]) and not fitted.stop.interrupted


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_stops_training_with_a_checkpoint_but_without_validation(
    trainer, tmp_path, number, capfd
):
    fitted = Fit(trainer, tmp_path, At(3, kill(number)))
    assert (fitted.saved, fitted.validated) == ([3, 4], [3]) and fitted.stop.interrupted
    assert tells(capfd.readouterr().err, "stopping", "step")


def test_a_callback_of_the_user_or_a_signal_during_validation_ends_training(trainer, tmp_path):
    def end():
        trainer.stop_training = True

    def validate():
        kill(signal.SIGTERM)()
        return {"loss": 2.0}

    assert Fit(trainer, tmp_path, At(2, end)).saved == [2]
    assert Fit(trainer, tmp_path, validate=validate).validated == [3]


def test_a_second_signal_stops_at_once(trainer, tmp_path):
    def twice():
        kill(signal.SIGINT)()
        kill(signal.SIGINT)()

    with pytest.raises(KeyboardInterrupt):
        Fit(trainer, tmp_path, At(2, twice))
    assert trainer.step == 2


def test_several_workers_end_after_the_step_that_all_know_of(trainer, tmp_path, monkeypatch):
    flag = tf.Variable(0, trainable=False)
    monkeypatch.setattr(trainer, "stop_flag", flag)
    with eagerly():  # because other tests trace it without a flag
        validate = {"validate": lambda: {"loss": 2.0}}
        fitted = Fit(trainer, tmp_path, At(3, kill(signal.SIGTERM)), **validate)
        assert fitted.stop.interrupted and fitted.saved == [3, 6]
        # The request of another worker, as the sum over all replicas.
        flag.assign(0)
        fitted = Fit(trainer, tmp_path, At(1, lambda: flag.assign(1)), **validate)
    assert not fitted.stop.interrupted and fitted.saved == [3]


def test_no_checkpoint_has_a_loss_that_is_not_finite(trainer, tmp_path, capsys):
    losses = iter([2.0, math.nan])
    fitted = Fit(trainer, tmp_path, max_steps=6, validate=lambda: {"loss": next(losses)})
    assert fitted.saved == [3] and "Step 6: no checkpoint" in capsys.readouterr().err


def config(**fields):
    return TrainingConfig(**{"max_steps": 100, "checkpoint_steps": 10, **fields})


@pytest.mark.parametrize(
    "bleu_steps, due",
    [
        (0, []),
        (10, [10, 20, 30, 40]),  # no multiple has passed between 40 and 45
        (20, [20, 40]),
        (15, [20, 30, 45]),
        (5, [10, 20, 30, 40, 45]),
        (46, []),
    ],
)
def test_bleu_is_due_at_the_first_end_of_an_interval_after_each_multiple(bleu_steps, due):
    training = config(max_steps=45, bleu_steps=bleu_steps)
    steps = range(1, 46)
    assert [s for s in steps if ends_interval(s, training)] == [10, 20, 30, 40, 45]
    assert [s for s in steps if bleu_is_due(s, training)] == due


@pytest.mark.parametrize(
    "fields, metric, values, since_best, best, stopped",
    [
        ({"early_stopping": 2}, "val_loss", [3.0, 3.5, 2.0, 2.5, 2.0], [0, 1, 0, 1, 2], 30, True),
        ({"early_stopping": 2}, "val_loss", [3.0, math.nan, math.nan], [0, 1, 2], 10, True),
        ({}, "val_loss", [3.0, 4.0, 5.0, 6.0], [0, 1, 2, 3], 10, False),
        # Only validations with BLEU count.
        ({"early_stopping": 2, "best_metric": "bleu", "bleu_steps": 20}, "val_bleu",
         [None, 10.0, None, 9.0, 10.0], [0, 0, 0, 1, 2], 20, True),
    ],
)  # fmt: skip
def test_several_validations_without_improvement_stop_training(
    fields, metric, values, since_best, best, stopped
):
    training, state = config(**fields), {}
    for number, (value, since) in enumerate(zip(values, since_best, strict=True), start=1):
        assert not early_stopping_reason(training, state)
        logs = {"val_loss": 1.0} | ({} if value is None else {metric: value})
        state = compare_with_best(10 * number, training, logs, {**state, "loss": 1.0})
        assert state.get("validations_since_best", 0) == since
    # A checkpoint without a validation keeps the state.
    assert compare_with_best(99, training, {}, state) == state
    assert state["best_step"] == best
    reason = early_stopping_reason(training, state)
    assert tells(reason, metric, "2 validations", f"step {best}") if stopped else not reason
    # Other settings of a resumed run.
    assert not early_stopping_reason(config(early_stopping=9), state)
    other = config(best_metric="loss" if metric == "val_bleu" else "bleu", bleu_steps=10)
    assert compare_with_best(99, other, {}, state) == {}


# Reports.


def test_means_over_tokens(trainer, tmp_path, capsys):
    steps = []

    class StepLogs(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            steps.append({name: float(value) for name, value in logs.items()})

    fitted = Fit(trainer, tmp_path, StepLogs(), max_steps=6, log_steps=2)
    run, progress = fitted.run, fitted.rhythm.progress
    training = run.having("tokens_per_second")
    # Steps 2, 4 and 6, and 3 and 6, where the intervals end.
    assert [line["step"] for line in training] == [2, 3, 4, 6]
    assert steps[0]["tokens"] != steps[1]["tokens"]  # so that the test detects wrong weights
    tokens = steps[0]["tokens"] + steps[1]["tokens"]
    for name, recorded in (("loss", "loss"), ("log_perplexity", "perplexity")):
        mean = sum(step[name] * step["tokens"] for step in steps[:2]) / tokens
        mean = math.exp(mean) if recorded == "perplexity" else mean
        assert training[0][recorded] == pytest.approx(mean, rel=1e-5)
    rates = [steps[number]["learning_rate"] for number in (1, 2, 3, 5)]
    assert [line["learning_rate"] for line in training] == pytest.approx(rates)
    assert all(line["tokens_per_second"] > 0 and line["skipped"] == 0 for line in training)
    assert progress.tokens == sum(step["tokens"] for step in steps) and progress.seconds > 0
    assert fitted.rhythm.metrics["tokens"] == progress.tokens

    validation = run.having("val_loss")
    assert [line["step"] for line in validation] == [3, 6]
    for line in validation:
        assert line.keys() == {"step", "val_loss", "val_perplexity", "val_accuracy"}
    assert json.loads(json.dumps(run.lines)) == run.lines
    shown = capsys.readouterr().err
    assert shown.startswith(f"step 1 of 6: loss {steps[0]['loss']:.4f}\n")
    assert tells(shown, "step 2 of 6", "loss", "tokens/s", "left")
    assert tells(shown, "validation", "step 3", "loss")

    [events] = tmp_path.glob("tensorboard/events.out.tfevents.*")
    logged = {
        (event.step, value.tag)
        for event in tf.compat.v1.train.summary_iterator(str(events))
        for value in event.summary.value
    }
    assert {(2, "loss"), (4, "tokens_per_second"), (6, "perplexity"), (3, "val_accuracy")} <= logged


def test_validation_and_checkpoints_do_not_lower_tokens_per_second(trainer, tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("keras_transformer.training.progress.time.monotonic", lambda: now[0])
    take_step = trainer.train_function

    def slow_step(iterator):
        now[0] += 1.0
        return take_step(iterator)

    def validate():
        now[0] += 600.0
        return {"loss": 2.0}

    class Slow(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            now[0] += 60.0

    monkeypatch.setattr(trainer, "train_function", slow_step)
    fitted = Fit(trainer, tmp_path, Slow(), max_steps=8, log_steps=2, validate=validate)
    assert (len(fitted.run.having("tokens_per_second")), fitted.rhythm.progress.seconds) == (5, 8.0)


def make_progress(folder, first_step=0, **fields):
    run = FakeRun(folder)
    return Progress(first_step, TrainingConfig(**fields), run), run.lines


def take(progress, skipped=0, loss=1.0, **logs):
    progress.add({
        "loss": loss, "log_perplexity": loss, "tokens": 10.0, "gradient_norm": loss,
        "learning_rate": 0.5, "skipped": skipped, **logs,
    })  # fmt: skip


def test_skipped_steps_are_counted_and_do_not_count(tmp_path, capsys):
    progress, lines = make_progress(tmp_path, max_steps=100)
    with progress:
        for skipped, loss in ((0, 2.0), (1, math.nan), (2, math.nan), (0, 4.0)):
            take(progress, skipped, loss)
        progress.report()
        assert lines[0]["skipped"] == 2
        assert (lines[0]["loss"], lines[0]["gradient_norm"]) == (3.0, 4.0)
        for skipped in range(1, 5):
            take(progress, skipped, math.nan, loss_scale=8.0)
        progress.report()
        names = {"step", "skipped", "learning_rate", "tokens_per_second", "loss_scale"}
        assert lines[1].keys() == names
        progress.report_validation({"val_loss": math.nan, "val_bleu": 31.254})
        assert lines[2] == {"step": 8, "val_loss": None, "val_bleu": 31.254}
    json.loads(json.dumps(lines), parse_constant=pytest.fail)  # JSON does not have NaN
    first, second, third = capsys.readouterr().err.splitlines()
    assert tells(first, "step 4 of 100", "loss 3.0000") and "loss" not in second
    assert tells(second, "step 8 of 100", "gradients", "finite") and third.endswith("BLEU 31.25")


@pytest.mark.parametrize(
    "in_a_row, expected",
    [
        (
            [0, 0, 1, 2, 3, 4, 5, 6],
            "6 steps in a row, from step 103 to 108, .* init_from=.*@step-00000006,",
        ),
        ([0, 1, 2, 3, 4, 5, 6, 0], "6 steps in a row, from step 102 to 107,"),
        ([5, 6, 7, 8], "8 steps in a row, from step 97 to 104,"),  # started before the last reading
        ([0, 0, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3], None),
    ],
)
def test_too_many_in_a_row_end_training(tmp_path, monkeypatch, in_a_row, expected):
    monkeypatch.setattr("keras_transformer.training.progress.MAX_SKIPPED_STEPS", 6)
    progress, lines = make_progress(tmp_path, first_step=100)
    with progress:
        for skipped in in_a_row:
            take(progress, skipped)
        with pytest.raises(DivergedError, match=expected) if expected else contextlib.nullcontext():
            progress.report()
    assert lines[-1]["step"] == 100 + len(in_a_row) and lines[-1]["skipped"] > 0
