#!/usr/bin/env python3
r"""Measures keras-transformer prepare on large corpora: time, memory and disk, next to
`spm_encode`.

Examples:
    benchmarks/prepare.py --tsv=tatoeba.tsv --pairs=10000000 --work_dir=build/large
    benchmarks/prepare.py --source=train.en --target=train.de --copies=40 --rounds=3 \
        --vocab_from=build/data --spm_encode=spm_encode --work_dir=build/large

The corpus repeats the files as often as --copies or --pairs says. All repetitions but the first
have one word of each sentence replaced by another word of the corpus, so that pairs differ.
keras-transformer prepare then runs on it in a new process, with the flags of --prepare_flags. With
--spm_encode, SentencePiece's program takes turns with it and encodes both files, one after the
other, with the vocabulary of --vocab_from.

Prints one JSON object: pairs, bytes, seconds and pairs per second; the largest memory of all
processes together, sampled ten times a second (shared memory counts for each process); megabytes
on disk, at most and at the end; and the ratio to the rate of spm_encode.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import command
from absl import flags
from command import info
from measuring import Turn, describe_machine, ratio, spread, take_turns
from resources import resident_mb

from keras_transformer.data.reading import read_text

FLAGS = flags.FLAGS
flags.DEFINE_string("source", None, "source text")
flags.DEFINE_string("target", None, "target text")
flags.DEFINE_string("tsv", None, "or a file of both: source, TAB, target")
flags.DEFINE_integer("copies", 1, "repetitions of the corpus", lower_bound=1)
flags.DEFINE_integer("pairs", None, "or the number of pairs", lower_bound=1)
flags.DEFINE_string("work_dir", None, "folder for the corpus and the prepared data", required=True)
flags.DEFINE_string("vocab_from", None, "vocabulary; learned if not given")
flags.DEFINE_string("spm_encode", None, "SentencePiece's program, to compare with")
flags.DEFINE_list("prepare_flags", [], "flags of keras-transformer prepare: vocab_size=8000")
flags.DEFINE_integer("rounds", 1, "rounds; both programs have a turn in each", lower_bound=1)
flags.DEFINE_integer("workers", 2, "processes of keras-transformer prepare", lower_bound=1)

_PREPARE = Path(__file__).resolve().parents[1] / "bin" / "prepare.py"
_SAMPLE_SECONDS = 0.1


def make_corpus(work_dir: Path) -> tuple[Path, Path, int]:
    """Writes the corpus if it does not exist, and returns its files and number of pairs."""
    if FLAGS.tsv:
        rows = [line.split("\t")[:2] for line in read_text(FLAGS.tsv)]
        sides = [[row[side] for row in rows] for side in (0, 1)]
    else:
        sides = [read_text(FLAGS.source), read_text(FLAGS.target)]
    pairs = FLAGS.pairs or FLAGS.copies * len(sides[0])
    work_dir.mkdir(parents=True, exist_ok=True)
    paths = [work_dir / f"corpus-{pairs}.{name}" for name in ("source", "target")]
    for path, lines in zip(paths, sides, strict=True):
        if not path.exists():
            info(f"Writing {path}.")
            with path.with_suffix(".tmp").open("w") as file:
                file.writelines(itertools.islice(_perturbed(lines), pairs))
            path.with_suffix(".tmp").rename(path)
    return paths[0], paths[1], pairs


def _perturbed(lines: Sequence[str]) -> Iterator[str]:
    """Yields the lines, and then endlessly the lines with one word replaced."""
    random_ = random.Random(1)
    split = [line.split(" ") for line in lines]
    words = [word for line in split[:10_000] for word in line]
    yield from (f"{line}\n" for line in lines)
    while True:
        for line in split:
            changed = list(line)
            changed[int(random_.random() * len(line))] = words[int(random_.random() * len(words))]
            yield " ".join(changed) + "\n"


def _family(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has ended
        return []
    return [pid, *(grandchild for child in children for grandchild in _family(int(child)))]


def _memory_mb(pid: int) -> float:
    """Returns the resident memory of a process and its children; shared pages count for each."""
    total = 0.0
    for process in _family(pid):
        with contextlib.suppress(OSError, ValueError):  # it has ended
            total += resident_mb("VmRSS", process)
    return total


def disk_mb(directory: Path) -> float:
    """Returns the disk usage of a folder."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):  # it was renamed in between
            total += path.stat().st_blocks * 512
    return total / 2**20


