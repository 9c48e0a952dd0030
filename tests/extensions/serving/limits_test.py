"""Connections, bodies, rows, times and host names that the server refuses, next to a client."""

import asyncio
import concurrent.futures
import contextlib
import logging
import resource
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import uvicorn
from uvicorn.server import ServerState

from keras_transformer.errors import InputError
from keras_transformer.extensions.serving import Settings, connections, server, tensors
from tests.extensions.serving.running_server import Running, model_held, running_server, wait_until
from tests.messages import mentions, tells

PREDICT = {"instances": ["abc"]}
METADATA = "GET /v1/models/reversing/metadata HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def limited(reversing_version: Path) -> Iterator[Running]:
    """A server with low limits, which computes one batch at a time."""
    settings = {"max_connections": 6, "max_rows": 5, "request_seconds": 2, "max_body_bytes": 2**17}
    at_once = {"batches_at_once": 1, "batch_timeout_ms": 0.0}
    with (
        mock.patch.multiple(connections, HEADER_SECONDS=1.0, KEEP_ALIVE_SECONDS=1),
        running_server(reversing_version.parent, **settings, **at_once) as running,
    ):
        yield running


@pytest.fixture(autouse=True)
def neighbour(limited: Running) -> Iterator[None]:
    """A client is answered after each test."""
    yield
    assert limited.predict(PREDICT).status_code == 200


def is_open(client: socket.socket) -> bool:
    return not select.select([client], [], [], 0.01)[0]  # the server sends nothing


def test_connections_that_send_nothing_make_room_for_others(
    limited: Running, caplog: pytest.LogCaptureFixture
) -> None:
    address = ("127.0.0.1", limited.port)
    with contextlib.ExitStack() as stack, caplog.at_level(logging.WARNING):
        idle = [stack.enter_context(socket.create_connection(address)) for _ in range(30)]
        assert Running(limited.server, limited.port).predict(PREDICT).status_code == 200
        wait_until(lambda: sum(map(is_open, idle)) <= 6)
        wait_until(lambda: not any(map(is_open, idle)))  # after the time for a header
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("first", "then"),
    [("GET / HTTP/1.1\r\n", "a: b\r\n"), ("", METADATA * 20)],
    ids=["header", "answer"],
)
def test_sending_a_header_and_reading_an_answer_have_limits(
    limited: Running, first: str, then: str
) -> None:
    with socket.create_connection(("127.0.0.1", limited.port), 20) as client:
        client.sendall(first.encode())
        with pytest.raises(ConnectionError):
            for _ in range(1000):  # no answer is read
                client.sendall(then.encode())
                time.sleep(0.01)


@pytest.mark.parametrize(("most_seconds", "arrives"), [(600.0, True), (0.5, False)])
def test_an_answer_that_is_read_slowly_arrives_unless_it_takes_too_long(
    most_seconds: float, arrives: bool
) -> None:
    size = 2**19

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", str(size).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": bytes(size)})

    async def received() -> int:
        config = uvicorn.Config(app, log_config=None, timeout_keep_alive=1)
        config.load()
        ours, client = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**14)
        state: Any = {"config": config, "server_state": ServerState(), "app_state": {}}
        await asyncio.get_running_loop().create_connection(
            lambda: connections.limited(9)(**state), sock=ours
        )
        total = 0
        with client, contextlib.suppress(ConnectionError):
            client.sendall(METADATA.encode())
            while total < size and (data := await asyncio.to_thread(client.recv, 2**13)):
                total += len(data)
                await asyncio.sleep(0.04)
        return total

    with mock.patch.object(connections, "ANSWER_SECONDS", most_seconds):
        assert (asyncio.run(received()) >= size) == arrives


def test_the_limit_of_open_files_is_raised_as_far_as_it_may(monkeypatch: Any) -> None:
    changed: list[Any] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: changed.append(limits))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 768))
    created: Any = connections.limited(1024)
    assert changed == [(768, 768)] and created.keywords["most"] == 256


def test_large_bodies_are_limited_together_and_small_ones_are_not(limited: Running) -> None:
    large = {"instances": ["a" * 100_000]}
    with concurrent.futures.ThreadPoolExecutor(9) as pool:
        with model_held():
            answers = [pool.submit(limited.predict, large) for _ in range(6)]
            # Five bodies of 100 kB fit into 4 * 2^17 bytes.
            wait_until(lambda: sum(answer.done() for answer in answers) == 1)
            small = pool.submit(limited.predict, PREDICT)
            wait_until(lambda: limited.server.batcher.waiting_rows == 5)
        found = sorted(answer.result().status_code for answer in [*answers, small])
    assert (found, limited.server.held.total()) == ([200] * 6 + [429], 0)


def test_large_answers_are_written_one_at_a_time(
    limited: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, was_free = threading.Lock(), []

    def write(*arguments: Any) -> bytes:
        was_free.append(lock.acquire(blocking=False))
        time.sleep(0.1)
        lock.release()
        return tensors.write_outputs(*arguments)

    monkeypatch.setattr(server, "write_outputs", write)
    monkeypatch.setattr(server, "_SMALL_BYTES", 20)  # an answer has 24 bytes as arrays
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(limited.predict, [PREDICT] * 3))
    assert [answer.status_code for answer in answers] == [200] * 3 and was_free == [True] * 3


def test_values_and_rows_are_counted_before_they_are_made(limited: Running) -> None:
    with mock.patch.object(tensors, "_array", side_effect=RuntimeError):
        for value in ({"instances": ["a"] * 6}, {"inputs": {"text": ["a"] * 6}}):
            answer = limited.predict(value)
            assert answer.status_code == 400 and tells(answer.text, "6 rows", "1", "5")
    with mock.patch.object(tensors, "_MAX_STRUCTURE", 1000):
        answer = limited.predict(b'{"instances": [' + b"[]," * 600 + b"[]]}")
    assert answer.status_code == 400 and tells(answer.text, "1,205", "1,000", "several requests")


def test_a_request_that_takes_too_long_is_refused(
    limited: Running, caplog: pytest.LogCaptureFixture
) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as pool, model_held():
        first = pool.submit(limited.predict, PREDICT)
        answer = Running(limited.server, limited.port).predict({"instances": ["a"] * 3})
        assert {answer.status_code, first.result().status_code} == {504}
        assert tells(answer.text, "2 s", "fewer rows") and limited.server.batcher.waiting_rows == 0
    assert tells(caplog.text, "WARNING", "POST", ":predict", "504", "2.0 s")


def test_a_local_server_refuses_other_host_names(limited: Running, tmp_path: Path) -> None:
    for host, status in (("localhost:1", 200), ("[::1]:1", 200), ("rebound.example:8501", 400)):
        assert limited.http.get("/healthz", headers={"Host": host}).status_code == status
    with pytest.raises(InputError, match=mentions("allowed_hosts", "a*")):
        server.allowed_hosts(Settings(tmp_path, allowed_hosts=("a*",)))
    for settings, others in (
        ({"host": "::1", "allowed_hosts": ("a.example",)}, {"a.example"}),
        ({"host": "0.0.0.0"}, {"*"}),
        ({"host": "0.0.0.0", "allowed_hosts": ("a.example",)}, {"a.example", "0.0.0.0"}),
    ):
        found = set(server.allowed_hosts(Settings(tmp_path, **settings)))  # type: ignore[arg-type]
        assert found - {"127.0.0.1", "localhost", "[::1]"} == others
