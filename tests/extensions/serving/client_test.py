"""The client with the server of keras-transformer serve, and with TF Serving if
available.

`tests/extensions/serving/reversing_model.py` says how TF Serving is given the model.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.extensions.serving.client import (
    Client,
    ServerError,
    Signature,
    Tensor,
    Translation,
    connect,
)
from tests.conftest import ROOT
from tests.extensions.serving.reversing_model import NAME
from tests.extensions.serving.running_server import Running, model_held, running_server, wait_until
from tests.messages import mentions

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
        "values": [[0.1, np.inf, -1e-30], [np.nan, 2.0, 3.0]],
        "number": [2**63 - 1, -(2**63)],
        "flag": [True, False],
        "raw": [b"\xff\0", "ä"],
    }
    outputs = client.predict(inputs, "kinds")
    np.testing.assert_array_equal(outputs["values"], np.array(inputs["values"], np.float32))
    assert outputs["number"].dtype == np.int64
    assert outputs["number"].tolist() == inputs["number"]
    assert outputs["flag"].tolist() == inputs["flag"]
    assert outputs["raw_bytes"].tolist() == [b"\xff\0", "ä".encode()]


def test_metadata(client: Client) -> None:
    signatures = client.metadata()
    assert set(signatures) == {
        "serving_default",
        "lengths",
        "translate",
        "size",
        "kinds",
        "join",
        "no_poison",
    }
    assert signatures["join"] == Signature(
        {"ids": Tensor(np.int32, (-1, -1)), "lengths": Tensor(np.int32, (-1,))},
        {"ids": Tensor(np.int32, (-1, -1)), "text": Tensor(object, (-1,))},
    )
    assert signatures["serving_default"].outputs["translations"].shape == (-1, 2)


def test_lines_are_translated_in_their_order(client: Client) -> None:
    lines = [f"{'x' * (7 * i % 13)} {i}" for i in range(37)]
    assert [best.text for best, _ in client.translate(lines)] == [line[::-1] for line in lines]
    assert client.translate([""]) == [[Translation("", pytest.approx(-0.1))]]
    assert client.translate([]) == []


def test_source_tag_begins_each_line_that_is_not_empty(client: Client) -> None:
    results = client.translate(["abc", "", b"de"], source_tag="<2de>")
    assert [best.text for best, *_ in results] == ["cba >ed2<", "", "ed >ed2<"]


@pytest.mark.parametrize(
    ("inputs", "signature", "sentence"),
    [
        ({"text": ["a"]}, "no", mentions("no", "join", "kinds", "no_poison")),
        ({"txt": ["a"]}, "size", mentions("txt", "text", "size", "reversing")),
        ({}, "size", mentions("inputs", "none", "text")),
        ({"text": [5]}, "size", mentions("input text", "5")),
        ({"text": "a"}, "size", mentions("input text", "batch dimension")),
        ({"text": []}, "size", mentions("inputs", "[0]", "rows", "1")),
        ({"ids": [[1], [2, 3]], "lengths": [1, 2]}, "join", mentions("input ids")),
        ({"ids": [[1]], "lengths": [0.5]}, "join", mentions("input lengths")),
        ({"ids": [[2**32]], "lengths": [1]}, "join", mentions("input ids", "4294967296", "int32")),
        ({"ids": [[1]], "lengths": [1, 2]}, "join", mentions("inputs", "[1, 2]", "rows")),
    ],
)
def test_invalid_requests_are_not_sent(
    client: Client, inputs: Any, signature: str, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        client.predict(inputs, signature)


def test_errors_contain_the_message_of_the_server(client: Client) -> None:
    with pytest.raises(InputError, match=r"400: .*there is poison") as error:
        client.predict({"text": ["a", "poison"]}, "no_poison")
    assert not isinstance(error.value, ServerError)
    with pytest.raises(InputError, match=r"400: "):
        client.predict({"text": [["a"]]}, "size")


def test_missing_models_and_versions(address: str) -> None:
    with Client(address, "other") as client:
        with pytest.raises(InputError, match=r"404: Servable not found for request: L"):
            client.predict({"text": ["a"]})
        with pytest.raises(ServerError, match=mentions("respond", "0.2 s")):
            client.wait_until_ready(0.2)
    with (
        Client(address, NAME, 7) as client,
        pytest.raises(InputError, match=r"404: Servable not found for request: S"),
    ):
        client.predict({"text": ["a"]})
    with Client(address, NAME, 1) as client:
        assert client.predict({"text": ["a"]}, "size")["bytes"] == [1]


# The tests below need a server that they can stop and block.


def test_a_missing_server_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (
        Client(address, NAME) as client,
        pytest.raises(ServerError, match=mentions(address, "respond", "0.3 s")),
    ):
        client.predict({"text": ["a"]}, timeout=0.3)


def test_a_full_queue_is_tried_again(reversing_version: Path) -> None:
    options = {"batches_at_once": 1, "max_queue": 1, "batch_timeout_ms": 0.0}
    with (
        running_server(reversing_version.parent, **options) as running,
        Client(running.rest, NAME) as client,
        concurrent.futures.ThreadPoolExecutor(3) as pool,
    ):
        client.metadata()
        with model_held():
            refused = running.server.metrics.requests.labels("REST", "429")
            futures = [pool.submit(client.predict, {"text": ["a"]}, "size") for _ in range(3)]
            batcher, batches = running.server.batcher, running.server.metrics.batch_rows
            wait_until(lambda: batches._sum.get() == 1 and batcher.waiting_rows == 1)
            wait_until(lambda: refused._value.get() >= 1)
            with pytest.raises(ServerError, match=mentions("respond", "0.2 s")):
                client.predict({"text": ["a"]}, "size", timeout=0.2)
        assert [future.result()["bytes"].tolist() for future in futures] == [[1], [1], [1]]


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("localhost", mentions("localhost", "address")),
        ("ftp://localhost:1/x", mentions("ftp://localhost:1/x", "address")),
        ("localhost:http/x", mentions("localhost:http/x", "address")),
        ("localhost:99999/x", mentions("localhost:99999/x", "address")),
        ("\x00:1/x", mentions("address")),
        ("grpc://localhost:8500/x", mentions("grpc://localhost:8500/x", "address")),
    ],
)
def test_addresses_that_are_none(address: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        connect(address)


def test_addresses(running: Running) -> None:
    for address in (
        running.rest, f"http://{running.rest}/", f"{running.rest}/{NAME}",
        f"{running.rest}/{NAME}/",
        f"http://{running.rest}/v1/models/{NAME}",
    ):  # fmt: skip
        with connect(address) as client:
            assert client.model == NAME
            assert client.translate(["ab"])[0][0].text == "ba"


@pytest.mark.parametrize(
    ("status", "text", "sentence"),
    [
        (500, "<html>proxy", mentions("500", "<html>proxy")),
        (200, "<html>proxy", mentions("200", "<html>proxy")),
        (200, "[" * 9999, mentions("200", "[[")),
        (200, '{"other": 1}', mentions("200", '{"other": 1}')),
        (200, '{"metadata": 1}', mentions("metadata", "TF Serving")),
        (
            200,
            '{"metadata": {"signature_def": {"signature_def": {"x": []}}}}',
            mentions("TF Serving"),
        ),
    ],
)
def test_an_answer_that_is_not_of_tf_serving(
    monkeypatch: pytest.MonkeyPatch, status: int, text: str, sentence: str
) -> None:
    client = Client("localhost:1", NAME)
    monkeypatch.setattr(client, "_http", httpx.Client(
        base_url="http://localhost:1",
        transport=httpx.MockTransport(lambda request: httpx.Response(status, text=text)),
    ))  # fmt: skip
    with pytest.raises(ServerError, match=mentions("localhost:1") + sentence):
        client.metadata()


def test_lines_of_any_kind(client: Client) -> None:
    assert [each[0].text for each in client.translate(line for line in ("ab", "cd"))] == [
        "ba",
        "dc",
    ]
    assert client.translate([b"ab"])[0][0].text == "ba"  # type: ignore[list-item]
    assert client.translate([]) == []
    for wrong, sentence in [
        ("Hello", mentions("'Hello'", "lines")),
        (["\ud800"], mentions("surrogates not allowed")),
        ([None], mentions("None", "text")),
    ]:
        with pytest.raises(InputError, match=sentence):
            client.translate(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options", [{"timeout": 0}, {"max_batch_size": 0}, {"connections": 0}, {"max_batch_size": -1}]
)
def test_unusable_combinations_of_options(options: dict[str, Any]) -> None:
    with pytest.raises(
        InputError, match=mentions("0", "1", "timeout", "max_batch_size", "connections")
    ):
        connect("localhost:1/x", **options)


@contextlib.contextmanager
def server_that_says(*parts: bytes, pause: float = 0.0) -> Iterator[int]:
    """The port of a server that sends these parts on each connection, with pauses."""

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed
                return
            with connection, contextlib.suppress(OSError):
                connection.recv(2**16)
                for part in parts:
                    connection.sendall(part)
                    time.sleep(pause)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=[listener], daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_the_rest_deadline_covers_the_whole_answer() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
    with server_that_says(head, *[b" "] * 40, pause=0.05) as port:
        started = time.monotonic()
        with (
            Client(f"127.0.0.1:{port}", NAME) as client,
            pytest.raises(ServerError, match=mentions("0.5 s", "incomplete")),
        ):
            client.metadata(0.5)
    # No read has waited longer than 0.05 s. The complete answer would have taken 50 s.
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n{}\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{",
        b"SSH-2.0-OpenSSH\r\n",
        b"",
    ],
    ids=["not gzip", "cut off", "not HTTP", "nothing"],
)
def test_an_answer_that_is_not_of_http(head: bytes) -> None:
    with (
        server_that_says(head) as port,
        Client(f"127.0.0.1:{port}", NAME) as client,
        pytest.raises(ServerError, match=mentions(f"127.0.0.1:{port}", "0.3 s")),
    ):
        client.metadata(0.3)


def test_rest_works_without_tensorflow() -> None:
    code = (
        "import sys; from keras_transformer.extensions.serving.client import Client; "
        "Client('localhost:1', 'x').close(); "
        "print(sorted({'tensorflow', 'keras'} & {*sys.modules}))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"
