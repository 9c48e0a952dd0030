"""Training that is killed inside a write ends with the same bits.

`python -m tests.stress kill` kills thirty times at random moments, with one and two replicas.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.python.framework import config as tf_config  # has no public way to end this mode

from keras_transformer.training import training_run
from tests.builders import weekly
from tests.stress import kill

MAX_STEPS, CHECKPOINT_STEPS = 15, 3
SETTINGS = {
    **kill.SETTINGS,
    "training.max_steps": MAX_STEPS,
    "training.checkpoint_steps": CHECKPOINT_STEPS,
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with prepared data in `data`, for a deterministic training in this process."""
    kill.prepare_data(tmp_path)
    options = tf.config.optimizer.get_experimental_options()
    # Graphs are optimized as in the killed process.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    yield tmp_path
    tf.config.optimizer.set_experimental_options(options)
    tf_config.disable_op_determinism()


def kill_inside_a_write(training: kill.Training) -> int:
    """Kills a new process while it writes a checkpoint, and returns the step of the last one."""
    killed = training.kill_when(training.start(), training.moment(delay=0.0, num_files=1))
    assert killed.unfinished and 0 < killed.checkpoint < MAX_STEPS
    return killed.checkpoint


def metrics(run: Path) -> list[dict[str, float]]:
    """Returns the lines of reports, without the values that depend on the clock."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    clock_fields = {"tokens_per_second", "training_seconds", "step_seconds", "peak_memory_mb"}
    lines = [{k: v for k, v in line.items() if k not in clock_fields} for line in lines]
    return [line for line in lines if "loss" in line or "val_loss" in line]


# Two replicas take twice as long to trace.
@pytest.mark.parametrize("replicas", [1, weekly(2)])
def test_a_kill_inside_a_write(
    folder: Path, replicas: int, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]
) -> None:
    request.getfixturevalue("one_replica" if replicas == 1 else "two_cpus")
    killed = kill.Training(folder, "killed", SETTINGS, [f"--logical_cpus={replicas}"])
    inside = kill_inside_a_write(killed)
    with (killed.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1, "loss": 2.')  # a line that was truncated by the kill
    assert ("2 CPU devices, one replica each" in killed.log()) == (replicas == 2)
    whole = folder / "whole"
    for run in (killed.path, whole):
        training_run.train([folder / "data"], run, "tiny", SETTINGS)
    first = re.search(r"step (\d+) of", capfd.readouterr().err)
    assert first and int(first[1]) == inside + 1

    found, expected = (kill.digests(run, MAX_STEPS) for run in (killed.path, whole))
    assert {name.partition("/")[0] for name in expected} == {"weights", "state", "ema"}
    assert kill.differences(found, expected) == []
    lines = metrics(killed.path)
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, MAX_STEPS + 1))
    validated = [line["step"] for line in lines if "val_loss" in line]
    assert validated == list(range(CHECKPOINT_STEPS, MAX_STEPS + 1, CHECKPOINT_STEPS))
    assert lines == metrics(whole)
    assert killed.unfinished() is None


def test_differences_are_found() -> None:
    expected = {"weights/a": "1", "weights/b": "2", "state/c": "3"}
    found = {"weights/a": "1", "weights/b": "7", "state/c": "3", "state/d": "4"}
    assert kill.differences(expected, expected) == []
    assert kill.differences(found, expected) == ["state/d", "weights/b"]
