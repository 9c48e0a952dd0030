"""Start and stop of a server, and a real export that clients use."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.extensions.pages.playground.models import open_playground_model
from keras_transformer.extensions.serving.client import Client
from keras_transformer.extensions.serving.server import serve
from keras_transformer.extensions.serving.state import Settings
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES, ROOT
from tests.driver import Driver, Ended
from tests.extensions.serving.reversing_model import NAME
from tests.extensions.serving.running_server import SECONDS, Running, running_server, wait_until
from tests.messages import mentions


def serve_at(model_dir: Path, **settings: Any) -> list[int]:
    """Starts a server and stops it at once. Returns its port."""
    ports: list[int] = []

    async def main() -> None:
        stop = asyncio.Event()

        def started(_: Any, port: int) -> None:
            ports.append(port)
            stop.set()

        await serve(Settings(model_dir, **{"rest_port": 0, **settings}), stop, started)

    asyncio.run(main())
    return ports


def test_an_address_of_ipv6(reversing_version: Path) -> None:
    try:
        other = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine lacks IPv6; the test runs on machines with IPv6")
    assert all(serve_at(reversing_version.parent, host="::1"))
    with other:
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=mentions(f"[::1]:{port}", "address")):
            serve_at(reversing_version.parent, host="::1", rest_port=port)


def test_a_port_that_is_taken(reversing_version: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=mentions(f"127.0.0.1:{port}", "address")):
            serve_at(reversing_version.parent, rest_port=port)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_batch_size", 0), ("max_queue", 0), ("batches_at_once", 0), ("batch_timeout_ms", -1.0),
        ("batch_timeout_ms", float("nan")), ("poll_seconds", 0.0), ("cors_origins", ("a.example",)),
        ("cors_origins", ("https://a.example/",)), ("cors_origins", ("https://*.example",)),
    ],
)  # fmt: skip
def test_settings_that_are_refused(name: str, value: Any) -> None:
    shown = value[0] if isinstance(value, tuple) else value
    with pytest.raises(InputError, match=mentions(name, shown)):
        Settings(Path("x"), **{name: value})


def started(*, before: str = "", **flags: object) -> subprocess.Popen[str]:
    """Starts the command in another process, after some lines of Python."""
    arguments = [f"--{name}={value}" for name, value in {"rest_port": 0, **flags}.items()]
    code = f"{before}\nfrom keras_transformer.cli import main\nmain.run('serve')"
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip


def url_of(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    found = (re.search(r"REST at (http://[^/]+)/v1/models/\S+", line) for line in lines)
    return next(match[1] for match in found if match)


def test_sigterm_answers_waiting_requests(reversing_version: Path) -> None:
    flags = {"batch_timeout_ms": 3000, "max_batch_size": 8}
    with (
        started(model_dir=reversing_version.parent, **flags) as process,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        try:
            url = url_of(process)
            client = Client(url, NAME)
            client.metadata()
            waiting = pool.submit(client.translate, ["abc"])
            metrics = f"{url}/monitoring/prometheus/metrics"
            wait_until(lambda: "serving_waiting_rows 1.0" in httpx.get(metrics).text)
            process.send_signal(signal.SIGTERM)
            assert waiting.result()[0][0].text == "cba"
            assert process.wait(60) == 0
        finally:
            process.kill()


_HANG = """
import time
from keras_transformer.extensions.serving import {module}
def hang(*arguments):
    print('hangs', flush=True)
    time.sleep(600)
{module}.{name} = hang
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_while_the_model_is_loaded(reversing_version: Path, number: int) -> None:
    hang = _HANG.format(module="models", name="open_engine")
    with started(before=hang, model_dir=reversing_version.parent) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "hangs\n"
            process.send_signal(number)
            assert process.wait(20) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("second", [signal.SIGINT, None])
