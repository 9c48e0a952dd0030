r"""Asks an exported model for translations of texts that no user means, and checks the answers.

Example:
    python -m tests.stress fuzz --export=build/export/1 --inputs=200000
    python -m tests.stress fuzz --export=build/export/1 --replay=fuzz_failures/1.json

The SavedModel runs in a process that has only TensorFlow and tensorflow-text; one that
crashes, is killed for its memory or does not answer is known by its request. Requests
are batches of 8: seven hostile texts, of the kinds of texts.py, drawn by Hypothesis
(a development dependency) or by atheris (`pip install atheris`), and, at a changing
place, a known sentence. Each batch is asked of the first of --signatures, and of one of
the others in turn, with options and ids as hostile as the texts.

What has to be true (checks.py): no error; the shapes and types that the signature
names; texts that are UTF-8 and one line; finite numbers; a status that says what was done;
and of the known sentence, what it is alone, scores within 1e-4.

Prints one JSON object: inputs and how many of them are different; batches by signature;
inputs by kind; seconds; the batch that took the most processor time; peak memory (MB) after
a tenth of the batches and at the end; failures, each shrunk, to one row where that fails by
itself, and saved for --replay. The exit code is 1 where there are any.
"""

from __future__ import annotations

import collections
import itertools
import json
import math
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags
from measuring import describe_machine

from tests.stress.fuzz import checks, engines, failures, requests
from tests.stress.fuzz.process import Answer, Arrays, ModelProcess
from tests.stress.fuzz.requests import Known, Request
from tests.stress.fuzz.texts import Material

FLAGS = flags.FLAGS
flags.DEFINE_string("export", None, "version of an export, as build/export/1", required=True)
flags.DEFINE_integer("inputs", 200_000, "hostile texts, of each engine", lower_bound=1)
flags.DEFINE_enum("engine", "hypothesis", ["hypothesis", "atheris", "both"], "what draws them")
flags.DEFINE_integer("seed", 0, "decides the texts", lower_bound=0)
flags.DEFINE_list("signatures", None, "what is asked; default: serving_default, then all others")
flags.DEFINE_string("sentences", None, "file of real ones, one a line; default: a few")
flags.DEFINE_integer("max_source_bytes", None, "the export's; default: as its manifest says")
flags.DEFINE_float("limit_s", 60, "seconds that an answer may take", lower_bound=0.1)
flags.DEFINE_integer("most_failures", 10, "failures after which it stops", lower_bound=1)
flags.DEFINE_string("failures_dir", "fuzz_failures", "folder for requests that failed")
flags.DEFINE_list("replay", [], "ask only the saved requests of these files")

SENTENCES = (
    "A small dog runs over the green field.",
    "Two children are playing with a red ball in front of the old house.",
    "The committee has not yet decided whether the bridge will be repaired this year.",
    "Why?",
)
KNOWN = 8  # known sentences, one a batch
SAID_EVERY = 1000  # batches
DEATH_TRIES = 20  # requests that shrinking takes where each may cost a process


class Examination:
    """What is counted while a model is asked."""

    def __init__(self, process: ModelProcess, max_bytes: int | None):
        self._process, self._max_bytes = process, max_bytes
        self._alone: dict[Any, Arrays] = {}
        self.batches: collections.Counter[str] = collections.Counter()
        self.kinds: collections.Counter[str] = collections.Counter()
        self.different: set[int] = set()
        self.slowest: dict[str, Any] = {"cpu_seconds": 0.0}
        self.peak_memory_mb = 0.0
        self.failures: list[dict[str, Any]] = []

    def ask(self, request: Request) -> None:
        """Asks, checks the answer, and saves a failure."""
        self.batches[request.signature] += 1
        deaths = self._process.deaths
        problem, answer = self._problem(request)
        self.peak_memory_mb = max(self.peak_memory_mb, answer.peak_memory_mb)
        is_first = self.batches[request.signature] == 1  # prepares the graph
        if not is_first and answer.cpu_seconds > self.slowest["cpu_seconds"]:
            self.slowest = _slowest(request, answer)
        if problem and not FLAGS.replay:
            tries = DEATH_TRIES if self._process.deaths > deaths else failures.TRIES
            request, problem = failures.shrink(
                request, problem, lambda smaller: self._problem(smaller)[0], tries
            )
        if problem:
            self._save(request, problem)

    def _problem(self, request: Request) -> tuple[str | None, Answer]:
        answer = self._process.ask(request.signature, request.inputs)
        problem = answer.problem
        if answer.outputs is not None:
            signature = self._process.signatures[request.signature]
            alone = None if request.place is None else self._known(request, request.place)
            problem = checks.first_problem(
                request, signature, answer.outputs, alone, self._max_bytes
            )
        return problem, answer

    def _known(self, request: Request, place: int) -> Arrays:
        """Returns the answer to the known row by itself."""
        alone = request.rows([place])
        key = request.signature, *(repr(values.tolist()) for values in alone.inputs.values())
        if key not in self._alone:
            answer = self._process.ask(alone.signature, alone.inputs)
            if answer.outputs is None:
                raise RuntimeError(f"a known sentence alone: {answer.problem}")
            self._alone[key] = answer.outputs
        return self._alone[key]

    def _save(self, request: Request, problem: str) -> None:
        failure: dict[str, Any] = {
            "signature": request.signature,
            "problem": problem,
            "kinds": request.kinds,
        }
        if not FLAGS.replay:
            path = Path(FLAGS.failures_dir) / f"{len(self.failures) + 1}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            failures.save(request, problem, path)
            failure["file"] = str(path)
        self.failures.append(failure)
        print(f"failure: {request.signature}: {problem}", file=sys.stderr)


