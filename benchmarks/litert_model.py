#!/usr/bin/env python3
r"""Measures LiteRT models of random weights: size, start, memory, and time by the output's length.

Examples:
    benchmarks/litert_model.py --source=test_2016_flickr.en --vocabulary=build/data/tokenizer
    benchmarks/litert_model.py --source=test_2016_flickr.en --vocabulary=build/data/tokenizer \
        --peers_python=peers/bin/python

Each model is run by a process of its own, which knows neither this package nor TensorFlow.
`low memory` is LiteRT without XNNPACK, whose kernels keep a copy of the weights. Memory is
what the process has at most until its first translation, beyond what it has with
ai-edge-litert and NumPy alone; `over_file` is it over the file's size.

With --peers_python also sentences per second, with --steps tokens each, beside CTranslate2 in
turns, as benchmarks/decode.py measures them, whose flags this has, too.

Prints one JSON object. (Its name is not litert.py: TensorFlow imports what is called so.)
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import command
import decode
from absl import flags
from decoders import machine
from decoders.comparison import say
from decoders.litert_decoder import make_file
from decoders.process import Way

from keras_transformer.data.corpora.reading import read_lines

FLAGS = flags.FLAGS
flags.DEFINE_list("precisions", ["float32", "float16", "int8"], "how weights are held")
command.define_numbers("lengths", [16, 32, 64, 128], "tokens of outputs that are timed")

_WAYS = [
    "litert:float32",
    "litert:int8",
    *(f"ctranslate2:{p}{o}" for p in ("float32", "int8") for o in ("", ":mkl")),
]
_SCRIPT = Path(__file__).parent / "decoders" / "litert_start.py"


def measure(size: str, vocabulary: Any, folder: Path) -> dict[str, Any]:
    """Returns what is printed of a size."""
    longest = max(map(int, FLAGS.lengths))
    settings = decode.random_settings(Way.parse("litert:int8"), size, vocabulary, str(folder))
    # Every output has as many tokens as it may have.
    configuration = {
        **settings["configuration"],
        "decoding.min_length": longest,
        "decoding.max_length": longest,
    }
    sentence = next(iter(read_lines(Path(FLAGS.source))))
    ids = json.dumps(vocabulary.encode_source([sentence])[0])
    result = {}
    for precision in FLAGS.precisions:
        path = folder / f"{size}_{precision}.tflite"
        make_file({**settings, "configuration": configuration, "precision": precision}, path)
        file_mb = path.stat().st_size / 2**20
        result[precision] = {"file_mb": round(file_mb, 1)}
        for memory in ("default", "low memory"):
            say(f"{size}, {precision}, {memory}")
            arguments = [str(path), str(FLAGS.threads), memory.split()[0]]
            process = subprocess.run(
                [sys.executable, str(_SCRIPT), *arguments, ",".join(FLAGS.lengths), ids],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            found = json.loads(process.stdout)
            found["over_file"] = round(found["peak_mb"] / file_mb, 2)
            result[precision][memory] = found
    return result


def main() -> int:
    """Prints the measurements."""
    result: dict[str, Any] = {"machine": machine.describe(), "threads": FLAGS.threads}
    vocabulary = decode.joint_vocabulary()
    with tempfile.TemporaryDirectory() as folder:
        vocabulary.save(folder)
        result["models"] = {size: measure(size, vocabulary, Path(folder)) for size in FLAGS.sizes}
    if FLAGS.peers_python is not None:
        # LiteRT's models take one sentence. Set both at once, as the validator has it.
        FLAGS["batches"].value, FLAGS["sentences"].value = ["1"], ["20"]
        ways = [Way.parse(name) for name in FLAGS.ways or _WAYS]
        result["comparison"] = decode.compare_random(ways)
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    command.run(main)
