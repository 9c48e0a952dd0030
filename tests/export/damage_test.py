"""An export with any damaged file is refused in one line that names the file, or it works."""

import shutil

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.inference import loading
from keras_transformer.inference.manifest import check_manifest, check_needed_files
from tests.builders import refuses, weekly
from tests.conftest import PHRASES
from tests.damage import DAMAGES, cut, delete, empty, files_of
from tests.messages import mentions


def needed_files(version):
    return [*check_needed_files(version)["needed"]]


def scores(path):
    model = loading.load_model(path)  # holds the variables of the function
    return np.asarray(model.translate(text=tf.constant(PHRASES[:2]))["scores"])


def assert_refused(read, path, name):
    with pytest.raises(InputError, match=mentions(name.rpartition("/")[2])) as error:
        read(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600


@pytest.mark.parametrize(
    "format",
    # The manifest, which finds the damage, is the same for all formats.
    ["saved_model", "litert", "ctranslate2", *map(weekly, ("cpu", "huggingface", "argos"))],
)
def test_damage_of_every_file_is_found(version_of, tmp_path, format):
    """The manifest finds all damage. Loading checks only the needed files."""
    version = version_of(format)
    needed = needed_files(version)
    for damage in DAMAGES:
        for name in files_of(version):
            path = shutil.copytree(version, tmp_path / "1", dirs_exist_ok=True)
            damage(path / name)
            assert_refused(check_manifest, path, name)
            if name in needed or (name == "manifest.json" and damage in (cut, empty)):
                assert_refused(loading.load_model, path, name)
    path = shutil.copytree(version, tmp_path / "others")
    check_manifest(path)
    (path / "more").write_text("")
    assert_refused(check_manifest, path, "more")
    for name in {*files_of(version)} - {*needed, "manifest.json"}:
        cut(path / name)
    assert np.isfinite(scores(path)).all()


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("{}", ("KeyError",)),
        ("[", ("JSONDecodeError",)),
        ('{"format_version": 9, "files": {}}', ("format", 9, 1)),
        (None, ("No such file",)),
    ],
)
def test_invalid_manifests_are_refused(tmp_path, text, facts):
    if text is not None:
        (tmp_path / "manifest.json").write_text(text)
    refuses(check_manifest, (tmp_path,), *facts)


def test_a_litert_file_without_its_folder(version_of, tmp_path):
    original, file = version_of("litert") / "model.tflite", tmp_path / "phone.tflite"
    shutil.copy(original, file)
    np.testing.assert_array_equal(scores(file), scores(original.parent))
    for damage in DAMAGES:
        shutil.copy(original, file)
        damage(file)
        assert_refused(loading.load_model, file, file.name)
    content = original.read_bytes()
    for index in np.random.default_rng(0).integers(len(content) // 2, size=20):
        damaged = bytearray(content)
        damaged[index] ^= 1 << int(index) % 8
        file.write_bytes(damaged)
        assert_refused(loading.load_model, file, file.name)


@pytest.mark.parametrize("damage", [empty, weekly(cut), weekly(delete)])
def test_a_saved_model_without_a_manifest(version_of, tmp_path, damage):
    version = version_of("saved_model")
    for name in needed_files(version):
        path = shutil.copytree(version, tmp_path / name.replace("/", "-"))
        (path / "manifest.json").unlink()
        assert check_needed_files(path) == {}  # there is nothing to compare with
        damage(path / name)
        assert_refused(loading.load_model, path, path.name)


def test_the_newest_version_is_loaded_even_if_it_is_damaged(version_of, tmp_path):
    for number in ("3", "10", "notes"):
        shutil.copytree(version_of("litert"), tmp_path / number)
    assert loading.load_model(tmp_path).label == str(tmp_path / "10" / "model.tflite")
    (tmp_path / "10" / "model.tflite").unlink()
    refuses(loading.load_model, (tmp_path,), "10/model.tflite", "missing")
