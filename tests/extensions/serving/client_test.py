"""The client with the server of keras-transformer serve, and with TF Serving if
available.

`tests/extensions/serving/reversing_model.py` says how TF Serving is given the model.
"""

import asyncio
import concurrent.futures
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.extensions.serving import Settings
from keras_transformer.extensions.serving.client import Client, ServerEngine, ServerError, connect
from keras_transformer.extensions.serving.models import ServedModel
from keras_transformer.extensions.serving.tensors import Tensor
from keras_transformer.inference import Translation
from tests.builders import refuses
from tests.extensions.serving import reversing_model
from tests.extensions.serving.reversing_model import NAME, TAGS, TaggedModel, write_version
from tests.extensions.serving.running_server import Running, model_held, running_server, wait_until
from tests.messages import mentions, tells

_VARIABLE = "KERAS_TRANSFORMER_TF_SERVING"


@pytest.fixture(scope="module", params=["serve.py", "TF Serving"])
def address(request: pytest.FixtureRequest) -> str:
    """A server of the model that reverses text."""
    if request.param == "serve.py":
        running: Running = request.getfixturevalue("running")
        return running.rest
    if _VARIABLE not in os.environ:
        pytest.skip(f"no TF Serving; {_VARIABLE}=HOST:PORT names it")
    return os.environ[_VARIABLE]


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address, NAME, timeout=30.0, max_batch_size=8) as client:
        client.wait_until_ready()
        yield client


def test_text_round_trip(client: Client) -> None:
    outputs = client.predict({"text": ["für", b"a\0b", "\U0001f600"]})
    assert outputs["translations"].tolist() == [
        ["rüf".encode(), "für".encode()], [b"b\0a", b"a\0b"], ["\U0001f600".encode()] * 2,
    ]  # fmt: skip
    assert outputs["scores"].dtype == np.float32
    assert outputs["scores"].tolist() == [np.float32([-0.1, -2.5]).tolist()] * 3
    assert client.predict({"text": np.array([b"\xff\xfe"], object)}, "size")["bytes"] == [2]


def test_every_dtype_survives_a_round_trip(client: Client) -> None:
    inputs = {
        "values": [[0.1, np.inf, -1e-30], [np.nan, np.float32(2.0), 3.0]],
        "number": np.array([2**63 - 1, -(2**63)]),
        "flag": [True, False],
        "raw": [b"\xff\0", "ä"],
    }
    outputs = client.predict(inputs, "kinds")
    np.testing.assert_array_equal(outputs["values"], np.array(inputs["values"], np.float32))
    assert outputs["number"].dtype == np.int64
    assert outputs["number"].tolist() == [2**63 - 1, -(2**63)]
    assert outputs["flag"].tolist() == inputs["flag"]
    assert outputs["raw_bytes"].tolist() == [b"\xff\0", "ä".encode()]


def test_metadata(client: Client) -> None:
    signatures = client.metadata()
    assert set(signatures) == set(reversing_model.SIGNATURES)
    assert signatures["join"][:2] == (
        {"ids": Tensor(np.int32, (-1, -1)), "lengths": Tensor(np.int32, (-1,))},
        {"ids": Tensor(np.int32, (-1, -1)), "text": Tensor(object, (-1,))},
    )
    assert signatures["serving_default"].outputs["translations"].shape == (-1, 2)


def test_lines_are_translated_in_their_order(client: Client) -> None:
    lines = [f"{'x' * (7 * i % 13)} {i}" for i in range(37)]
    assert [best.text for best, _ in client.translate(lines)] == [line[::-1] for line in lines]
    assert client.translate([""]) == [[Translation("", pytest.approx(-0.1))]]
    assert client.translate([]) == []
    results = client.translate(["abc", ""], source_tag="<2de>")
    assert [best.text for best, *_ in results] == ["cba >ed2<", ""]
    refuses(client.translate, ("Hello",), "'Hello'", "lines")


@pytest.mark.parametrize(
    ("inputs", "signature", "sentence"),
    [
        ({"text": ["a"]}, "no", mentions("no", "join", "kinds", "no_poison")),
        ({}, "size", mentions("inputs", "rows", "1")),
        ({"text": [{5}]}, "size", mentions("{5}", "numbers, str or bytes")),
        ({"text": "a"}, "size", mentions("inputs", "rows")),
        ({"text": []}, "size", mentions("inputs", "0", "rows", "1")),
        ({"ids": [[1]], "lengths": [1, 2]}, "join", mentions("inputs", "1", "2", "rows")),
        # The server refuses these.
        ({"txt": ["a"]}, "size", "400: "),
        ({"text": ["a", "poison"]}, "no_poison", "400: .*there is poison"),
    ],
)
def test_invalid_requests(client: Client, inputs: Any, signature: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as error:
        client.predict(inputs, signature)
    assert not isinstance(error.value, ServerError)


def test_missing_models_and_versions(address: str) -> None:
    with Client(address, "other") as client:
        with pytest.raises(InputError, match=r"404: Servable not found for request: L"):
            client.predict({"text": ["a"]})
        with pytest.raises(ServerError, match=mentions("respond", "0.2 s")):
            client.wait_until_ready(0.2)
    with Client(address, NAME, 1) as client:
        assert client.predict({"text": ["a"]}, "size")["bytes"] == [1]


# The tests below need a server that they can stop and block.


def test_a_missing_server_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{Client.__module__}._READY_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ServerError, match=mentions(address, "respond", "0.3 s")):
        Client(address, NAME, timeout=0.3).predict({"text": ["a"]})
    with pytest.raises(ServerError, match=mentions(address, "respond", "0.2 s", "HOST:PORT/MODEL")):
        connect(address)


