"""Limits the number of connections, and the time in which a connection sends a header."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import resource
import ssl
from collections.abc import Callable

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 10.0
KEEP_ALIVE_SECONDS = 75  # time limit for reading a piece of an answer and sending the next header
ANSWER_SECONDS = 600.0  # time limit for reading an answer
ACCEPTED_AT_ONCE = 64  # connections that asyncio accepts before it runs anything else
_OTHER_FILES = 512  # descriptors for models, libraries and connections that are being closed


class Connection(H11Protocol):
    """A connection that is closed if it does not send a complete header in time.

    With `tls`, the handshake is a part of this time, and such connections count as well. uvicorn
    would only see the connections that have finished it.

    If there are too many connections, the one that has been without a complete request for longest
    is closed. So idle connections cannot keep other clients out.

    `idle` has the connections without a complete request, oldest first.
    """

    def __init__(
        self, *, idle: dict[Connection, None], most: int, tls: ssl.SSLContext | None = None,
        **arguments: object,
    ):  # fmt: skip
        super().__init__(**arguments)  # type: ignore[arg-type]
        self._idle, self._most, self._tls = idle, most, tls
        self._early = b""
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts waiting for a header."""
        super().connection_made(transport)
        self._wait(HEADER_SECONDS)
        if len(self.connections) > self._most:
            next(iter(self._idle))._abort()
        if self._tls is not None:
            transport.pause_reading()
            self._handshake = self.loop.create_task(self._start_tls(transport, self._tls))

    async def _start_tls(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        if transport.is_closing():
            return
        encrypted = None
        with contextlib.suppress(OSError):  # the client has left, or does not speak TLS
            encrypted = await self.loop.start_tls(transport, self, context, server_side=True)
        if encrypted is None:  # asyncio does not always call `connection_lost`
            self.connection_lost(None)
            return
        super().connection_made(encrypted)
        self._tls = None
        if self._early:  # h11 takes b"" for the end
            self.data_received(self._early)

    def data_received(self, data: bytes) -> None:
        """Stops the timer after a complete header. The application limits the time of a body."""
        if self._tls is not None:  # `_start_tls` has not got the encrypted transport yet
            self._early += data
            return
        super().data_received(data)
        if self.cycle and not self.cycle.response_complete:  # type: ignore[truthy-bool]
            self._timers["header"].cancel()
            if not self.cycle.more_body:
                self._idle.pop(self, None)

    def on_response_complete(self) -> None:
        """Starts waiting for the next header, unless it has arrived already."""
        super().on_response_complete()
        if self.cycle.response_complete:
            self._timers["header"].cancel()
            self._wait(KEEP_ALIVE_SECONDS)

    def pause_writing(self) -> None:
        """Starts waiting until the client reads what was written."""
        super().pause_writing()
        self._start_timer("answer", KEEP_ALIVE_SECONDS)

    def resume_writing(self) -> None:
        """Stops waiting for the client."""
        super().resume_writing()
        self._timers["answer"].cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._idle.pop(self, None)
        super().connection_lost(exc)

    def _wait(self, seconds: float) -> None:
        self._idle.pop(self, None)
        self._idle[self] = None  # moves to the end
        self._start_timer("header", seconds)

    def _start_timer(self, name: str, seconds: float, end: float | None = None) -> None:
        end = self.loop.time() + ANSWER_SECONDS if end is None else end
        unread = self.transport.get_write_buffer_size()
        self._timers[name] = self.loop.call_later(seconds, self._check, name, unread, end)

    def _check(self, name: str, unread: int, end: float) -> None:
        """Waits again if the client has read something since the last time, but not for ever."""
        if self.transport.get_write_buffer_size() < unread and self.loop.time() < end:
            self._start_timer(name, KEEP_ALIVE_SECONDS, end)
        else:
            self._abort()

    def _abort(self) -> None:
        self._idle.pop(self, None)
        self.transport.abort()


def limited(max_connections: int, tls: ssl.SSLContext | None = None) -> Callable[..., Connection]:
    """Returns a class of connections. Raises the limit of open files if necessary and allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max_connections + _OTHER_FILES
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    most = max(1, min(max_connections, soft - _OTHER_FILES))
    return functools.partial(Connection, idle={}, most=most, tls=tls)
