"""The run directory: whole or not at all, and clear about what does not fit."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import json
import logging
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_transformer.config import Config
from keras_transformer.errors import InputError
from keras_transformer.runs import run_directory as module
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import learn_vocabulary
from tests.runs.checkpoints_test import assert_equal, no_file_beyond

LINES = [
    b"a small dog runs",
    b"ein kleiner Hund rennt",
    b"the dog sleeps",
    b"der Hund schl\xc3\xa4ft",
]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(learn_vocabulary(LINES, 40))


@pytest.fixture(scope="module")
def config(tokenizer: Tokenizer) -> Config:
    size = tokenizer.source_vocab_size
    return Config().replace(
        model__source_vocab_size=size, model__target_vocab_size=size,
        training__keep_checkpoints=3, training__keep_best=0, training__checkpoint_steps=1,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path, config: Config, tokenizer: Tokenizer) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", config, tokenizer, "corpus")


def arrays(value: float) -> dict[str, np.ndarray]:
    return {
        "embedding/embeddings": np.full((3, 2), value, np.float32),
        "encoder/layer_0/norm/gamma": np.arange(2, dtype=np.float32) + value,
    }


STATE = {"adam/iteration": np.array(7, np.int64), "loss_scale": np.array(8.0, np.float32)}


def save(run: RunDirectory, *steps: int) -> None:
    for step in steps:
        run.save_checkpoint(step, arrays(step), STATE, {"loss": step / 10})


def save_validated(run: RunDirectory, **losses: float) -> None:
    """Saves `step_5=0.25` as step 5 with that validation loss."""
    for name, loss in losses.items():
        step = int(name.removeprefix("step_"))
        metrics = {"loss": step / 10, "val_loss": loss, "val_bleu": 30 + loss}
        run.save_checkpoint(step, arrays(step), STATE, metrics, ema=arrays(-step))


def reconfigured(run: RunDirectory, **changes: Any) -> RunDirectory:
    """The run with another configuration, as written by hand."""
    (run.path / "config.json").write_text(run.config.replace(**changes).to_json())
    return RunDirectory(run.path)


def steps(run: RunDirectory) -> list[int]:
    return [checkpoint.step for checkpoint in run.checkpoints()]


def entries(run: RunDirectory) -> list[str]:
    return sorted(path.name for path in (run.path / "checkpoints").iterdir())


class TestCreate:
    def test_what_was_created_is_read_back(
        self, run: RunDirectory, config: Config, tokenizer: Tokenizer
    ) -> None:
        opened = RunDirectory(run.path)
        assert opened.config == config and opened.data_fingerprint == "corpus"
        assert opened.tokenizer().fingerprint == tokenizer.fingerprint
        assert opened.selected == "last" and opened.checkpoints() == []
        assert opened.init_from is None and opened.restore() is None

    def test_an_empty_directory_is_taken(
        self, tmp_path: Path, config: Config, tokenizer: Tokenizer
    ) -> None:
        (tmp_path / "empty").mkdir()
        RunDirectory.create(tmp_path / "empty", config, tokenizer, "corpus")
        assert RunDirectory.is_run(tmp_path / "empty")

    @pytest.mark.parametrize("content", ["file", "directory"])
    def test_a_foreign_place_is_left_alone(
        self, tmp_path: Path, config: Config, tokenizer: Tokenizer, content: str
    ) -> None:
        place = tmp_path / "thesis"
        if content == "file":
            place.write_text("text")
        else:
            place.mkdir()
            (place / "chapter.txt").write_text("text")
        with pytest.raises(InputError, match=r"thesis exists and is no run directory"):
            RunDirectory.create(place, config, tokenizer, "corpus")
        assert [p.name for p in tmp_path.rglob("*.txt")] == ["chapter.txt"] * (not place.is_file())
        assert not RunDirectory.is_run(place)

    @pytest.mark.parametrize("written", ["tokenizer.save", "data.json", "config.json"])
    def test_a_creation_that_was_killed_can_be_repeated(
        self,
        tmp_path: Path,
        config: Config,
        tokenizer: Tokenizer,
        monkeypatch: pytest.MonkeyPatch,
        written: str,
    ) -> None:
        write_text = module.write_text

        def killed(path: Path, text: str) -> None:
            if path.name == written:
                path.with_name(f".{path.name}.0123.unfinished").write_text(text[:5])
                raise KeyboardInterrupt
            write_text(path, text)

        def killed_save(self: Tokenizer, directory: Path) -> None:
            directory.mkdir()
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(module, "write_text", killed)
            if written == "tokenizer.save":
                patch.setattr(Tokenizer, "save", killed_save)
            RunDirectory.create(tmp_path / "run", config, tokenizer, "corpus")
        assert not RunDirectory.is_run(tmp_path / "run")
        run = RunDirectory.create(tmp_path / "run", config, tokenizer, "corpus")
        assert run.tokenizer().fingerprint == tokenizer.fingerprint

    def test_opening_what_is_no_run(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="nowhere is not there; expected what bin/train.py"):
            RunDirectory(tmp_path / "nowhere")
        with pytest.raises(InputError, match="no run directory .it has no config.json"):
            RunDirectory(tmp_path)

    def test_opening_a_damaged_run(self, run: RunDirectory) -> None:
        for name, message in (
            ("data.json", "cannot be read as JSON"),
            ("config.json", "is no JSON: "),
        ):
            (run.path / name).write_text('{"model": ')
            with pytest.raises(InputError, match=f"^{run.path}/{name} {message}"):
                RunDirectory(run.path)


class TestContinue:
    def test_the_same_again_is_continued(
        self, run: RunDirectory, config: Config, tokenizer: Tokenizer
    ) -> None:
        save(run, 10)
        again = RunDirectory.create(run.path, config, tokenizer, "corpus")
        assert steps(again) == [10] and again.config == config

    def test_what_it_began_from_stays(
        self, tmp_path: Path, config: Config, tokenizer: Tokenizer
    ) -> None:
        for given in ("runs/parent", None, "runs/other"):
            run = RunDirectory.create(tmp_path / "run", config, tokenizer, "corpus", given)
            assert run.init_from == RunDirectory(run.path).init_from == "runs/parent"

    def test_what_a_kill_left_goes_and_what_was_set_aside_stays(
        self, run: RunDirectory, config: Config, tokenizer: Tokenizer
    ) -> None:
        save(run, 10)
        for name in (
            ".step-00000020.0123.unfinished",
            ".step-00000005.0123.unfinished",
            "damaged-step-00000015-1",
        ):
            (run.path / "checkpoints" / name).mkdir()
            (run.path / "checkpoints" / name / "weights.npz").write_bytes(b"half")
        RunDirectory.create(run.path, config, tokenizer, "corpus")
        assert entries(run) == ["damaged-step-00000015-1", "step-00000010"]

    @pytest.mark.parametrize(
        "change",
        [
            {"training.max_steps": 7},
            {"training.log_steps": 7},
            {"training.checkpoint_steps": 7},
            {"training.keep_checkpoints": 7},
            {"training.keep_best": 7},
            {"training.early_stopping": 7},
            {"training.max_skipped_steps": 7},
            {
                "training.bleu_steps": 7,
                "training.bleu_sentences": 7,
                "training.best_metric": "bleu",
            },
            {"training.accumulate_steps": 7},
            {"training.deterministic": True},
            {"training.jit_compile": "true"},
            {"decoding.beam_size": 7},
        ],
    )
    def test_what_does_not_touch_the_steps_taken_may_change(
        self, run: RunDirectory, config: Config, tokenizer: Tokenizer, change: dict[str, Any]
    ) -> None:
        changed = config.updated(change)
        assert RunDirectory.create(run.path, changed, tokenizer, "corpus").config == changed
        assert RunDirectory(run.path).config == changed

    @pytest.mark.parametrize(
        "change, message",
        [
            ({"model.d_ff": 7}, "model.d_ff 2048, not 7"),
            ({"model.attention_dropout": 0.5}, "model.attention_dropout 0.0, not 0.5"),
            ({"model.output_bias": True}, "model.output_bias False, not True"),
            ({"model.attention_window": 4}, "model.attention_window None, not 4"),
            ({"model.norm_position": "pre"}, "model.norm_position post, not pre"),
            ({"training.seed": 7}, "training.seed 1, not 7"),
            ({"training.batch_tokens": 7}, "training.batch_tokens 25000, not 7"),
            ({"training.label_smoothing": 0.2}, "training.label_smoothing 0.1, not 0.2"),
            ({"training.mixed_precision": "float16"}, "mixed_precision auto, not float16"),
            ({"training.optimizer": "adamw"}, "training.optimizer adam, not adamw"),
            ({"training.clip_norm": 1}, "training.clip_norm 0.0, not 1.0"),
            ({"training.ema_decay": 0.9}, "training.ema_decay 0.0, not 0.9"),
            ({"training.freeze": "encoder/*"}, "training.freeze , not encoder/*"),
        ],
    )
    def test_another_configuration_is_refused(
        self,
        run: RunDirectory,
        config: Config,
        tokenizer: Tokenizer,
        change: dict[str, Any],
        message: str,
    ) -> None:
        with pytest.raises(InputError) as error:
            RunDirectory.create(run.path, config.updated(change), tokenizer, "corpus")
        assert message in str(error.value) and str(run.path) in str(error.value)
        assert RunDirectory(run.path).config == config

    def test_a_schedule_that_falls_towards_the_end_fixes_the_end(
        self, tmp_path: Path, config: Config, tokenizer: Tokenizer
    ) -> None:
        linear = config.replace(training__schedule="linear")
        RunDirectory.create(tmp_path / "run", linear, tokenizer, "corpus")
        longer = linear.replace(training__max_steps=200_000)
        with pytest.raises(InputError, match="max_steps 100000, not 200000"):
            RunDirectory.create(tmp_path / "run", longer, tokenizer, "corpus")

    def test_another_vocabulary_is_refused(self, run: RunDirectory, config: Config) -> None:
        other = Tokenizer(learn_vocabulary(reversed(LINES[:2]), 30))
        with pytest.raises(InputError, match="with another vocabulary than the data directory"):
            RunDirectory.create(run.path, config, other, "corpus")

    def test_another_corpus_is_refused(
        self, run: RunDirectory, config: Config, tokenizer: Tokenizer
    ) -> None:
        with pytest.raises(InputError, match="on another corpus than the data directory"):
            RunDirectory.create(run.path, config, tokenizer, "another")


def test_every_setting_of_training_is_free_or_fixed_by_intent() -> None:
    names = {field.name for field in dataclasses.fields(Config().training)}
    assert names >= module._FREE_TO_CHANGE
    assert names - module._FREE_TO_CHANGE == set(
        "batch_tokens label_smoothing optimizer schedule learning_rate warmup_steps beta_1 beta_2 "
        "epsilon weight_decay clip_norm freeze ema_decay subword_alpha r_drop guided_alignment "
        "mixed_precision seed".split()
    )


class TestCheckpoints:
    def test_what_is_saved_is_read(self, run: RunDirectory) -> None:
        save(run, 5)
        [checkpoint] = RunDirectory(run.path).checkpoints()
        restored = run.restore()
        assert restored is not None and restored.checkpoint == checkpoint
        assert_equal(restored.weights, arrays(5))
        assert_equal(restored.state, STATE)
        assert restored.ema is None
        assert restored.metrics == run.read_metrics(checkpoint) == {"loss": 0.5}
        assert_equal(run.read_weights(checkpoint), arrays(5))

    def test_the_moving_average_is_restored(self, run: RunDirectory) -> None:
        save_validated(run, step_5=1.0)
        restored = run.restore()
        assert restored is not None and restored.ema is not None
        assert_equal(restored.ema, arrays(-5))

    def test_a_checkpoint_knows_what_it_is_of(self, run: RunDirectory) -> None:
        save(run, 5)
        facts = json.loads((run.checkpoints()[0].path / "checkpoint.json").read_text())
        assert (facts["step"], facts["seed"], facts["data_fingerprint"]) == (5, 1, "corpus")
        assert facts["config"] == json.loads(run.config.to_json())
        assert facts["metrics"] == {"loss": 0.5}

    def test_the_newest_are_kept_in_the_order_of_their_steps(self, run: RunDirectory) -> None:
        save(run, 8, 9, 10, 11, 100)
        assert entries(run) == ["step-00000010", "step-00000011", "step-00000100"]
        assert steps(run) == [10, 11, 100]

    def test_a_step_can_be_saved_again(self, run: RunDirectory) -> None:
        save(run, 5)
        run.save_checkpoint(5, arrays(6), STATE, {})
        [checkpoint] = run.checkpoints()
        assert_equal(run.read_weights(checkpoint), arrays(6))

    def test_the_selected_is_kept_however_old(self, run: RunDirectory) -> None:
        save(run, 5, 6)
        run.select("step-00000005")
        save(run, 7, 8, 9, 10)
        assert steps(run) == [5, 8, 9, 10]
        assert_equal(run.selected_weights(), arrays(5))
        run.select("last")
        save(run, 11)
        assert steps(run) == [9, 10, 11]

    def test_one_of_a_stop_takes_no_place_once_another_follows(self, run: RunDirectory) -> None:
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
        # The last step is none of a stop; nor is one that was regular when it was written.
        run = reconfigured(run, training__checkpoint_steps=7, training__max_steps=90)
        save(run, 49)
        assert steps(run) == [20, 40, 45, 49]

    def test_the_best_are_kept_however_old(self, run: RunDirectory) -> None:
        run = reconfigured(run, training__keep_best=2, training__keep_checkpoints=1)
        save_validated(run, step_1=3.0, step_2=1.0, step_3=2.0, step_4=9.0, step_5=8.0)
        assert steps(run) == [2, 3, 5]
        save_validated(run, step_6=1.5, step_7=4.0)
        assert steps(run) == [2, 6, 7]
        assert [checkpoint.step for checkpoint in run.best_checkpoints()] == [2, 6, 7]

    def test_the_best_by_bleu_are_those_with_the_most(self, run: RunDirectory) -> None:
        run = reconfigured(
            run, training__keep_best=1, training__keep_checkpoints=1,
            training__best_metric="bleu", training__bleu_steps=1,
        )  # fmt: skip
        save_validated(run, step_1=3.0, step_2=1.0, step_3=2.0)
        assert [checkpoint.step for checkpoint in run.best_checkpoints()] == [1, 3]

    def test_the_older_of_equals_is_the_better(self, run: RunDirectory) -> None:
        save_validated(run, step_3=2.0, step_1=2.0, step_2=1.0)
        assert [checkpoint.step for checkpoint in run.best_checkpoints()] == [2, 1, 3]

    def test_without_a_metric_no_checkpoint_is_among_the_best(self, run: RunDirectory) -> None:
        run = reconfigured(run, training__keep_best=3, training__keep_checkpoints=1)
        save(run, 1)
        save_validated(run, step_2=math.nan, step_3=5.0, step_4=math.inf)
        save(run, 5, 6)
        assert [checkpoint.step for checkpoint in run.best_checkpoints()] == [3]
        assert steps(run) == [3, 6]

    def test_a_damaged_checkpoint_is_not_among_the_best_and_stops_nothing(
        self, run: RunDirectory
    ) -> None:
        save_validated(run, step_1=1.0, step_2=2.0)
        (run.checkpoints()[0].path / "checkpoint.json").write_text("{}")
        save_validated(run, step_3=3.0)
        assert [checkpoint.step for checkpoint in run.best_checkpoints()] == [2, 3]


class Killed(BaseException):
    """Stands for SIGKILL: nothing handles it."""


def killed_at(moment: int, patch: pytest.MonkeyPatch) -> list[str]:
    """Kills at the given of the calls that change what is on disk; returns the names of those."""
    made: list[str] = []

    def counted(name: str, call: Any) -> Any:
        def wrapper(*arguments: Any, **options: Any) -> Any:
            if len(made) == moment:
                raise Killed
            made.append(name)
            return call(*arguments, **options)

        return wrapper

    for name in ("mkdir", "fsync", "rename", "replace", "unlink", "rmdir"):
        patch.setattr(os, name, counted(name, getattr(os, name)))
    return made


def test_a_kill_at_any_moment_of_saving_leaves_only_whole_checkpoints(
    run: RunDirectory, config: Config, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    run = reconfigured(run, training__keep_checkpoints=2, training__keep_best=1)
    save_validated(run, step_4=1.0, step_6=5.0, step_7=4.0)
    assert steps(run) == [4, 6, 7]
    for moment in itertools.count():
        copy = RunDirectory(shutil.copytree(run.path, tmp_path / f"killed_{moment}"))
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
            made = killed_at(moment, patch)
            save_validated(copy, step_8=3.0)
            break
        assert steps(copy) in ([4, 6, 7], [4, 6, 7, 8], [4, 7, 8])
        for checkpoint in copy.checkpoints():
            assert_equal(copy.read_weights(checkpoint), arrays(checkpoint.step))
        restored = copy.restore()
        assert restored is not None and restored.checkpoint == copy.checkpoints()[-1]
        assert not any(name.startswith("damaged") for name in entries(copy))
        RunDirectory.create(copy.path, run.config, tokenizer, "corpus")
        save_validated(copy, step_8=3.0)
        assert entries(copy) == ["step-00000004", "step-00000007", "step-00000008"]
    assert made.count("rename") == 2 and made.count("fsync") >= 6 and "unlink" in made


@contextlib.contextmanager
def without_permission(directory: Path) -> Iterator[None]:
    """Nothing in `directory` can be written: root becomes nobody for a while."""
    root = os.geteuid() == 0
    mode = directory.stat().st_mode
    directory.chmod(0o555)
    try:
        if root:
            try:
                os.seteuid(65534)
            except OSError:
                pytest.skip("root may not become another user here, and may write anything")
        yield
    finally:
        if root:
            os.seteuid(0)
        directory.chmod(mode)


@pytest.fixture
def public_run(config: Config, tokenizer: Tokenizer) -> Iterator[RunDirectory]:
    """A run where every user may read: pytest's folders are private."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield RunDirectory.create(Path(folder) / "run", config, tokenizer, "corpus")


