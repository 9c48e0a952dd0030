"""A server serves the newest good version, and takes a damaged one when it has been repaired."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from keras_transformer.config import DecodingConfig
from keras_transformer.errors import InputError
from keras_transformer.export.manifest import Provenance, write_manifest
from keras_transformer.extensions.serving.server.models import ServedModel, Version
from tests.damage import DAMAGES, delete, files_of
from tests.extensions.serving.reversing_model import NAME
from tests.extensions.serving.running_server import Running, running_server, wait_until
from tests.messages import mentions, tells

WARM_UP = "assets.extra/tf_serving_warmup_requests"
UNNEEDED = {WARM_UP, "fingerprint.pb"}


@pytest.fixture
def versions(reversing_version: Path, tmp_path: Path) -> Path:
    """A directory of versions with one version, which has a manifest."""
    version = shutil.copytree(reversing_version, tmp_path / NAME / "1")
    write_manifest(version, Provenance((), DecodingConfig(), "float32", 1024, 1074), {})
    return tmp_path / NAME


def publish(versions: Path, number: int, damage: Callable[[Path], None], name: str) -> Path:
    """Copies version 1 as another version and damages one of its files."""
    path = shutil.copytree(versions / "1", versions / ".copying")
    damage(path / name)
    return path.rename(versions / str(number))


def status(running: Running, number: int) -> tuple[str, str]:
    """Returns the state and the error message of a version."""
    versions = running.http.get(running.model).json()["model_version_status"]
    found = {int(each["version"]): each for each in versions}.get(number)
    return (found["state"], found["status"]["error_message"]) if found else ("", "")


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_newest_good_version_is_served_until_the_damaged_one_is_repaired(
    versions: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    names = [name for name in files_of(versions / "1") if name not in UNNEEDED]
    if damage is delete:
        names.remove("manifest.json")
    publish(versions, 2, damage, names[0])
    with caplog.at_level(logging.INFO), running_server(versions) as running:
        assert tells(caplog.text, NAME, "version 1", "because version 2 cannot be loaded")
        for number, name in enumerate(names, start=2):
            if number > 2:
                publish(versions, number, damage, name)
            wait_until(lambda n=number: status(running, n)[0] == "END")  # type: ignore[misc]
            assert status(running, number - 1) == ("AVAILABLE", "")
            problem = status(running, number)[1]
            assert tells(problem, f"version {number}", "loaded", name) and "\n" not in problem
            answer = running.predict({"instances": ["abc"]}).json()
            assert answer["predictions"][0]["translations"][0] == "cba"
            # A repair may keep the size and the time of a file.
            repaired, good = versions / str(number) / name, versions / "1" / name
            time = repaired.stat().st_mtime_ns if repaired.exists() else good.stat().st_mtime_ns
            repaired.write_bytes(good.read_bytes())
            os.utime(repaired, ns=(time, time))
            wait_until(lambda n=number: status(running, n) == ("AVAILABLE", ""))  # type: ignore[misc]
    assert "Traceback" not in caplog.text


def test_damaged_warm_up_requests_are_named(versions: Path) -> None:
    for number, damage in enumerate(DAMAGES, start=2):
        path = publish(versions, number, damage, WARM_UP)
        if damage.__name__ in ("empty", "delete"):  # no request is valid
            Version(path, 1, 2**20).close()
            continue
        with pytest.raises(InputError, match=mentions(path / WARM_UP)):
            Version(path, 1, 2**20)


def test_without_a_good_version_the_server_names_the_damaged_file(versions: Path) -> None:
    publish(versions, 2, delete, "saved_model.pb")
    shutil.rmtree(versions / "1")
    model = ServedModel(versions, NAME, 1, 2**20)
    with pytest.raises(InputError, match=mentions(versions, "version 2", "saved_model.pb")):
        asyncio.run(model.start())
