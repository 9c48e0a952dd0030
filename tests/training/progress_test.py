"""The progress lines and the records of training, with and without a real `fit`."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import keras
import pytest
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.errors import InputError
from keras_transformer.training.callbacks import StopTraining
from keras_transformer.training.progress import NotFiniteError, Progress
from keras_transformer.training.trainer import Trainer
from tests.messages import mentions, tells
from tests.training.fitting import back_to_step_0, fit
from tests.training.tiny_model import make_trainer


@pytest.fixture(scope="module")
def shared_trainer() -> Trainer:
    return make_trainer()


@pytest.fixture
def trainer(shared_trainer: Trainer) -> Iterator[Trainer]:
    back_to_step_0(shared_trainer)
    yield shared_trainer


class Lines(list[dict[str, Any]]):
    """The arguments of `write`."""

    def __call__(self, metrics: Mapping[str, Any]) -> None:
        self.append(dict(metrics))

    def having(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self if name in line]


def make_progress(folder: Path, first_step: int = 0, **fields: Any) -> tuple[Progress, Lines]:
    lines = Lines()
    return Progress(first_step, TrainingConfig(**fields), lines, folder), lines


def test_tensorboards_files_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=mentions("file/tensorboard", "file is not a directory")):
        make_progress(tmp_path / "file" / "tensorboard")
    progress, _ = make_progress(tmp_path)
    full = tf.errors.ResourceExhaustedError(None, None, "No space left on device")
    with mock.patch.object(progress, "_summaries") as summaries:
        summaries.close.side_effect = full
        with (
            pytest.raises(InputError, match=mentions("written", "No space left on device")),
            progress,
        ):
            pass
        with pytest.raises(KeyError), progress:  # the original error is not hidden
            raise KeyError


def test_means_over_tokens(
    trainer: Trainer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps: list[dict[str, float]] = []

    class StepLogs(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            steps.append({name: float(value) for name, value in logs.items()})

    progress, lines = make_progress(tmp_path, max_steps=6, log_steps=2)
    with progress:
        fit(trainer, StepLogs(), progress, intervals=2)

    training = lines.having("tokens_per_second")
    # Steps 2, 4 and 6, and 3 and 6, where the intervals end.
    assert [line["step"] for line in training] == [2, 3, 4, 6]
    assert (
        steps[0]["tokens"] != steps[1]["tokens"]
    )  # otherwise the test would not detect wrong weights of the mean
    tokens = steps[0]["tokens"] + steps[1]["tokens"]
    for name, recorded in (("loss", "loss"), ("log_perplexity", "perplexity")):
        mean = sum(step[name] * step["tokens"] for step in steps[:2]) / tokens
        mean = math.exp(mean) if recorded == "perplexity" else mean
        assert training[0][recorded] == pytest.approx(mean, rel=1e-5)
    assert [line["learning_rate"] for line in training] == pytest.approx(
        [steps[i]["learning_rate"] for i in (1, 2, 3, 5)]
    )
    assert all(line["tokens_per_second"] > 0 and line["skipped"] == 0 for line in training)
    assert progress.tokens == sum(step["tokens"] for step in steps)
    assert progress.seconds > 0

    validation = lines.having("val_loss")
    assert [line["step"] for line in validation] == [3, 6]
    for line in validation:
        assert line.keys() == {"step", "val_loss", "val_perplexity", "val_accuracy"}
    assert json.loads(json.dumps(lines)) == lines

    shown = capsys.readouterr().err
    assert tells(shown, "step 2 of 6", "loss", "tokens/s", "left")
    assert tells(shown, "validation", "step 3", "loss")

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
    monkeypatch.setattr("keras_transformer.training.progress.time.monotonic", lambda: now[0])
    tokens: list[float] = []

    class Clock(keras.callbacks.Callback):
        """A clock: a step takes a second, everything else takes minutes."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            tokens.append(float(logs["tokens"]))
            now[0] += 1.0

        def on_test_begin(self, logs: Any = None) -> None:
            now[0] += 600.0

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            now[0] += 60.0

    progress, lines = make_progress(tmp_path, max_steps=100, log_steps=2)
    with progress, StopTraining(0, 8) as stop:
        fit(trainer, Clock(), stop, progress, intervals=3)
    speeds = {line["step"]: line["tokens_per_second"] for line in lines.having("tokens_per_second")}
    # Intervals end with steps 3, 6 and 8; the last one early.
    expected = {2: tokens[0:2], 3: tokens[2:3], 4: tokens[3:4], 6: tokens[4:6], 8: tokens[6:8]}
    assert speeds == pytest.approx({step: sum(t) / len(t) for step, t in expected.items()})
    assert (progress.tokens, progress.seconds) == (sum(tokens), 8.0)