class TestFailure:
    @pytest.mark.parametrize("size", [0, 100, 600])
    def test_a_full_disk_while_saving_leaves_the_checkpoint_before(
        self, run: RunDirectory, size: int
    ) -> None:
        save(run, 5)
        for step in (5, 6):
            with (
                no_file_beyond(size),
                pytest.raises(
                    InputError, match=rf"step-0000000{step} could not be written .File to"
                ),
            ):
                save(run, step)
            assert entries(run) == ["step-00000005"]
            assert_equal(run.selected_weights(), arrays(5))
        save(run, 6)
        assert steps(run) == [5, 6]

    def test_a_full_disk_names_the_place(
        self, run: RunDirectory, config: Config, tokenizer: Tokenizer, tmp_path: Path
    ) -> None:
        save(run, 1)
        run.append_metrics({"step": 1})
        other = tmp_path / "other"
        for place, write in (
            ("selected.json", lambda: run.select("step-00000001")),
            ("metrics.jsonl", lambda: run.append_metrics({"step": 2})),
            ("metrics.jsonl", lambda: run.trim_metrics(1)),
            ("averages/mean", lambda: run.save_average("mean", arrays(1))),
            ("run", lambda: RunDirectory.create(run.path, config, tokenizer, "corpus")),
            ("other", lambda: RunDirectory.create(other, config, tokenizer, "corpus")),
        ):
            expected = rf"/{place} cannot be written \(File too large\); expected room and"
            with no_file_beyond(3), pytest.raises(InputError, match=expected):
                write()
        assert run.selected == "last" and steps(run) == [1] and not RunDirectory.is_run(other)
        RunDirectory.create(run.path, config, tokenizer, "corpus")

    def test_what_cannot_be_removed_is_named(
        self, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(path: Path) -> None:
            raise OSError(errno.EIO, "Input/output error")

        save(run, 5, 6, 7)
        monkeypatch.setattr(module, "remove", fail)
        with pytest.raises(InputError, match=r"/checkpoints cannot be written .Input/output error"):
            save(run, 8)
        assert steps(run) == [5, 6, 7, 8]

    def test_a_run_that_may_not_be_written(
        self, public_run: RunDirectory, config: Config, tokenizer: Tokenizer
    ) -> None:
        run = public_run
        save(run, 5)
        forbidden = r"cannot be written \(Permission denied\)"
        with without_permission(run.path):
            with pytest.raises(InputError, match=f"/run {forbidden}"):
                RunDirectory.create(run.path, config, tokenizer, "corpus")
            with pytest.raises(InputError, match=f"/run/new {forbidden}"):
                RunDirectory.create(run.path / "new", config, tokenizer, "corpus")
            with pytest.raises(InputError, match=f"selected.json {forbidden}"):
                run.select("last")
        with (
            without_permission(run.path / "checkpoints"),
            pytest.raises(InputError, match=r"step-00000006 could not be written .Permission den"),
        ):
            save(run, 6)
        assert entries(run) == ["step-00000005"]
        assert_equal(run.selected_weights(), arrays(5))


def cut_in_half(file: Path) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.write_bytes(content)


class TestRestore:
    @pytest.mark.parametrize("damage", [cut_in_half, flip_a_byte, Path.unlink])
    @pytest.mark.parametrize("name", ["weights.npz", "state.npz", "ema.npz", "checkpoint.json"])
    def test_the_newest_whole_one_is_found(
        self, run: RunDirectory, caplog: pytest.LogCaptureFixture, name: str, damage: Any
    ) -> None:
        save_validated(run, step_5=1.0, step_6=1.0)
        damage(run.checkpoints()[-1].path / name)
        with caplog.at_level(logging.WARNING):
            restored = run.restore()
        assert restored is not None and restored.checkpoint.step == 5
        assert_equal(restored.weights, arrays(5))
        assert entries(run) == ["damaged-step-00000006-1", "step-00000005"]
        [warning] = caplog.messages
        assert f"step-00000006/{name} cannot be read as " in warning
        assert "it is now damaged-step-00000006-1, and step 5 the last" in warning
        save_validated(run, step_6=1.0)
        assert entries(run) == ["damaged-step-00000006-1", "step-00000005", "step-00000006"]

    def test_the_same_step_can_be_damaged_again(
        self, run: RunDirectory, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(2):
            save(run, 5, 6, 7)
            cut_in_half(run.path / "checkpoints" / "step-00000006" / "state.npz")
            shutil.rmtree(run.path / "checkpoints" / "step-00000007")
            (run.path / "checkpoints" / "step-00000007").mkdir()
            restored = run.restore()
            assert restored is not None and restored.checkpoint.step == 5
        assert len(caplog.messages) == 4
        assert [name for name in entries(run) if name.startswith("damaged")] == [
            f"damaged-step-0000000{step}-{number}" for step in (6, 7) for number in (1, 2)
        ]

    def test_without_a_whole_one_nothing_begins_again(self, run: RunDirectory) -> None:
        save(run, 5, 6)
        for checkpoint in run.checkpoints():
            cut_in_half(checkpoint.path / "weights.npz")
        for _ in range(2):  # they keep their names, so it is said again
            with pytest.raises(
                InputError, match=r"has 2 checkpoints, none of them whole: "
            ) as error:
                run.restore()
            assert "step-00000006/weights.npz cannot be read as" in str(error.value)
        assert steps(run) == [5, 6]

    def test_older_damage_is_in_nobodys_way(
        self, run: RunDirectory, caplog: pytest.LogCaptureFixture
    ) -> None:
        save(run, 5, 6)
        cut_in_half(run.checkpoints()[0].path / "weights.npz")
        restored = run.restore()
        assert restored is not None and restored.checkpoint.step == 6
        assert steps(run) == [5, 6] and caplog.messages == []

    @pytest.mark.parametrize(
        "change, message",
        [
            ({"training__seed": 7}, "is of training.seed 7, not 1"),
            ({"model__d_ff": 7}, "is of model.d_ff 7, not 2048"),
            ({}, "is of another corpus"),
        ],
    )
    def test_a_checkpoint_of_another_run_is_refused(
        self,
        run: RunDirectory,
        tmp_path: Path,
        tokenizer: Tokenizer,
        change: dict[str, Any],
        message: str,
    ) -> None:
        corpus = "corpus" if change else "another"
        config = run.config.replace(**change)
        other = RunDirectory.create(tmp_path / "other", config, tokenizer, corpus)
        save(run, 5)
        save(other, 6)
        shutil.copytree(other.checkpoints()[0].path, run.path / "checkpoints" / "step-00000006")
        with pytest.raises(InputError, match=f"step-00000006 {message}; expected a checkpoint of"):
            run.restore()
        assert steps(run) == [5, 6]

    def test_a_checkpoint_under_another_step_is_refused(self, run: RunDirectory) -> None:
        save(run, 5)
        path = run.checkpoints()[0].path
        path.rename(path.with_name("step-00000006"))
        with pytest.raises(InputError, match="step-00000006 is of step 5; expected a checkpoint"):
            run.restore()

    def test_a_run_may_have_changed_in_what_is_free(
        self, run: RunDirectory, tokenizer: Tokenizer
    ) -> None:
        save(run, 5)
        config = run.config.replace(training__max_steps=7, training__keep_best=3)
        restored = RunDirectory.create(run.path, config, tokenizer, "corpus").restore()
        assert restored is not None and restored.checkpoint.step == 5


class TestSelection:
    def test_the_newest_checkpoint_unless_something_is_selected(self, run: RunDirectory) -> None:
        save(run, 5, 6)
        assert run.selected == "last"
        assert_equal(run.selected_weights(), arrays(6))
        run.select("step-00000005")
        assert RunDirectory(run.path).selected == "step-00000005"
        assert_equal(run.selected_weights(), arrays(5))
        run.select("last")
        save(run, 7)
        assert_equal(run.selected_weights(), arrays(7))

    def test_an_average_is_selected_as_it_is_saved(self, run: RunDirectory) -> None:
        save(run, 5)
        run.save_average("average-2", arrays(0.25))
        assert RunDirectory(run.path).selected == "average-2"
        assert_equal(run.selected_weights(), arrays(0.25))
        assert steps(run) == [5]

    def test_an_unknown_name_is_refused_and_nothing_selected(self, run: RunDirectory) -> None:
        save(run, 5)
        with pytest.raises(
            InputError, match="no weights named 'bets'; expected last, best, ema, or the"
        ):
            run.select("bets")
        assert run.selected == "last"

    def test_selected_weights_that_are_gone(self, run: RunDirectory) -> None:
        save(run, 5)
        run.select("step-00000005")
        shutil.rmtree(run.path / "checkpoints" / "step-00000005")
        with pytest.raises(InputError, match="no weights named 'step-00000005'"):
            run.selected_weights()

    def test_no_checkpoint_yet(self, run: RunDirectory) -> None:
        no_checkpoint = "has no checkpoint yet; expected a run trained"
        for name in ("last", "best", "ema"):
            with pytest.raises(InputError, match=no_checkpoint):
                run.select(name)
        with pytest.raises(InputError, match=no_checkpoint):
            run.selected_weights()

    def test_the_moving_average_is_the_default_where_there_is_one(self, run: RunDirectory) -> None:
        run = reconfigured(run, training__ema_decay=0.9)
        save_validated(run, step_5=1.0, step_6=2.0)
        assert run.selected == "ema"
        assert_equal(run.selected_weights(), arrays(-6))
        run.select("last")
        assert_equal(run.selected_weights(), arrays(6))

    def test_best_and_ema_mean_what_is_there_when_they_are_read(self, run: RunDirectory) -> None:
        save(run, 4)
        with pytest.raises(
            InputError, match="named 'best'; expected a checkpoint validated by loss"
        ):
            run.select("best")
        with pytest.raises(InputError, match="named 'ema'; expected a run with training.ema_decay"):
            run.select("ema")
        save_validated(run, step_5=1.0, step_6=2.0)
        run.select("best")
        assert_equal(run.selected_weights(), arrays(-5))  # its average is what was validated
        save_validated(run, step_7=0.5)
        assert_equal(run.selected_weights(), arrays(-7))
        run.select("ema")
        save_validated(run, step_8=3.0)
        assert_equal(run.selected_weights(), arrays(-8))

    def test_best_without_a_moving_average(self, run: RunDirectory) -> None:
        for step, loss in ((5, 2.0), (6, 1.0), (7, 3.0)):
            run.save_checkpoint(step, arrays(step), STATE, {"val_loss": loss})
        assert_equal(run.named_weights("best"), arrays(6))
        assert run.selected == "last"

    def test_the_selected_best_is_kept_though_none_is_to_be(self, run: RunDirectory) -> None:
        save_validated(run, step_5=1.0)
        run.select("best")
        save_validated(run, step_6=2.0, step_7=3.0, step_8=4.0, step_9=5.0)
        assert steps(run) == [5, 7, 8, 9]
        assert_equal(run.selected_weights(), arrays(-5))

    @pytest.mark.parametrize("damage", [cut_in_half, flip_a_byte])
    def test_a_damaged_average_is_noticed(self, run: RunDirectory, damage: Any) -> None:
        run.save_average("mean", arrays(1))
        damage(run.path / "averages" / "mean" / "weights.npz")
        with pytest.raises(InputError, match=r"averages/mean/weights.npz cannot be read as"):
            run.selected_weights()


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (b'{"train": {"source": {"max_length": 93, "tokens": 7}}}', 93),
        (b'{"train": {"source": {}}}', None),
        (b'{"train": 93}', None),
        (b'{"train": {"source": {"max_length": "many"}}}', None),
        (b'{"train": {"sour', None),
        (b"\xff", None),
        (b"[]", None),
    ],
)
def test_the_longest_source_is_that_of_the_report(
    run: RunDirectory, report: bytes, expected: int | None
) -> None:
    assert run.trained_tokens is None  # there is no report yet
    (run.path / "data_report.json").write_bytes(report)
    assert run.trained_tokens == expected
    (run.path / "data_report_2.json").write_text('{"train": {"source": {"max_length": 99}}}')
    assert run.trained_tokens == (expected and 99), "the longest of all corpora, if all are known"


def test_metrics_are_added_line_by_line(run: RunDirectory) -> None:
    run.append_metrics({"step": 1, "loss": 2.5})
    RunDirectory(run.path).append_metrics({"step": 2, "loss": 2.0})
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


@pytest.mark.parametrize(
    "cut_off",
    [b"", b"{", b'{"step": 1', b'{"step": 1}', b'{"step": 1, "loss": 2.', b"\0\0\0", b"\xff\n"],
)
def test_trimming_leaves_whole_lines_up_to_the_step(run: RunDirectory, cut_off: bytes) -> None:
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