def prepare(source: Path, target: Path, output: Path, pairs: int) -> Turn:
    """Runs keras-transformer prepare, and returns its costs and its report."""
    shutil.rmtree(output.parent, ignore_errors=True)
    output.parent.mkdir(parents=True)
    command = [sys.executable, str(_PREPARE), f"--source={source}", f"--target={target}"]
    command += [f"--output_dir={output}", f"--workers={FLAGS.workers}"]
    command += [f"--{flag}" for flag in FLAGS.prepare_flags]
    if FLAGS.vocab_from:
        command.append(f"--vocab_from={FLAGS.vocab_from}")
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peaks = {"resident_mb": 0.0, "disk_mb": 0.0}
    while process.poll() is None:
        now = {"resident_mb": _memory_mb(process.pid), "disk_mb": disk_mb(output.parent)}
        peaks = {name: max(peaks[name], value) for name, value in now.items()}
        time.sleep(_SAMPLE_SECONDS)
    seconds = time.perf_counter() - started
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {process.returncode}.")
    report = json.loads((output / "report.json").read_bytes())
    return {
        "seconds": seconds,
        "per_second": pairs / seconds,
        "kept": report["train"]["pairs"] + report["valid"]["pairs"],
        "dropped": report["cleaning"]["train"]["dropped"],
        "seconds_of_stages": report["seconds_of_stages"],
        "tokens": report["train"]["source"]["tokens"] + report["train"]["target"]["tokens"],
        **peaks,
        "disk_at_end_mb": disk_mb(output),
    }


def spm_encode(source: Path, target: Path, pairs: int) -> Turn:
    """Runs spm_encode on both files, and returns its rate."""
    models = Path(FLAGS.vocab_from)
    [model] = [*models.glob("joint.model"), *models.glob("tokenizer/joint.model")]
    started = time.perf_counter()
    for path in (source, target):
        with path.open("rb") as lines, path.with_suffix(".ids").open("wb") as ids:
            command = [FLAGS.spm_encode, f"--model={model}", "--output_format=id"]
            subprocess.run([*command, "--extra_options=eos"], stdin=lines, stdout=ids, check=True)
    return {"per_second": pairs / (time.perf_counter() - started)}


def main() -> int:
    """Prints the measurements."""
    work_dir = Path(FLAGS.work_dir)
    source, target, pairs = make_corpus(work_dir)
    output = work_dir / "out" / "data"
    calls: dict[str, Callable[[int], Turn]] = {
        "prepare": lambda _: prepare(source, target, output, pairs)
    }
    if FLAGS.spm_encode:
        calls["spm_encode"] = lambda _: spm_encode(source, target, pairs)
    turns = take_turns(calls, FLAGS.rounds, "pairs/s")
    own = turns["prepare"]
    result = {
        "machine": describe_machine(),
        "pairs": pairs,
        "bytes": source.stat().st_size + target.stat().st_size,
        "prepare_flags": FLAGS.prepare_flags,
        "workers": FLAGS.workers,
        "seconds": spread([turn["seconds"] for turn in own], 1),
        "pairs_per_second": spread([turn["per_second"] for turn in own], 0),
        **{key: own[-1][key] for key in ("kept", "dropped", "tokens", "seconds_of_stages")},
        **{
            key: round(max(turn[key] for turn in own))
            for key in ("resident_mb", "disk_mb", "disk_at_end_mb")
        },
    }
    if FLAGS.spm_encode:
        rates = [turn["per_second"] for turn in turns["spm_encode"]]
        result["spm_encode_pairs_per_second"] = spread(rates, 0)
        result["ratio"] = ratio(turns, "prepare", "spm_encode")
    print(json.dumps(result))
    return 0


flags.register_multi_flags_validator(
    ["spm_encode", "vocab_from"],
    lambda values: values["spm_encode"] is None or values["vocab_from"] is not None,
    "expected --vocab_from with --spm_encode",
)
flags.register_multi_flags_validator(
    ["source", "target", "tsv"],
    lambda values: (
        (values["source"] is None) == (values["target"] is None) != (values["tsv"] is None)
    ),
    "expected --source and --target, or --tsv",
)


if __name__ == "__main__":
    command.run(main)
