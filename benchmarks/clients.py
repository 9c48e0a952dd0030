"""REST clients that request translations, one sentence per request.

All clients share one event loop, and each client has its own connection. The HTTP/1.1 code is
minimal, because the clients run on the same cores as the measured server.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import re
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Answer(NamedTuple):
    """The answer to a request."""

    sentence: int  # index of the sentence
    status: int  # HTTP status; 0 if there was no answer (then `body` has the reason)
    ended: float  # value of `time.perf_counter` at the end
    seconds: float
    body: bytes

    def best(self) -> tuple[str, float]:
        """Returns the best translation and its score."""
        outputs = json.loads(self.body)["outputs"]
        return outputs["translations"][0][0], outputs["scores"][0][0]


class Connection:
    """A connection that carries one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Sends a request, and returns the status and the body of the answer."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if length is None:
            raise OSError("The answer of the server has no Content-Length header.")
        return int(head[9:12]), await self._reader.readexactly(int(length[1]))

    def close(self) -> None:
        """Closes the connection immediately, without sending buffered data."""
        self._writer.transport.abort()


class Clients:
    """Clients that request translations of the same sentences repeatedly, in random order.

    Args:
        port: port of the server on this machine.
        model: name of the model.
        sentences: the source sentences.
        limit_s: seconds after which a request without an answer has failed.
        seed: seed of the random order.

    Attributes:
        sentences: number of sentences.
    """

    def __init__(self, port: int, model: str, sentences: Sequence[str], limit_s: float, seed: int):
        self._port, self._model, self._limit_s = port, model, limit_s
        self._requests = [self._post(sentence) for sentence in sentences]
        self.sentences = len(sentences)
        order = list(range(len(sentences)))
        random.Random(seed).shuffle(order)
        self._order = itertools.cycle(order)

    def _post(self, sentence: str) -> bytes:
        body = json.dumps({"inputs": {"text": [sentence]}}).encode()
        head = (
            f"POST /v1/models/{self._model}:predict HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def available(self, number: int) -> bool:
        """True if the server has loaded version `number` of the model."""
        path = f"/v1/models/{self._model}/versions/{number}"
        async with self._connections(1) as [connection]:
            status, body = await connection.ask(
                f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
            )
        states = json.loads(body).get("model_version_status", [])
        return status == 200 and states[0]["state"] == "AVAILABLE"

    async def ask_alone(self, sentences: Sequence[int]) -> list[Answer]:
        """Requests the sentences with these indices, one after the other."""
        async with self._connections(1) as [connection]:
            return [await self._ask(connection, sentence) for sentence in sentences]

    async def ask_at_once(self, count: int) -> list[Answer]:
        """Requests the next `count` sentences at the same time."""
        async with self._connections(count) as connections:
            return await asyncio.gather(
                *(self._ask(connection, next(self._order)) for connection in connections)
            )

    async def keep_asking(self, count: int, stop: asyncio.Event) -> list[Answer]:
        """Keeps `count` clients sending requests one after the other, until `stop` is set."""
        answers: list[Answer] = []

        async def client(connection: Connection) -> None:
            while not stop.is_set():
                answers.append(await self._ask(connection, next(self._order)))
                if not answers[-1].status:  # the connection can no longer be used
                    connection.close()
                    connection = await self._connect()
            connection.close()

        async with self._connections(count) as connections:
            await asyncio.gather(*map(client, connections))
        return answers

    async def _ask(self, connection: Connection, sentence: int) -> Answer:
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._limit_s):
                status, body = await connection.ask(self._requests[sentence])
        except (OSError, EOFError, asyncio.LimitOverrunError) as error:
            status, body = 0, f"{type(error).__name__}: {error}".encode()
        ended = time.perf_counter()
        return Answer(sentence, status, ended, ended - started, body)

    async def _connect(self) -> Connection:
        return Connection(*await asyncio.open_connection("127.0.0.1", self._port))

    @contextlib.asynccontextmanager
    async def _connections(self, count: int) -> AsyncIterator[list[Connection]]:
        connections = [await self._connect() for _ in range(count)]
        try:
            yield connections
        finally:
            for connection in connections:
                connection.close()


def latencies(answers: Sequence[Answer]) -> dict[str, float | int]:
    """Returns the number of answers, and their latencies in milliseconds."""
    seconds = sorted(answer.seconds for answer in answers)
    if len(seconds) < 2:
        seconds = 2 * (seconds or [0.0])
    percent = statistics.quantiles(seconds, n=100, method="inclusive")
    chosen = {"p50": percent[49], "p95": percent[94], "p99": percent[98], "max": seconds[-1]}
    return {"requests": len(answers), **{k: round(1000 * v, 1) for k, v in chosen.items()}}


def problems(answers: Sequence[Answer]) -> dict[str, Any]:
    """Returns, for each error status, the number of requests and the body of one answer."""
    wrong = [answer for answer in answers if answer.status != 200]
    return {
        str(status): {
            "requests": sum(answer.status == status for answer in wrong),
            "one": next(a.body for a in wrong if a.status == status).decode("utf-8", "replace"),
        }
        for status in sorted({answer.status for answer in wrong})
    }
