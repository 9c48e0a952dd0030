"""Versions that are added, replaced, removed or damaged while a server runs."""

import asyncio
import concurrent.futures
import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from keras_transformer.export.manifest import write_manifest
from keras_transformer.export.saved_model.engine import SavedModelEngine
from keras_transformer.extensions.ctranslate2.exporter import EXPORTER
from keras_transformer.extensions.serving import Settings
from keras_transformer.extensions.serving.client import Client
from keras_transformer.extensions.serving.engines import open_engine
from keras_transformer.extensions.serving.models import ServedModel
from keras_transformer.inference.loading import find_loader
from keras_transformer.text.tokenizer import Tokenizer
from tests.builders import old_vocabulary, refuses
from tests.damage import delete, flip
from tests.export.model_variants import make_run
from tests.extensions.serving.reversing_model import NAME, write_version
from tests.extensions.serving.running_server import Running, model_held, running_server, wait_until
from tests.messages import tells

WARM_UP = "assets.extra/tf_serving_warmup_requests"
DATA = "variables/variables.data-00000-of-00001"


@pytest.fixture
def versions(reversing_version: Path, tmp_path: Path) -> Path:
    """A directory of versions with one version, which has a manifest."""
    version = shutil.copytree(reversing_version, tmp_path / NAME / "1")
    write_manifest(version, {}, {"saved_model.pb", DATA})
    return tmp_path / NAME


def publish(
    versions: Path, number: int, damage: Callable[[Path], None] | None = None, name: str = ""
) -> Path:
    """Copies version 1 and renames the copy at the end, like an export. May damage a file of it."""
    path = shutil.copytree(versions / "1", versions / ".copying")
    if damage:
        damage(path / name)
    return path.rename(versions / str(number))


def states(running: Running) -> dict[int, str]:
    status = running.http.get(running.model).json()["model_version_status"]
    return {int(version["version"]): version["state"] for version in status}


def test_an_engine_with_threads_of_its_own_has_one_for_each_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {}
    engine = mock.MagicMock(with_settings=lambda _: engine)
    monkeypatch.setattr(EXPORTER, "engine", lambda _, **given: options.update(given) or engine)
    (tmp_path / "model.bin").touch()
    write_manifest(tmp_path, {"format": "ctranslate2"}, ())
    open_engine(tmp_path, 3)
    assert options["inter_threads"] == 3


def test_no_request_is_lost_while_versions_change(versions: Path) -> None:
    lost: list[Any] = []
    answered: list[int] = []
    ended = threading.Event()

    def ask(running: Running) -> None:
        with Client(running.rest, NAME, timeout=30) as client:
            while not ended.is_set():
                try:
                    best = client.translate(["abc", "de"])
                    answered.append(len(best))
                    if [line[0].text for line in best] != ["cba", "ed"]:
                        lost.append(best)
                except Exception as error:
                    lost.append(error)

    with running_server(versions) as running, concurrent.futures.ThreadPoolExecutor(4) as pool:
        try:
            asking = [pool.submit(ask, running) for _ in range(4)]
            for number in range(2, 5):
                seen = len(answered)
                publish(versions, number)
                wait_until(lambda n=number: states(running) == {n: "AVAILABLE"})  # type: ignore[misc]
                wait_until(lambda n=seen: len(answered) > n + 8 or bool(lost))  # type: ignore[misc]
        finally:
            ended.set()
        concurrent.futures.wait(asking)
    assert lost == []


def test_versions_that_are_added_and_removed(versions: Path, tmp_path: Path) -> None:
    with running_server(versions) as running, concurrent.futures.ThreadPoolExecutor(1) as pool:
        with model_held():
            begun = pool.submit(running.predict, {"instances": ["abc"]})
            wait_until(lambda: running.metric("serving_batch_rows_count") == 1)
            publish(versions, 2)
            wait_until(lambda: states(running) == {2: "AVAILABLE"})
            assert running.http.get(f"{running.model}/versions/1/metadata").status_code == 404
        # A request finishes on the version that it started with.
        assert begun.result().json()["predictions"][0]["translations"][0] == "cba"
        write_version(tmp_path / "cold", warm_up="poison").rename(versions / "3")
        wait_until(lambda: states(running) == {2: "AVAILABLE", 3: "END"})
        status = running.http.get(f"{running.model}/versions/3").json()
        problem = status["model_version_status"][0]["status"]["error_message"]
        assert tells(problem, "version 3", "loaded", "there is poison")
        assert running.predict({"instances": ["a"]}, "/versions/2").status_code == 200
        assert running.predict({"instances": ["a"]}, "/versions/3").status_code == 404
        shutil.rmtree(versions / "3")
        wait_until(lambda: states(running) == {2: "AVAILABLE"})
        for number in ("1", "2"):
            shutil.rmtree(versions / number)
        assert asyncio.run(running.server.model.refresh()) is False  # the last one is kept
        assert running.predict({"instances": ["ab"]}).status_code == 200


