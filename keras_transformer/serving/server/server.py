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
from keras_transformer.serving.server.grpc_service import GrpcApi
from keras_transformer.serving.server.rest import RestApi
from keras_transformer.serving.server.state import Server, Settings

_LOG = logging.getLogger(__name__)
_KEEP_ALIVE_SECONDS = 75  # of connections between requests
_DRAIN_SECONDS = 0.5  # in which clients are told to come no more, and those who do are answered
_LAST_SECONDS = 3.0  # that an end may take besides the grace: draining, the last words of both APIs
_LONGEST_SECONDS = 2.0**31  # that a timer takes
_ENDS = (signal.SIGINT, signal.SIGTERM)
_BACKLOG = 2048  # connections that wait to be taken


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to `run`, which ends gRPC with them, too."""
        yield


async def serve(
    settings: Settings,
    stop: asyncio.Event,
    started: Callable[[Server, int, int], object] = lambda *_: None,
) -> None:
    """Serves until `stop` is set and all requests are answered, or the grace is over.

    Args:
        settings: what is served.
        stop: ends it.
        started: is told the server and its REST and gRPC ports, once it answers.

    Raises:
        InputError: for a directory without a version that loads, or a port that is taken.
    """
    server = Server(settings)
    with _listener(settings.host, settings.rest_port) as rest_socket:
        grpc_api = GrpcApi(
            server, _address(settings.host, settings.grpc_port), settings.max_body_bytes
        )
        if not grpc_api.port:
            raise _taken(settings.host, settings.grpc_port)
        _LOG.info("%s is being loaded and warmed up", settings.model_dir)
        await server.model.start()
        try:
            rest_socket.listen(_BACKLOG)
        except OSError as error:  # another process was as quick
            raise _taken(settings.host, settings.rest_port) from error
        app = RestApi(server, settings.max_body_bytes).app
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
        _LOG.info("no more requests are taken; those that wait are answered")
        server.ending = True
        await asyncio.sleep(_DRAIN_SECONDS)
        rest_api.should_exit = True
        await asyncio.gather(rest, grpc_api.stop(settings.grace_seconds))
        watch.cancel()
        if running := server.batcher.running:
            _LOG.warning("batches that have not ended, and are waited for: %d", running)
        server.batcher.close()
        server.model.close()


def run(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT, as `serve` does; a second signal ends it at once.

    So does SIGALRM when the grace is over, whatever hangs.
    """

    async def main() -> None:
        loop, stop, serves = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        def end(number: int) -> None:
            if not serves.is_set():  # a model that is being loaded cannot be told to stop
                _LOG.info("ended before anything was served")
                os._exit(0)
            if stop.is_set():  # both had come before the first was looked at
                signal.raise_signal(number)
            stop.set()
            # From here on the system ends the process: Python would wait for what it computes.
            for each in _ENDS:
                loop.remove_signal_handler(each)
                signal.signal(each, signal.SIG_DFL)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            seconds = min(settings.grace_seconds + _LAST_SECONDS, _LONGEST_SECONDS)
            signal.setitimer(signal.ITIMER_REAL, seconds)

        for each in _ENDS:
            loop.add_signal_handler(each, end, each)
        await serve(settings, stop, lambda *_: serves.set())

    asyncio.run(main())


def _listener(host: str, port: int) -> socket.socket:
    try:
        return _bound(host, port)
    except (OSError, OverflowError) as error:  # OverflowError: a port beyond 65,535
        raise _taken(host, port) from error


def _bound(host: str, port: int) -> socket.socket:
    """Returns a socket that nobody can connect to before it listens."""
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
    """Returns both as URLs and gRPC write them, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _taken(host: str, port: int) -> InputError:
    return InputError(
        f"{_address(host, port)} cannot be listened at; expected an address that is free"
    )
