"""A LiteRT model behind the server: the same answers as a SavedModel, without TensorFlow."""

from __future__ import annotations

import concurrent.futures
import math
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from keras_transformer.extensions.serving.client import GrpcClient, RestClient
from keras_transformer.extensions.serving.server.models import Version
from tests.conftest import PHRASES, ROOT
from tests.extensions.serving.running_server import model_held, running_server, wait_until

TEXTS = [*PHRASES, "", "ball " * 60, "?\u20ac"]


@pytest.fixture(scope="module")
def of_saved_model(exported_run: Path) -> Iterator[Version]:
    version = Version(exported_run / "1", 1, 2**20)
    yield version
    version.close()


@pytest.fixture(scope="module", params=["litert", "cpu"])
def path(request: pytest.FixtureRequest) -> Path:
    """A version of each format of `keras-transformer export` that LiteRT runs."""
    version: Path = request.getfixturevalue(f"{request.param}_version")
    return version


@pytest.fixture(scope="module")
def of_litert(path: Path) -> Iterator[Version]:
    version = Version(path, 2, 2**20)
    yield version
    version.close()


def answers(version: Version, name: str, **inputs: Any) -> dict[str, np.ndarray]:
    return version.run(name, None, version.checked(name, inputs))


def strings(*texts: str) -> np.ndarray:
    return np.array([text.encode() for text in texts], object)


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    """Compares the best translations. The SavedModel has more of them."""
    assert one.keys() <= other.keys()
    for name, array in one.items():
        expected = other[name]
        if array.shape != expected.shape:
            expected = expected[:, :1]
        assert array.dtype == expected.dtype and array.shape == expected.shape, name
        if array.dtype == np.float32:
            np.testing.assert_allclose(array, expected, atol=1e-4)
        else:
            np.testing.assert_array_equal(array, expected, name)


def test_it_answers_like_a_saved_model(of_litert: Version, of_saved_model: Version) -> None:
    text = strings(*TEXTS)
    for name in ("serving_default", "tokenize", "lengths", "symbols"):
        own, expected = (answers(each, name, text=text) for each in (of_litert, of_saved_model))
        assert own.keys() == expected.keys()
        assert_same(own, expected)
    options: dict[str, Any] = {
        "text": text,
        "max_length": np.resize(np.array([0, 2, -1, 10**6, 5], np.int32), len(text)),
        "length_penalty": np.resize(np.array([np.nan, 0, 1, -1], np.float32), len(text)),
    }
    own = answers(of_litert, "translate", **options)
    assert_same(
        own, answers(of_saved_model, "translate", **options, prefix=strings(*[""] * len(text)))
    )
    given = answers(of_saved_model, "tokenize", text=text)
    ids, lengths = given["ids"], given["lengths"].copy()
    lengths[:2] = [-3, 10**6]
    own = answers(of_litert, "translate_ids", ids=ids, lengths=lengths)
    assert_same(own, answers(of_saved_model, "translate_ids", ids=ids, lengths=lengths))
    found = {"ids": own["ids"][:, 0], "lengths": own["lengths"][:, 0]}
    assert_same(
        answers(of_litert, "detokenize", **found), answers(of_saved_model, "detokenize", **found)
    )


def test_a_large_request_is_split_into_batches_of_the_best_size(
    path: Path, of_litert: Version
) -> None:
    texts = [" ".join((phrase, *"ab"[:i])) for i in range(3) for phrase in PHRASES]
    most = of_litert.engine.max_rows("serving_default")
    assert most is not None and (path.parent.name == "cpu") == (1 < most < len(texts))
    singly = [answers(of_litert, "serving_default", text=strings(text)) for text in texts]
    expected = [each["translations"][0, 0].decode() for each in singly]
    with running_server(path.parent, batches_at_once=2) as running:
        answer = running.predict({"instances": texts}).json()
        assert [row["translations"][0] for row in answer["predictions"]] == expected
        assert running.metric("serving_batch_rows_count") == math.ceil(len(texts) / most)
        assert running.metric("serving_batch_rows_sum") == len(texts)


def test_a_full_queue_answers_429_and_recovers(path: Path) -> None:
    body = {"instances": list(PHRASES)}

    def translations(answer: httpx.Response) -> list[str]:
        return [row["translations"][0] for row in answer.json()["predictions"]]

    with running_server(path.parent, batches_at_once=1, max_queue=len(PHRASES)) as running:
        expected = translations(running.predict(body))
        batches = running.metric("serving_batch_rows_count")
        with concurrent.futures.ThreadPoolExecutor(2) as pool, model_held():
            computed = pool.submit(running.predict, {"instances": [PHRASES[0]]})
            wait_until(lambda: running.metric("serving_batch_rows_count") > batches)
            waiting = pool.submit(running.predict, body)
            wait_until(lambda: running.metric("serving_waiting_rows") == len(PHRASES))
            refused = running.predict(body)
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert translations(computed.result()) == expected[:1]
        assert translations(waiting.result()) == translations(running.predict(body)) == expected


def test_a_new_file_is_a_new_version(path: Path, tmp_path: Path) -> None:
    # The manifest of the first file stays next to the files that replace it.
    shutil.copy(path / "manifest.json", tmp_path)

    def publish(number: int) -> None:
        other = shutil.copy(path / "model.tflite", tmp_path / "other")
        with zipfile.ZipFile(other, "a") as archive:  # another file with the same translations
            archive.comment = str(number).encode()
        os.utime(other, (number, number))
        Path(other).rename(file)

    file = tmp_path / "model.tflite"
    publish(5)
    with running_server(file) as running, RestClient(running.rest, "model.tflite") as client:
        expected = client.translate(PHRASES)

        def served() -> int:
            with running.server.model.version("model.tflite") as version:
                return version.number

        assert served() == 5
        publish(5)  # another file with the same date
        wait_until(lambda: served() == 6)
        publish(7)
        wait_until(lambda: served() == 7)
        assert client.translate(PHRASES) == expected
        file.write_bytes(file.read_bytes()[:-100])
        os.utime(file, (9, 9))
        wait_until(lambda: "cannot be loaded" in running.http.get(running.model).text)
        assert client.translate(PHRASES) == expected


def test_the_server_does_not_load_tensorflow(cpu_version: Path) -> None:
    command = [
        sys.executable, str(ROOT / "bin/serve.py"), f"--model_dir={cpu_version.parent}",
        "--rest_port=0", "--grpc_port=0",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            pattern = r"REST at http://([^/]+)/v1/models/(\S+), gRPC at (\S+)"
            rest, name, address = next(
                found.groups() for line in lines if (found := re.search(pattern, line))
            )
            with RestClient(rest, name) as client, GrpcClient(address, name) as other:
                assert client.translate(PHRASES) == other.translate(PHRASES)
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            assert "libtensorflow" not in maps and "ai_edge_litert" in maps
        finally:
            process.terminate()
            assert process.wait(60) == 0
