#!/usr/bin/env python3
r"""Serves an export with the Python server of KServe, over its protocols v1 and v2.

    python3 -m venv kserve && kserve/bin/pip install kserve tensorflow tensorflow-text
    kserve/bin/python deploy/kserve/server.py --model_dir=build/export/1 --model_name=export
    curl localhost:8080/v1/models/export:predict -H 'Content-Type: application/json' \
        -d '{"instances": ["A man is playing a guitar."]}'

It needs a separate environment, because KServe pins different versions of some packages. Requests
are not merged into batches.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import kserve
import tensorflow as tf
import tensorflow_text  # noqa: F401  the model needs its ops


class Translator(kserve.Model):
    """Serves the signature `serving_default` of one version of an export."""

    def __init__(self, name: str, path: str):
        super().__init__(name)
        self._model = tf.saved_model.load(path)
        self._translate = self._model.signatures["serving_default"]
        self.ready = True

    async def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> Any:
        """Translates the strings in `instances`, or the only input of a v2 request.

        A thread translates, so that the event loop answers probes meanwhile.
        """
        return await asyncio.to_thread(self._predict, payload)

    def _predict(self, payload: Any) -> Any:
        if isinstance(payload, kserve.InferRequest):
            texts = payload.inputs[0].as_numpy().ravel().tolist()
        else:
            texts = payload["instances"]
        outputs = self._translate(text=tf.constant(texts, tf.string))
        texts_and_scores = (outputs[name].numpy().tolist() for name in ("translations", "scores"))
        predictions = [
            {"translations": [text.decode() for text in translations], "scores": scores}
            for translations, scores in zip(*texts_and_scores, strict=True)
        ]
        if not isinstance(payload, kserve.InferRequest):
            return {"predictions": predictions}
        best = kserve.InferOutput("translations", [len(texts)], "BYTES")
        best.set_data_from_numpy(outputs["translations"].numpy()[:, 0], binary_data=False)
        return kserve.InferResponse(payload.id or "", self.name, [best])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(parents=[kserve.model_server.parser])
    parser.add_argument(
        "--model_dir", required=True, help="version of an export, such as build/export/1"
    )
    arguments = parser.parse_args()
    kserve.ModelServer().start([Translator(arguments.model_name, arguments.model_dir)])
