"""Repeats a preparation: after a kill, on a full disk, or with different input."""

import dataclasses
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from keras_transformer.data import blocks as blocks_module
from keras_transformer.data import prepare as preparation_module
from keras_transformer.data.prepare import prepare
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.text.vocabulary import Vocabulary
from tests.data.corpora import ROOT, SMALL, Pairs, numbered, run_binary, texts
from tests.messages import mentions, tells


def test_the_same_command_again_returns_at_once(tmp_path, monkeypatch):
    arguments = ([Pairs(numbered(30))], tmp_path / "d", SMALL)
    first = prepare(*arguments)
    before = (tmp_path / "d" / "report.json").stat().st_mtime_ns
    monkeypatch.setattr(preparation_module, "learn_vocabulary", lambda *_: pytest.fail("again"))
    again = prepare(*arguments)
    assert again.reused and again.report == first.report
    assert (tmp_path / "d" / "report.json").stat().st_mtime_ns == before
    assert tells(again.summary(), "already")
    for corpus, options in (
        (numbered(31), SMALL),
        (numbered(30), dataclasses.replace(SMALL, seed=2)),
        (numbered(30), dataclasses.replace(SMALL, drop_repetitive=True)),
    ):
        with pytest.raises(InputError, match=mentions("d", "data", "input")):
            prepare([Pairs(corpus)], tmp_path / "d", options)


def test_output_directories_with_other_files_are_unchanged(tmp_path):
    (tmp_path / "empty").mkdir()
    prepare([Pairs(numbered(9))], tmp_path / "empty", SMALL)
    assert (tmp_path / "empty" / "report.json").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("text")
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "report.json").write_text("[]")
    for name in ("mine", "file", "list"):
        with pytest.raises(InputError, match=mentions(name, "exists")):
            prepare([Pairs(numbered(9))], tmp_path / name, SMALL)
    with pytest.raises(InputError, match=mentions(tmp_path / "file", "written")):
        prepare([Pairs(numbered(9))], tmp_path / "file" / "d", SMALL)
    assert {path.name for path in tmp_path.iterdir()} == {"empty", "mine", "file", "list"}
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.txt"]


class Stopped(BaseException):
    """Stands for a kill: nothing catches it."""


def tree(directory):
    return {
        path.relative_to(directory): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.stem != "report"
    }


@pytest.mark.parametrize("stop", [Stopped, KeyboardInterrupt])
@pytest.mark.parametrize("stage", ["clean_block", "learn_vocabulary", "encode_block"])
def test_finished_work_is_not_repeated_after_a_kill(tmp_path, monkeypatch, capsys, stage, stop):
    monkeypatch.setattr(blocks_module, "BLOCK_LINES", 10)
    arguments = [Pairs(numbered(30)), Pairs(numbered(30, 30))]
    whole = prepare(arguments, tmp_path / "whole", SMALL)
    calls = []
    original = getattr(preparation_module, stage)

    def counted(*given, **named):
        calls.append(given)
        if len(calls) == (1 if stage == "learn_vocabulary" else 4):
            raise stop
        return original(*given, **named)

    monkeypatch.setattr(preparation_module, stage, counted)
    with pytest.raises(stop):
        prepare(arguments, tmp_path / "d", SMALL)
    assert not (tmp_path / "d").exists()
    assert tells(capsys.readouterr().err, "Warning", "same command") == (stop is KeyboardInterrupt)
    work = tmp_path / ".d.partial" / "work" / "train"
    finished = "encoded.json" if stage == "encode_block" else "clean.json"
    done = {path: path.stat().st_mtime_ns for path in work.glob(f"*.{finished}")}
    assert len(done) == (6 if stage == "learn_vocabulary" else 3)
    seen = {}

    def spied(*given, **named):
        result = original(*given, **named)
        seen.update({path: path.stat().st_mtime_ns for path in done})
        return result

    monkeypatch.setattr(preparation_module, stage, spied)
    continued = prepare(arguments, tmp_path / "d", SMALL)
    assert seen == done, "written once"
    assert tree(tmp_path / "d") == tree(tmp_path / "whole")
    timeless = [{**p.report, "seconds_of_stages": 0} for p in (continued, whole)]
    assert timeless[0] == timeless[1]
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "d"}


