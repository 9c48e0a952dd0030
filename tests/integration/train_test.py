"""bin/train.py as its user runs it: interrupted, continued, and given nothing to train on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keras_transformer.data.corpus import parallel_files
from keras_transformer.data.prepare import PrepareOptions, prepare
from keras_transformer.run_directory import RunDirectory

ROOT = Path(__file__).resolve().parents[2]
MAX_STEPS = 150
NUMBERS = [("one", "ein"), ("two", "zwei"), ("three", "drei"), ("four", "vier"), ("five", "fünf")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh working directory with prepared data of invented sentences in `data`."""
    folder = tmp_path_factory.mktemp("train")
    pairs = [(f"{a} and {b}", f"{x} und {y}") for a, x in NUMBERS for b, y in NUMBERS]
    (folder / "c.en").write_text("".join(f"{source}\n" for source, _ in pairs))
    (folder / "c.de").write_text("".join(f"{target}\n" for _, target in pairs))
    corpora = parallel_files([folder / "c.en"], [folder / "c.de"])
    prepare(corpora, folder / "data", PrepareOptions(vocab_size=40, valid_pairs=3))
    return folder


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "bin" / "train.py"), *arguments],
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


COMMAND = (
    "--data_dir=data", "--run_dir=run", "--preset=tiny", f"--max_steps={MAX_STEPS}",
    "--batch_tokens=128", "--seed=3", "--mixed_precision=float32", "--jit_compile=false",
    "--logical_cpus=2", "--set=model.num_encoder_layers=1", "--set=model.num_decoder_layers=1",
    "--set=model.d_model=16", "--set=model.d_ff=32", "--set=training.log_steps=1",
    "--set=training.warmup_steps=20", "--set=training.learning_rate=2",
)  # fmt: skip


def test_ctrl_c_leaves_a_checkpoint_and_the_same_command_continues(folder: Path) -> None:
    process = start(folder, *COMMAND)
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("step 4 of"):
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, "".join(said) + err
    assert "stopping after this step, with a checkpoint" in err and "Traceback" not in err
    assert out.startswith("stopped (the same command continues) at step ")
    introduction = "".join(said)
    assert "devices: 2 CPU devices, one replica each" in introduction
    assert "precision: float32 (as configured)" in introduction
    assert f"starting, up to step {MAX_STEPS}" in introduction
    run = RunDirectory(folder / "run")
    [stopped] = run.checkpoints()
    assert 4 <= stopped.step < MAX_STEPS
    first_loss = run.read_metrics(stopped)["val_loss"]

    process = start(folder, *COMMAND)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert f"continuing at step {stopped.step}, up to step {MAX_STEPS}" in err
    assert out.startswith(f"finished at step {MAX_STEPS}, ") and out.count("\n") == 1
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [stopped.step, MAX_STEPS]
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").open()]
    steps = [line["step"] for line in lines if "loss" in line]
    assert steps == list(range(1, MAX_STEPS + 1))
    validation = {line["step"]: line["val_loss"] for line in lines if "val_loss" in line}
    assert validation.keys() == {stopped.step, MAX_STEPS}
    assert validation[MAX_STEPS] < first_loss - 0.5
    assert len(list((folder / "run" / "tensorboard").glob("events.out.tfevents.*"))) == 2


@pytest.mark.parametrize(
    "data_dir, run_dir, preset, message",
    [
        ("nowhere", "new", "tiny", "nowhere"),
        ("data", "data", "tiny", "data exists and is no run directory; expected a new"),
    ],
)
def test_a_mistake_is_one_sentence(
    folder: Path, data_dir: str, run_dir: str, preset: str, message: str
) -> None:
    process = start(folder, f"--data_dir={data_dir}", f"--run_dir={run_dir}", f"--preset={preset}")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (1, "")
    assert "Traceback" not in err
    # TensorFlow may say before it that there is no GPU.
    sentence = err.splitlines()[-1]
    assert sentence.startswith("error: ") and message in sentence
    assert not (folder / "new").exists()
