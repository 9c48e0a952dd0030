"""What a LiteRT model costs a process that does nothing else: its start, its memory, its tokens.

    python litert_start.py MODEL THREADS default|low LENGTHS IDS

Knows neither this package nor TensorFlow. Prints a JSON object: seconds until the package is
there, the model is loaded, and the first translation is done; megabytes above those of the
package alone, at most, until then; and milliseconds a token of outputs of LENGTHS tokens.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

BEGUN = time.perf_counter()

import numpy as np  # noqa: E402
from ai_edge_litert.interpreter import Interpreter, OpResolverType  # noqa: E402

_ROUNDS = 3
_FIRST = 30  # tokens of the first translation


def peak_mb() -> float:
    """Returns the most memory that this process has had."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


def main(path: str, threads: str, memory: str, lengths: str, ids: str) -> None:
    """Prints the measurements."""
    imported, bare = time.perf_counter(), peak_mb()
    kind = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    options = {"experimental_op_resolver_type": kind} if memory == "low" else {}
    interpreter = Interpreter(path, num_threads=int(threads), **options)
    run = interpreter.get_signature_runner("translate_ids")
    loaded = time.perf_counter()

    def translate(most: int) -> int:
        outputs = run(
            ids=np.array([json.loads(ids)], np.int32),
            max_length=np.array([most], np.int32),
            length_penalty=np.array([np.nan], np.float32),
        )
        return int(outputs["lengths"][0, 0])

    translate(_FIRST)
    first, peak = time.perf_counter(), peak_mb()
    by_length = {}
    for most in map(int, lengths.split(",")):
        seconds = []
        for _ in range(_ROUNDS):
            start = time.perf_counter()
            tokens = translate(most)
            seconds.append(time.perf_counter() - start)
        by_length[tokens] = round(1e3 * statistics.median(seconds) / tokens, 3)
    print(
        json.dumps(
            {
                "import_seconds": round(imported - BEGUN, 3),
                "load_seconds": round(loaded - imported, 3),
                "first_seconds": round(first - loaded, 3),
                "peak_mb": round(peak - bare, 1),
                "package_mb": round(bare, 1),
                "ms_a_token": by_length,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
