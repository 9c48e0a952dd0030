"""A server that runs in a thread of the test's process."""

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx

from keras_transformer.extensions.serving import Settings, batching
from keras_transformer.extensions.serving.server import Server, serve

SECONDS = 60.0  # after which a test stops waiting


class Running:
    """Where it listens."""

    def __init__(self, server: Server, port: int, stop: Callable[[], object] = lambda: None):
        self.server, self.port, self.stop = server, port, stop
        self.rest = f"127.0.0.1:{port}"
        self.http = httpx.Client(base_url=f"http://{self.rest}", timeout=SECONDS)
        self.model = f"/v1/models/{server.model.name}"

    def predict(self, body: Any, version: str = "") -> httpx.Response:
        """Posts JSON, or bytes as they are."""
        how = {"content": body} if isinstance(body, bytes) else {"json": body}
        return self.http.post(f"{self.model}{version}:predict", **how)

    def metric(self, name: str, label: str = "") -> float:
        """Returns the sum of the values of a metric with a label."""
        text = self.http.get("/monitoring/prometheus/metrics").text
        return sum(map(float, re.findall(rf"(?m)^{name}(?:{{.*{label}.*}})? (\S+)$", text)))


@contextlib.contextmanager
def in_thread(settings: Any, create: Any = None) -> Iterator[tuple[Any, int, Callable[[], object]]]:
    """Serves until the end of the block. Yields the server, its port, and what stops it."""
    began: list[Any] = []
    ready = threading.Event()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    def started(server: Any, port: int) -> None:
        began.extend([server, port])
        ready.set()

    def run() -> None:
        try:
            loop.run_until_complete(serve(settings, stop, started, create))
        finally:
            ready.set()
            loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait(SECONDS)
    try:
        server, port = began
        yield server, port, lambda: loop.call_soon_threadsafe(stop.set)
    finally:
        if began:
            loop.call_soon_threadsafe(stop.set)
        thread.join(SECONDS)
        assert not thread.is_alive()


@contextlib.contextmanager
def running_server(model_dir: Path, **settings: Any) -> Iterator[Running]:
    """Serves a directory at a free port. The settings are arguments of `Settings`."""
    options = {"rest_port": 0, "poll_seconds": 0.02, **settings}
    with in_thread(Settings(model_dir, **options)) as served:
        running = Running(*served)
        with running.http:
            yield running


@contextlib.contextmanager
def model_held() -> Iterator[None]:
    """Lets batches start, but not finish before the block ends."""
    gate, run = threading.Event(), batching._run_merged

    def held(batch: Any) -> Any:
        gate.wait(SECONDS)
        return run(batch)

    with mock.patch.object(batching, "_run_merged", held):
        try:
            yield
        finally:
            gate.set()


def wait_until(condition: Callable[[], bool]) -> None:
    """Waits for another thread."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it has not come about"
        time.sleep(0.005)