class Steps:
    """Runs steps like a trainer, with these logs."""

    def __init__(self, progress: Progress):
        self.progress = progress
        progress.set_model(SimpleNamespace(stop_training=False))
        progress.set_params({"steps": 1_000})
        progress.on_epoch_begin(0)
        self.batch = 0

    def take(self, count: int = 1, skipped: int = 0, loss: float = 1.0, **logs: float) -> None:
        for _ in range(count):
            self.progress.on_train_batch_end(
                self.batch,
                {
                    "loss": loss, "log_perplexity": loss, "tokens": 10.0, "gradient_norm": loss,
                    "learning_rate": 0.5, "skipped": skipped, **logs,
                },
            )  # fmt: skip
            self.batch += 1


def test_skipped_steps_are_counted_and_do_not_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress, lines = make_progress(tmp_path, log_steps=4, max_steps=100)
    with progress:
        steps = Steps(progress)
        steps.take(loss=2.0)
        steps.take(skipped=1, loss=math.nan)
        steps.take(skipped=2, loss=math.nan)
        steps.take(loss=4.0)
        assert lines[0]["skipped"] == 2
        assert (lines[0]["loss"], lines[0]["gradient_norm"]) == (3.0, 4.0)
        for skipped in range(1, 5):
            steps.take(skipped=skipped, loss=math.nan, loss_scale=8.0)
        assert lines[1].keys() == {
            "step", "skipped", "learning_rate", "tokens_per_second", "loss_scale"
        }  # fmt: skip
        progress.on_epoch_end(0, {"val_loss": math.nan, "val_perplexity": 1.0, "val_accuracy": 0.0})
        assert lines[2]["val_loss"] is None
    json.loads(json.dumps(list(lines)), parse_constant=pytest.fail)  # JSON does not have NaN
    first, second, _ = capsys.readouterr().err.splitlines()
    assert tells(first, "step 4 of 100", "loss 3.0000")
    assert tells(second, "step 8 of 100", "gradients", "finite") and "loss" not in second


@pytest.mark.parametrize(
    "in_a_row, place",
    [
        ([0, 0, 1, 2, 3, 4, 5, 6], "6 steps in a row, from step 103 to 108,"),
        ([0, 1, 2, 3, 4, 5, 6, 0], "6 steps in a row, from step 102 to 107,"),
        ([5, 6, 7, 8], "8 steps in a row, from step 97 to 104,"),  # started before the last reading
        ([0, 1, 2, 3, 4, 5, 6], "6 steps in a row, from step 102 to 107,"),  # ends an interval
        ([0, 0, 0, 1, 2, 3, 4, 5, 0, 1, 2, 3], None),
    ],
)
def test_too_many_in_a_row_end_training(
    tmp_path: Path, in_a_row: list[int], place: str | None
) -> None:
    progress, lines = make_progress(
        tmp_path, first_step=100, log_steps=4, max_steps=1000, max_skipped_steps=6
    )
    with progress:
        steps = Steps(progress)
        progress.set_params({"steps": len(in_a_row)})
        for skipped in in_a_row[:-1]:
            steps.take(skipped=skipped)
        with pytest.raises(NotFiniteError, match=place) if place else contextlib.nullcontext():
            steps.take(skipped=in_a_row[-1])
    assert lines[-1]["step"] == 100 + len(in_a_row) and lines[-1]["skipped"] > 0


def test_bleu_is_shown_if_it_was_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    progress, lines = make_progress(tmp_path)
    validation = {"val_loss": 2.0, "val_perplexity": 4.0, "val_accuracy": 0.5}
    with progress:
        Steps(progress)
        progress.on_epoch_end(0, {"loss": 1.0, **validation})
        progress.on_epoch_end(1, {"loss": 1.0, **validation, "val_bleu": 31.254})
    first, second = capsys.readouterr().err.splitlines()
    assert "BLEU" not in first and second.endswith("loss 2.0000, BLEU 31.25")
    assert lines == [{"step": 0, **validation}, {"step": 0, **validation, "val_bleu": 31.254}]


def test_time_left_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(range(0, 1000, 6))  # each reading is 6 seconds after the one before
    monkeypatch.setattr("keras_transformer.training.progress.time.monotonic", lambda: next(clock))
    progress, _ = make_progress(tmp_path, log_steps=2, max_steps=10)
    with progress:
        Steps(progress).take(2)
    assert capsys.readouterr().err.endswith(", 24 s left\n")


def test_a_terminal_gets_a_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    terminal = SimpleNamespace(
        write=written.append, flush=lambda: None, isatty=lambda: True, encoding="utf-8"
    )
    monkeypatch.setattr("sys.stderr", terminal)
    progress, _ = make_progress(tmp_path, first_step=4, log_steps=2, max_steps=100)
    with progress:
        Steps(progress).take(2)
    shown = "".join(written)
    assert "step 4 of 100 |" in shown and "step 6 of 100 |" in shown
    assert "loss 1.0000, " in shown and " left" in shown
