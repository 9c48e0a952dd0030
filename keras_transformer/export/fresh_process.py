"""Translates batches with a SavedModel, using only TensorFlow and tensorflow-text.

This file runs as a script: `python -I fresh_process.py MODEL BATCHES RESULTS`. It does not
import this package, because the package could provide what the export lacks.

    BATCHES  JSON: `batches`, lists of sentences; `tokenized`, texts that are only tokenized;
             `length_penalty` of the export; `extra_signatures`, the name of the string input of
             each extra signature
    RESULTS  an .npz file that is written: the arrays `ids_0`, `lengths_0` and `scores_0` for
             batch 0, and so on; `tokens`, the ids of all texts of `tokenized`, and
             `token_counts`, how many each text has; for each signature that translates, under
             its name, its scores of the first batch
"""

from __future__ import annotations

import concurrent.futures
import gc
import json
import os
import sys
from typing import Any


def _main(model: str, batches: str, results: str) -> None:
    """Translates all batches.

    Args:
        model: directory of the SavedModel.
        batches: path of the request.
        results: path of the arrays.

    Raises:
        RuntimeError: if the SavedModel imported this package.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")  # one batch per core
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", str(cores))
    # TensorFlow imports these if they are installed. No export needs them.
    hidden: dict[str, Any] = dict.fromkeys(("jax", "matplotlib", "pandas"))
    sys.modules.update(hidden)
    gc.disable()  # saves about 0.7 s of the imports, which leave no garbage
    import numpy as np
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  registers its ops

    gc.enable()
    gc.freeze()
    loaded = tf.saved_model.load(model)
    with open(batches, encoding="utf-8") as file:
        request = json.load(file)
    texts = [tf.constant(batch) for batch in request["batches"]]
    with concurrent.futures.ThreadPoolExecutor(cores) as pool:
        found = list(pool.map(loaded.search, texts))
    arrays = {
        f"{name}_{number}": getattr(result, name).numpy()
        for number, result in enumerate(found)
        for name in ("ids", "lengths", "scores")
    }
    signatures = loaded.signatures
    rows = []
    for begin in range(0, len(request["tokenized"]), 100):
        text = tf.constant(request["tokenized"][begin : begin + 100])
        output = signatures["tokenize"](text=text)
        pairs = zip(output["ids"].numpy(), output["lengths"].numpy(), strict=True)
        rows += [ids[:length] for ids, length in pairs]
    arrays["tokens"] = np.concatenate([np.zeros(0, np.int32), *rows])
    arrays["token_counts"] = np.array([len(row) for row in rows], np.int64)
    first = texts[0]
    tokens = signatures["tokenize"](text=first)
    defaults = {
        "max_length": tf.zeros_like(tokens["lengths"]),
        "length_penalty": tf.fill(tf.shape(first), tf.constant(request["length_penalty"])),
        "prefix": tf.fill(tf.shape(first), ""),
    }
    outputs = {
        "serving_default": signatures["serving_default"](text=first),
        "translate": signatures["translate"](text=first, **defaults),
        "translate_ids": signatures["translate_ids"](ids=tokens["ids"], lengths=tokens["lengths"]),
    }
    for name, text_input in request["extra_signatures"].items():
        outputs[name] = signatures[name](**{text_input: first})
    arrays |= {name: each["scores"].numpy() for name, each in outputs.items()}
    np.savez(results, **arrays)
    imported = [name for name in sys.modules if name.startswith("keras_transformer")]
    if imported:
        raise RuntimeError(
            f"{imported[0]} was imported. Only TensorFlow and tensorflow-text are allowed."
        )


if __name__ == "__main__":
    _main(*sys.argv[1:])
