"""Models come from the Hub completely or not at all, and exports go there."""

import shutil
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub.utils import filter_repo_objects

import keras_transformer as kt
from keras_transformer.errors import InputError
from keras_transformer.extensions.converters import read_model
from keras_transformer.extensions.huggingface import hub
from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import refuses
from tests.conftest import ROOT
from tests.damage import files_of
from tests.extensions.converters.toolkits import copy_of
from tests.messages import mentions

FSMT = ROOT / "tests" / "fixtures" / "fsmt"


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """The models of the Hub by name. `snapshot_download` copies their files."""
    found: dict[str, Path] = {}

    def snapshot_download(name: str, revision: str | None, ignore_patterns: Any, **_: Any) -> str:
        folder = tmp_path / "cache" / name / (revision or "main")
        for file in filter_repo_objects(files_of(found[name]), ignore_patterns=ignore_patterns):
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(found[name] / file, folder / file)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return found


def test_a_run_is_downloaded_and_loaded(
    models: dict[str, Path], run_directory: RunDirectory, tmp_path: Path
) -> None:
    models["user/en-de"] = Path(shutil.copytree(run_directory.path, tmp_path / "run"))
    (tmp_path / "run" / "tensorboard").mkdir(exist_ok=True)
    for name in ("pytorch_model.bin", "tensorboard/events"):
        (tmp_path / "run" / name).write_bytes(b"x")
    translator = kt.load("hf://user/en-de", beam_size=2)
    expected = run_directory.named_weights()
    for path, weight in translator.transformer.weights_by_path().items():
        np.testing.assert_array_equal(weight, expected[path])
    loaded = files_of(tmp_path / "cache" / "user" / "en-de" / "main")
    assert "config.json" in loaded and "pytorch_model.bin" not in loaded
    assert not [name for name in loaded if name.endswith("state.npz") or "tensorboard" in name]
    folder = tmp_path / "cache" / "user" / "en-de" / "v2"
    assert hub.resolve("hf://user/en-de@v2,build/run@best") == f"{folder},build/run@best"


def test_models_of_other_toolkits_are_converted(models: dict[str, Path], tmp_path: Path) -> None:
    models["user/fsmt"] = FSMT
    translator = kt.convert("hf://user/fsmt", source_format="fsmt")
    expected = read_model(FSMT, "fsmt").vocabulary
    assert translator.tokenizer.vocabulary.fingerprint == expected.fingerprint
    folder = copy_of("huggingface", tmp_path)  # without .safetensors, .bin is loaded
    for name in ("pytorch_model.bin", "tf_model.h5"):
        (folder / name).write_bytes(b"x")
    models["user/both"] = folder
    assert not (hub.download("hf://user/both") / "pytorch_model.bin").exists()
    (folder / "model.safetensors").unlink()
    models["user/old"] = folder
    loaded = files_of(hub.download("hf://user/old"))
    assert "pytorch_model.bin" in loaded and "tf_model.h5" not in loaded
    models["user/nllb"] = FSMT.with_name("multilingual") / "nllb"
    (folder / "source.spm").unlink()
    models["user/no_spm"] = folder
    assert "pytorch_model.bin" in files_of(hub.download("hf://user/no_spm", "huggingface"))
    languages = {"source_language": "eng_Latn", "target_language": "deu_Latn"}
    translator = kt.convert("hf://user/nllb", source_format="huggingface", **languages)
    assert translator.tokenizer.vocabulary.languages == ("eng_Latn", "deu_Latn")


def test_problems_are_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    for address in ("hf://en-de", "hf://user/en-de/file", "hf:// user/en de"):
        refuses(hub.resolve, {"models": address}, "hf://USER/NAME")
    with pytest.raises(InputError, match=mentions("hf://user/en-de", "downloaded")) as caught:
        kt.load("hf://user/en-de")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_uploads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploaded = {}

    class Api:
        def __init__(self, **_: Any) -> None:
            pass

        def create_repo(self, name: str, exist_ok: bool) -> str:
            return f"https://hub/{name}"

        def upload_folder(self, repo_id: str, folder_path: Path, commit_message: str) -> None:
            if repo_id == "other/en-de":
                raise OSError("not yours")
            uploaded[repo_id] = files_of(folder_path)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    (tmp_path / "model.bin").write_bytes(b"x")
    assert hub.upload(tmp_path, "user/en-de") == "https://hub/user/en-de"
    assert uploaded == {"user/en-de": ["model.bin"]}
    refuses(hub.upload, (tmp_path, "other/en-de"), "complete", "cannot be uploaded", "not yours")
    for name in ("en-de", "user/en-de@main", "hf://user/en-de", "user/en de"):
        refuses(hub.upload, (tmp_path, name), repr(name), "USER/NAME")
