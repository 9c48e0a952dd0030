"""Malformed texts for an export, and hostile requests for a server: `python -m tests.stress`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.export.saved_model.signatures import Signatures
from keras_transformer.inference import loading
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES, ROOT
from tests.stress.fuzz import checks
from tests.stress.fuzz.model import Request, Signature, Tensor
from tests.stress.fuzz.texts import KINDS


def stress(*arguments: str) -> Any:
    """Runs a stress test, and returns its results."""
    command = [sys.executable, "-m", "tests.stress", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout)


@pytest.mark.long
def test_hostile_requests_do_not_keep_others_waiting(exported_run: Path, tmp_path: Path) -> None:
    (tmp_path / "source").write_text("".join(f"{phrase}\n" for phrase in PHRASES))
    flags = (f"--export={exported_run}", f"--source={tmp_path / 'source'}")
    result = stress("server_load", "--hostile", *flags)["hostile"]
    assert set(result["lists"]["statuses"]) <= {400, 429} and result["long"]["statuses"] == [200]
    assert result["peak_mb"] < 200  # 77 were measured


@pytest.mark.long
def test_malformed_texts_are_translated(run_directory: RunDirectory, tmp_path: Path) -> None:
    settings = {
        "decoding.n_best": 2, "decoding.beam_size": 2, "decoding.max_source_tokens": 16,
    }  # fmt: skip
    translator = loading.load_translator(run_directory, settings)
    served = Signatures(translator)
    signatures = served.by_name()
    tf.saved_model.save(translator, str(tmp_path / "1"), signatures=signatures)
    result = stress(
        "fuzz", f"--export={tmp_path / '1'}", "--inputs=1001", "--max_source_bytes=256", "--seed=5"
    )
    assert result["failures"] == []
    assert result["inputs"] == 1001 and result["different"] > 900
    assert result["batches"].keys() == signatures.keys()
    assert result["batches"]["serving_default"] == 143
    assert result["kinds"].keys() == KINDS.keys()


@pytest.mark.parametrize(
    ("known", "score", "problem"),
    [
        (b"known", -1.0, None),
        (b"\xff", -1.0, "invalid UTF-8"),
        (b"two\nlines", -1.0, "line break"),
        (b"other", -1.0, "batch of one"),
        (b"known", -1.1, "batch of one"),
        (b"known", float("nan"), "not finite"),
    ],
)
def test_faults_are_found(known: bytes, score: float, problem: str | None) -> None:
    tensors = {"translations": Tensor("string", (None, 1)), "scores": Tensor("float32", (None, 1))}
    request = Request("serving_default", {"text": np.array([b"a", b"b"], object)}, row=1)

    def answer(*rows: tuple[bytes, float]) -> dict[str, np.ndarray]:
        texts, scores = zip(*rows, strict=True)
        return {
            "translations": np.array([[text] for text in texts], object),
            "scores": np.array([[number] for number in scores], np.float32),
        }

    outputs, alone = answer((b"a text", -2.0), (known, score)), answer((b"known", -1.0))
    found = checks.first_problem(request, Signature({}, tensors), outputs, alone, None)
    assert (found is None) if problem is None else problem in (found or "")
