"""Atomic writes, also by several processes at once and after kills."""

import contextlib
import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from keras_transformer.errors import InputError
from keras_transformer.runs.atomic import (
    atomic_path,
    exclusive_lock,
    growing_files,
    output_file,
    work_directory,
    write_version,
)
from tests.messages import mentions


def test_a_file_gets_its_name_only_when_it_is_complete(tmp_path):
    path = tmp_path / "file"
    with atomic_path(path) as partial:
        partial.write_text("first")
        assert not path.exists()
        with atomic_path(path) as other:
            other.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first", "the last to finish"
    with pytest.raises(ZeroDivisionError), atomic_path(path) as partial:
        partial.write_text("half")
        _ = 1 / 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "first"


def test_a_file_system_that_cannot_sync_gets_complete_files(monkeypatch, tmp_path):
    for number in (errno.EINVAL, errno.EIO):  # VirtualBox's shared folders; a broken disk
        monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(number, "")))
        with contextlib.suppress(OSError), atomic_path(tmp_path / "file") as partial:
            partial.write_text(str(number))
        assert (tmp_path / "file").read_text() == str(errno.EINVAL)


def test_leftovers_of_killed_processes_are_not_in_the_result(tmp_path):
    with work_directory(tmp_path / "out", "a") as directory:
        (directory / "train").mkdir()
        (directory / "train" / "kept").touch()
        for name in (".0.1234.unfinished", "train/.1.abcd.unfinished"):
            (directory / name).mkdir()
            (directory / name / "ids.npy").touch()
        (directory / ".done.json.ffff.unfinished").touch()
    assert sorted(entry.name for entry in (tmp_path / "out").rglob("*")) == ["kept", "train"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_versions_of_killed_processes_are_removed_and_others_are_left_alone(tmp_path):
    killed, running = (tmp_path / f".version.{name}.unfinished" for name in "ab")
    killed.mkdir()
    (killed / "model").touch()
    os.utime(killed, (0, 0))
    young = tmp_path / ".version.c.unfinished"  # its lock may not be seen
    young.mkdir()
    with exclusive_lock(running):
        path, size = write_version(tmp_path, lambda folder: (folder / "model").write_text("new"))
        assert (path, size) == (tmp_path / "1", 3)
        names = sorted(entry.name for entry in tmp_path.iterdir())
        assert names == [running.name, young.name, "1"]
    assert [entry.name for entry in path.iterdir()] == ["model"]


def test_an_existing_name_is_an_error_and_keeps_its_content(tmp_path):
    (tmp_path / "out").write_text("a file")
    for _ in range(2):
        with (
            pytest.raises(InputError, match=mentions("out", "written", "same command")),
            work_directory(tmp_path / "out", "a") as directory,
        ):
            (directory / "made").touch()
    (tmp_path / "out").unlink()
    with work_directory(tmp_path / "out", "a") as directory:
        assert (directory / "made").exists()
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["made"]


def test_a_mounted_disk_is_refused_before_anything_is_done(monkeypatch, tmp_path):
    monkeypatch.setattr(Path, "is_mount", lambda path: path == tmp_path / "disk")
    (tmp_path / "link").symlink_to("disk")
    for name in ("disk", "link"):
        with (
            pytest.raises(InputError, match=mentions(name, "mount point")),
            work_directory(tmp_path / name, "a"),
        ):
            raise AssertionError
    assert [entry.name for entry in tmp_path.iterdir()] == ["link"]


def test_a_kill_while_clearing_leaves_nothing_to_continue(monkeypatch, tmp_path):
    with pytest.raises(ZeroDivisionError), work_directory(tmp_path / "out", "a") as directory:
        (directory / "made").mkdir()
        _ = 1 / 0

    def killed(*_, **__):
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", killed)
        with pytest.raises(ZeroDivisionError), work_directory(tmp_path / "out", "b"):
            pass
    with work_directory(tmp_path / "out", "a") as directory:
        assert not (directory / "made").exists()


class TestOutputFile:
    def test_a_failure_keeps_the_old_file(self, tmp_path):
        path = tmp_path / "out"
        path.write_bytes(b"old")
        with pytest.raises(KeyError), output_file(path) as file:
            file.write(b"half")
            raise KeyError
        assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"old"]
        with output_file(path) as file:
            file.write(b"new")
        assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"new"]

    def test_a_link_stays_one_and_a_pipe_is_written_to(self, tmp_path):
        (tmp_path / "link").symlink_to("out")
        for text in (b"new", b"newer"):  # at first, out does not exist
            with output_file(tmp_path / "link") as file:
                file.write(text)
            assert (tmp_path / "link").is_symlink()
            assert (tmp_path / "out").read_bytes() == text
        reading, writing = os.pipe()
        with open(reading, "rb") as read:
            with output_file(f"/dev/fd/{writing}") as file:
                file.write(b"text")
            os.close(writing)
            assert read.read() == b"text"

    def test_standard_output_is_added_to(self, tmp_path, monkeypatch):
        (tmp_path / "out").write_bytes(b"before\n")
        with open(tmp_path / "out", "a") as stdout:
            monkeypatch.setattr("sys.stdout", stdout)
            for name in (None, "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
                with output_file(name) as file:
                    file.write(b"after\n")
            monkeypatch.undo()
        assert (tmp_path / "out").read_bytes() == b"before\n" + 4 * b"after\n"

    def test_nowhere_to_write(self, tmp_path):
        (tmp_path / "file").write_text("")
        for name in ("none/out", "file/out", "long" * 100):
            expected = f"{name} cannot be written"
            with pytest.raises(InputError, match=expected), output_file(tmp_path / name):
                pytest.fail("the block must not begin")


def test_growing_files_end_where_their_state_was_saved(tmp_path: Path) -> None:
    for blocks in range(4):
        with (
            contextlib.suppress(ZeroDivisionError),
            work_directory(tmp_path / "out", "a", "text") as directory,
            growing_files(directory, ["text"]) as (done, save),
        ):
            assert done == (blocks or None)
            save([b"block %d\n" % blocks], blocks + 1)
            with (directory / "text").open("ab") as file:
                file.write(b"a part of the next one")
            raise ZeroDivisionError
    with work_directory(tmp_path / "out", "a", "text") as directory:
        with growing_files(directory, ["text"]) as (done, save):
            assert done == 4
        assert (directory / "text").read_bytes() == b"".join(b"block %d\n" % n for n in range(4))
        (directory / "text").unlink()  # as after a kill at the end
        with growing_files(directory, ["text"]) as (done, save):
            assert done is None
            save([b"new"], 1)
    assert (tmp_path / "out").read_bytes() == b"new" and len(list(tmp_path.iterdir())) == 1
