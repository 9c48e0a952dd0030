"""What takes its name only when it is whole, by several processes at once and after kills."""

from pathlib import Path

import pytest

from keras_transformer.errors import InputError
from keras_transformer.runs.work_directory import whole, work_directory
from tests.messages import mentions


def test_a_file_has_its_name_only_when_it_is_written(tmp_path):
    path = tmp_path / "file"
    with whole(path) as partial:
        partial.write_text("first")
        assert not path.exists()
        with whole(path) as other:
            other.write_text("second")
        assert path.read_text() == "second"
    assert path.read_text() == "first", "the last to finish"
    with pytest.raises(ZeroDivisionError), whole(path) as partial:
        partial.write_text("half")
        _ = 1 / 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "first"


def test_a_directory_replaces_one_of_its_name(tmp_path):
    for content in ("first", "second"):
        with whole(tmp_path / "directory") as partial:
            partial.mkdir()
            (partial / "file").write_text(content)
    assert [entry.name for entry in tmp_path.iterdir()] == ["directory"]
    assert (tmp_path / "directory" / "file").read_text() == "second"


def test_what_killed_processes_left_is_not_in_the_result(tmp_path):
    with work_directory(tmp_path / "out", "a") as directory:
        (directory / "train").mkdir()
        (directory / "train" / "kept").touch()
        for name in (".0.1234.unfinished", "train/.1.abcd.unfinished"):
            (directory / name).mkdir()
            (directory / name / "ids.npy").touch()
        (directory / ".done.json.ffff.unfinished").touch()
    assert sorted(entry.name for entry in (tmp_path / "out").rglob("*")) == ["kept", "train"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_a_name_that_cannot_be_taken_is_told_and_loses_nothing(tmp_path):
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
            pytest.raises(InputError, match=mentions(name, "mounted", "disk")),
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
