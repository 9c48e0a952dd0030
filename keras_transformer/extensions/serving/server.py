"""A model behind TF Serving's REST API, on one machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
from collections.abc import Callable, Iterator

import uvicorn

from keras_transformer.errors import InputError
from keras_transformer.extensions.serving.rest import RestApi
from keras_transformer.extensions.serving.state import Server, Settings
from keras_transformer.runs.machine import stop_signals

_LOG = logging.getLogger(__name__)
_KEEP_ALIVE_SECONDS = 75  # of idle connections
_BACKLOG = 2048  # connections that are not accepted yet
_LAST_SECONDS = 3.0  # that stopping may take after the grace period


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to `run`."""
        yield


async def serve(
    settings: Settings,
    stop: asyncio.Event,
    started: Callable[[Server, int], object] = lambda *_: None,
) -> None:
    """Serves until `stop` is set, and then for at most `grace_seconds`.

    Args:
        settings: the settings.
        stop: stops the server.
        started: called with the server and its port when it answers requests.

    Raises:
        InputError: if no version can be loaded, or the port is in use.
    """
    server = Server(settings)
    with _listener(settings.host, settings.rest_port) as listener:
        _LOG.info("Loading %s.", settings.model_dir)
        await server.model.start()
        listener.listen(_BACKLOG)
        rest_api = _Uvicorn(
            uvicorn.Config(
                RestApi(server, settings.max_body_bytes, settings.cors_origins).app,
                lifespan="off",
                log_config=None,
                access_log=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=math.ceil(settings.grace_seconds),
            )
        )
        rest = asyncio.create_task(rest_api.serve(sockets=[listener]))
        watch = asyncio.create_task(server.model.watch(settings.poll_seconds))
        port = listener.getsockname()[1]
        address = _address(settings.host, port)
        _LOG.info("REST at http://%s/v1/models/%s", address, server.model.name)
        started(server, port)
        await stop.wait()
        _LOG.info("Stopping: answering the requests that wait.")
        rest_api.should_exit = True
        await rest
        watch.cancel()
        await asyncio.to_thread(server.batcher.close)


def run(settings: Settings) -> None:
    """Serves until SIGTERM, SIGHUP or SIGINT. A second signal ends the process immediately."""

    async def main() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        is_loading = True

        def started(*_: object) -> None:
            nonlocal is_loading
            is_loading = False

        def end() -> None:
            if is_loading or stop.is_set():  # loading a model cannot be interrupted
                os._exit(int(stop.is_set()))
            stop.set()
            loop.call_later(settings.grace_seconds + _LAST_SECONDS, os._exit, 1)

        for number in stop_signals():
            loop.add_signal_handler(number, end)
        await serve(settings, stop, started)

    asyncio.run(main())


def _listener(host: str, port: int) -> socket.socket:
    """Returns a bound socket that does not listen yet."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except (OSError, OverflowError) as error:  # OverflowError: a port beyond 65,535
        raise InputError(
            f"{_address(host, port)} is not available. Choose a free address."
        ) from error
    return listener


def _address(host: str, port: int) -> str:
    """Returns HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