def _slowest(request: Request, answer: Answer) -> dict[str, Any]:
    texts: Iterable[bytes] = request.inputs.get("text", [])
    return {
        "cpu_seconds": round(answer.cpu_seconds, 3),
        "signature": request.signature,
        "kinds": request.kinds,
        "bytes": [len(text) for text in texts],
    }


def drawn(process: ModelProcess, material: Material, examination: Examination) -> Iterator[Request]:
    """Yields the requests of hostile texts."""
    signatures = FLAGS.signatures or sorted(process.signatures, key="serving_default".__ne__)
    known = [_known(process, text) for text in material.sentences[:KNOWN]]
    count = math.ceil(FLAGS.inputs / engines.ROWS)
    batches = itertools.chain.from_iterable(
        engines.draw(engine, count, FLAGS.seed, material) for engine in _engines()
    )
    for number, rows in enumerate(batches):
        examination.kinds.update(row.kind for row in rows)
        examination.different.update(hash(row.text) for row in rows)
        if number % SAID_EVERY == SAID_EVERY - 1:
            print(f"{number + 1:,} batches", file=sys.stderr)
        for signature in _due(signatures, number):
            yield requests.make(
                signature,
                process.signatures[signature],
                rows,
                known[number // (engines.ROWS + 1) % len(known)],
                number % (engines.ROWS + 1),
                np.random.default_rng([FLAGS.seed, number]),
            )


def _due(signatures: list[str], number: int) -> list[str]:
    first, *others = signatures
    return [first, others[number % len(others)]] if others else [first]


def _known(process: ModelProcess, sentence: str) -> Known:
    text = np.array([sentence.encode()], object)
    translations = process.ask("serving_default", {"text": text}).outputs
    ids = np.zeros(0, np.int32)
    if "tokenize" in process.signatures:
        tokenized = process.ask("tokenize", {"text": text}).outputs
        if tokenized is not None:
            ids = tokenized["ids"][0][: tokenized["lengths"][0]]
    if translations is None:
        raise RuntimeError(f"{sentence!r} alone is not translated")
    return Known(text[0], translations["translations"][0, 0], ids)


def _engines() -> list[str]:
    return list(engines.ENGINES) if FLAGS.engine == "both" else [FLAGS.engine]


def _material(process: ModelProcess, max_bytes: int | None) -> Material:
    sentences: Iterable[str] = SENTENCES
    if FLAGS.sentences:
        lines = Path(FLAGS.sentences).read_text(encoding="utf-8").split("\n")
        sentences = [line for line in lines if line.strip()]
    max_tokens = 1024
    if "tokenize" in process.signatures:
        max_tokens = process.signatures["tokenize"].outputs["ids"].shape[1] or max_tokens
    return Material(list(sentences), max_bytes or 16_384, max_tokens)


def _max_bytes() -> int | None:
    manifest = Path(FLAGS.export) / "manifest.json"
    if FLAGS.max_source_bytes or not manifest.exists():
        return FLAGS.max_source_bytes
    return json.loads(manifest.read_bytes())["decoding"]["max_source_bytes"]


def examine() -> dict[str, Any]:
    """Returns what is printed."""
    start = time.monotonic()
    process = ModelProcess(FLAGS.export, FLAGS.limit_s)
    examination = Examination(process, _max_bytes())
    if FLAGS.replay:
        todo: Iterable[Request] = (failures.load(Path(path)) for path in FLAGS.replay)
    else:
        todo = drawn(process, _material(process, _max_bytes()), examination)
    total = len(FLAGS.replay) or math.ceil(FLAGS.inputs / engines.ROWS) * len(_engines())
    memory_after_a_tenth = 0.0
    for request in todo:
        examination.ask(request)
        first = sum(examination.kinds.values()) <= total * engines.ROWS // 10
        if first:
            memory_after_a_tenth = examination.peak_memory_mb
        if len(examination.failures) >= FLAGS.most_failures:
            break
    process.close()
    return {
        "machine": describe_machine(),
        "export": FLAGS.export,
        "engines": {} if FLAGS.replay else {name: engines.version(name) for name in _engines()},
        "seed": FLAGS.seed,
        "inputs": sum(examination.kinds.values()),
        "different": len(examination.different),
        "batches": dict(examination.batches),
        "kinds": dict(examination.kinds.most_common()),
        "seconds": round(time.monotonic() - start, 1),
        "slowest": examination.slowest,
        "peak_memory_mb": {
            "after_a_tenth": round(memory_after_a_tenth),
            "end": round(examination.peak_memory_mb),
        },
        "failures": examination.failures,
    }


def main() -> int:
    """Prints what came out."""
    try:
        for name in _engines():
            engines.version(name)
    except ImportError as error:
        print(f"error: {error}; expected it: pip install {name}", file=sys.stderr)
        return 1
    try:
        result = examine()
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    return int(bool(result["failures"]))


if __name__ == "__main__":
    import command  # late: the process that is asked imports this file, and has TensorFlow alone

    command.run(main)
