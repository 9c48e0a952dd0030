"""Repeats a preparation: after a kill, or with different input."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keras_transformer.data import blocks as blocks_module
from keras_transformer.data import prepare as preparation_module
from keras_transformer.data.corpus import TsvFile
from keras_transformer.data.prepare import PrepareOptions, prepare
from keras_transformer.errors import InputError
from tests.builders import refuses
from tests.data.corpora import ROOT, SMALL, Pairs, numbered, texts, tree
from tests.messages import mentions, tells


class SimulatedKill(BaseException):
    """Stands for a kill: nothing catches it."""


def stop_at(monkeypatch, stage, call, stop=SimulatedKill):
    """Makes a stage raise an exception in one of its calls."""
    calls = []
    original = getattr(preparation_module, stage)

    def counted(*given, **named):
        calls.append(given)
        if len(calls) == (1 if stage == "_learn" else call):
            raise stop
        return original(*given, **named)

    monkeypatch.setattr(preparation_module, stage, counted)


def test_the_same_command_again_returns_at_once(tmp_path, monkeypatch):
    arguments = ([Pairs(numbered(30))], tmp_path / "d", SMALL)
    first = prepare(*arguments)
    before = (tmp_path / "d" / "report.json").stat().st_mtime_ns
    monkeypatch.setattr(preparation_module, "_learn", lambda *_: pytest.fail("again"))
    again = prepare(*arguments)
    assert again.reused and again.report == first.report
    assert (tmp_path / "d" / "report.json").stat().st_mtime_ns == before
    assert tells(again.summary(), "already")
    for corpus, changes in (
        (numbered(31), {}),
        (numbered(30), {"seed": 2}),
        (numbered(30), {"drop_repetitive": True}),
    ):
        with pytest.raises(InputError, match=mentions("d", "data", "input")):
            prepare([Pairs(corpus)], tmp_path / "d", dataclasses.replace(SMALL, **changes))
    report = {**first.report, "fingerprint": "of an earlier version"}
    del report["format"]
    (tmp_path / "d" / "report.json").write_text(json.dumps(report))
    refuses(prepare, arguments, "earlier version", "still train", "new directory")


@pytest.mark.parametrize("stop", [SimulatedKill, KeyboardInterrupt])
@pytest.mark.parametrize("stage", ["clean_block", "_learn", "encode_block"])
def test_finished_work_is_not_repeated_after_a_kill(tmp_path, monkeypatch, capsys, stage, stop):
    monkeypatch.setattr(blocks_module, "BLOCK_LINES", 10)
    options = dataclasses.replace(SMALL, augment={"spans": 0.3, "tags": 0.1, "merge": 0.1})
    arguments = [Pairs(numbered(30)), Pairs(numbered(30, 30))]
    whole = prepare(arguments, tmp_path / "whole", options)
    with monkeypatch.context() as patch:
        stop_at(patch, stage, 4, stop)
        with pytest.raises(stop):
            prepare(arguments, tmp_path / "d", options)
    assert not (tmp_path / "d").exists()
    assert tells(capsys.readouterr().err, "Warning", "same command") == (stop is KeyboardInterrupt)
    work = tmp_path / ".d.partial" / "work" / "train"
    finished = "encoded.json" if stage == "encode_block" else "result.json"
    done = {path: path.stat().st_mtime_ns for path in work.glob(f"*/{finished}")}
    assert len(done) == (6 if stage == "_learn" else 3)
    seen = {}
    write_index = preparation_module.write_index

    def spied(*given):
        seen.update({path: path.stat().st_mtime_ns for path in done})
        return write_index(*given)

    monkeypatch.setattr(preparation_module, "write_index", spied)
    continued = prepare(arguments, tmp_path / "d", options)
    assert seen == done, "written once"
    assert tree(tmp_path / "d") == tree(tmp_path / "whole")
    timeless = [{**p.report, "seconds_of_stages": 0} for p in (continued, whole)]
    assert timeless[0] == timeless[1]
    assert {path.name for path in tmp_path.iterdir()} == {"whole", "d"}


def test_a_real_kill_in_the_middle_and_workers(tmp_path, monkeypatch, caplog):
    """Two processes give the same result as one, and others resume after both were killed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(blocks_module, "BLOCK_LINES", 500)
    lines = "".join(f"{source}\t{target}\n" for source, target in numbered(4_500))
    Path("c.tsv").write_text(lines)
    options = PrepareOptions(vocab_size=70, max_length_ratio=None, vocabulary_lines=999)
    prepare([TsvFile(Path("c.tsv"))], "one", options)
    flags = "--tsv=c.tsv --output_dir=two --workers=2 --vocab_size=70 --max_length_ratio=0"
    program = "from keras_transformer.cli import main; from keras_transformer.data import blocks\n"
    program += "blocks.BLOCK_LINES = 500; main.run('prepare')"
    killed = subprocess.Popen(
        [sys.executable, "-c", program, *flags.split(), "--vocabulary_lines=999"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    while not list(tmp_path.glob(".two.partial/work/train/*/result.json")):
        assert killed.poll() is None
        time.sleep(0.005)
    killed.kill()
    killed.wait()
    assert not Path("two").exists()
    with caplog.at_level("INFO"):
        prepare([TsvFile(Path("c.tsv"))], "two", options, num_workers=2)
    assert "resuming" in caplog.text
    assert tree(tmp_path / "two") == tree(tmp_path / "one")


@pytest.mark.parametrize("stage", ["clean_block", "_learn", "encode_block"])
def test_text_that_changes_between_a_kill_and_the_resumption(tmp_path, monkeypatch, stage):
    """Also if the clean text of some blocks was removed after their encoding."""
    monkeypatch.setattr(blocks_module, "BLOCK_LINES", 10)
    new = [*numbered(35), *numbered(15, 50)]
    prepare([Pairs(new)], tmp_path / "whole", SMALL)
    with monkeypatch.context() as patch:
        stop_at(patch, stage, 3)
        with pytest.raises(SimulatedKill):
            prepare([Pairs(numbered(40))], tmp_path / "d", SMALL)
    if stage != "clean_block":  # the first blocks are unchanged, but the vocabulary is not
        refuses(prepare, ([Pairs(new)], tmp_path / "d", SMALL), "changed", "same command")
        assert {path.name for path in tmp_path.iterdir()} == {"whole"}
    prepare([Pairs(new)], tmp_path / "d", SMALL)
    assert tree(tmp_path / "d") == tree(tmp_path / "whole")


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


def test_two_processes_do_not_prepare_the_same(tmp_path):
    class Twice(Pairs):
        readings = 0

        def pairs(self):
            self.readings += 1
            if self.readings == 1:
                refuses(prepare, ([Pairs(numbered(30))], tmp_path / "d", SMALL), "process", "/d")
            return super().pairs()

    corpus = Twice(numbered(30))
    prepare([corpus], tmp_path / "d", SMALL)
    assert corpus.readings == 1, "in one pass"
