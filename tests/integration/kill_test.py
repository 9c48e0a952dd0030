"""kill -9 between two checkpoints: the same command ends with the bits of a run never killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import experiment
from keras_transformer.data.corpus import parallel_files
from keras_transformer.data.prepare import PrepareOptions, prepare
from keras_transformer.run_directory import RunDirectory
from tests.conftest import ROOT

MAX_STEPS, CHECKPOINT_STEPS = 60, 12
NUMBERS = [("one", "ein"), ("two", "zwei"), ("three", "drei"), ("four", "vier"), ("five", "fünf")]
SETTINGS: dict[str, Any] = {
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.num_heads": 2,
    "model.embedding_dropout": 0.2,
    "model.attention_dropout": 0.1,
    "model.relu_dropout": 0.1,
    "model.residual_dropout": 0.2,
    "training.max_steps": MAX_STEPS,
    "training.batch_tokens": 128,
    "training.label_smoothing": 0.2,
    "training.warmup_steps": 20,
    "training.mixed_precision": "float32",
    "training.jit_compile": "false",
    "training.checkpoint_steps": CHECKPOINT_STEPS,
    "training.log_steps": 1,
}
SETTING_FLAGS = [f"--set={name}={value}" for name, value in SETTINGS.items()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with prepared data of invented sentences in `data`."""
    folder = tmp_path_factory.mktemp("kill")
    pairs = [(f"{a} and {b}", f"{x} und {y}") for a, x in NUMBERS for b, y in NUMBERS]
    (folder / "c.en").write_text("".join(f"{source}\n" for source, _ in pairs))
    (folder / "c.de").write_text("".join(f"{target}\n" for _, target in pairs))
    corpora = parallel_files([folder / "c.en"], [folder / "c.de"])
    prepare(corpora, folder / "data", PrepareOptions(vocab_size=40, valid_pairs=3))
    return folder


def start(folder: Path, run: str, *flags: str) -> subprocess.Popen[bytes]:
    command = [
        sys.executable, str(ROOT / "bin" / "train.py"), "--data_dir=data", f"--run_dir={run}",
        "--preset=tiny", *SETTING_FLAGS, *flags,
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / f"{run}.log").open("ab") as log:
        return subprocess.Popen(
            command, cwd=folder, stdout=subprocess.DEVNULL, stderr=log, env=environment
        )


def finish(folder: Path, run: str, *flags: str) -> str:
    """Returns what a run from its start or its last checkpoint to its end said."""
    assert start(folder, run, *flags).wait(timeout=240) == 0, (folder / f"{run}.log").read_text()
    return (folder / f"{run}.log").read_text()


def last_logged(folder: Path, run: str) -> int:
    file = folder / run / "metrics.jsonl"
    whole = file.read_text().split("\n")[:-1] if file.exists() else []
    return max((json.loads(line)["step"] for line in whole), default=0)


def last_saved(folder: Path, run: str) -> int:
    names = (path.name for path in (folder / run).glob("checkpoints/step-*"))
    return max((int(name.removeprefix("step-")) for name in names), default=0)


def kill_between_checkpoints(process: subprocess.Popen[bytes], folder: Path, run: str) -> int:
    """Kills it when it is beyond a checkpoint, whose step is returned."""
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        if last_saved(folder, run):
            process.send_signal(signal.SIGSTOP)  # so that it is still there when it dies
            saved, logged = last_saved(folder, run), last_logged(folder, run)
            if saved < logged < MAX_STEPS:
                process.kill()
                process.wait()
                return saved
            process.send_signal(signal.SIGCONT)
        time.sleep(0.005)
    process.kill()
    process.wait()
    pytest.fail("training was not seen between checkpoints: " + (folder / f"{run}.log").read_text())


def kill_and_continue(folder: Path, run: str, *flags: str) -> None:
    saved = kill_between_checkpoints(start(folder, run, *flags), folder, run)
    assert saved % CHECKPOINT_STEPS == 0
    with (folder / run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "loss": 2.')  # a line that the kill cut off
    said = finish(folder, run, *flags)
    assert f"continuing at step {saved}, up to step {MAX_STEPS}" in said


def metrics(run: Path) -> list[dict[str, float]]:
    """Every line; what depends on the clock is left out."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "tokens_per_second"} for line in lines]


def assert_same_bits(killed: Path, whole: Path) -> None:
    checkpoints = [RunDirectory(path).checkpoints()[-1] for path in (killed, whole)]
    assert [checkpoint.step for checkpoint in checkpoints] == [MAX_STEPS, MAX_STEPS]
    for file in ("weights.npz", "state.npz"):
        ours, theirs = (np.load(checkpoint.path / file) for checkpoint in checkpoints)
        assert ours.files == theirs.files and ours.files
        different = [name for name in ours.files if ours[name].tobytes() != theirs[name].tobytes()]
        assert different == [], file
    lines = metrics(killed)
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, MAX_STEPS + 1))
    validated = [line["step"] for line in lines if "val_loss" in line]
    assert validated == list(range(CHECKPOINT_STEPS, MAX_STEPS + 1, CHECKPOINT_STEPS))
    assert lines == metrics(whole)
    assert list(killed.glob("checkpoints/unfinished-*")) == []


def test_on_one_replica(folder: Path) -> None:
    kill_and_continue(folder, "killed")
    assert "1 CPU device, one replica each" in finish(folder, "whole")
    assert_same_bits(folder / "killed", folder / "whole")


def test_on_two_replicas(folder: Path, two_cpus: list[str]) -> None:
    kill_and_continue(folder, "killed_2", "--logical_cpus=2")
    assert "2 CPU devices, one replica each" in (folder / "killed_2.log").read_text()
    # This process has the same two devices: one start of TensorFlow less.
    assert len(tf.config.list_logical_devices("CPU")) == len(two_cpus) == 2
    experiment.train(folder / "data", folder / "whole_2", "tiny", SETTINGS)
    assert_same_bits(folder / "killed_2", folder / "whole_2")
