#!/usr/bin/env python3
r"""Measures LiteRT models: size, start, memory and speed, next to CTranslate2.

Example:
    benchmarks/litert_model.py --source=multi30k/test_2016_flickr.en \
        --vocabulary=build/data/tokenizer --rounds=3

All models have random weights. Each runs in a process that has neither this package nor
TensorFlow. `CompiledModel` releases the original of the weights that XNNPACK packs. It keeps the
packed ones in memory, or in a cache file, as the Kotlin example in docs/phone.md does. The second
start with a cache file is measured separately.

`peak_mb` is the most memory until the first translation, beyond the memory with only
ai-edge-litert and NumPy; `over_file` is its ratio to the size of the file. `dirty_mb` is the part
after the first translation that the operating system cannot drop when memory is short, and
`dirty_over_file` its ratio. Pages of the model file and of a cache file can be dropped.

After that, the engines of --engines decode sentence by sentence in turns, with --steps tokens
each, as in benchmarks/decode.py. The other flags are also those of that command.

Prints one JSON object. (TensorFlow imports a module that is called litert; therefore this file
has another name.)
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import command
import decode
from absl import flags
from command import info
from measuring import describe_machine
from models import RandomModels, joint_vocabulary, write_litert
from protocol import EngineChild
from variants import chosen

from keras_transformer.data.reading import read_lines
from keras_transformer.text.vocabulary import Vocabulary

FLAGS = flags.FLAGS
flags.DEFINE_list("precisions", ["float32", "float16", "int8"], "precisions of the weights")
command.define_numbers("lengths", [16, 32, 64, 128], "tokens of the outputs that are timed")

FLAGS.set_default(
    "engines",
    [
        *("litert:float32:phone", "litert:int8:phone", "litert:int8:compiled"),
        *(f"ctranslate2:{p}{o}" for p in ("float32", "int8") for o in ("", ":mkl", ":1")),
    ],
)


def measure(size: str, vocabulary: Vocabulary, folder: Path) -> dict[str, Any]:
    """Returns the size of the file, the start, the memory and the speed of each precision."""
    longest = max(map(int, FLAGS.lengths))
    # Every output is as long as the model allows.
    config = RandomModels(size, vocabulary, folder, longest, FLAGS.beam_size).config()
    sentence = next(iter(read_lines(Path(FLAGS.source))))
    [ids] = vocabulary.encode_source([sentence])
    result: dict[str, Any] = {}
    for precision in FLAGS.precisions:
        path = folder / f"{size}_{precision}.tflite"
        write_litert(path, config, str(folder), precision)
        file_mb = path.stat().st_size / 2**20
        result[precision] = {"file_mb": round(file_mb, 1)}
        cache = {"compiled": True, "weight_cache": f"{path}.xnnpack"}
        for name, own in (
            ("Interpreter", {"compiled": False}),
            ("CompiledModel", {"compiled": True}),
            ("CompiledModel, cache file", cache),
            ("CompiledModel, cache file, second start", cache),
        ):
            settings = {"path": str(path), "threads": FLAGS.threads, "ids": ids, **own}
            title = f"{size}, {precision}, {name}"
            info(f"{title}.")
            os.sync()  # the runtime can release only pages that are on the disk
            with EngineChild(title, "litert", "load_file", settings) as child:
                times = child.ask("time", lengths=[int(length) for length in FLAGS.lengths])
            facts = {k: round(v, 3) for k, v in child.facts.items()}
            facts["over_file"] = round(facts["peak_mb"] / file_mb, 2)
            facts["dirty_over_file"] = round(facts["dirty_mb"] / file_mb, 2)
            result[precision][name] = {**facts, "ms_of_a_token": times}
    return result


def main() -> int:
    """Prints the measurements."""
    result: dict[str, Any] = {"machine": describe_machine(), "threads": FLAGS.threads}
    vocabulary = joint_vocabulary(FLAGS.vocabulary)
    with tempfile.TemporaryDirectory() as folder:
        vocabulary.save(folder)
        result["models"] = {size: measure(size, vocabulary, Path(folder)) for size in FLAGS.sizes}
    # A LiteRT model translates one sentence at a time.
    FLAGS["batches"].value, FLAGS["sentences"].value = ["1"], FLAGS.sentences[:1]
    result["comparison"] = decode.compare_random(chosen(decode.KNOWN))
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    command.run(main)