def test_a_real_kill_in_the_middle_and_workers(tmp_path):
    """Two processes give the same result as one, and one process resumes after both were killed."""
    lines = "".join(f"{source}\t{target}\n" for source, target in numbered(70_000))
    (tmp_path / "c.tsv").write_text(lines)
    command = "--tsv=c.tsv --vocab_size=70 --max_length_ratio=0".split()
    assert run_binary(*command, "--output_dir=one", "--workers=1", cwd=tmp_path).returncode == 0
    killed = subprocess.Popen(
        [sys.executable, ROOT / "bin/prepare.py", *command, "--output_dir=two", "--workers=2"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    while not list(tmp_path.glob(".two.partial/work/train/*.clean.json")):
        assert killed.poll() is None
        time.sleep(0.005)
    killed.kill()
    killed.wait()
    assert not (tmp_path / "two").exists()
    done = run_binary(*command, "--output_dir=two", "--workers=2", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr.count("\n") == 1
    assert tells(done.stderr, "resuming")
    assert tree(tmp_path / "two") == tree(tmp_path / "one")


def test_work_for_other_input_is_not_resumed(tmp_path, monkeypatch):
    def stop(*_, **__):
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(preparation_module, "learn_vocabulary", stop)
        with pytest.raises(Stopped):
            prepare([Pairs(numbered(40))], tmp_path / "d", SMALL)
    prepare([Pairs(numbered(30, 40))], tmp_path / "d", SMALL)
    stored = texts(tmp_path / "d", "train") + texts(tmp_path / "d", "valid")
    assert sorted(stored) == sorted(numbered(30, 40))


def test_another_vocabulary_at_the_same_path_is_loaded_again(tmp_path):
    for content in (numbered(40), [(f"a cat {i}", f"eine Katze {i}") for i in range(40)]):
        prepare([Pairs(content)], tmp_path / "d", SMALL)
        vocabulary, store = Vocabulary.load(tmp_path / "d"), TokenStore(tmp_path / "d" / "train")
        for i, line in enumerate(store.source_text()):
            ids = store.source_ids(np.array([i])).tolist()
            assert ids == vocabulary.encode_source([line.encode()])[0]
        (tmp_path / "d").rename(tmp_path / f"moved-{len(list(tmp_path.iterdir()))}")


def test_empty_files_of_a_power_cut_are_written_again(tmp_path, monkeypatch):
    def stop(*_, **__):
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(preparation_module, "write_index", stop)
        with pytest.raises(Stopped):
            prepare([Pairs(numbered(40))], tmp_path / "d", SMALL)
    (result,) = (tmp_path / ".d.partial").rglob("*.encoded.json")
    result.write_bytes(b"")
    (cleaned,) = (tmp_path / ".d.partial").rglob("*.clean.json")
    cleaned.write_bytes(b"")
    prepare([Pairs(numbered(40))], tmp_path / "d", SMALL)
    stored = texts(tmp_path / "d", "train") + texts(tmp_path / "d", "valid")
    assert sorted(stored) == sorted(numbered(40))


def test_an_output_directory_may_be_a_link_or_the_current_directory(tmp_path, monkeypatch):
    for name in ("real", "here"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("elsewhere")
    for name in ("link", "dangling"):
        prepare([Pairs(numbered(30))], tmp_path / name, SMALL)
    monkeypatch.chdir(tmp_path / "here")
    prepare([Pairs(numbered(30))], ".", SMALL)
    for name in ("real", "elsewhere", "here"):
        assert len(texts(tmp_path / name, "train")) == 29
    assert (tmp_path / "link").is_symlink()
    with pytest.raises(InputError, match=mentions("/proc", "exists")):
        prepare([Pairs(numbered(30))], "/proc", SMALL)


def test_an_unreadable_output_directory_is_an_error(tmp_path):
    with pytest.raises(InputError, match=mentions("File name too long") + r"(?=.*/x+\b)"):
        prepare([Pairs(numbered(30))], tmp_path / ("x" * 300), SMALL)


def test_two_processes_do_not_prepare_the_same(tmp_path):
    class Twice(Pairs):
        readings = 0

        def pairs(self):
            self.readings += 1
            if self.readings == 1:
                with pytest.raises(InputError, match=mentions("process", "/d")):
                    prepare([Pairs(numbered(30))], tmp_path / "d", SMALL)
            return super().pairs()

    corpus = Twice(numbered(30))
    prepare([corpus], tmp_path / "d", SMALL)
    assert corpus.readings == 1, "in one pass"


def test_a_full_disk_is_an_error_and_work_resumes_later(tmp_path):
    lines = "".join(f"{source}\t{target}\n" for source, target in numbered(20_000))
    (tmp_path / "c.tsv").write_text(lines)
    program = """
import resource, signal, sys
from keras_transformer.data.corpus import TsvFile
from keras_transformer.data.prepare import PrepareOptions, prepare
from pathlib import Path
from keras_transformer.errors import InputError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing beyond the limit fails, as on a full disk
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
try:
    prepare([TsvFile(Path("c.tsv"))], "d", PrepareOptions(vocab_size=60))
except InputError as error:
    print(error)
"""

    def limited(size):
        return subprocess.run(
            [sys.executable, "-c", program, str(size)],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip

    for size in (100_000, 1_000, 300_000):
        message = limited(size)
        assert tells(message, "d", "File too large")
        assert tells(message, "same command")
        assert not (tmp_path / "d").exists()
    assert limited(10**9) == ""
    assert len(texts(tmp_path / "d", "train")) == 19_600


@pytest.mark.parametrize("stage", ["clean_block", "learn_vocabulary", "encode_block"])
def test_text_that_changes_between_a_kill_and_the_resumption_is_read_again(
    tmp_path, monkeypatch, stage
):
    """Also if the clean text of some blocks was removed after their encoding."""
    monkeypatch.setattr(blocks_module, "BLOCK_LINES", 10)
    old, new = numbered(40), [*numbered(35), *numbered(15, 50)]
    prepare([Pairs(new)], tmp_path / "whole", SMALL)
    calls = []
    original = getattr(preparation_module, stage)

    def third(*given, **named):
        calls.append(given)
        if len(calls) == (1 if stage == "learn_vocabulary" else 3):
            raise Stopped
        return original(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(preparation_module, stage, third)
        with pytest.raises(Stopped):
            prepare([Pairs(old)], tmp_path / "d", SMALL)
    prepare([Pairs(new)], tmp_path / "d", SMALL)
    assert tree(tmp_path / "d") == tree(tmp_path / "whole")
