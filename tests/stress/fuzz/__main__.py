r"""Sends malformed texts to an exported model and checks the answers.

Examples:
    python -m tests.stress fuzz --export=build/export/1 --inputs=200000
    python -m tests.stress fuzz --export=build/export/1 --first_batch=1234 --inputs=7

The process has only TensorFlow and tensorflow-text, as a server does. A crash or a request without
an answer ends it, and the last number on standard error is that of the batch. A request is a batch
of 8 rows: seven malformed texts of the kinds in `texts.py`, and one known sentence at a changing
index. Each batch goes to the first of --signatures and to one of the others in turn, with random
options and ids.

Checks (`checks.py`):

* The request succeeds, with the shapes and dtypes of the signature.
* Texts are UTF-8 without line breaks, and numbers are finite.
* `status` agrees with the request.
* The known sentence has the same translation as in a batch of one, with scores within 1e-4.

Prints one JSON object: the number of texts and of different texts; batches by signature; texts by
kind; seconds; peak memory (MB) after a tenth of the batches and at the end; and the failures. The
second example repeats a failed batch. The exit code is 1 if there is a failure.
"""

import collections
import json
import math
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

from tests.stress.fuzz import checks
from tests.stress.fuzz.model import Arrays, KnownSentence, Model, Request, make_request
from tests.stress.fuzz.texts import KINDS, Material

FLAGS = flags.FLAGS
flags.DEFINE_string("export", None, "version of an export, such as build/export/1", required=True)
flags.DEFINE_integer("inputs", 200_000, "number of malformed texts", lower_bound=1)
flags.DEFINE_integer("first_batch", 0, "number of the first batch", lower_bound=0)
flags.DEFINE_integer("seed", 0, "seed of the texts", lower_bound=0)
flags.DEFINE_list("signatures", None, "signatures; default: serving_default and all others")
flags.DEFINE_integer("max_source_bytes", None, "default: the value in the export's manifest")
flags.DEFINE_float("limit_s", 60, "time limit of a request, in seconds", lower_bound=0.1)

SENTENCES = (
    "A small dog runs over the green field.",
    "Two children are playing with a red ball in front of the old house.",
    "The committee has not yet decided whether the bridge will be repaired this year.",
    "Why?",
)
_ROWS = 7  # malformed texts of a batch
_MAX_FAILURES = 10


class Fuzzer:
    """Sends requests to a model, and counts."""

    def __init__(self, model: Model):
        self._model = model
        self._max_bytes = FLAGS.max_source_bytes
        manifest = Path(FLAGS.export) / "manifest.json"
        if self._max_bytes is None and manifest.exists():
            self._max_bytes = (
                16 * json.loads(manifest.read_bytes())["decoding"]["max_source_tokens"]
            )
        max_tokens = 1024
        if "tokenize" in model.signatures:
            max_tokens = model.signatures["tokenize"].outputs["ids"].shape[1] or max_tokens
        self._material = Material(SENTENCES, self._max_bytes or 16_384, max_tokens)
        names = sorted(model.signatures, key="serving_default".__ne__)
        self._signatures = FLAGS.signatures or names
        self._alone: dict[Any, Arrays] = {}  # answers to known sentences in a batch of one
        self._known = [self._translate(sentence) for sentence in SENTENCES]
        self.batches: collections.Counter[str] = collections.Counter()
        self.kinds: collections.Counter[str] = collections.Counter()
        self.different: set[int] = set()
        self.failures: list[dict[str, Any]] = []

    def _translate(self, sentence: str) -> KnownSentence:
        text = np.array([sentence.encode()], object)
        best = self._ask_alone(Request("serving_default", {"text": text}, 0))["translations"][0, 0]
        ids = np.zeros(0, np.int32)
        if "tokenize" in self._model.signatures:
            tokenized = self._ask_alone(Request("tokenize", {"text": text}, 0))
            ids = tokenized["ids"][0][: tokenized["lengths"][0]]
        return KnownSentence(text[0], best, ids)

    def _ask_alone(self, request: Request) -> Arrays:
        key = request.signature, *(repr(values.tolist()) for values in request.inputs.values())
        if key not in self._alone:
            outputs, problem = self._model.ask(request.signature, request.inputs)
            if outputs is None:
                raise RuntimeError(f"The model does not answer a known sentence: {problem}.")
            self._alone[key] = outputs
        return self._alone[key]

    def send_batch(self, number: int) -> None:
        """Sends the batch with this number to two signatures."""
        random = np.random.default_rng([FLAGS.seed, number])
        kinds = [str(kind) for kind in random.choice(sorted(KINDS), _ROWS)]
        rows = [KINDS[kind](random, self._material) for kind in kinds]
        self.kinds.update(kinds)
        self.different.update(map(hash, rows))
        known = self._known[number // (_ROWS + 1) % len(self._known)]
        first, *others = self._signatures
        for name in [first, others[number % len(others)]] if others else [first]:
            signature = self._model.signatures[name]
            request = make_request(name, signature, rows, known, number % (_ROWS + 1), random)
            outputs, problem = self._model.ask(name, request.inputs)
            if outputs is not None:
                alone = self._ask_alone(request.known_row())
                problem = checks.first_problem(request, signature, outputs, alone, self._max_bytes)
            self.batches[name] += 1
            if problem:
                failure = {"batch": number, "signature": name, "problem": problem, "kinds": kinds}
                self.failures.append(failure)
                print(f"\nFailure: batch {number}, {name}: {problem}", file=sys.stderr)


def peak_memory_mb() -> int:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> int:
    """Prints the results."""
    started = time.monotonic()
    fuzzer = Fuzzer(Model(FLAGS.export, FLAGS.limit_s))
    num_batches = math.ceil(FLAGS.inputs / _ROWS)
    memory_after_a_tenth = 0
    for count in range(num_batches):
        print(f"\rBatch {FLAGS.first_batch + count:,}", end="", file=sys.stderr, flush=True)
        fuzzer.send_batch(FLAGS.first_batch + count)
        if count <= num_batches // 10:
            memory_after_a_tenth = peak_memory_mb()
        if len(fuzzer.failures) >= _MAX_FAILURES:
            break
    assert "keras_transformer" not in sys.modules, "the model must not need the package"
    result = {
        "inputs": sum(fuzzer.kinds.values()),
        "different": len(fuzzer.different),
        "batches": dict(fuzzer.batches),
        "kinds": dict(fuzzer.kinds.most_common()),
        "seconds": round(time.monotonic() - started, 1),
        "peak_memory_mb": [memory_after_a_tenth, peak_memory_mb()],
        "failures": fuzzer.failures,
    }
    print(json.dumps(result))
    return int(bool(fuzzer.failures))


if __name__ == "__main__":
    app.run(lambda _: main())
