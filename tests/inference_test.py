"""Models read from disk, lines translated in order, test sets scored, checkpoints averaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer import inference
from keras_transformer.errors import InputError
from keras_transformer.run_directory import RunDirectory
from tests.conftest import PHRASES


@pytest.fixture(scope="module")
def model(run_directory: RunDirectory) -> inference.Model:
    return inference.load_model(run_directory.path)


@pytest.fixture
def own_run(run_directory: RunDirectory, tmp_path: Path) -> RunDirectory:
    """A copy of the run that a test may change."""
    return RunDirectory(shutil.copytree(run_directory.path, tmp_path / "run"))


class TestLoadModel:
    def test_settings_change_the_search(self, run_directory: RunDirectory) -> None:
        overridden = inference.load_model(
            run_directory.path, {"decoding.n_best": "3", "decoding.beam_size": "5"}
        )
        assert overridden.n_best == 3
        assert overridden.owner.config.beam_size == 5

    @pytest.mark.parametrize(
        ("given_settings", "message"),
        [
            ({"decoding.beam_size": "0"}, "decoding.beam_size is 0; expected at least 1"),
            ({"decoding.beams": "2"}, "'decoding.beams' is no setting"),
            ({"model.d_model": "8"}, "model.d_model cannot be changed after training"),
        ],
    )
    def test_wrong_settings(
        self, run_directory: RunDirectory, given_settings: dict[str, str], message: str
    ) -> None:
        with pytest.raises(InputError, match=message):
            inference.load_model(run_directory.path, given_settings)

    def test_no_model(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="missing is not there; expected what bin/train.py"):
            inference.load_model(tmp_path / "missing")
        with pytest.raises(InputError, match="is neither a run directory nor a SavedModel"):
            inference.load_model(tmp_path)

    def test_saved_models_of_others(self, tmp_path: Path) -> None:
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "saved_model.pb").write_bytes(b"no proto")
        with pytest.raises(InputError, match="broken cannot be read as a SavedModel"):
            inference.load_model(tmp_path / "broken")
        tf.saved_model.save(tf.Module(), str(tmp_path / "other"))
        with pytest.raises(InputError, match="other is a SavedModel without 'serving_default'"):
            inference.load_model(tmp_path / "other")


class TestTranslateLines:
    def test_results_are_in_the_order_of_the_lines(self, model: inference.Model) -> None:
        lines = [*PHRASES, "", "ball " * 12, *reversed(PHRASES)]
        results = inference.translate_lines(model, lines)
        for line, result in zip(lines, results, strict=True):
            alone = model.translate(text=tf.constant([line]))
            assert [t.text for t in result] == [alone["translations"].numpy()[0, 0].decode()]
            assert result[0].score == pytest.approx(alone["scores"].numpy()[0, 0], abs=1e-4)

    def test_places_without_a_hypothesis_are_left_out(self, run_directory: RunDirectory) -> None:
        model = inference.load_model(run_directory.path, {"decoding.n_best": "4"})
        results = inference.translate_lines(model, [PHRASES[0], ""])
        assert [len(result) for result in results] == [4, 1]
        assert results[1] == [inference.Translation("", 0.0)]
        text = inference.format_translations(model, results)
        assert [line.split(" ||| ")[0] for line in text.splitlines()] == ["0"] * 4 + ["1"]
        assert text.endswith("1 |||  ||| 0.0000\n")

    def test_no_lines(self, model: inference.Model) -> None:
        assert inference.translate_lines(model, []) == []
        assert inference.remarks(model, []) == []

    @given(st.lists(st.integers(0, 20_000), max_size=200))
    @settings(max_examples=50, deadline=None)
    def test_batches_hold_every_line_once_and_are_bounded(self, sizes: list[int]) -> None:
        batches = inference.batches(["x" * size for size in sizes])
        assert sorted(index for batch in batches for index in batch) == list(range(len(sizes)))
        for batch in batches:
            longest = max(sizes[index] for index in batch)
            assert len(batch) == 1 or len(batch) * longest <= 16_384
            assert len(batch) <= 64

    def test_remarks_name_the_lines(self, model: inference.Model) -> None:
        lines = ["a"] * 1030
        lines[3], lines[1027] = " ", "ball " * 200
        empty, cut = inference.remarks(model, lines)
        assert empty == "line 4 is empty, and so is its translation"
        assert cut.startswith("line 1028 has ") and "the first 40 were translated" in cut

    def test_remarks_name_lines_longer_than_those_of_training(self, model: inference.Model) -> None:
        lines = ["a", "ball ball", "ball " * 200]
        (_, (longest, _), _) = inference.token_counts(model, lines)
        known = model._replace(trained_tokens=longest - 1)
        longer, cut = inference.remarks(known, lines)
        assert longer == (
            f"line 2 has {longest} tokens, but the longest source of training {longest - 1}; "
            "it was translated as it is"
        )
        assert cut.startswith("line 3 has ") and "were translated" in cut
        assert inference.remarks(model._replace(trained_tokens=longest), lines) == [cut]


class TestDecodeLines:
    def test_lines_end_at_line_feeds_alone(self) -> None:
        data = "\ufeffone\r\ntwo\rhalf\n\u2028\n\nlast".encode()
        lines = inference.decode_lines(data, "x")
        assert lines == ["one", "two\rhalf", "\u2028", "", "last"]
        assert inference.decode_lines(b"", "x") == []
        assert inference.decode_lines(b"\n", "x") == [""]

    @given(st.binary(max_size=40) | st.text(max_size=20).map(str.encode))
    @settings(max_examples=100, deadline=None)
    def test_any_bytes_are_lines_or_an_input_error_that_names_one(self, data: bytes) -> None:
        count = data.removeprefix(b"\xef\xbb\xbf").count(b"\n")
        try:
            lines = inference.decode_lines(data, "input.en")
        except InputError as error:
            assert str(error).startswith("input.en, line ")
        else:
            assert len(lines) in (count, count + 1)


class TestOutputFile:
    def test_a_failure_leaves_what_was_there(self, tmp_path: Path) -> None:
        path = tmp_path / "out"
        path.write_bytes(b"old")
        with pytest.raises(KeyError), inference.output_file(path) as file:
            file.write(b"half")
            raise KeyError
        assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"old"]
        with inference.output_file(path) as file:
            file.write(b"new")
        assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"new"]

    def test_nowhere_to_write(self, tmp_path: Path) -> None:
        with (
            pytest.raises(InputError, match="none/out cannot be written"),
            inference.output_file(tmp_path / "none" / "out"),
        ):
            pytest.fail("the block must not begin")


class TestEvaluate:
    def test_scores_its_own_translations_as_perfect(self, model: inference.Model) -> None:
        sources = list(PHRASES)
        own = [best.text for best, *_ in inference.translate_lines(model, sources)]
        result = inference.evaluate(model, sources, own, tokenize="none")
        assert result.hypotheses == own
        assert (result.scores.exact_match, result.scores.sentences) == (1, 6)
        assert result.seconds > 0
        others = [*own[:3], *["something else"] * 3]
        assert inference.evaluate(model, sources, others).scores.exact_match == 0.5

    def test_mistakes_are_found_before_translating(self, model: inference.Model) -> None:
        def translate(text: tf.Tensor) -> dict[str, tf.Tensor]:
            raise AssertionError("translated")

        model = model._replace(translate=translate)
        with pytest.raises(InputError, match="source has 2 lines and the reference 1; expected"):
            inference.evaluate(model, ["a", "b"], ["a"])
        with pytest.raises(InputError, match="'14a' is no tokenizer"):
            inference.evaluate(model, ["a"], ["a"], tokenize="14a")
        with pytest.raises(InputError, match="expected at least one sentence"):
            inference.evaluate(model, [], [])


class TestAverageCheckpoints:
    def test_is_the_mean_and_is_selected(self, own_run: RunDirectory) -> None:
        name = inference.average_checkpoints(own_run, 2)
        assert own_run.selected == name == "average-last-2-step-300"
        averaged = own_run.selected_weights()
        parts = [own_run.read_weights(c) for c in own_run.checkpoints()[-2:]]
        assert averaged.keys() == parts[0].keys()
        for path, weight in averaged.items():
            mean = np.mean([part[path].astype(np.float64) for part in parts], axis=0)
            np.testing.assert_array_equal(weight, mean.astype(np.float32))

    def test_the_best_by_validation(self, own_run: RunDirectory) -> None:
        weights = {c.step: own_run.read_weights(c) for c in own_run.checkpoints()}
        for step, loss in ((100, 1.0), (200, 3.0), (300, 2.0)):
            own_run.save_checkpoint(step, weights[step], {}, {"val_loss": loss})
        name = inference.average_checkpoints(own_run, best=2)
        assert own_run.selected == name == "average-best-2-step-300"
        expected = inference.average_weights([weights[100], weights[300]])
        averaged = own_run.selected_weights()
        for path, weight in averaged.items():
            np.testing.assert_array_equal(weight, expected[path])

    def test_is_what_is_translated_with(self, own_run: RunDirectory) -> None:
        before = inference.translate_lines(inference.load_model(own_run.path), PHRASES)
        inference.average_checkpoints(own_run, 3)
        after = inference.translate_lines(inference.load_model(own_run.path), PHRASES)
        assert [best.score for best, *_ in before] != [best.score for best, *_ in after]

    @pytest.mark.parametrize(
        ("counts", "message"),
        [
            ({"last": 0}, "last 0 .* at least 1"),
            ({"best": -1}, "best -1 .* at least 1"),
            ({"last": 4}, "has 3 checkpoints; expected the 4"),
            ({"best": 1}, "has 0 checkpoints with a validation loss; expected the 1"),
            ({"last": 1, "best": 2}, "last 1 and the best 2 .* cannot both"),
            ({}, "last 0 .* at least 1"),
        ],
    )
    def test_too_few(self, own_run: RunDirectory, counts: dict[str, int], message: str) -> None:
        with pytest.raises(InputError, match=message):
            inference.average_checkpoints(own_run, **counts)
        assert own_run.selected == "last"


class TestAverageWeights:
    def test_is_taken_in_float64_one_set_at_a_time(self) -> None:
        ones = [np.float32([1.0]), np.float32([1e8]), np.float32([-1e8]), np.float32([3.0])]
        averaged = inference.average_weights({"a/b": one} for one in ones)
        assert averaged["a/b"].dtype == np.float32 and averaged["a/b"] == [1.0]
        assert ones[0] == [1.0]

    def test_weights_of_different_models(self) -> None:
        one = {"a": np.ones(2), "b": np.ones(3)}
        for other, message in (
            (
                {"a": np.ones(2), "b": np.ones(1)},
                r"expected all to have, or none, b of shape \(1,\)",
            ),
            ({"a": np.ones(2)}, r"b of shape \(3,\)"),
            ({**one, "c": np.ones(1)}, r"c of shape \(1,\)"),
        ):
            with pytest.raises(InputError, match=message):
                inference.average_weights([one, other])
        with pytest.raises(InputError, match="no weights to average"):
            inference.average_weights([])


def test_a_run_without_a_checkpoint(own_run: RunDirectory) -> None:
    shutil.rmtree(own_run.path / "checkpoints")
    with pytest.raises(InputError, match="has no checkpoint yet"):
        inference.load_model(own_run.path)


def test_weights_of_another_configuration(own_run: RunDirectory) -> None:
    config = json.loads((own_run.path / "config.json").read_text())
    config["model"]["d_ff"] = 48
    (own_run.path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="weights are of another model: .* expected .*48"):
        inference.load_model(own_run.path)
