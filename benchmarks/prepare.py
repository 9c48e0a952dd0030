#!/usr/bin/env python3
r"""Prepares large corpora: time, memory and disk, and beside SentencePiece's own `spm_encode`.

Examples:
    benchmarks/prepare.py --tsv=tatoeba.tsv --pairs=10000000 --work_dir=build/large
    benchmarks/prepare.py --source=train.en --target=train.de --copies=40 --rounds=3 \
        --vocab_from=build/data --spm_encode=spm_encode --work_dir=build/large

The corpus is that of the files, as often as --copies or --pairs asks for, all of it but the
first time with one word of each sentence replaced by another of the corpus, so that pairs are
not the same. bin/prepare.py then runs on it, in a new process, with the flags after `--`.
With --spm_encode that program encodes both files, one after the other, in turns with it;
the vocabulary is then that of --vocab_from.

Prints one JSON object: pairs, bytes and seconds; pairs a second, without and with the reading
of the survey; the most memory of all processes together (resident, what they share counted
for each; and proportional, counted once), sampled ten times a second; megabytes on disk at
most and at the end; and the rate over that of spm_encode, median (least, most) of the rounds.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags
from decoders import machine
from decoders.comparison import say, spread

FLAGS = flags.FLAGS
flags.DEFINE_string("source", None, "source text")
flags.DEFINE_string("target", None, "its translation")
flags.DEFINE_string("tsv", None, "or a file of both: source, TAB, target")
flags.DEFINE_integer("copies", 1, "how often the corpus is repeated")
flags.DEFINE_integer("pairs", None, "or how many pairs it shall have")
flags.DEFINE_string("work_dir", None, "folder for the corpus and what is prepared", required=True)
flags.DEFINE_string("vocab_from", None, "vocabulary; learned if not given")
flags.DEFINE_string("spm_encode", None, "SentencePiece's program, to compare with")
flags.DEFINE_integer("rounds", 1, "rounds")
flags.DEFINE_integer("workers", 2, "processes")

_PREPARE = Path(__file__).resolve().parents[1] / "bin" / "prepare.py"
_SAMPLE_SECONDS = 0.1


def make_corpus(work_dir: Path) -> tuple[Path, Path, int]:
    """Writes the corpus, if it is not there, and returns its files and number of pairs."""
    if FLAGS.tsv:
        rows = [line.split("\t")[:2] for line in _lines(FLAGS.tsv)]
        sides = [[row[side] for row in rows] for side in (0, 1)]
    else:
        sides = [_lines(FLAGS.source), _lines(FLAGS.target)]
    pairs = FLAGS.pairs or FLAGS.copies * len(sides[0])
    work_dir.mkdir(parents=True, exist_ok=True)
    paths = [work_dir / f"corpus-{pairs}.{name}" for name in ("source", "target")]
    for path, lines in zip(paths, sides, strict=True):
        if not path.exists():
            say(f"writing {path}")
            with path.with_suffix(".tmp").open("w") as file:
                file.writelines(itertools.islice(_perturbed(lines), pairs))
            path.with_suffix(".tmp").rename(path)
    return paths[0], paths[1], pairs


def _lines(path: str) -> list[str]:
    return Path(path).read_text(encoding="utf-8").split("\n")[:-1]


def _perturbed(lines: Sequence[str]) -> Iterator[str]:
    """Yields the lines, and then without end the lines with one word replaced."""
    random_ = random.Random(1)
    split = [line.split(" ") for line in lines]
    words = [word for line in split[:10_000] for word in line]
    yield from (f"{line}\n" for line in lines)
    while True:
        for line in split:
            changed = list(line)
            changed[int(random_.random() * len(line))] = words[int(random_.random() * len(words))]
            yield " ".join(changed) + "\n"


class Watch:
    """Samples the memory of a process with its children, and the disk below a folder."""

    def __init__(self, process: subprocess.Popen[Any], directory: Path) -> None:
        self._process = process
        self._directory = directory
        self.peaks = {"resident_mb": 0.0, "proportional_mb": 0.0, "disk_mb": 0.0}
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def join(self) -> None:
        """Waits for the process to end."""
        self._thread.join()

    def _watch(self) -> None:
        while self._process.poll() is None:
            memory = [_memory(pid) for pid in _family(self._process.pid)]
            now = {
                "resident_mb": sum(resident for resident, _ in memory),
                "proportional_mb": sum(proportional for _, proportional in memory),
                "disk_mb": disk_mb(self._directory),
            }
            self.peaks = {name: max(self.peaks[name], value) for name, value in now.items()}
            time.sleep(_SAMPLE_SECONDS)


def _family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(grandchild for child in children for grandchild in _family(int(child)))]


def _memory(pid: int) -> tuple[float, float]:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:  # it has ended
        return 0.0, 0.0
    values = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    return values.get("Rss", 0.0), values.get("Pss", 0.0)


def disk_mb(directory: Path) -> float:
    """Returns what the files below a folder take."""
    total = 0
    for folder, _, files in os.walk(directory):
        for name in files:
            with contextlib.suppress(OSError):  # it was renamed in between
                total += os.stat(os.path.join(folder, name)).st_blocks * 512
    return total / 2**20


def prepare(source: Path, target: Path, output: Path, flags_: Sequence[str]) -> dict[str, Any]:
    """Runs bin/prepare.py and returns what it took."""
    shutil.rmtree(output.parent, ignore_errors=True)
    output.parent.mkdir(parents=True)
    command = [sys.executable, str(_PREPARE), f"--source={source}", f"--target={target}"]
    command += [f"--output_dir={output}", f"--workers={FLAGS.workers}", *flags_]
    if FLAGS.vocab_from:
        command.append(f"--vocab_from={FLAGS.vocab_from}")
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    watch = Watch(process, output.parent)
    watch.join()
    seconds = time.perf_counter() - start
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    report = json.loads((output / "report.json").read_bytes())
    return {
        "seconds": seconds,
        "kept": report["train"]["pairs"] + report["valid"]["pairs"],
        "dropped": report["cleaning"]["train"]["dropped"],
        "seconds_of_stages": report["seconds_of_stages"],
        "tokens": report["train"]["source"]["tokens"] + report["train"]["target"]["tokens"],
        **watch.peaks,
        "disk_at_end_mb": disk_mb(output),
    }


def encode(source: Path, target: Path) -> float:
    """Runs spm_encode on both files and returns its seconds."""
    models = Path(FLAGS.vocab_from)
    [model] = [*models.glob("joint.model"), *models.glob("tokenizer/joint.model")]
    start = time.perf_counter()
    for path in (source, target):
        with path.open("rb") as lines, path.with_suffix(".ids").open("wb") as ids:
            command = [FLAGS.spm_encode, f"--model={model}", "--output_format=id"]
            subprocess.run([*command, "--extra_options=eos"], stdin=lines, stdout=ids, check=True)
    return time.perf_counter() - start


def main(argv: list[str]) -> None:
    """Prints the measurements."""
    work_dir = Path(FLAGS.work_dir)
    source, target, pairs = make_corpus(work_dir)
    turns: list[dict[str, Any]] = []
    for number in range(FLAGS.rounds):
        ways: list[Callable[[], None]] = []
        turn: dict[str, Any] = {}
        ways.append(
            lambda turn=turn: turn.update(
                prepare(source, target, work_dir / "out" / "data", argv[1:])
            )
        )
        if FLAGS.spm_encode:
            ways.append(lambda turn=turn: turn.update(spm_seconds=encode(source, target)))
        for way in ways if number % 2 == 0 else reversed(ways):
            way()
        say(f"round {number + 1}: {pairs / turn['seconds']:,.0f} pairs/s")
        turns.append(turn)
    last = turns[-1]
    result = {
        "pairs": pairs,
        "bytes": source.stat().st_size + target.stat().st_size,
        "flags": argv[1:],
        "workers": FLAGS.workers,
        "seconds": spread([turn["seconds"] for turn in turns], 1),
        "pairs_per_second": spread([pairs / turn["seconds"] for turn in turns], 0),
        **{key: last[key] for key in ("kept", "dropped", "tokens", "seconds_of_stages")},
        **{
            key: round(max(turn[key] for turn in turns))
            for key in ("resident_mb", "proportional_mb", "disk_mb", "disk_at_end_mb")
        },
    }
    if FLAGS.spm_encode:
        result["spm_encode_pairs_per_second"] = spread([pairs / t["spm_seconds"] for t in turns], 0)
        ratios = [turn["spm_seconds"] / turn["seconds"] for turn in turns]
        result["over_spm_encode"] = spread(ratios, 2)
    print(json.dumps({**result, "machine": machine.describe()}, indent=1))


if __name__ == "__main__":
    app.run(main)
