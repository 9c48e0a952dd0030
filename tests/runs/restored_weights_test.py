"""Which checkpoint a run resumes from, and which weights it uses."""

import shutil
from pathlib import Path

import pytest

from keras_transformer.errors import InputError
from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import refuses
from tests.messages import mentions, tells
from tests.runs.checkpoints_test import assert_equal
from tests.runs.tiny_run import STATE, arrays, entries, reconfigured, save, save_validated, steps


def cut_in_half(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def flip_a_byte(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.write_bytes(content)


class TestRestore:
    @pytest.mark.parametrize(
        "name, damage",
        [
            ("weights.npz", cut_in_half),
            ("state.npz", flip_a_byte),
            ("ema.npz", Path.unlink),
            ("checkpoint.json", cut_in_half),
            ("checkpoint.json", Path.unlink),
        ],
    )
    def test_the_newest_complete_checkpoint_is_found(self, run, capsys, name, damage):
        save_validated(run, step_5=1.0, step_6=1.0)
        damage(run.checkpoints()[-1].path / name)
        checkpoint, _, found = run.restore()
        assert checkpoint.step == 5
        assert_equal(found["weights"], arrays(5))
        aside, kept = entries(run)
        assert aside.startswith("damaged-step-00000006-") and kept == "step-00000005"
        [warning] = capsys.readouterr().err.splitlines()
        assert tells(warning, f"step-00000006/{name}", "read", aside, "step 5")
        save_validated(run, step_6=1.0)
        damage(run.checkpoints()[-1].path / name)  # the same step can be damaged again
        assert run.restore() is not None and len(entries(run)) == 3

    def test_without_a_complete_checkpoint_nothing_restarts(self, run):
        save(run, 5, 6)
        for checkpoint in run.checkpoints():
            cut_in_half(checkpoint.path / "weights.npz")
        for _ in range(2):  # they keep their names, so the warning is repeated
            with pytest.raises(InputError, match=mentions("2 checkpoints")) as error:
                run.restore()
            assert tells(str(error.value), "step-00000006/weights.npz", "read")
        assert steps(run) == [5, 6]


class TestSelection:
    def test_a_moving_average_is_the_default(self, run):
        run = reconfigured(run, training__ema_decay=0.9)
        save_validated(run, step_5=1.0, step_6=2.0)
        assert run.selected == "ema"
        assert_equal(run.named_weights(), arrays(-6))
        run.save_checkpoint(7, arrays(7), STATE, {"val_loss": 0.5})  # written without an average
        assert_equal(run.named_weights("best"), arrays(7))

    def test_the_newest_checkpoint_unless_something_is_selected(self, run):
        save(run, 5, 6)
        assert run.selected == "last"
        assert_equal(run.named_weights(), arrays(6))
        run.select("step-00000005")
        assert RunDirectory(run.path).selected == "step-00000005"
        assert_equal(run.named_weights(), arrays(5))
        run.select("last")
        save(run, 7)
        assert_equal(run.named_weights(), arrays(7))
        run.save_average("average-2", arrays(0.25))
        assert RunDirectory(run.path).selected == "average-2"
        assert_equal(run.named_weights(), arrays(0.25))
        assert steps(run) == [5, 6, 7]

    def test_an_unknown_name_is_an_error_and_does_not_change_the_selection(self, run):
        save(run, 5)
        refuses(run.select, {"name": "bets"}, "weights", "bets", "last", "best", "ema")
        assert run.selected == "last"
        run.select("step-00000005")
        save(run, 6)
        shutil.rmtree(run.path / "checkpoints" / "step-00000005")
        refuses(run.named_weights, {}, "weights", "step-00000005")

    def test_no_checkpoint_yet(self, run):
        for name in ("last", "best", "ema"):
            refuses(run.select, {"name": name}, "run", "checkpoint")
        refuses(run.named_weights, {}, "run", "checkpoint")

    def test_best_and_ema_are_resolved_when_they_are_read(self, run):
        save(run, 4)
        refuses(run.select, {"name": "best"}, "best", "loss")
        refuses(run.select, {"name": "ema"}, "ema", "training.ema_decay")
        save_validated(run, step_5=1.0, step_6=2.0)
        run.select("best")
        assert_equal(run.named_weights(), arrays(-5))  # its average was validated
        save_validated(run, step_7=0.5)
        assert_equal(run.named_weights(), arrays(-7))
        save_validated(run, step_8=2.0, step_9=3.0, step_10=4.0)
        assert steps(run) == [7, 8, 9, 10]  # the selected best is kept though keep_best is 0
        run.select("ema")
        assert_equal(run.named_weights(), arrays(-10))