def test_a_full_queue_is_tried_again(running: Running) -> None:
    with concurrent.futures.ThreadPoolExecutor(3) as pool, Client(running.rest, NAME) as client:
        client.metadata()
        rows = running.metric("serving_batch_rows_sum")
        with model_held():
            futures = [pool.submit(client.predict, {"text": ["a"]}, "size")]
            wait_until(lambda: running.metric("serving_batch_rows_sum") == rows + 1)
            pool.submit(running.predict, {"instances": ["a"] * 100})
            wait_until(lambda: running.metric("serving_waiting_rows") == 100)
            refused = running.predict({"instances": ["a"]})  # does not wait for the model
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert tells(refused.json()["error"], "queue", "100 of 100 rows", "1")
            futures.append(pool.submit(client.predict, {"text": ["a"]}, "size"))
            wait_until(lambda: running.metric("serving_requests_total", "429") > 1)
        assert [future.result()["bytes"].tolist() for future in futures] == [[1], [1]]


@pytest.mark.parametrize(
    "address",
    ["localhost", "ftp://localhost:1/x", "localhost:http/x", "localhost:99999/x", "\x00:1/x"],
)
def test_invalid_addresses(address: str) -> None:
    refuses(connect, (address,), "address")


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("host:80/m", "http://host/v1/models/m"),
        ("host:8501/m/", "http://host:8501/v1/models/m"),
        ("http://host/v1/models/m", "http://host/v1/models/m"),
        ("https://host:8443/a/b/m/", "https://host:8443/a/b/v1/models/m"),
        ("http://[::1]:8501/a/v1/models/m", "http://[::1]:8501/a/v1/models/m"),
    ],
)
def test_addresses_with_paths(address: str, url: str) -> None:
    with connect(address) as client:
        assert str(client._http.build_request("GET", client._path).url) == url


def test_proxies(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for address in (running.rest, f"http://{running.rest}/"):  # the server names its model
        with connect(address) as client:
            assert client.model == NAME and client.translate(["ab"])[0][0].text == "ba"
    monkeypatch.setattr(f"{Client.__module__}._READY_SECONDS", 0.2)
    with pytest.raises(ServerError, match=mentions("127.0.0.1:9", "no_proxy=server.example")):
        connect("http://server.example:80")


@pytest.mark.parametrize(
    ("status", "text", "sentence"),
    [
        (500, "<html>proxy", mentions("500", "<html>proxy")),
        (200, "[" * 9999, mentions("200", "[[")),
        (200, '{"other": 1}', mentions("200", '{"other": 1}')),
        (200, '{"metadata": 1}', mentions("metadata", "TF Serving")),
        (200, '{"metadata": {"signature_def": {"signature_def": [1]}}}', mentions("TF Serving")),
    ],
)
def test_an_answer_that_is_not_of_tf_serving(
    monkeypatch: pytest.MonkeyPatch, status: int, text: str, sentence: str
) -> None:
    client = Client("localhost:1", NAME)
    transport = httpx.MockTransport(lambda request: httpx.Response(status, text=text))
    fake = httpx.Client(base_url="http://localhost:1", transport=transport)
    monkeypatch.setattr(client, "_http", fake)
    with pytest.raises(ServerError, match=mentions("localhost:1") + sentence):
        client.metadata()


def test_the_server_adds_a_tag_and_clients_know_the_tags(tmp_path: Path) -> None:
    write_version(tmp_path / NAME / "1", model=TaggedModel())
    with running_server(tmp_path / NAME) as plain, connect(plain.rest) as client:
        assert client.tags() == (TAGS, None)
        with pytest.warns(UserWarning, match=mentions("1 of 2", "<2de> or <2fr>")):
            client.translate(["a small dog", "<2fr> a small dog"])
        [[best, _]] = client.translate(["ab"], source_tag="<2fr>")
        assert best.text == "ba >rf2<"
        with pytest.raises(InputError, match=mentions("<2it>", "<2de>, <2fr>")):
            client.translate(["a small dog"], source_tag="<2it>")
    with running_server(tmp_path / NAME, source_tag="<2de>") as adding:
        with connect(adding.rest) as client:
            assert client.tags() == (TAGS, "<2de>")
            lines = ["ab", "<2fr> ab", "<2de> ab", ""]
            found = [best.text for best, *_ in client.translate(lines)]  # a warning is an error
            assert found == ["ba >ed2<", "ba >rf2<", "ba >ed2<", ""]
        model = ServerEngine(adding.rest)
        assert (model.symbols, model.source_tag) == (TAGS, "<2de>")
    with pytest.raises(InputError, match=mentions("<2it>", "<2de>, <2fr>")):
        asyncio.run(ServedModel(Settings(tmp_path / NAME, source_tag="<2it>"), NAME, 1).start())
