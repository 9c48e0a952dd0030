"""A run directory is complete or does not exist, and errors name the difference."""

import contextlib
import dataclasses
import itertools
import json
import math
import os
import shutil

import pytest

from keras_transformer.config import SCHEDULES_OVER_MAX_STEPS, Config
from keras_transformer.errors import InputError
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import learn_vocabulary
from tests.builders import refuses
from tests.messages import mentions
from tests.runs.checkpoints_test import assert_equal, no_file_beyond
from tests.runs.tiny_run import (
    LINES,
    STATE,
    arrays,
    entries,
    reconfigured,
    save,
    save_validated,
    steps,
)

MAY_CHANGE = {
    field.name for field in dataclasses.fields(Config().training) if field.metadata["may_change"]
}


class TestCreate:
    def test_a_created_run_is_read_back(self, run, config, tokenizer):
        opened = RunDirectory(run.path)
        assert vars(opened) == vars(run)
        assert opened.config == config and opened.data_fingerprint == "corpus"
        assert opened.tokenizer().fingerprint == tokenizer.fingerprint
        assert opened.selected == "last" and opened.checkpoints() == []
        assert opened.init_from is None and opened.restore() is None

    def test_a_directory_of_something_else_is_unchanged(self, tmp_path, config, tokenizer):
        (tmp_path / "chapter.txt").write_text("text")
        with pytest.raises(InputError, match=mentions(tmp_path, "exists", "run directory")):
            RunDirectory.create(tmp_path, config, tokenizer, "corpus")
        assert [path.name for path in tmp_path.iterdir()] == ["chapter.txt"]
        refuses(RunDirectory, (tmp_path,), "run directory", "config.json")

    def test_opening_a_missing_or_damaged_run(self, run):
        nowhere = run.path / "nowhere"
        refuses(RunDirectory, {"path": nowhere}, nowhere, "keras-transformer train")
        for name in ("data.json", "config.json"):  # config.json is read first
            (run.path / name).write_text('{"model": ')
            refuses(RunDirectory, {"path": run.path}, run.path / name, "JSON")


class TestResume:
    def test_leftovers_are_removed_and_damaged_checkpoints_stay(self, run, config, tokenizer):
        save(run, 10)
        for name in (".step-00000020.0123.unfinished", "damaged-step-00000015-1"):
            (run.path / "checkpoints" / name).mkdir()
            (run.path / "checkpoints" / name / "weights.npz").write_bytes(b"half")
        run.resume(config, tokenizer, "corpus")
        assert entries(run) == ["damaged-step-00000015-1", "step-00000010"]

    @pytest.mark.parametrize("is_run", [False, True])
    def test_what_others_write_below_a_folder_stays(self, run, config, tokenizer, is_run):
        folder = run.path if is_run else run.path.parent
        other = folder / "export" / ".1.0123.unfinished" / "model"
        other.mkdir(parents=True)
        if is_run:
            run.resume(config, tokenizer, "corpus")
        else:
            with pytest.raises(InputError, match="is not a run directory"):
                RunDirectory.create(folder, config, tokenizer, "corpus")
        assert other.exists()

    def test_settings_without_effect_on_earlier_steps_may_change(self, run, config, tokenizer):
        values = {
            "best_metric": "bleu", "jit_compile": "true", "deterministic": True,
        }  # fmt: skip
        free = {f"training.{name}": values.get(name, 7) for name in MAY_CHANGE}
        changed = config.updated({**free, "decoding.beam_size": 7})
        run.resume(changed, tokenizer, "corpus")
        assert run.config == RunDirectory(run.path).config == changed

    @pytest.mark.parametrize("schedule", SCHEDULES_OVER_MAX_STEPS)
    def test_another_configuration_is_refused(self, tmp_path, config, tokenizer, schedule):
        config = config.updated(training__schedule=schedule)
        run = RunDirectory.create(tmp_path / "run", config, tokenizer, "corpus")
        for setting, after in (
            ("model.d_ff", 7),
            ("training.mixed_precision", "float16"),
            ("training.max_steps", 200_000),  # the end of a schedule that falls towards it
        ):
            changed = config.updated({setting: after})
            refuses(run.resume, (changed, tokenizer, "corpus"), run.path, setting, after)
        assert run.config == RunDirectory(run.path).config == config

    def test_another_vocabulary_or_corpus_is_refused(self, run, config, tokenizer):
        other = Tokenizer(learn_vocabulary(reversed(LINES[:2]), 30))
        refuses(run.resume, (config, other, "corpus"), "vocabulary", "data directory")
        refuses(run.resume, (config, tokenizer, "another"), "corpus", "data directory")


