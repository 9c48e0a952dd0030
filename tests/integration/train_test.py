"""bin/train.py as its user runs it: interrupted, continued, and given nothing to train on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keras_transformer.data.corpora.corpus import parallel_files
from keras_transformer.data.preparation.prepare import PrepareOptions, prepare
from keras_transformer.runs.run_directory import RunDirectory
from tests.driver import Driver
from tests.messages import mentions, tells

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


def interrupt(folder: Path, number: int, after_step: int) -> str:
    """Sends a signal when a step has been told of, and returns what was said before."""
    process = start(folder, *COMMAND)
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith(f"step {after_step} of"):
            process.send_signal(number)
            break
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, "".join(said) + err
    assert tells(err, "stopping", "step", "checkpoint") and "Traceback" not in err
    assert tells(out, "stopped", "same command", "step")
    return "".join(said)


def test_a_signal_leaves_a_checkpoint_and_the_same_command_continues(folder: Path) -> None:
    introduction = interrupt(folder, signal.SIGINT, 4)  # SIGTERM: tests/integration/workers_test
    assert tells(introduction, "1 CPU device")  # two: kill_test
    assert tells(introduction, "precision", "float32")
    assert tells(introduction, "starting", f"step {MAX_STEPS}")
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
    assert steps == [MAX_STEPS]  # one between two intervals goes when another follows
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").open()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, MAX_STEPS + 1))
    validation = {line["step"]: line["val_loss"] for line in lines if "val_loss" in line}
    assert list(validation) == [MAX_STEPS]  # the only one that was due
    assert validation[MAX_STEPS] < first_loss - 0.5
    assert len(list((folder / "run" / "tensorboard").glob("events.out.tfevents.*"))) == 2
    assert run.config.training.deterministic is False and run.selected == "ema"


MISTAKES = {
    "--data_dir=nowhere": "nowhere",
    "--run_dir=data": mentions("data", "exists", "run directory"),
    "--init_from=nowhere": mentions("nowhere", "bin/train.py"),
    "--device=gpu": "GPU",
    "--best_metric=bleu": mentions("best_metric", "bleu", "training.bleu_steps", "0"),
    "--freeze=encoders/*": mentions("training.freeze", "'encoders/*'", "weight"),
}


def test_a_mistake_is_one_sentence(folder: Path) -> None:
    given = ["--data_dir=data", "--run_dir=new", "--preset=tiny"]
    with Driver(CUDA_VISIBLE_DEVICES="") as driver:
        answers = [driver.run(folder, "train", [*given, flag], "") for flag in MISTAKES]
    for (code, out, err, left), message in zip(answers, MISTAKES.values(), strict=True):
        assert (code, out, left) == (1, "", [])
        assert err.startswith("error: ") and re.search(message, err) and err.count("\n") == 1
