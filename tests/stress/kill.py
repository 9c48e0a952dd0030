r"""Kills training again and again, and compares the result with an uninterrupted run.

Example:
    python -m tests.stress kill --kills=30 --inside_writes=5 --replicas=1,2

For each number of replicas, keras-transformer train trains a small model on a generated corpus in
deterministic mode, twice: once without interruption, and once with --kills kills (SIGKILL). After
each kill, the same command resumes training. A kill comes at a random time after the first new
checkpoint of the process, so that every process makes progress. Some kills aim at the write of a
checkpoint: the process is stopped (SIGSTOP) when the unfinished directory appears, and killed if
the directory is still there.

Prints one JSON object with, for each number of replicas:

* the kills: the newest checkpoint, and the files of the unfinished one for a kill inside a write
* the arrays that differ from the uninterrupted run; if there are any, the exit code is 1
"""

import dataclasses
import hashlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import command
from absl import flags
from command import info

import keras_transformer as kt
from keras_transformer.runs.run_directory import RunDirectory

FLAGS = flags.FLAGS
ROOT = Path(__file__).resolve().parents[2]
NUMBERS = {
    "one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf", "six": "sechs",
}  # fmt: skip

# Starts quickly, has enough weights for a kill inside a write, and uses every stateful option.
SETTINGS: dict[str, Any] = {
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.d_model": 128,
    "model.d_ff": 2048,
    "model.num_heads": 4,
    "model.attention_dropout": 0.1,
    "model.activation_dropout": 0.1,
    "training.batch_tokens": 128,
    "training.warmup_steps": 200,
    "training.ema_decay": 0.99,
    "training.clip_norm": 1,
    "training.mixed_precision": "float32",
    "training.jit_compile": "false",
    "training.deterministic": "true",
    "training.checkpoint_steps": 10,
    "training.keep_checkpoints": 3,
    "training.log_steps": 1,
}
_CHECKPOINTS_PER_KILL = 5  # more than a process writes before it is killed
_PATIENCE = 240.0  # seconds that a process may take until its kill


class Kill(NamedTuple):
    """How a process ended."""

    checkpoint: int  # step of the newest checkpoint
    unfinished: list[str] | None  # files of the unfinished checkpoint; None between two writes


