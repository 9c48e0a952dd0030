"""The manifest describes a version and detects every change of its files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.inference.manifest import check_manifest
from keras_transformer.runs.run_directory import RunDirectory
from tests.messages import mentions


@pytest.fixture(scope="module")
def version(exported_run: Path) -> Path:
    return exported_run / "1"


def test_origin_settings_signatures_and_files(version: Path, run_directory: RunDirectory) -> None:
    manifest = check_manifest(version)
    files = {p.relative_to(version).as_posix() for p in version.rglob("*") if p.is_file()}
    assert set(manifest["files"]) == files - {"manifest.json"}
    warmup = "assets.extra/tf_serving_warmup_requests"
    assert {warmup, "README.md", "batching_params.pbtxt", "saved_model.pb"} <= files
    (member,) = manifest["members"]
    assert (member["weights"], member["step"]) == ("last", 300)
    assert member["data_fingerprint"] == run_directory.data_fingerprint
    assert manifest["versions"]["tensorflow"] == tf.__version__
    assert manifest["decoding"]["length_penalty"] == 0.6
    served = manifest["signatures"]["serving_default"]
    assert served["inputs"] == {"text": {"dtype": "string", "shape": [None]}}
    assert served["outputs"]["scores"] == {"dtype": "float32", "shape": [None, 2]}


def test_every_change_of_a_version_is_detected(version: Path, tmp_path: Path) -> None:
    path = shutil.copytree(version, tmp_path / "1")
    (weights,) = (path / "variables").glob("*.data-*")
    content = weights.read_bytes()
    for changed, expected in (
        (content[:-1] + bytes([content[-1] ^ 1]), mentions("SHA-256")),
        (None, mentions("manifest.json", "missing")),
    ):
        weights.unlink() if changed is None else weights.write_bytes(changed)
        with pytest.raises(InputError, match=mentions(weights.name) + expected):
            check_manifest(path)
    weights.write_bytes(content)
    check_manifest(path)
    (path / "assets" / "more").write_text("")
    with pytest.raises(InputError, match=mentions("assets/more", "manifest.json")):
        check_manifest(path)
    manifest = path / "manifest.json"
    for text, message in (
        ("{}", mentions("KeyError")),
        ("[", mentions("JSONDecodeError")),
        ('{"format_version": 9, "files": {}}', mentions("format", "9", "1")),
    ):
        manifest.write_text(text)
        with pytest.raises(InputError, match=message):
            check_manifest(path)
    manifest.unlink()
    with pytest.raises(InputError, match=mentions("No such file")):
        check_manifest(path)
