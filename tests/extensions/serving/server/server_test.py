"""Versions that are added, removed or fail. Start and stop of a server. A real export."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import grpc
import httpx
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from keras_transformer.errors import InputError
from keras_transformer.extensions.pages.playground.models import (
    open_playground_model,
)
from keras_transformer.extensions.serving.client import GrpcClient, RestClient
from keras_transformer.extensions.serving.server import server as serving_server
from keras_transformer.extensions.serving.server.server import serve
from keras_transformer.extensions.serving.server.state import Settings
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES, ROOT
from tests.driver import Driver, Ended
from tests.extensions.serving.reversing_model import NAME, write_version
from tests.extensions.serving.running_server import (
    SECONDS,
    Running,
    model_held,
    running_server,
    wait_until,
)
from tests.messages import mentions, tells


@pytest.fixture
def versions(reversing_version: Path, tmp_path: Path) -> Path:
    """A directory of versions with one version."""
    shutil.copytree(reversing_version, tmp_path / NAME / "1")
    return tmp_path / NAME


def publish(versions: Path, number: int) -> None:
    """Copies version 1 and renames it at the end, like an export."""
    shutil.copytree(versions / "1", versions / ".copying")
    (versions / ".copying").rename(versions / str(number))


def states(running: Running) -> dict[int, str]:
    status = running.http.get(running.model).json()["model_version_status"]
    return {int(version["version"]): version["state"] for version in status}


def test_no_request_is_lost_while_versions_change(versions: Path) -> None:
    lost: list[Any] = []
    answered: list[int] = []
    ended = threading.Event()

    def ask(running: Running) -> None:
        with RestClient(running.rest, NAME, timeout=30) as client:
            while not ended.is_set():
                try:
                    best = client.translate(["abc", "de"])
                    answered.append(len(best))
                    if [each[0].text for each in best] != ["cba", "ed"]:
                        lost.append(best)
                except Exception as error:
                    lost.append(error)

    with running_server(versions) as running, concurrent.futures.ThreadPoolExecutor(4) as pool:
        try:
            asking = [pool.submit(ask, running) for _ in range(4)]
            for number in range(2, 7):
                seen = len(answered)
                publish(versions, number)
                wait_until(lambda n=number: states(running).get(n) == "AVAILABLE")  # type: ignore[misc]
                wait_until(lambda n=seen: len(answered) > n + 8 or bool(lost))  # type: ignore[misc]
            wait_until(lambda: list(states(running).values()) == ["AVAILABLE"] + ["END"] * 5)
        finally:
            ended.set()
        concurrent.futures.wait(asking)
    assert lost == []


def test_a_request_finishes_on_the_version_that_it_started_with(versions: Path) -> None:
    with running_server(versions) as running, concurrent.futures.ThreadPoolExecutor(1) as pool:
        with model_held():
            begun = pool.submit(running.predict, {"instances": ["abc"]})
            wait_until(lambda: running.metric("serving_batch_rows_count") == 1)
            # The new version cannot warm up while the model is blocked, so there is no warm-up.
            shutil.copytree(versions / "1", versions / ".copying")
            shutil.rmtree(versions / ".copying" / "assets.extra")
            (versions / ".copying").rename(versions / "2")
            wait_until(lambda: states(running) == {2: "AVAILABLE", 1: "UNLOADING"})
            assert running.http.get(f"{running.model}/versions/1/metadata").status_code == 404
        assert begun.result().json()["predictions"][0]["translations"][0] == "cba"
        wait_until(lambda: states(running) == {2: "AVAILABLE", 1: "END"})


def test_a_version_that_fails_leaves_the_old_one(versions: Path, tmp_path: Path) -> None:
    with running_server(versions) as running:
        (versions / "2").mkdir()
        (versions / "2" / "saved_model.pb").write_bytes(b"broken")
        cold = write_version(tmp_path / "cold", warm_up="poison")
        cold.rename(versions / "3")
        wait_until(lambda: {2, 3} <= states(running).keys())
        wait_until(lambda: "LOADING" not in states(running).values())
        assert states(running) == {1: "AVAILABLE", 2: "END", 3: "END"}
        status = running.http.get(f"{running.model}/versions/3").json()
        said = status["model_version_status"][0]["status"]["error_message"]
        assert tells(said, "version 3", "loaded", "[there is poison]")
        assert running.predict({"instances": ["a"]}, "/versions/1").status_code == 200
        assert running.predict({"instances": ["a"]}, "/versions/2").status_code == 404
        publish(versions, 4)
        wait_until(lambda: states(running).get(4) == "AVAILABLE")
        # The copy is incomplete at first.
        (versions / "5").mkdir()
        shutil.copy(versions / "4" / "saved_model.pb", versions / "5")
        wait_until(lambda: states(running).get(5) == "END")
        shutil.copytree(versions / "4", versions / "5", dirs_exist_ok=True)
        wait_until(lambda: states(running).get(5) == "AVAILABLE")


def test_leading_zeros_and_broken_links_are_accepted(versions: Path) -> None:
    (versions / "1").rename(versions / "00000123")
    (versions / "00000123" / "notes").symlink_to("nowhere")
    with running_server(versions) as running:
        assert states(running) == {123: "AVAILABLE"}
        assert running.predict({"instances": ["ab"]}).status_code == 200


def test_a_version_number_beyond_int64_is_ignored(versions: Path) -> None:
    publish(versions, 2**63)  # version numbers of the API have 64 bits
    publish(versions, 10**200)
    with running_server(versions) as running:
        assert states(running) == {1: "AVAILABLE"}


def test_a_version_that_is_loaded_again_while_it_is_in_use(versions: Path) -> None:
    publish(versions, 2)
    with running_server(versions) as running, concurrent.futures.ThreadPoolExecutor(1) as pool:
        with model_held():
            begun = pool.submit(running.predict, {"instances": ["abc"]})
            wait_until(lambda: running.metric("serving_batch_rows_count") == 1)
            for folder in (versions / "1", versions / "2"):  # a warm-up would wait
                shutil.rmtree(folder / "assets.extra")
            (versions / "2").rename(versions / ".away")
            wait_until(lambda: states(running) == {1: "AVAILABLE"})
            (versions / ".away").rename(versions / "2")
            wait_until(lambda: states(running) == {2: "AVAILABLE", 1: "END"})
        assert begun.result().json()["predictions"][0]["translations"][0] == "cba"
        assert states(running) == {2: "AVAILABLE", 1: "END"}


def test_a_version_that_disappears(versions: Path) -> None:
    publish(versions, 2)
    with running_server(versions) as running:
        assert states(running) == {2: "AVAILABLE"}
        shutil.rmtree(versions / "2")
        wait_until(lambda: states(running).get(1) == "AVAILABLE")
        shutil.rmtree(versions / "1")  # the only one is kept
        looked: list[Any] = []
        look = running.server.model._found

        def found() -> Any:
            looked.append(look())
            return looked[-1]

        with mock.patch.object(running.server.model, "_found", found):
            wait_until(lambda: len(looked) > 1)  # the first one is finished
        assert looked[0] == {}
        assert running.predict({"instances": ["ab"]}).status_code == 200


def test_health_of_grpc(running: Running) -> None:
    with grpc.insecure_channel(running.grpc) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check
        for service in ("", "tensorflow.serving.PredictionService"):
            answer = check(health_pb2.HealthCheckRequest(service=service), timeout=30)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING


def serve_at(model_dir: Path, **settings: Any) -> None:
    options = {"rest_port": 0, "grpc_port": 0, **settings}
    asyncio.run(serve(Settings(model_dir, **options), asyncio.Event()))


def test_nothing_to_serve(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none", "exist"), (tmp_path, "version 7")):
        (tmp_path / "7").mkdir(exist_ok=True)
        (tmp_path / "7" / "saved_model.pb").write_bytes(b"broken")
        with pytest.raises(InputError, match=mentions(path, reason)):
            serve_at(path)


def test_a_version_in_place_of_their_directory(reversing_version: Path) -> None:
    reason = reversing_version.parent
    with pytest.raises(InputError, match=mentions(reversing_version, reason)):
        serve_at(reversing_version)


def test_an_address_of_ipv6(reversing_version: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine lacks IPv6; the test runs on machines with IPv6")
    ports: list[int] = []

    async def ask() -> None:
        stop = asyncio.Event()
        model = reversing_version.parent
        settings = Settings(model, host="::1", rest_port=0, grpc_port=0)

        def started(_: Any, *where: int) -> None:
            ports.extend(where)
            stop.set()

        await serve(settings, stop, started)

    asyncio.run(ask())
    assert len(ports) == 2 and all(ports)
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
        port = other.getsockname()[1]
        with pytest.raises(InputError, match=mentions(f"[::1]:{port}", "address")):
            serve_at(reversing_version.parent, host="::1", rest_port=port)


def test_a_port_that_is_taken(reversing_version: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for name in ("rest_port", "grpc_port"):
            with pytest.raises(InputError, match=mentions(f"127.0.0.1:{port}", "address")):
                serve_at(reversing_version.parent, **{name: port})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_batch_size", 0),
        ("max_queue", 0),
        ("batches_at_once", 0),
        ("batch_timeout_ms", -1.0),
        ("batch_timeout_ms", float("nan")),
        ("poll_seconds", 0.0),
    ],
)
def test_bounds_that_are_none(name: str, value: float) -> None:
    with pytest.raises(InputError, match=mentions(name, value)):
        Settings(Path("x"), **{name: value})  # type: ignore[arg-type]


def test_sigterm_answers_waiting_requests(reversing_version: Path) -> None:
    command = [
        sys.executable, str(ROOT / "bin/serve.py"), f"--model_dir={reversing_version.parent}",
        "--rest_port=0", "--grpc_port=0", "--batch_timeout_ms=3000", "--max_batch_size=8",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process,
        concurrent.futures.ThreadPoolExecutor(2) as pool,
    ):
        try:
            assert process.stderr is not None
            lines = iter(process.stderr.readline, "")
            pattern = r"REST at http://([^/]+)/v1/models/reversing, gRPC at (\S+)"
            rest, grpc_address = next(
                found.groups() for line in lines if (found := re.search(pattern, line))
            )
            clients = [RestClient(rest, NAME), GrpcClient(grpc_address, NAME)]
            for client in clients:
                client.metadata()
            waiting = [pool.submit(client.translate, ["abc"]) for client in clients]
            metrics = f"http://{rest}/monitoring/prometheus/metrics"
            wait_until(lambda: "serving_waiting_rows 2.0" in httpx.get(metrics).text)
            process.send_signal(signal.SIGTERM)
            for each in waiting:
                assert each.result()[0][0].text == "cba"
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_requests_during_shutdown_are_answered_and_disconnected(
    reversing_version: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_server, "_DRAIN_SECONDS", 5.0)
    with running_server(reversing_version.parent) as running:
        assert "connection" not in running.http.get(running.model).headers
        running.server.ending = True
        assert running.http.get("/healthz").status_code == 503
        answer = running.predict({"instances": ["ab"]})
        assert answer.json()["predictions"][0]["translations"] == ["ba", "ab"]
        assert answer.headers["connection"] == "close"
        assert running.http.get("/v1/models/other").headers["connection"] == "close"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_while_the_model_is_loaded(reversing_version: Path, number: int) -> None:
    # Loading from this directory never ends, and cannot be interrupted.
    code = (
        "import sys, threading, time; sys.argv = sys.argv[:1] + ['--rest_port=0', "
        f"'--grpc_port=0', '--model_dir={reversing_version.parent}']\n"
        "from keras_transformer.cli import main\n"
        "from keras_transformer.extensions.serving.server import models\n"
        "models.Version.__init__ = lambda *a, **b: print('loading', flush=True) or "
        "time.sleep(600)\n"
        "main.run('serve')"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "loading\n"
            process.send_signal(number)
            assert process.wait(20) == 0
            assert process.stdout.read() == ""
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("second", "at_once"),
    [
        pytest.param(signal.SIGTERM, False, marks=pytest.mark.long),
        (signal.SIGINT, False),
        pytest.param(signal.SIGINT, True, marks=pytest.mark.long),
        (None, False),
    ],
)
def test_a_request_that_hangs_does_not_keep_the_process(
    reversing_version: Path, second: int | None, at_once: bool
) -> None:
    # After the first signal, a second one or the end of the grace period stops the server.
    grace = 600 if second else 1
    program = (
        "import sys, time; sys.argv = sys.argv[:1] + ['--rest_port=0', '--grpc_port=0', "
        f"'--model_dir={reversing_version.parent}', '--grace_seconds={grace}']\n"
        "from keras_transformer.cli import main\n"
        "from keras_transformer.extensions.serving.server import models\n"
        "run = models.Version.run\n"
        "def hang(version, name, *rest):\n"
        "    if name == 'size':\n"
        "        print('hangs', flush=True)\n"
        "        time.sleep(3600)\n"
        "    return run(version, name, *rest)\n"
        "models.Version.run = hang\n"
        "main.run('serve')"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        ) as process,
        concurrent.futures.ThreadPoolExecutor(1) as pool,
    ):  # fmt: skip
        try:
            assert process.stdout is not None and process.stderr is not None
            lines = iter(process.stderr.readline, "")
            found = (
                re.search(r"REST at (http://[^/]+/v1/models/reversing)", line) for line in lines
            )
            url = next(each[1] for each in found if each)
            body = {"signature_name": "size", "instances": ["a"]}
            asked = pool.submit(httpx.post, f"{url}:predict", json=body, timeout=SECONDS)
            assert process.stdout.readline() == "hangs\n"
            if second is not None and at_once:  # both are added before the server polls
                for number in (signal.SIGSTOP, signal.SIGTERM, second, signal.SIGCONT):
                    process.send_signal(number)
            else:
                process.send_signal(signal.SIGTERM)
                assert "Stopping" in next(lines)
                if second is not None:
                    process.send_signal(second)
            endings = {-signal.SIGTERM, -second} if second else {1}
            assert process.wait(SECONDS) in endings
            assert ("after the grace period" in "".join(lines)) == (second is None)
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
        "grpc": f"--server=grpc://{served.grpc}/export",
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


@pytest.mark.parametrize("api", ["rest", "grpc"])
def test_a_served_export_translates_like_the_loaded_export(
    translated: dict[str, Ended], api: str
) -> None:
    assert translated["model_dir"][0] == 3, translated["model_dir"]
    assert translated["model_dir"][1].count("\n") >= 2 * len(PHRASES)
    assert "Line 8" in translated["model_dir"][2]  # the text was truncated
    assert translated[api] == translated["model_dir"]


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
            (f"grpc://{served.grpc}/export", None),
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
        ("setting", mentions("error:", "decoding.beam_size", "--server")),
        ("precision", mentions("error:", "precision", "--server")),
    ],
)
def test_errors_of_servers_are_reported(
    translated: dict[str, Ended], name: str, sentence: str
) -> None:
    code, out, err, _ = translated[name]
    assert (code, out) == (1, "")
    assert re.search(sentence, err) and err.count("\n") == 1