@dataclasses.dataclass(frozen=True)
class Training:
    """Runs keras-transformer train in separate processes.

    Attributes:
        folder: folder of the prepared data (`data`), the run and its log.
        name: name of the run directory.
        settings: settings of the configuration.
        flags: further flags of keras-transformer train.
    """

    folder: Path
    name: str
    settings: Mapping[str, Any]
    flags: Sequence[str] = ()

    def start(self) -> subprocess.Popen[bytes]:
        """Starts or resumes the run."""
        command = [
            sys.executable, str(ROOT / "bin" / "train.py"), "--data_dir=data",
            f"--run_dir={self.name}", "--preset=tiny", *self.flags,
            *(f"--set={name}={value}" for name, value in self.settings.items()),
        ]  # fmt: skip
        with (self.folder / f"{self.name}.log").open("ab") as log:
            return subprocess.Popen(
                command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip

    def finish(self) -> None:
        """Trains to the end."""
        if self.start().wait():
            raise RuntimeError(f"{self.name} did not finish: {self.log()}")

    def log(self) -> str:
        """Returns the log of all processes."""
        return (self.folder / f"{self.name}.log").read_text()

    @property
    def path(self) -> Path:
        return self.folder / self.name

    def unfinished(self) -> list[str] | None:
        """Returns the files of the unfinished checkpoint, or None between two writes."""
        for path in self.path.glob("checkpoints/.*.unfinished"):
            return sorted(file.name for file in path.glob("*"))
        return None

    def kill_when(self, process: subprocess.Popen[bytes], is_moment: Callable[[], bool]) -> Kill:
        """Kills the process when `is_moment` is true, also after the process has been stopped."""
        started = time.monotonic()
        while process.poll() is None and time.monotonic() < started + _PATIENCE:
            if is_moment():
                process.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
                if process.poll() is None and is_moment():
                    process.kill()
                    process.wait()
                    return Kill(last_saved(self.path), self.unfinished())
                process.send_signal(signal.SIGCONT)
            time.sleep(0.002)
        process.kill()
        process.wait()
        raise RuntimeError(f"{self.name} did not reach the moment of its kill: {self.log()}")

    def moment(self, delay: float, num_files: int) -> Callable[[], bool]:
        """Returns a function that is true at the time of the kill.

        Args:
            delay: seconds after the first new checkpoint.
            num_files: files that an unfinished checkpoint must have; 0 for any moment.
        """
        first = last_saved(self.path)
        due = float("inf")

        def is_moment() -> bool:
            nonlocal due
            saved = last_saved(self.path)
            if saved > first:
                due = min(due, time.monotonic() + delay)
            before_the_end = saved < self.settings["training.max_steps"]
            has_files = len(self.unfinished() or []) >= num_files
            return time.monotonic() >= due and before_the_end and has_files

        return is_moment


def last_saved(run: Path) -> int:
    """Returns the step of the newest checkpoint, or 0."""
    names = (path.name for path in run.glob("checkpoints/step-*"))
    return max((int(name.removeprefix("step-")) for name in names), default=0)


def prepare_data(folder: Path) -> None:
    """Prepares sentences of three numbers each as `folder/data`."""
    triples = itertools.product(NUMBERS.items(), repeat=3)
    pairs = [(f"{a} {b} {c}", f"{x} {y} {z}") for (a, x), (b, y), (c, z) in triples]
    options: Any = {"vocab_size": 40, "augment": {}, "num_workers": 1}
    kt.prepare(pairs=pairs, output_dir=folder / "data", valid_pairs=8, **options)


def digests(run: Path, max_steps: int) -> dict[str, str]:
    """Returns the SHA-256 of every array of a finished run, by names such as `ema/PATH`."""
    restored = RunDirectory(run).restore()
    if restored is None or restored[0].step != max_steps:
        raise RuntimeError(f"{run} has not finished.")
    return {
        f"{name}/{path}": hashlib.sha256(f"{a.dtype} {a.shape} ".encode() + a.tobytes()).hexdigest()
        for name, arrays in restored[2].items()
        for path, a in arrays.items()
    }


def differences(found: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    """Returns the arrays that differ or are missing in two results of `digests`."""
    names = sorted(found.keys() | expected.keys())
    return [name for name in names if found.get(name) != expected.get(name)]


def kill_and_compare(
    folder: Path, replicas: int, kills: int, inside_writes: int, generator: random.Random
) -> dict[str, Any]:
    """Trains an uninterrupted run and a killed run, and returns their comparison."""
    max_steps = SETTINGS["training.checkpoint_steps"] * _CHECKPOINTS_PER_KILL * (kills + 1)
    settings = {**SETTINGS, "training.max_steps": max_steps}
    split = [f"--logical_cpus={replicas}"] if replicas > 1 else []
    whole, killed = (
        Training(folder, f"{name}_{replicas}", settings, split) for name in ("whole", "killed")
    )
    whole.finish()
    before, after = (c.path.stat().st_mtime for c in RunDirectory(whole.path).checkpoints()[-2:])
    aimed = set(generator.sample(range(kills), max(inside_writes, kills // 3)))
    log = []
    for number in range(kills):
        delay = generator.uniform(0, 2 * (after - before))
        num_files = generator.randint(1, 3) if number in aimed else 0
        log.append(killed.kill_when(killed.start(), killed.moment(delay, num_files))._asdict())
        info(f"{replicas} replicas, kill {number + 1}: {json.dumps(log[-1])}")
    killed.finish()
    return {
        "replicas": replicas,
        "steps": max_steps,
        "kills": log,
        "inside_writes": sum(kill["unfinished"] is not None for kill in log),
        "different": differences(digests(killed.path, max_steps), digests(whole.path, max_steps)),
    }


def main() -> int:
    """Prints the results."""
    generator = random.Random(FLAGS.random_seed)
    with tempfile.TemporaryDirectory() as folder:
        prepare_data(Path(folder))
        results = [
            kill_and_compare(Path(folder), int(count), FLAGS.kills, FLAGS.inside_writes, generator)
            for count in FLAGS.replicas
        ]
    print(json.dumps(results))
    enough = all(result["inside_writes"] >= FLAGS.inside_writes for result in results)
    return int(not enough or any(result["different"] for result in results))


if __name__ == "__main__":  # tests import this module, too, and commands have the same flags
    flags.DEFINE_integer("kills", 30, "number of kills", lower_bound=1)
    flags.DEFINE_integer(
        "inside_writes", 5, "minimum number of kills inside the write of a checkpoint"
    )
    command.define_numbers(
        "replicas", [1, 2], "numbers of replicas; more than 1 use logical CPU devices"
    )
    flags.DEFINE_integer("random_seed", 1, "seed of the times of the kills")
    command.run(main)
