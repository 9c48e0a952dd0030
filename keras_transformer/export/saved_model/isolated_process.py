"""Runs a SavedModel with only TensorFlow and tensorflow-text.

This file runs as a script: `python -I isolated_process.py MODEL`. It does not import this package,
because the package could provide what the export lacks.

Each line of standard input is a request in JSON: calls, each with the name of a signature and its
inputs; and an .npz file, which gets the numeric arrays `OUTPUT NUMBER` of each call. The line
"done" on standard output follows when the file is complete.
"""

from __future__ import annotations

import concurrent.futures
import gc
import json
import os
import sys
from collections.abc import Mapping
from typing import Any


def numeric_outputs(loaded: Any, name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Calls a signature of a loaded SavedModel, and returns its numeric outputs."""
    import tensorflow as tf

    tensors = {key: tf.constant(value) for key, value in inputs.items()}
    outputs = loaded.signatures[name](**tensors)
    # Strings would need pickle.
    return {key: value.numpy() for key, value in outputs.items() if value.dtype != tf.string}


def _main(model: str) -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["TF_NUM_INTRAOP_THREADS"] = "1"  # each core runs one call
    cores = os.environ.setdefault("TF_NUM_INTEROP_THREADS", str(len(os.sched_getaffinity(0))))
    # The garbage collector would go through TensorFlow's half a million objects again and again.
    gc.set_threshold(10**6)
    import numpy as np
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  registers its ops

    loaded = tf.saved_model.load(model)
    with concurrent.futures.ThreadPoolExecutor(int(cores)) as pool:
        for line in sys.stdin:
            calls, file = json.loads(line)
            results = pool.map(lambda call: numeric_outputs(loaded, *call), calls)
            arrays = {
                f"{key} {number}": array
                for number, outputs in enumerate(results)
                for key, array in outputs.items()
            }
            np.savez(file, **arrays)
            print("\ndone", flush=True)  # libraries may have printed part of a line


if __name__ == "__main__":
    _main(sys.argv[1])