class TestCheckpoints:
    def test_saved_values_are_read_back(self, run):
        save_validated(run, step_6=1.0)
        checkpoint, metrics, found = run.restore()
        assert [checkpoint] == RunDirectory(run.path).checkpoints()
        for name, expected in (("weights", arrays(6)), ("state", STATE), ("ema", arrays(-6))):
            assert_equal(found[name], expected)
        assert metrics == {"loss": 0.6, "val_loss": 1.0, "val_bleu": 31.0}
        assert run.read_metrics(checkpoint) == metrics

    def test_a_checkpoint_of_a_stop_does_not_count_once_another_follows(self, run):
        often = {"training__checkpoint_steps": 10, "training__keep_best": 1}
        run = reconfigured(run, **often, training__max_steps=45)
        save_validated(run, step_10=3.0, step_20=2.0, step_27=1.0)
        assert steps(run) == [10, 20, 27], "where it was stopped is where it continues"
        save_validated(run, step_30=2.5)
        assert steps(run) == [10, 20, 30], "neither among the last nor, since validated, the best"
        save(run, 37)
        run.select("step-00000037")
        save(run, 40, 45)
        assert steps(run) == [20, 30, 37, 40, 45], "the best, the selected, the last three"
        run.select("last")
        # The last step does not count as a stop, nor does a step that was regular when written.
        run = reconfigured(run, training__checkpoint_steps=7, training__max_steps=90)
        save(run, 49)
        assert steps(run) == [20, 40, 45, 49]

    def test_the_best_are_kept_however_old(self, run):
        run = reconfigured(run, training__keep_best=2, training__keep_checkpoints=1)
        save_validated(run, step_1=3.0, step_2=1.0, step_3=2.0, step_4=9.0, step_5=8.0)
        assert steps(run) == [2, 3, 5]
        save_validated(run, step_6=1.5, step_7=4.0)
        assert steps(run) == [2, 6, 7]
        assert [checkpoint.step for checkpoint in run.best_checkpoints()] == [2, 6, 7]

    def test_the_best_by_bleu_are_those_with_the_most(self, run):
        run = reconfigured(
            run, training__keep_best=1, training__keep_checkpoints=1,
            training__best_metric="bleu", training__bleu_steps=1,
        )  # fmt: skip
        save_validated(run, step_1=3.0, step_2=1.0, step_3=3.0)
        assert [checkpoint.step for checkpoint in run.best_checkpoints()] == [1, 3]  # equal

    def test_without_a_metric_no_checkpoint_is_among_the_best(self, run):
        run = reconfigured(run, training__keep_best=3, training__keep_checkpoints=1)
        save(run, 1)
        save_validated(run, step_2=math.nan, step_3=5.0, step_4=math.inf)
        save(run, 5, 6)
        assert [checkpoint.step for checkpoint in run.best_checkpoints()] == [3]
        assert steps(run) == [3, 6]

    def test_a_damaged_checkpoint_is_ignored_when_the_best_is_chosen(self, run):
        save_validated(run, step_1=1.0, step_2=2.0)
        (run.checkpoints()[0].path / "checkpoint.json").write_text("{}")
        save_validated(run, step_3=3.0)
        assert [checkpoint.step for checkpoint in run.best_checkpoints()] == [2, 3]


class SimulatedKill(BaseException):
    """Stands for SIGKILL: nothing handles it."""


def killed_at(moment, patch):
    """Kills at one of the calls that change the disk, and returns the names of these calls."""
    made = []

    def counted(name, call):
        def wrapper(*arguments, **options):
            if len(made) == moment:
                raise SimulatedKill
            made.append(name)
            return call(*arguments, **options)

        return wrapper

    for name in ("mkdir", "fsync", "rename", "replace", "unlink", "rmdir"):
        patch.setattr(os, name, counted(name, getattr(os, name)))
    return made