def test_a_request_that_hangs_does_not_keep_the_process(
    reversing_version: Path, second: int | None
) -> None:
    # After the first signal, a second one or the end of the grace period stops the server.
    grace = 600 if second else 1
    hang = _HANG.format(module="models", name="SignatureCall.__call__")
    with (
        started(before=hang, model_dir=reversing_version.parent, grace_seconds=grace) as process,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):
        try:
            url = f"{url_of(process)}/v1/models/{NAME}:predict"
            asked = pool.submit(httpx.post, url, json={"instances": ["a"]}, timeout=SECONDS)
            assert process.stdout is not None and process.stdout.readline() == "hangs\n"
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None and "Stopping" in process.stderr.readline()
            if second is not None:
                process.send_signal(second)
            assert process.wait(SECONDS) == 1
        finally:
            process.kill()
        asked.exception()


@pytest.fixture(scope="module")
def served(exported_run: Path) -> Iterator[Running]:
    """A server of a real export."""
    with running_server(exported_run) as running:
        yield running


@pytest.fixture(scope="module")
def translated(driver: Driver, exported_run: Path, served: Running) -> dict[str, Ended]:
    """Results of keras-transformer translate, for all command lines in one process."""
    text = "".join(f"{phrase}\n" for phrase in (*PHRASES, "", "a " * 100))
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    arguments = {
        "model_dir": f"--model_dir={exported_run}",
        "rest": f"--server={served.rest}",
        "document": f"--server={served.rest} --document",
        "nobody": f"--server={nobody}",
        "other model": f"--server={served.rest}/other",
        "two models": f"--server={served.rest} --model_dir={exported_run}",
        "no model": "",
        "setting": f"--server={served.rest} --beam_size=2",
        "precision": f"--server={served.rest} --precision=float32",
    }
    commands = [("translate", flags, text) for flags in arguments.values()]
    return dict(zip(arguments, driver.run_all(exported_run, commands), strict=True))


def test_a_served_export_translates_like_the_loaded_export(translated: dict[str, Ended]) -> None:
    assert translated["model_dir"][0] == 3, translated["model_dir"]
    assert translated["model_dir"][1].count("\n") >= 2 * len(PHRASES)
    assert "Line 8" in translated["model_dir"][2]  # the text was truncated
    assert translated["rest"] == translated["model_dir"]


def test_the_playground_shows_the_same_of_a_run_an_export_and_a_server(
    run_directory: RunDirectory, exported_run: Path, served: Running
) -> None:
    sources = [PHRASES[0], "a " * 100]
    run, *others = (
        open_playground_model(place, settings)
        for place, settings in (
            (str(run_directory.path), {"decoding.n_best": 2}),
            (str(exported_run), None),
            (served.rest, None),
        )
    )
    for source, other in itertools.product(sources, others):
        expected, found = (model.translate(source, "ein") for model in (run, other))
        assert found.source_tokens == expected.source_tokens
        assert found.remarks == expected.remarks
        assert len(found.hypotheses) == len(expected.hypotheses) == 2
        for one, same in zip(found.hypotheses, expected.hypotheses, strict=True):
            assert (one.text, one.tokens) == (same.text, same.tokens)
            assert one.alignment == same.alignment
            assert one.score == pytest.approx(same.score, abs=1e-4)
        target = expected.hypotheses[0].text
        seen, known = (model.attention(source, target) for model in (other, run))
        assert seen.predicted_tokens == known.predicted_tokens
        np.testing.assert_allclose(seen.cross, known.cross, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("nobody", mentions("error:", "127.0.0.1:")),
        ("other model", mentions("error:", "127.0.0.1:")),
        ("two models", mentions("error:", "--model_dir", "--server")),
        ("no model", mentions("error:", "--model_dir", "--server")),
        ("setting", mentions("error:", "--beam_size", "--server")),
        ("precision", mentions("error:", "precision", "--server")),
    ],
)
def test_errors_of_servers_are_reported(
    translated: dict[str, Ended], name: str, sentence: str
) -> None:
    code, out, err, _ = translated[name]
    assert (code, out) == (1, "")
    assert re.search(sentence, err) and err.count("\n") == 1
