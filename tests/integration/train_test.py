"""keras-transformer train is interrupted by a signal, and the same command resumes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keras_transformer.runs.run_directory import RunDirectory
from tests.messages import tells
from tests.stress import kill

ROOT = Path(__file__).resolve().parents[2]
MAX_STEPS = 150


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with prepared data in `data`."""
    folder = tmp_path_factory.mktemp("train")
    kill.prepare_data(folder)
    return folder


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "bin" / "train.py"), *arguments],
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip


COMMAND = (
    "--data_dir=data", "--run_dir=run", "--preset=tiny", f"--max_steps={MAX_STEPS}",
    "--batch_tokens=128", "--seed=3", "--mixed_precision=float32", "--jit_compile=false",
    "--set=model.num_encoder_layers=1", "--set=model.num_decoder_layers=1",
    "--set=model.d_model=16", "--set=model.d_ff=32", "--set=training.log_steps=1",
    "--warmup_steps=20", "--learning_rate=2", "--ema_decay=0.5", "--nodeterministic",
    "--keep_checkpoints=9",
)  # fmt: skip


def test_a_signal_leaves_a_checkpoint_and_the_same_command_continues(folder: Path) -> None:
    process = start(folder, *COMMAND)
    assert process.stderr is not None
    log = ""
    for line in process.stderr:
        log += line
        if line.startswith("step 4 of"):
            process.send_signal(signal.SIGHUP)  # workers_test sends SIGTERM
            break
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, log + err
    assert tells(err, "stopping", "step", "checkpoint") and "Traceback" not in err
    assert tells(out, "stopped", "same command", "step")
    assert tells(log, "1 CPU device")  # kill_test has two
    assert tells(log, "precision", "float32") and tells(log, "starting", f"step {MAX_STEPS}")
    run = RunDirectory(folder / "run")
    [stopped] = run.checkpoints()
    assert 4 <= stopped.step < MAX_STEPS
    first_loss = run.read_metrics(stopped)["loss"]

    process = start(folder, *COMMAND)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert tells(err, f"step {stopped.step}", f"step {MAX_STEPS}")
    assert tells(out, "finished", f"step {MAX_STEPS}") and out.count("\n") == 1
    steps = [checkpoint.step for checkpoint in run.checkpoints()]
    assert steps == [MAX_STEPS]  # a checkpoint between two intervals is removed after the next one
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").open()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, MAX_STEPS + 1))
    validation = {line["step"]: line["val_loss"] for line in lines if "val_loss" in line}
    assert list(validation) == [MAX_STEPS]  # the only one that was due
    assert validation[MAX_STEPS] < first_loss - 0.2
    assert len(list((folder / "run" / "tensorboard").glob("events.out.tfevents.*"))) == 2
    assert run.config.training.deterministic is False and run.selected == "ema"
