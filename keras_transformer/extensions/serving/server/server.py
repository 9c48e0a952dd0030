"""One exported model behind TF Serving's REST and gRPC API, on one machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from keras_transformer.errors import InputError
from keras_transformer.extensions.serving.server.grpc_service import GrpcApi
from keras_transformer.extensions.serving.server.rest import RestApi
from keras_transformer.extensions.serving.server.state import Server, Settings
from keras_transformer.runs.machine import stop_signals

_LOG = logging.getLogger(__name__)
_KEEP_ALIVE_SECONDS = 75  # of idle connections
_DRAIN_SECONDS = 0.5  # clients get answers that close their connections
_LAST_SECONDS = 3.0  # that stopping may take after the grace period
_BACKLOG = 2048  # connections that are not accepted yet


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to `run`, which also stops gRPC."""
        yield


async def serve(
    settings: Settings,
    stop: asyncio.Event,
    started: Callable[[Server, int, int], object] = lambda *_: None,
) -> None:
    """Serves until `stop` is set, and then for at most `grace_seconds`.

    Args:
        settings: the settings.
        stop: stops the server.
        started: called with the server and its REST and gRPC ports when it answers requests.

    Raises:
        InputError: if no version can be loaded, or a port is in use.
    """
    server = Server(settings)
    with _listener(settings.host, settings.rest_port) as rest_socket:
        grpc_api = GrpcApi(
            server, _address(settings.host, settings.grpc_port), settings.max_body_bytes
        )
        if not grpc_api.port:
            raise _taken(settings.host, settings.grpc_port)
        _LOG.info("Loading %s.", settings.model_dir)
        await server.model.start()
        try:
            rest_socket.listen(_BACKLOG)
        except OSError as error:  # another process has taken the port
            raise _taken(settings.host, settings.rest_port) from error
        app = RestApi(server, settings.max_body_bytes, settings.cors_origins).app
        config = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=math.ceil(settings.grace_seconds),
        )
        rest_api = _Uvicorn(config)
        await grpc_api.start()
        rest = asyncio.create_task(rest_api.serve(sockets=[rest_socket]))
        watch = asyncio.create_task(server.model.watch(settings.poll_seconds))
        rest_port = rest_socket.getsockname()[1]
        _LOG.info(
            "REST at http://%s/v1/models/%s, gRPC at %s",
            _address(settings.host, rest_port),
            server.model.name,
            _address(settings.host, grpc_api.port),
        )
        started(server, rest_port, grpc_api.port)
        await stop.wait()
        _LOG.info("Stopping: answering the requests that wait.")
        server.ending = True
        await asyncio.sleep(_DRAIN_SECONDS)
        rest_api.should_exit = True
        await asyncio.gather(rest, grpc_api.stop(settings.grace_seconds))
        watch.cancel()
        await asyncio.to_thread(server.batcher.close)
        server.model.close()


def run(settings: Settings) -> None:
    """Serves until SIGTERM, SIGHUP or SIGINT. A second signal ends the process immediately.

    Args:
        settings: the settings.

    Raises:
        InputError: as in `serve`.
    """

    async def main() -> None:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()

        def end(number: int) -> None:
            if stop.is_set():
                signal.signal(number, signal.SIG_DFL)  # Python would first wait for the threads
                signal.raise_signal(number)
            stop.set()
            loop.call_later(settings.grace_seconds + _LAST_SECONDS, _give_up)

        def on_signals(callback: Callable[[int], object]) -> None:
            for number in stop_signals():
                loop.add_signal_handler(number, callback, number)

        on_signals(lambda _: os._exit(0))  # loading a model cannot be interrupted
        await serve(settings, stop, lambda *_: on_signals(end))

    asyncio.run(main())


def _give_up() -> None:
    _LOG.error("A request still runs after the grace period. Ending without its answer.")
    os._exit(1)


def _listener(host: str, port: int) -> socket.socket:
    try:
        return _bound(host, port)
    except (OSError, OverflowError) as error:  # OverflowError: a port beyond 65,535
        raise _taken(host, port) from error


def _bound(host: str, port: int) -> socket.socket:
    """Returns a bound socket that does not listen yet."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except BaseException:
        listener.close()
        raise
    return listener


def _address(host: str, port: int) -> str:
    """Returns HOST:PORT, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _taken(host: str, port: int) -> InputError:
    return InputError(f"{_address(host, port)} is not available. Choose a free address.")
