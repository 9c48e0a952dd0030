"""An exported model in a process of its own, asked by `python -m tests.stress fuzz`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_transformer.export.saved_model.signatures import Signatures
from keras_transformer.inference import loading
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES, ROOT

MEGABYTES = {"1 MB without a space", "1 MB of random bytes", "100,000 combining marks"}


def ask(export: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    """Runs the command, and returns its exit code and what it prints."""
    command = [sys.executable, "-m", "tests.stress", "fuzz", f"--export={export}", *flags]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=export.parent, env=environment, capture_output=True, text=True
    )
    assert done.returncode in (0, 1) and done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_hostile_texts_are_translated(run_directory: RunDirectory, tmp_path: Path) -> None:
    settings = {
        "decoding.n_best": 2, "decoding.beam_size": 2, "decoding.max_source_tokens": 16,
        "decoding.max_source_bytes": 200,
    }  # fmt: skip
    translator = loading.load_translator(run_directory, settings)
    served = Signatures(translator)
    signatures = served.by_name()
    tf.saved_model.save(translator, str(tmp_path / "1"), signatures=signatures)
    sentences = tmp_path / "sentences"
    sentences.write_text("\n".join(PHRASES), encoding="utf-8")
    # A batch of 8, where 7 are hostile, is asked of serving_default and of one other signature.
    flags = ("--inputs=1001", "--max_source_bytes=200", f"--sentences={sentences}", "--seed=5")
    code, found = ask(tmp_path / "1", *flags)
    assert found["failures"] == [] and code == 0
    assert found["inputs"] == 1001 and found["different"] > 900
    assert found["batches"].keys() == signatures.keys()
    assert found["batches"]["serving_default"] == 143
    assert found["kinds"].keys() >= {*MEGABYTES, "surrogates", "special tokens", "empty"}


class Faulty(tf.Module):
    """Says what it is asked, and does something bad for texts that name it."""

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


def save_request(path: Path, texts: Sequence[str]) -> str:
    """Writes a request whose last row is known, as the command writes those that fail."""
    kinds = ["hostile"] * (len(texts) - 1)
    inputs = {"text": {"dtype": "string", "values": texts}}
    entry = {"signature": "serving_default", "inputs": inputs, "kinds": [*kinds, "known"]}
    path.write_text(json.dumps({**entry, "place": len(kinds)}), encoding="utf-8")
    return str(path)


def test_faults_are_found(tmp_path: Path) -> None:
    faulty = Faulty()
    signatures = {"serving_default": faulty.answer}
    tf.saved_model.save(faulty, str(tmp_path / "1"), signatures=signatures)
    texts = ["\xff", "two\nlines", "NaN", "neighbours", "an error", "no answer", "harmless"]
    requests = [
        save_request(tmp_path / f"{number}.json", [text, "known"])
        for number, text in enumerate(texts)
    ]
    code, found = ask(tmp_path / "1", f"--replay={','.join(requests)}", "--limit_s=3")
    problems = [failure["problem"] for failure in found["failures"]]
    assert code == 1 and len(problems) == len(texts) - 1, problems
    for problem, expected in zip(
        problems,
        ["no UTF-8", "line break", "not finite", "alone it is", "InvalidArgument", "no answer"],
        strict=True,
    ):
        assert expected in problem
