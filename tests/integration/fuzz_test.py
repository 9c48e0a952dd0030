"""An exported model in a separate process gets malformed texts: `python -m tests.stress fuzz`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.export.saved_model.signatures import Signatures
from keras_transformer.inference import loading
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES, ROOT
from tests.stress.fuzz import checks
from tests.stress.fuzz.process import ModelProcess
from tests.stress.fuzz.requests import Request
from tests.stress.fuzz.texts import KINDS


@pytest.mark.long
def test_malformed_texts_are_translated(run_directory: RunDirectory, tmp_path: Path) -> None:
    settings = {
        "decoding.n_best": 2, "decoding.beam_size": 2, "decoding.max_source_tokens": 16,
    }  # fmt: skip
    translator = loading.load_translator(run_directory, settings)
    served = Signatures(translator)
    signatures = served.by_name()
    tf.saved_model.save(translator, str(tmp_path / "1"), signatures=signatures)
    sentences = tmp_path / "sentences"
    sentences.write_text("\n".join(PHRASES), encoding="utf-8")
    command = [
        sys.executable, "-m", "tests.stress", "fuzz", f"--export={tmp_path / '1'}",
        "--inputs=1001", "--max_source_bytes=256", f"--sentences={sentences}", "--seed=5",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    result = json.loads(done.stdout)
    assert result["failures"] == []
    assert result["inputs"] == 1001 and result["different"] > 900
    assert result["batches"].keys() == signatures.keys()
    assert result["batches"]["serving_default"] == 143
    assert result["kinds"].keys() == KINDS.keys()


class Faulty(tf.Module):
    """Repeats texts, and fails in the way that a text names."""

    def __init__(self) -> None:
        super().__init__(name="faulty")
        self.numbers = tf.Variable(tf.zeros([4]), name="numbers")

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)
    def answer(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        asked = tf.reduce_any(text == "an error")
        with tf.control_dependencies([tf.debugging.Assert(~asked, ["failed"])]):
            endless = tf.reduce_any(text == "no answer")
        turns = tf.while_loop(lambda i: endless, lambda i: [i + 1], [tf.constant(0)])[0]
        others = tf.reduce_any(text == "neighbours")
        scores = tf.where(text == "NaN", float("nan"), 0.0) + tf.cast(turns, tf.float32)
        texts = tf.where(others, tf.strings.join([text, "!"]), text)
        return {"translations": tf.expand_dims(texts, 1), "scores": tf.expand_dims(scores, 1)}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> ModelProcess:
    model, path = Faulty(), str(tmp_path_factory.mktemp("faulty") / "1")
    tf.saved_model.save(model, path, signatures={"serving_default": model.answer})
    return ModelProcess(path, limit_s=3)


@pytest.mark.parametrize(
    "text, problem",
    [
        (b"\xff", "invalid UTF-8"),
        (b"two\nlines", "line break"),
        (b"NaN", "not finite"),
        (b"neighbours", "batch of one"),
        (b"an error", "InvalidArgument"),
        (b"no answer", "no answer within 3 s"),
        (b"harmless", None),
    ],
)
def test_faults_are_found(faulty: ModelProcess, text: bytes, problem: str | None) -> None:
    inputs = {"text": np.array([text, b"known"], object)}
    request = Request("serving_default", inputs, place=1)
    alone = faulty.ask("serving_default", request.known_row().inputs).outputs
    assert alone is not None
    answer = faulty.ask("serving_default", inputs)
    found = answer.problem
    if answer.outputs is not None:
        signature = faulty.signatures["serving_default"]
        found = checks.first_problem(request, signature, answer.outputs, alone, None)
    assert (found is None) if problem is None else problem in (found or "")