def test_a_kill_while_creating_a_run_is_repaired(config, tokenizer, tmp_path):
    for moment in itertools.count():
        path = tmp_path / str(moment)
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(SimulatedKill):
            made = killed_at(moment, patch)
            RunDirectory.create(path, config, tokenizer, "corpus")
            break
        if not RunDirectory.is_run(path):
            RunDirectory.create(path, config, tokenizer, "corpus")
        assert RunDirectory(path).tokenizer().fingerprint == tokenizer.fingerprint
        assert not list(path.rglob(".*"))
    assert made.count("rename") == 2 and made.count("mkdir") >= 3


def test_a_kill_while_saving_leaves_only_complete_checkpoints(run, config, tokenizer, tmp_path):
    run = reconfigured(run, training__keep_checkpoints=2, training__keep_best=1)
    save_validated(run, step_4=1.0, step_6=5.0, step_7=4.0)
    assert steps(run) == [4, 6, 7]
    for moment in itertools.count():
        copy = RunDirectory(shutil.copytree(run.path, tmp_path / f"killed_{moment}"))
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(SimulatedKill):
            made = killed_at(moment, patch)
            save_validated(copy, step_8=3.0)
            break
        assert steps(copy) in ([4, 6, 7], [4, 6, 7, 8], [4, 7, 8])
        for checkpoint in copy.checkpoints():
            assert_equal(copy.read_weights(checkpoint), arrays(checkpoint.step))
        assert copy.restore()[0] == copy.checkpoints()[-1]
        assert not any(name.startswith("damaged") for name in entries(copy))
        copy.resume(run.config, tokenizer, "corpus")
        save_validated(copy, step_8=3.0)
        assert entries(copy) == ["step-00000004", "step-00000007", "step-00000008"]
    assert made.count("rename") == 2 and made.count("fsync") >= 6 and "unlink" in made


class TestFailure:
    def test_a_full_disk_names_the_file(self, run, config, tokenizer, tmp_path):
        save(run, 1)
        run.append_metrics({"step": 1})
        other = tmp_path / "other"
        for file, write in (
            ("step-00000002", lambda: save(run, 2)),
            ("selected.json", lambda: run.select("step-00000001")),
            ("metrics.jsonl", lambda: run.append_metrics({"step": 2})),
            ("metrics.jsonl", lambda: run.trim_metrics(1)),
            ("averages/mean", lambda: run.save_average("mean", arrays(1))),
            ("run", lambda: run.resume(config, tokenizer, "corpus")),
            ("other", lambda: RunDirectory.create(other, config, tokenizer, "corpus")),
        ):
            expected = mentions(file, "File too large")
            with no_file_beyond(3), pytest.raises(InputError, match=expected):
                write()
        assert run.selected == "last" and steps(run) == [1] and not RunDirectory.is_run(other)
        run.resume(config, tokenizer, "corpus")


@pytest.mark.parametrize(
    ("report", "expected"),
    [(b'{"train": {"source": {"max_length": 93, "tokens": 7}}}', 93), (b"[]", None)],
)
def test_the_longest_source_is_that_of_the_report(run, report, expected):
    assert run.max_train_source_length is None  # before the first report
    (run.path / "data_report.json").write_bytes(report)
    assert run.max_train_source_length == expected
    (run.path / "data_report_2.json").write_text('{"train": {"source": {"max_length": 99}}}')
    assert run.max_train_source_length == (expected and 99), (
        "the longest of all corpora, if all are known"
    )


@pytest.mark.parametrize(
    "cut_off",
    [b"", b'{"step": 1}', b'{"step": 1, "loss": 2.', b"\0\0\0", b"\xff\n"],
)
def test_trimming_keeps_complete_lines_up_to_the_step(run, cut_off):
    run.trim_metrics(3)  # nothing is logged yet
    assert not (run.path / "metrics.jsonl").exists()
    for step in (1, 2, 3, 4, 5):
        run.append_metrics({"step": step, "loss": step / 2})
    run.append_metrics({"step": 3, "val_loss": 1.0})
    with (run.path / "metrics.jsonl").open("ab") as file:
        file.write(cut_off)
    run.trim_metrics(3)
    run.append_metrics({"step": 4, "loss": 7.0})
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").open()]
    assert lines == [
        *({"step": step, "loss": step / 2} for step in (1, 2, 3)),
        {"step": 3, "val_loss": 1.0},
        {"step": 4, "loss": 7.0},
    ]
    run.trim_metrics(0)
    assert (run.path / "metrics.jsonl").read_text() == ""