def test_names_of_versions(versions: Path) -> None:
    (versions / "1" / "notes").symlink_to("nowhere")
    for number in (2**63, 10**200):  # version numbers of the API have 64 bits
        shutil.copytree(versions / "1", versions / str(number), symlinks=True)
    (versions / "1").rename(versions / "00000123")
    with running_server(versions) as running:
        assert states(running) == {123: "AVAILABLE"}


def test_a_run_is_served_and_its_old_vocabulary_is_reported_once(tmp_path, caplog):
    run = make_run(tmp_path / "old", tokenizer=Tokenizer(old_vocabulary().source_model))
    with running_server(run.path) as running:
        with Client(running.rest, "old") as client:
            assert set(client.metadata()) == {"serving_default", "lengths", "symbols"}
            [[best], _] = client.translate(["10³", "10³"])
        assert best.score < 0
    [record] = [record for record in caplog.records if "10³" in record.message]
    assert tells(record.message, "old", "'10³'", "'103'", "nfkc_numbers")


@pytest.mark.parametrize(("damage", "name"), [(flip, DATA), (delete, "saved_model.pb")])
def test_the_newest_good_version_is_served_until_the_damaged_one_is_repaired(
    versions: Path, damage: Callable[[Path], None], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    publish(versions, 2, damage, name)
    with caplog.at_level(logging.INFO), running_server(versions) as running:
        assert tells(caplog.text, NAME, "version 1", "because version 2 cannot be loaded")
        assert states(running) == {1: "AVAILABLE", 2: "END"}
        status = running.http.get(f"{running.model}/versions/2").json()
        problem = status["model_version_status"][0]["status"]["error_message"]
        assert tells(problem, "version 2", "loaded", Path(name).name)
        assert "\n" not in problem and "/" not in problem  # clients do not see paths
        assert running.predict({"instances": ["abc"]}).status_code == 200
        # A repair may keep the size and the time of a file.
        repaired, good = versions / "2" / name, versions / "1" / name
        time = repaired.stat().st_mtime_ns if repaired.exists() else good.stat().st_mtime_ns
        repaired.write_bytes(good.read_bytes())
        os.utime(repaired, ns=(time, time))
        wait_until(lambda: states(running) == {2: "AVAILABLE"})
    assert "Traceback" not in caplog.text


def test_a_file_that_the_manifest_does_not_list_is_not_served(versions: Path) -> None:
    version = versions / "1"
    write_manifest(version, {"format": "saved_model"}, {"saved_model.pb", DATA})
    (version / "model.tflite").write_bytes(b"a model of others")
    loader, found = find_loader(str(versions))
    assert (loader.kind, found) == ("a SavedModel", version)
    assert isinstance(open_engine(version, 1).engine, SavedModelEngine)


def test_damaged_warm_up_requests_are_named(versions: Path) -> None:
    path = publish(versions, 2, flip, WARM_UP)
    refuses(open_engine, (path, 1), path / WARM_UP)


def test_without_a_good_version_the_server_names_the_reason(versions: Path, tmp_path: Path) -> None:
    publish(versions, 2, delete, "saved_model.pb")
    shutil.rmtree(versions / "1")
    (tmp_path / "empty").mkdir()
    facts = dict.fromkeys([tmp_path / "none", tmp_path / "empty"], ["no model"])
    for path, words in {**facts, versions: ["version 2", "saved_model.pb"]}.items():
        refuses(asyncio.run, (ServedModel(Settings(path), NAME, 1).start(),), path, *words)
