"""Models come from the Hub completely or not at all, and exports go there."""

from __future__ import annotations

import time
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants, file_download

import keras_transformer as kt
from keras_transformer.errors import InputError
from keras_transformer.export import ExportOptions, export
from keras_transformer.extensions.converters import read_model
from keras_transformer.extensions.huggingface import hub
from keras_transformer.inference.manifest import file_hashes
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES, ROOT
from tests.hub_server import Hub, running_hub
from tests.messages import mentions


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty Hub, and an empty cache of downloads."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    with running_hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.address)
        yield running


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def cached(tmp_path: Path) -> list[Path]:
    """Complete files in the cache."""
    return [path for path in tmp_path.glob("cache/**/snapshots/**/*") if path.is_file()]


def test_a_run_is_downloaded_once_and_translates(server: Hub, run_directory: RunDirectory) -> None:
    server.models["user/en-de"] = {
        **files_of(run_directory.path), "pytorch_model.bin": b"x", "tensorboard/events": b"x",
    }  # fmt: skip
    translator = kt.load("hf://user/en-de", beam_size=2)
    assert translator(PHRASES[0]) == kt.load(run_directory.path, beam_size=2)(PHRASES[0])
    loaded = server.downloads()
    assert "config.json" in loaded and "pytorch_model.bin" not in loaded
    assert not [name for name in loaded if name.endswith("state.npz") or "tensorboard" in name]
    path = hub.download(f"hf://user/en-de@{server.commit('user/en-de')}")
    assert path == hub.download("hf://user/en-de@main")
    assert server.downloads() == loaded
    # Later commits are found, and the Hub is not needed for a model in the cache.
    server.models["user/en-de"]["README.md"] = b"new"
    assert (hub.download("hf://user/en-de") / "README.md").read_bytes() == b"new"
    server.status = 503
    assert (hub.download("hf://user/en-de") / "README.md").read_bytes() == b"new"


def test_models_of_other_toolkits_are_converted(server: Hub) -> None:
    fixture = ROOT / "tests" / "fixtures" / "fsmt"
    server.models["user/fsmt"] = {**files_of(fixture), "model.onnx": b"x"}
    translator = kt.convert("hf://user/fsmt", source_format="fsmt")
    expected = read_model(fixture, "fsmt").vocabulary
    assert translator.tokenizer.vocabulary.fingerprint == expected.fingerprint
    loaded = server.downloads()
    assert "pytorch_model.bin" in loaded and "model.onnx" not in loaded


def test_addresses_in_an_ensemble(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "download", lambda address, _: Path("/cache") / address[-1])
    assert hub.resolve("hf://u/a,build/run@best,hf://u/b") == "/cache/a,build/run@best,/cache/b"


def test_an_interrupted_download_is_never_used(
    server: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_waiting = types.SimpleNamespace(**{**vars(time), "sleep": lambda _: None})
    monkeypatch.setattr(file_download, "time", no_waiting)  # between attempts
    server.models["user/en-de"] = {"config.json": b"{}" * 1000, "data.json": b"{}"}
    server.cut = {"config.json"}
    with pytest.raises(InputError, match=mentions("hf://user/en-de", "cannot be downloaded")):
        hub.download("hf://user/en-de")
    assert "config.json" not in {path.name for path in cached(tmp_path)}
    server.status = 503
    with pytest.raises(InputError, match=mentions("cannot be downloaded")):
        hub.download("hf://user/en-de")
    server.status, server.cut = 200, set()
    assert sorted(files_of(hub.download("hf://user/en-de"))) == ["config.json", "data.json"]


def test_problems_are_told_in_one_sentence(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    server.models["user/en-de"] = {"config.json": b"{}"}

    def message(address: str) -> str:
        with pytest.raises(InputError) as caught:
            kt.load(address)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
        return str(caught.value)

    for address in ("hf://en-de", "hf://user/en-de/file", "hf://user/en-de@", "hf:// user/en de"):
        assert "hf://USER/NAME" in message(address)
    assert "does not exist" in message("hf://user/other")
    assert "no such revision" in message("hf://user/en-de@v2")
    assert "neither a run directory" in message("hf://user/en-de")
    server.status = 500
    server.models["user/new"] = {}
    assert "500" in message("hf://user/new")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "cannot be downloaded" in message("hf://user/new")


def test_an_export_is_uploaded(
    server: Hub, run_directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ExportOptions(push_to_hub="user/en-de")
    exported = export(run_directory, tmp_path / "e", PHRASES, options, format="huggingface")
    assert exported.url == f"{server.address}/user/en-de"
    uploaded = server.models["user/en-de"]
    assert uploaded == files_of(exported.path)
    folder = hub.download("hf://user/en-de")
    assert file_hashes(folder) == file_hashes(exported.path)
    translations = [
        kt.load(model, length_penalty=0.0, max_extra_tokens=5)(PHRASES[0])
        for model in (run_directory.path, "hf://user/en-de")
    ]
    assert translations[0] == translations[1]

    server.status = 403
    with pytest.raises(InputError, match=mentions("complete", "cannot be uploaded", "access")):
        hub.upload(exported.path, "user/en-de")


def test_a_wrong_name_is_refused_before_the_export(
    server: Hub, run_directory: RunDirectory, tmp_path: Path
) -> None:
    for name in ("en-de", "user/en-de@main", "hf://user/en-de", "user/en de"):
        with pytest.raises(InputError, match=mentions(repr(name), "USER/NAME")):
            options = ExportOptions(push_to_hub=name)
            export(run_directory, tmp_path / "e", PHRASES, options, format="ctranslate2")
    assert not (tmp_path / "e").exists() and not server.requests
