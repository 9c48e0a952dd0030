"""Start and stop of a server, and the command that translates with it."""

import asyncio
import concurrent.futures
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.extensions.serving import Settings, server
from tests.conftest import PHRASES, ROOT
from tests.driver import Driver
from tests.extensions.serving.running_server import Running, model_held, running_server, wait_until
from tests.messages import mentions

PREDICT = {"instances": ["abc"]}
TIME = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_addresses(reversing_version: Path, host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        other = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip("this machine lacks IPv6; the test runs on machines with IPv6")
    with running_server(reversing_version.parent, host=host) as running:
        socket.create_connection((host, running.port)).close()
    with other:
        port = other.getsockname()[1]
        settings = Settings(reversing_version.parent, host=host, rest_port=port)
        with pytest.raises(InputError, match=mentions(f"{port} is not available", "address")):
            asyncio.run(server.serve(settings, asyncio.Event()))


def test_requests_are_answered_while_the_server_stops(
    reversing_version: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_DRAIN_SECONDS", 2.0)
    settings = {"batches_at_once": 1, "batch_timeout_ms": 0.0}

    def predict() -> httpx.Response:
        return Running(running.server, running.port).predict(PREDICT)  # on a new connection

    with (
        concurrent.futures.ThreadPoolExecutor(5) as pool,
        running_server(reversing_version.parent, **settings) as running,
    ):
        assert "connection" not in predict().headers
        with model_held():
            waiting = [pool.submit(predict) for _ in range(4)]
            wait_until(lambda: running.metric("serving_waiting_rows") == 3)
            running.stop()
            wait_until(lambda: running.http.get("/healthz").status_code == 503)
            waiting.append(pool.submit(predict))
            wait_until(lambda: running.metric("serving_waiting_rows") == 4)
        for answer in (future.result() for future in waiting):
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")


@contextlib.contextmanager
def started(before: str = "", **flags: object) -> Iterator[subprocess.Popen[str]]:
    """Starts the command in another process, after some lines of Python."""
    arguments = [f"--{name}={value}" for name, value in {"rest_port": 0, **flags}.items()]
    code = f"{before}\nfrom keras_transformer.cli import main\nmain.run('serve')"
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def url_of(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    found = (re.search(rf"{TIME} INFO REST at (http://[^/]+)/v1/models/\S+", li) for li in lines)
    return next(match[1] for match in found if match)


# Replaces the model, so that TensorFlow is not loaded.
_HANG = """
import time
from types import SimpleNamespace
from keras_transformer.extensions.serving import models
from keras_transformer.extensions.serving.engines import Version
from keras_transformer.extensions.serving.tensors import Signature, Tensor

def hang(*arguments):
    print('hangs', flush=True)
    time.sleep(600)

def open_engine(*arguments):
    names = "symbols source_tag max_batch_lines vocabulary single_sentences glossary casing".split()
    model = SimpleNamespace(**dict.fromkeys(names))
    text = {'text': Tensor(object, (-1,))}
    calls = {'serving_default': hang, 'broken': None}
    return Version(model, {name: Signature(text, text, calls[name]) for name in calls})

models.open_engine = FUNCTION
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "fake.tflite").touch()
    return tmp_path / "fake.tflite"


def test_a_signal_while_the_model_is_loaded(file: Path) -> None:
    with started(_HANG.replace("FUNCTION", "hang"), model_dir=file) as process:
        assert process.stdout is not None and process.stdout.readline() == "hangs\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.parametrize("second", [signal.SIGINT, None])
def test_a_request_that_hangs_does_not_keep_the_process(file: Path, second: int | None) -> None:
    # After the first signal, a second one or the end of the grace period stops the server.
    code, grace = _HANG.replace("FUNCTION", "open_engine"), 600 if second else 1
    with (
        concurrent.futures.ThreadPoolExecutor(1) as pool,
        started(code, model_dir=file, grace_seconds=grace) as process,
    ):
        url = f"{url_of(process)}/v1/models/fake.tflite:predict"
        broken = {**PREDICT, "signature_name": "broken"}
        httpx.post(url, json=broken, headers={"X-Request-Id": "id-1"})
        lines = iter(process.stderr.readline, "")  # type: ignore[union-attr]
        line = next(line for line in lines if "WARNING" in line)
        assert re.search(f"{TIME} WARNING request id-1: POST .*: status 500 after", line)
        pool.submit(httpx.post, url, json=PREDICT, timeout=60)
        assert process.stdout is not None and process.stdout.readline() == "hangs\n"
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None and "Stopping" in process.stderr.readline()
        if second is not None:
            process.send_signal(second)
        assert process.wait(60) == 1


def test_the_command_translates_with_a_server(driver: Driver, litert_version: Path) -> None:
    text = "".join(f"{phrase}\n" for phrase in (*PHRASES, "", "a " * 100))
    model_dir = litert_version.parent
    with running_server(model_dir) as served:
        local, remote, *failed = driver.run_all(
            model_dir,
            [
                ("translate", flags, text)
                for flags in (
                    f"--model_dir={model_dir}",
                    f"--model_dir={served.rest}",
                    f"--model_dir={served.rest}/other",
                    f"--model_dir={served.rest} --beam_size=2",
                    f"--model_dir={served.rest} --precision=float16",
                )
            ],
        )
    assert local.code == 3 and "Line 8" in local.err  # the text was truncated
    # The last digits of scores depend on the batches, and these on the time of each request.
    (texts, scores), (own_texts, own_scores) = (
        zip(*(line.rsplit(" ||| ", 1) for line in result.out.splitlines()), strict=True)
        for result in (remote, local)
    )
    assert remote._replace(out=texts) == local._replace(out=own_texts)
    np.testing.assert_allclose(np.float32(scores), np.float32(own_scores), atol=1.5e-4)
    facts = (served.rest, "decoding.beam_size", "precision")
    for (code, out, err, _), fact in zip(failed, facts, strict=True):
        assert (code, out) == (1, "") and re.search(mentions("error:", fact), err)
