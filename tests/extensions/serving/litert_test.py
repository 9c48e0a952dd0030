"""A LiteRT model behind the server: the same answers as a SavedModel, without TensorFlow."""

import math
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.extensions.serving.client import Client
from keras_transformer.extensions.serving.engines import open_engine
from keras_transformer.extensions.serving.tensors import Arrays
from tests.conftest import PHRASES
from tests.extensions.serving.running_server import running_server, wait_until
from tests.extensions.serving.server_test import started, url_of

TEXTS = [*PHRASES, "", "ball " * 60, "?\u20ac"]


@pytest.fixture(scope="module")
def requests() -> dict[str, Arrays]:
    """The inputs of the signatures that both engines have."""
    text = np.array([line.encode() for line in TEXTS], object)
    options = {
        "max_length": np.resize(np.array([0, 2, -1, 10**6, 5], np.int32), len(text)),
        "length_penalty": np.resize(np.array([np.nan, 0, 1, -1], np.float32), len(text)),
    }
    names = ("serving_default", "tokenize", "lengths", "symbols")
    return {name: {"text": text} for name in names} | {"translate": {"text": text, **options}}


@pytest.fixture(scope="module")
def answers(requests: dict[str, Arrays], exported_run: Path) -> dict[str, Arrays]:
    """The outputs of the SavedModel."""
    engine = open_engine(exported_run / "1", 1)
    prefix = {"prefix": np.array([b""] * len(TEXTS), object)}
    return {
        name: engine.signatures[name].call(inputs | (prefix if name == "translate" else {}))
        for name, inputs in requests.items()
    }


@pytest.mark.parametrize("format", ["litert", "cpu"])
def test_it_answers_like_a_saved_model(format, requests, answers, version_of):
    engine = open_engine(version_of(format), 2)
    for name, inputs in requests.items():
        found = engine.signatures[name].call(inputs)
        assert name == "translate" or found.keys() == answers[name].keys()
        assert_same(found, answers[name])


def assert_same(one: Arrays, other: Arrays) -> None:
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


def test_a_large_request_is_split_into_batches_of_the_best_size(cpu_version: Path) -> None:
    version = open_engine(cpu_version, 2)
    texts = [" ".join((phrase, *"ab"[:i])) for i in range(3) for phrase in PHRASES]
    most = version.engine.max_batch_lines
    assert most is not None and 1 < most < len(texts)
    lines = [np.array([text.encode()], object) for text in texts]
    singly = [version.engine.translate(text=line)["translations"] for line in lines]
    with running_server(cpu_version.parent, batches_at_once=2) as running:
        answer = running.predict({"instances": texts}).json()
        found = [row["translations"][0] for row in answer["predictions"]]
        assert found == [translations[0, 0].decode() for translations in singly]
        assert running.metric("serving_batch_rows_count") == math.ceil(len(texts) / most)
        assert running.metric("serving_batch_rows_sum") == len(texts)


def test_a_new_file_is_a_new_version(cpu_version: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.tflite"

    def publish(number: int) -> None:
        other = shutil.copy(cpu_version / "model.tflite", tmp_path / "other")
        with zipfile.ZipFile(other, "a") as archive:  # another file with the same translations
            archive.comment = str(number).encode()
        Path(other).rename(file)

    def translate() -> list[str]:
        return [best.text for best, *_ in client.translate(PHRASES)]

    publish(1)
    with running_server(file) as running, Client(running.rest, "model.tflite") as client:
        expected = translate()
        publish(2)
        wait_until(lambda: running.server.model.version("model.tflite").number == 2)
        assert translate() == expected
        file.write_bytes(file.read_bytes()[:-100])
        wait_until(lambda: "cannot be loaded" in running.http.get(running.model).text)
        assert translate() == expected


def test_the_server_does_not_load_tensorflow(cpu_version: Path) -> None:
    with started(model_dir=cpu_version.parent) as process:
        with Client(url_of(process), cpu_version.parent.name) as client:
            assert len(client.translate(PHRASES)) == len(PHRASES)
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        assert not re.search("libtensorflow", maps) and "ai_edge_litert" in maps
        process.terminate()
        assert process.wait(60) == 0
