"""A checkpoint is complete or does not exist, and every changed byte is noticed."""

import contextlib
import os
import random
import resource
import zipfile
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.runs.checkpoints import (
    DamagedCheckpointError,
    read_arrays,
    read_checkpoint,
    read_metadata,
    write_checkpoint,
)
from tests.messages import mentions

METADATA = {"step": 7, "config": {"rates": (0.1, 1e-9), "name": "grün", "none": None}}
ARRAYS = {
    "weights": {
        "embedding/embeddings": np.arange(6, dtype=np.float32).reshape(3, 2),
        "norm/gamma": np.float32([1, np.nan, -np.inf]),
        "empty": np.zeros((0, 4), np.float32),
    },
    "state": {"adam/iteration": np.array(7, np.int64), "transposed": np.eye(3, 2).T},
}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "checkpoints" / "step"
    write_checkpoint(path, METADATA, ARRAYS)
    return path


@contextlib.contextmanager
def no_file_beyond(size):
    """Limits the files of this process to `size` bytes, as if the disk were full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_written_values_are_read_back(path):
    metadata, arrays = read_checkpoint(path)
    assert metadata.pop("files").keys() == {"weights.npz", "state.npz"}
    assert metadata == {"step": 7, "config": {"rates": [0.1, 1e-9], "name": "grün", "none": None}}
    assert arrays.keys() == ARRAYS.keys()
    for name, expected in ARRAYS.items():
        assert_equal(arrays[name], expected)
        assert_equal(read_arrays(path, name), expected)


def test_the_arrays_are_an_ordinary_npz(path):
    with zipfile.ZipFile(path / "weights.npz") as archive:
        assert archive.testzip() is None
    assert_equal(dict(np.load(path / "weights.npz")), ARRAYS["weights"])


def test_everything_is_on_the_disk_before_the_name_is(tmp_path, monkeypatch):
    fsync, rename = os.fsync, os.rename
    events = []

    def logged_fsync(descriptor):
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def logged_rename(source, target):
        events.append(f"{source.name} is {target.name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(os, "rename", logged_rename)
    write_checkpoint(tmp_path / "checkpoints" / "step", METADATA, ARRAYS)
    *files, folder, renamed, parent = events
    assert sorted(files) == ["checkpoint.json", "state.npz", "weights.npz"]
    assert folder.startswith(".step.")
    assert (renamed, parent) == (f"{folder} is step", "checkpoints")


class TestDamage:
    FILES = ("weights.npz", "state.npz", "checkpoint.json")

    @pytest.mark.parametrize("name", FILES)
    def test_no_flipped_byte_goes_unnoticed(self, path, name):
        content = (path / name).read_bytes()
        generator = random.Random(name)
        for position in range(len(content)):
            flipped = bytearray(content)
            flipped[position] ^= generator.randrange(1, 256)
            (path / name).write_bytes(flipped)
            with pytest.raises(DamagedCheckpointError, match=mentions(name, "read")):
                read_checkpoint(path)
        (path / name).write_bytes(content)
        read_checkpoint(path)

    @pytest.mark.parametrize("name", FILES)
    def test_no_missing_end_or_file_goes_unnoticed(self, path, name):
        content = (path / name).read_bytes()
        for damaged in (*(content[:size] for size in range(len(content))), content + b"\0", b"[]"):
            (path / name).write_bytes(damaged)
            with pytest.raises(DamagedCheckpointError, match=mentions(name, "read")):
                read_checkpoint(path)
        (path / name).unlink()
        with pytest.raises(DamagedCheckpointError, match=mentions(name, "No such file")):
            read_checkpoint(path)

    def test_a_forbidden_file_is_not_a_damaged_one(self, path, monkeypatch):
        def forbidden(self):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "read_bytes", forbidden)
        with pytest.raises(InputError, match=mentions("checkpoint.json", "Permission")) as error:
            read_metadata(path)
        assert not isinstance(error.value, DamagedCheckpointError)


class TestFailure:
    @pytest.mark.parametrize("size", [0, 40, 300, 700])
    def test_a_full_disk_keeps_the_old_file(self, path, size):
        for target in (path, path.with_name("new")):
            with no_file_beyond(size), pytest.raises(OSError, match="File too large"):
                write_checkpoint(target, {"step": 8}, {**ARRAYS, "weights": {"a": np.ones(99)}})
            assert [entry.name for entry in path.parent.iterdir()] == ["step"]
            assert read_checkpoint(path)[0]["step"] == 7

    def test_nothing_is_pickled(self, path):
        with pytest.raises(ValueError, match="pickle"):
            write_checkpoint(path, {}, {"weights": {"weight": np.array([object()])}})
        assert read_metadata(path)["step"] == 7
