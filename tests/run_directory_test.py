"""The run directory: whole or not at all, and clear about what does not fit."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_transformer import run_directory as module
from keras_transformer.config import Config
from keras_transformer.errors import InputError
from keras_transformer.run_directory import RunDirectory
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import learn_vocabulary

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
        model__source_vocab_size=size, model__target_vocab_size=size, training__keep_checkpoints=3
    )


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


def steps(run: RunDirectory) -> list[int]:
    return [checkpoint.step for checkpoint in run.checkpoints()]


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        np.testing.assert_array_equal(found[name], array)


class TestCreate:
    def test_what_was_created_is_read_back(
        self, run: RunDirectory, config: Config, tokenizer: Tokenizer
    ) -> None:
        opened = RunDirectory(run.path)
        assert opened.config == config and opened.data_fingerprint == "corpus"
        assert opened.tokenizer().fingerprint == tokenizer.fingerprint
        assert opened.selected == "last" and opened.checkpoints() == []

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
        write_text = module._write_text

        def killed(path: Path, text: str) -> None:
            if path.name == written:
                path.with_name(path.name + ".tmp").write_text(text[:5])
                raise KeyboardInterrupt
            write_text(path, text)

        def killed_save(self: Tokenizer, directory: Path) -> None:
            directory.mkdir()
            raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(module, "_write_text", killed)
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


class TestContinue:
    def test_the_same_again_is_continued(
        self, run: RunDirectory, config: Config, tokenizer: Tokenizer
    ) -> None:
        save(run, 10)
        again = RunDirectory.create(run.path, config, tokenizer, "corpus")
        assert steps(again) == [10] and again.config == config

    @pytest.mark.parametrize(
        "change",
        [
            {"training.max_steps": 7},
            {"training.log_steps": 7},
            {"training.checkpoint_steps": 7},
            {"training.keep_checkpoints": 7},
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


class TestCheckpoints:
    def test_what_is_saved_is_read(self, run: RunDirectory) -> None:
        save(run, 5)
        [checkpoint] = RunDirectory(run.path).checkpoints()
        weights, state = run.read_checkpoint(checkpoint)
        assert_equal(weights, arrays(5))
        assert_equal(state, STATE)
        assert_equal(run.read_weights(checkpoint), arrays(5))
        assert run.read_metrics(checkpoint) == {"loss": 0.5}

    def test_the_newest_are_kept_in_the_order_of_their_steps(self, run: RunDirectory) -> None:
        save(run, 8, 9, 10, 11, 100)
        assert steps(run) == [10, 11, 100]
        names = sorted(path.name for path in (run.path / "checkpoints").iterdir())
        assert names == ["step-00000010", "step-00000011", "step-00000100"]

    def test_the_selected_is_kept_however_old(self, run: RunDirectory) -> None:
        save(run, 5, 6)
        run.select("step-00000005")
        save(run, 7, 8, 9, 10)
        assert steps(run) == [5, 8, 9, 10]
        assert_equal(run.selected_weights(), arrays(5))
        run.select("last")
        save(run, 11)
        assert steps(run) == [9, 10, 11]

    def test_a_kill_while_the_oldest_is_deleted_leaves_no_half_in_the_list(
        self,
        run: RunDirectory,
        config: Config,
        tokenizer: Tokenizer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        save(run, 5, 6, 7)

        def killed(path: Path, **_: Any) -> None:
            if path.exists():
                (path / "weights.npz").unlink()
                raise KeyboardInterrupt

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(module.shutil, "rmtree", killed)
            save(run, 8)
        assert steps(run) == [6, 7, 8]
        assert len(list((run.path / "checkpoints").iterdir())) == 4
        for checkpoint in run.checkpoints():
            assert_equal(run.read_weights(checkpoint), arrays(checkpoint.step))
        RunDirectory.create(run.path, config, tokenizer, "corpus")
        assert len(list((run.path / "checkpoints").iterdir())) == 3
        assert steps(run) == [6, 7, 8]

    def test_a_step_can_be_saved_again(self, run: RunDirectory) -> None:
        save(run, 5)
        run.save_checkpoint(5, arrays(6), STATE, {})
        [checkpoint] = run.checkpoints()
        assert_equal(run.read_weights(checkpoint), arrays(6))

    @pytest.mark.parametrize("file", ["weights.npz", "state.npz", "metrics.json", "rename"])
    @pytest.mark.parametrize("kind", ["full disk", "kill"])
    def test_a_failure_in_the_middle_leaves_the_checkpoint_before(
        self, run: RunDirectory, monkeypatch: pytest.MonkeyPatch, file: str, kind: str
    ) -> None:
        save(run, 5)
        failure = OSError(errno.ENOSPC, "No space left on device")

        def fail(path: Path) -> None:
            path.with_name(path.name + ".tmp").write_bytes(b"half")
            raise failure if kind == "full disk" else KeyboardInterrupt

        def guarded(write: Any) -> Any:
            return lambda path, *rest: fail(path) if path.name == file else write(path, *rest)

        replace = module.os.replace

        def failing_replace(source: Path, target: Path) -> None:
            if file == "rename" and target.name.startswith("step-"):
                raise failure if kind == "full disk" else KeyboardInterrupt
            replace(source, target)

        expected = InputError if kind == "full disk" else KeyboardInterrupt
        with monkeypatch.context() as patch, pytest.raises(expected) as error:
            patch.setattr(module, "_write_arrays", guarded(module._write_arrays))
            patch.setattr(module, "_write_text", guarded(module._write_text))
            patch.setattr(module.os, "replace", failing_replace)
            save(run, 6)
        if kind == "full disk":
            assert "step-00000006 could not be written (No space left" in str(error.value)
            assert len(list((run.path / "checkpoints").iterdir())) == 1
        assert steps(run) == [5]
        assert_equal(run.selected_weights(), arrays(5))
        save(run, 6)  # what was left does not stand in the way
        assert steps(run) == [5, 6]
        assert_equal(run.selected_weights(), arrays(6))
        assert len(list((run.path / "checkpoints").iterdir())) == 2

    @pytest.mark.parametrize("name", ["weights.npz", "state.npz"])
    def test_a_damaged_file_is_named(self, run: RunDirectory, name: str) -> None:
        save(run, 5)
        [checkpoint] = run.checkpoints()
        file = checkpoint.path / name
        whole = file.read_bytes()
        for damaged in (whole[: len(whole) // 2], whole[:-1], b"", b"text"):
            file.write_bytes(damaged)
            with pytest.raises(InputError, match="cannot be read as weights") as error:
                run.read_checkpoint(checkpoint)
            assert str(file) in str(error.value)
        file.unlink()
        with pytest.raises(InputError, match=f"{name} cannot be read as weights"):
            run.read_checkpoint(checkpoint)

    def test_no_flipped_byte_changes_a_weight_unnoticed(self, run: RunDirectory) -> None:
        save(run, 5)
        [checkpoint] = run.checkpoints()
        file = checkpoint.path / "weights.npz"
        whole = file.read_bytes()
        noticed = 0
        for place in range(len(whole)):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
            try:
                weights = run.read_weights(checkpoint)
            except InputError as error:
                assert str(file) in str(error)
                noticed += 1
            else:
                # In what says nothing, as the time of a zip entry; or an entry is no longer
                # listed, which whoever assigns the weights will miss.
                expected = {name: array for name, array in arrays(5).items() if name in weights}
                assert_equal(weights, expected)
        assert noticed > 0.5 * len(whole)


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
        with pytest.raises(InputError, match="no weights named 'bets'; expected last or a saved"):
            run.select("bets")
        assert run.selected == "last"

    def test_selected_weights_that_are_gone(self, run: RunDirectory) -> None:
        save(run, 5)
        run.select("step-00000005")
        shutil.rmtree(run.path / "checkpoints" / "step-00000005")
        with pytest.raises(InputError, match="no weights named 'step-00000005'"):
            run.selected_weights()

    def test_no_checkpoint_yet(self, run: RunDirectory) -> None:
        for read in (run.selected_weights, lambda: run.select("last")):
            with pytest.raises(InputError, match="has no checkpoint yet; expected a run trained"):
                read()


def test_metrics_are_added_line_by_line(run: RunDirectory) -> None:
    run.append_metrics({"step": 1, "loss": 2.5})
    RunDirectory(run.path).append_metrics({"step": 2, "loss": 2.0})
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


@pytest.mark.parametrize(
    "cut_off", ["", "{", '{"step": 1', '{"step": 1}', '{"step": 1, "loss": 2.', "\0\0\0"]
)
def test_trimming_leaves_whole_lines_up_to_the_step(run: RunDirectory, cut_off: str) -> None:
    run.trim_metrics(3)  # nothing is logged yet
    assert not (run.path / "metrics.jsonl").exists()
    for step in (1, 2, 3, 4, 5):
        run.append_metrics({"step": step, "loss": step / 2})
    run.append_metrics({"step": 3, "val_loss": 1.0})
    with (run.path / "metrics.jsonl").open("a") as file:
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


def test_nothing_is_pickled(run: RunDirectory) -> None:
    with pytest.raises(ValueError, match="pickle"):
        run.save_checkpoint(1, {"weight": np.array([object()])}, {}, {})
    assert steps(run) == []


def test_a_full_disk_names_the_place(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    save(run, 1)
    monkeypatch.setattr("keras_transformer.run_directory.os.fsync", no_room)
    with pytest.raises(InputError, match=r"selected\.json cannot be written \(No space left"):
        run.select("last")
    assert run.selected == "last"
