"""An export with any damaged file is refused in one line that names the file, or it works."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.export import export
from keras_transformer.inference import loading
from keras_transformer.inference.manifest import check_manifest, check_needed_files
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES
from tests.damage import DAMAGES, delete, files_of
from tests.messages import mentions

# People may edit these, and programs can load the model without them.
UNNEEDED = {
    "saved_model": {
        "README.md",
        "batching_params.pbtxt",
        "assets.extra/tf_serving_warmup_requests",
    },
    "litert": {"README.md", "example.py", "joint.model"},
}


@pytest.fixture(scope="module")
def versions(
    run_directory: RunDirectory, exported_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """A version in each format."""
    folder = tmp_path_factory.mktemp("exports")
    return {"saved_model": exported_run / "1"} | {
        format: export(run_directory, folder / format, PHRASES, format=format).path
        for format in ("litert", "ctranslate2")
    }


def scores(path: Path) -> np.ndarray:
    return np.asarray(loading.load_model(path).translate(text=tf.constant(PHRASES[:2]))["scores"])


def assert_refused(read: Callable[[Path], object], path: Path, name: str) -> None:
    with pytest.raises(InputError, match=mentions(name.rpartition("/")[2])) as error:
        read(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("format", ["saved_model", "litert"])
def test_a_damaged_export_names_the_file_or_works(
    versions: dict[str, Path], tmp_path: Path, format: str, damage: Callable[[Path], None]
) -> None:
    version = versions[format]
    unneeded = UNNEEDED[format] | ({"manifest.json"} if damage is delete else set())
    for name in set(files_of(version)) - unneeded:
        path = shutil.copytree(version, tmp_path / name.replace("/", "-"))
        damage(path / name)
        assert_refused(loading.load_model, path, name)
    path = shutil.copytree(version, tmp_path / "unneeded")
    for name in unneeded:
        damage(path / name)
    np.testing.assert_array_equal(scores(path), scores(version))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("format", ["saved_model", "litert", "ctranslate2"])
def test_the_manifest_finds_damage_of_every_file(
    versions: dict[str, Path], tmp_path: Path, format: str, damage: Callable[[Path], None]
) -> None:
    check_manifest(versions[format])
    for name in files_of(versions[format]):
        path = shutil.copytree(versions[format], tmp_path / name.replace("/", "-"))
        damage(path / name)
        assert_refused(check_manifest, path, name)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_litert_file_without_its_folder(
    versions: dict[str, Path], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    file = tmp_path / "phone.tflite"
    shutil.copy(versions["litert"] / "model.tflite", file)
    expected = scores(versions["litert"])
    np.testing.assert_array_equal(scores(file), expected)
    damage(file)
    assert_refused(loading.load_model, file, file.name)


def test_every_byte_of_a_litert_model_counts(versions: dict[str, Path], tmp_path: Path) -> None:
    content = (versions["litert"] / "model.tflite").read_bytes()
    file = tmp_path / "phone.tflite"
    for place in np.random.default_rng(0).integers(len(content) // 2, size=20):
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(place) % 8
        file.write_bytes(damaged)
        assert_refused(loading.load_model, file, file.name)


@pytest.mark.parametrize("damage", [each for each in DAMAGES if each.__name__ != "flip"])
def test_a_saved_model_without_a_manifest(
    versions: dict[str, Path], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    for name in set(files_of(versions["saved_model"])) - UNNEEDED["saved_model"]:
        path = shutil.copytree(versions["saved_model"], tmp_path / name.replace("/", "-"))
        (path / "manifest.json").unlink()
        check_needed_files(path)  # there is nothing to compare with
        if name != "manifest.json":
            damage(path / name)
            assert_refused(loading.load_model, path, path.name)


def test_the_newest_version_is_not_skipped_because_it_has_lost_its_model(
    versions: dict[str, Path], tmp_path: Path
) -> None:
    for number in "12":
        shutil.copytree(versions["saved_model"], tmp_path / number)
    (tmp_path / "2" / "saved_model.pb").unlink()
    with pytest.raises(InputError, match=mentions("2/saved_model.pb", "missing")):
        loading.load_model(tmp_path)
