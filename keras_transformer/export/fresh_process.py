"""What a SavedModel finds where nothing but TensorFlow and tensorflow-text is loaded.

Run as a script, `python -I fresh_process.py MODEL BATCHES FOUND`, so that this package is
neither needed nor, by its being there, able to hide what an export lacks.

    BATCHES  JSON: `batches`, lists of sentences; `length_penalty`, the export's own;
             `extra_signatures`, the name of the string input by that of the signature
    FOUND    written: an .npz of the arrays `ids`, `lengths` and `scores` of each batch,
             as in `ids_0`, and, by the name of each signature that translates, its scores of
             the first batch
"""

from __future__ import annotations

import concurrent.futures
import gc
import json
import os
import sys
from typing import Any


def main(model: str, batches: str, found: str) -> None:
    """Searches for translations of all batches."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")  # each core has a batch of its own
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", str(cores))
    # TensorFlow imports these where they are installed; no export needs them.
    hidden: dict[str, Any] = dict.fromkeys(("jax", "matplotlib", "pandas"))
    sys.modules.update(hidden)
    gc.disable()  # of libraries there is none: they stay
    import numpy as np
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  its ops

    gc.enable()
    gc.freeze()
    loaded = tf.saved_model.load(model)
    with open(batches, encoding="utf-8") as file:
        given = json.load(file)
    texts = [tf.constant(batch) for batch in given["batches"]]
    with concurrent.futures.ThreadPoolExecutor(cores) as pool:
        results = list(pool.map(loaded.search, texts))
    arrays = {
        f"{name}_{number}": getattr(result, name).numpy()
        for number, result in enumerate(results)
        for name in ("ids", "lengths", "scores")
    }
    served = loaded.signatures
    first = texts[0]
    tokens = served["tokenize"](text=first)
    neutral = {
        "max_length": tf.zeros_like(tokens["lengths"]),
        "length_penalty": tf.fill(tf.shape(first), tf.constant(given["length_penalty"])),
        "prefix": tf.fill(tf.shape(first), ""),
    }
    by_signature = {
        "serving_default": served["serving_default"](text=first),
        "translate": served["translate"](text=first, **neutral),
        "translate_ids": served["translate_ids"](ids=tokens["ids"], lengths=tokens["lengths"]),
    }
    for name, text_input in given["extra_signatures"].items():
        by_signature[name] = served[name](**{text_input: first})
    arrays |= {name: outputs["scores"].numpy() for name, outputs in by_signature.items()}
    np.savez(found, **arrays)
    others = [name for name in sys.modules if name.startswith("keras_transformer")]
    if others:
        raise RuntimeError(f"{others[0]} was loaded; expected TensorFlow and tensorflow-text alone")


if __name__ == "__main__":
    main(*sys.argv[1:])
