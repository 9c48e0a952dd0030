"""Models read from disk, lines translated in order, test sets scored."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.errors import InputError
from keras_transformer.inference import Translation, batching, evaluate, loading, scoring
from keras_transformer.inference import translate as inference
from keras_transformer.inference.translator import CompiledTranslator
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import learn_vocabulary
from tests.conftest import PHRASES
from tests.messages import mentions, tells


@pytest.fixture(scope="module")
def model(run_directory: RunDirectory) -> loading.LoadedModel:
    return loading.load_model(run_directory.path)


@pytest.fixture(scope="module", params=["{0}", "{0}@step-00000100,{0}@step-00000300"])
def several(run_directory: RunDirectory, request: pytest.FixtureRequest) -> loading.LoadedModel:
    """A model and an ensemble, some of whose translations end."""
    members = request.param.format(run_directory.path)
    model = loading.load_model(members, {"decoding.n_best": 2})
    for transformer in model.owner.transformers:
        embeddings = transformer.weights_by_path()["embedding/embeddings"]
        factors = np.ones_like(embeddings[:, :1])
        factors[model.owner.tokenizer.end_id] = 8
        embeddings.assign(embeddings * factors)
    return model


@pytest.fixture
def own_run(run_directory: RunDirectory, tmp_path: Path) -> RunDirectory:
    """A copy of the run that a test may change."""
    return RunDirectory(shutil.copytree(run_directory.path, tmp_path / "run"))


class TestLoadModel:
    def test_settings_change_the_search(self, run_directory: RunDirectory) -> None:
        overridden = loading.load_model(
            run_directory.path, {"decoding.n_best": "3", "decoding.beam_size": "5"}
        )
        assert overridden.n_best == 3
        assert overridden.owner.config.beam_size == 5

    @pytest.mark.parametrize(
        ("given_settings", "message"),
        [
            ({"decoding.beam_size": "0"}, mentions("decoding.beam_size", "0", "1")),
            ({"decoding.beams": "2"}, mentions("decoding.beams", "setting")),
            ({"model.d_model": "8"}, mentions("model.d_model", "training")),
        ],
    )
    def test_wrong_settings(
        self, run_directory: RunDirectory, given_settings: dict[str, str], message: str
    ) -> None:
        with pytest.raises(InputError, match=message):
            loading.load_model(run_directory.path, given_settings)

    def test_no_model(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=mentions("missing", "bin/train.py")):
            loading.load_model(tmp_path / "missing")
        with pytest.raises(InputError, match=mentions("run", "directory", "SavedModel")):
            loading.load_model(tmp_path)

    def test_saved_models_of_others(self, tmp_path: Path) -> None:
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "saved_model.pb").write_bytes(b"no proto")
        with pytest.raises(InputError, match=mentions("broken", "SavedModel")):
            loading.load_model(tmp_path / "broken")
        tf.saved_model.save(tf.Module(), str(tmp_path / "other"))
        with pytest.raises(InputError, match=mentions("other", "SavedModel", "serving_default")):
            loading.load_model(tmp_path / "other")

    def test_a_search_compiled_by_xla(self, run_directory: RunDirectory) -> None:
        compiled = loading.load_model(run_directory.path, jit_compile=True)
        assert isinstance(compiled.translate.__self__, CompiledTranslator)


class TestLoadTranslator:
    def test_weights_by_name(self, run_directory: RunDirectory) -> None:
        named = loading.load_translator(f"{run_directory.path}@step-00000100")
        expected = run_directory.read_weights(run_directory.checkpoints()[0])
        assert_weights(named.transformer, expected)
        with pytest.raises(InputError, match=mentions("run", "weights", "bets", "last", "best")):
            loading.load_translator(f"{run_directory.path}@bets")

    def test_an_ensemble_is_of_all_that_are_named(self, run_directory: RunDirectory) -> None:
        path = run_directory.path
        ensemble = loading.load_translator(
            f"{path}@step-00000100,{path}", {"decoding.beam_size": 2}
        )
        assert ensemble.config.beam_size == 2
        first, last = ensemble.transformers
        assert_weights(first, run_directory.named_weights("step-00000100"))
        assert_weights(last, run_directory.selected_weights())

    def test_an_ensemble_of_different_vocabularies(self, own_run: RunDirectory) -> None:
        other = Path(shutil.copytree(own_run.path, own_run.path.with_name("other")))
        capitals = Tokenizer(learn_vocabulary((p.upper().encode() for p in PHRASES), 60))
        capitals.save(other / "tokenizer")  # of the same size: the pieces are what differs
        with pytest.raises(InputError, match=mentions("run", "other", "vocabularies")):
            loading.load_translator(f"{own_run.path},{other}")

    def test_an_ensemble_with_a_member_that_is_not_there(self, run_directory: RunDirectory) -> None:
        for members in (f"{run_directory.path},missing", f"missing@best,{run_directory.path}"):
            with pytest.raises(InputError, match=mentions("missing", "bin/train.py")):
                loading.load_model(members)

    def test_commas_and_ats_in_the_name_of_a_run(self, own_run: RunDirectory) -> None:
        comma, at = (own_run.path.with_name(name) for name in ("one,two", "run@best"))
        for path in (comma, at):
            shutil.copytree(own_run.path, path)
        weights = own_run.named_weights("step-00000100")
        for model_dir, name in (
            (comma, "last"),
            (at, "last"),
            (f"{comma}@step-00000100", "step-00000100"),
            (f"{at}@step-00000100", "step-00000100"),
        ):
            translator = loading.load_translator(model_dir)
            assert_weights(translator.transformer, own_run.named_weights(name))
        _, member = loading.load_translator(f"{own_run.path}@last,{at}").transformers
        assert_weights(member, own_run.selected_weights())
        _, member = loading.load_translator(f"{at},{own_run.path}@step-00000100").transformers
        assert_weights(member, weights)

    def test_precision(self, run_directory: RunDirectory) -> None:
        half = loading.load_translator(run_directory.path, precision="bfloat16").transformer
        kernels = [path for path in half.weights_by_path() if path.endswith("kernel")]
        assert {half.weights_by_path()[path].dtype for path in kernels} == {"bfloat16"}
        with pytest.raises(InputError, match=mentions("precision", "int8", "float32", "bfloat16")):
            loading.load_translator(run_directory.path, precision="int8")


def assert_weights(transformer: Any, expected: dict[str, np.ndarray]) -> None:
    weights = transformer.weights_by_path()
    assert weights.keys() == expected.keys()
    for path, weight in weights.items():
        np.testing.assert_array_equal(weight, expected[path])


class TestTrainedTokens:
    @pytest.fixture
    def reported_run(self, own_run: RunDirectory) -> RunDirectory:
        write_report(own_run, max_length=9)
        return own_run

    def test_are_those_of_the_report(self, reported_run: RunDirectory) -> None:
        model = loading.load_model(reported_run.path)
        assert model.trained_tokens == 9
        (remark,) = inference.remarks(model, ["a", "ball " * 9])
        assert tells(remark, "line 2", "longest source", "9")

    def test_of_an_ensemble_are_what_all_have_seen(
        self, reported_run: RunDirectory, run_directory: RunDirectory
    ) -> None:
        longer = RunDirectory(
            shutil.copytree(reported_run.path, reported_run.path.with_name("longer"))
        )
        write_report(longer, max_length=12)
        members = [longer.path, reported_run.path, run_directory.path]  # of the last: not known
        assert loading.trained_tokens(",".join(map(str, members))) == 9
        assert loading.trained_tokens(run_directory) is None


def write_report(run: RunDirectory, max_length: int) -> None:
    report = {"train": {"source": {"max_length": max_length}}}
    (run.path / "data_report.json").write_text(json.dumps(report))


class TestTranslateLines:
    def test_results_are_in_the_order_of_the_lines(self, model: loading.LoadedModel) -> None:
        lines = [*PHRASES, "", "ball " * 12, *reversed(PHRASES)]
        results = inference.translate_lines(model, lines)
        for line, result in zip(lines, results, strict=True):
            alone = model.translate(text=tf.constant([line]))
            assert [t.text for t in result] == [alone["translations"].numpy()[0, 0].decode()]
            assert result[0].score == pytest.approx(alone["scores"].numpy()[0, 0], abs=1e-4)

    def test_places_without_a_hypothesis_are_left_out(self, run_directory: RunDirectory) -> None:
        model = loading.load_model(run_directory.path, {"decoding.n_best": "4"})
        results = inference.translate_lines(model, [PHRASES[0], ""])
        assert [len(result) for result in results] == [4, 1]
        assert results[1] == [Translation("", 0.0)]
        text = inference.format_translations(model, results)
        assert [line.split(" ||| ")[0] for line in text.splitlines()] == ["0"] * 4 + ["1"]
        assert text.endswith("1 |||  ||| 0.0000\n")

    def test_no_lines(self, model: loading.LoadedModel) -> None:
        assert inference.translate_lines(model, []) == []
        assert inference.remarks(model, []) == []

    @given(st.lists(st.integers(0, 20_000), max_size=200))
    @settings(max_examples=50, deadline=None)
    def test_batches_hold_every_line_once_and_are_bounded(self, sizes: list[int]) -> None:
        batches = batching.batches(["x" * size for size in sizes])
        assert sorted(index for batch in batches for index in batch) == list(range(len(sizes)))
        for batch in batches:
            longest = max(sizes[index] for index in batch)
            assert len(batch) == 1 or len(batch) * longest <= 16_384
            assert len(batch) <= 64

    def test_remarks_name_the_lines(self, model: loading.LoadedModel) -> None:
        lines = ["a"] * 1030
        lines[3], lines[1027] = " ", "ball " * 200
        empty, cut = inference.remarks(model, lines)
        assert tells(empty, "line 4", "empty")
        assert tells(cut, "line 1028", "40")

    def test_remarks_name_lines_longer_than_those_of_training(
        self, model: loading.LoadedModel
    ) -> None:
        lines = ["a", "ball ball", "ball " * 200]
        (_, (longest, _), _) = batching.token_counts(model.lengths, lines)
        known = model._replace(trained_tokens=longest - 1)
        longer, cut = inference.remarks(known, lines)
        assert tells(longer, "line 2", longest, longest - 1, "translated")
        assert tells(cut, "line 3", "translated")
        assert inference.remarks(model._replace(trained_tokens=longest), lines) == [cut]

    def test_remarks_name_prefixes_that_could_not_be(self, model: loading.LoadedModel) -> None:
        results = [[Translation(text, -1.0)] for text in ("ein Hund", "", "das Haus")]
        prefixes = ["  ein ", "", "☃ das"]
        (remark,) = inference.remarks(model, ["a"] * 3, results, prefixes)
        assert tells(remark, "line 3", "prefix")


def test_weights_that_are_no_numbers_translate_nothing(run_directory: RunDirectory) -> None:
    broken = loading.load_model(run_directory.path, {"decoding.beam_size": 1})
    weights = broken.owner.transformer.weights_by_path()
    weights["embedding/embeddings"].assign(weights["embedding/embeddings"] * float("nan"))
    results = inference.translate_lines(broken, [PHRASES[0], ""])
    assert results == [[inference.NO_TRANSLATION], [Translation("", 0.0)]]
    nothing, empty = inference.remarks(broken, [PHRASES[0], ""], results)
    assert tells(nothing, "line 1", "translation", "logits")
    assert tells(empty, "line 2", "empty")
    details = inference.translate_in_detail(broken, [PHRASES[0]])
    assert [result["translations"] for result in details] == [[]]


class TestTranslateInDetail:
    LINES = (PHRASES[0], "", "ball", *PHRASES[3:], "ball " * 30)

    def test_each_translation_is_explained(self, several: loading.LoadedModel) -> None:
        results = inference.translate_in_detail(several, self.LINES, attention=True)
        json.dumps(results, allow_nan=False)
        plain = inference.translate_lines(several, self.LINES)
        used = [used for _, used in batching.token_counts(several.lengths, self.LINES)]
        scorer = scoring.Scorer(several.owner)
        for line, best, length, result in zip(self.LINES, plain, used, results, strict=True):
            source, found = result["source_tokens"], result["translations"]
            assert len(source) == length and source[-1] == "</s>"
            text = "".join(source[:-1]).replace("▁", " ").strip()
            assert text == line.strip() or length == 40 and line.startswith(text)
            assert [translation["text"] for translation in found] == [each.text for each in best]
            for translation, each in zip(found, best, strict=True):
                assert translation["score"] == pytest.approx(each.score, abs=1e-4)
                assert_consistent(translation, len(source))
                if ids := translation["ids"]:
                    (rescored,) = scoring.score_ids(scorer, [line], [ids])
                    assert translation["log_prob"] == pytest.approx(rescored.log_prob, abs=1e-4)
                    alpha = several.owner.config.length_penalty
                    assert translation["score"] == pytest.approx(
                        rescored.penalized(alpha), abs=1e-4
                    )
        assert {t["finished"] for result in results for t in result["translations"]} == {0, 1}
        assert results[1]["translations"] == [
            {"text": "", "score": 0.0, "log_prob": 0.0, "finished": False, "tokens": [], "ids": []}
            | {"token_log_probs": [], "alignment": [], "attention": []}
        ]

    def test_numbers_are_short(self, several: loading.LoadedModel) -> None:
        (result,) = inference.translate_in_detail(several, [PHRASES[0]], attention=True)
        for translation in result["translations"]:
            for number in translation["token_log_probs"]:
                assert number == round(number, 6)
            for weight in np.ravel(translation["attention"]).tolist():
                assert weight == round(weight, 4)

    def test_the_attention_is_given_on_request(self, several: loading.LoadedModel) -> None:
        (result,) = inference.translate_in_detail(several, ["ball"])
        assert all("attention" not in translation for translation in result["translations"])

    def test_prefixes_stay_with_their_lines(self, several: loading.LoadedModel) -> None:
        prefixes = ["", "ein", "das", "zwei", "", "mit", "Haus"]  # batches are in another order
        results = inference.translate_in_detail(several, self.LINES, prefixes)
        assert results[1]["translations"][0]["text"] == ""  # nothing to translate stays nothing
        for prefix, result in list(zip(prefixes, results, strict=True))[2:]:
            for translation in result["translations"]:
                assert translation["text"].startswith(prefix)
        with pytest.raises(InputError, match=mentions("7", "lines", "6", "prefixes")):
            inference.translate_in_detail(several, self.LINES, prefixes[1:])

    def test_no_lines(self, model: loading.LoadedModel) -> None:
        assert inference.translate_in_detail(model, [], []) == []


def assert_consistent(translation: dict[str, Any], source_length: int) -> None:
    """Checks what must agree within one translation of `translate_in_detail`, with attention."""
    length = len(translation["ids"])
    assert sum(translation["token_log_probs"]) == pytest.approx(translation["log_prob"], abs=1e-4)
    for name in ("tokens", "token_log_probs", "alignment", "attention"):
        assert len(translation[name]) == length
    assert translation["finished"] == (translation["tokens"][-1:] == ["</s>"])
    pieces = translation["tokens"][: length - translation["finished"]]
    assert "".join(pieces).replace("▁", " ").strip() == translation["text"]
    for row, place in zip(translation["attention"], translation["alignment"], strict=True):
        assert len(row) == source_length
        assert sum(row) == pytest.approx(1, abs=1e-2)
        assert row[place] == max(row)


class TestWorkers:
    def test_several_find_what_one_finds(
        self, model: loading.LoadedModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lines = [*PHRASES, "", "ball " * 12, *reversed(PHRASES)]
        alone = inference.translate_lines(model, lines)
        alone_in_detail = inference.translate_in_detail(model, lines)
        monkeypatch.setattr(batching, "concurrent_batches", lambda: 3)
        together = inference.translate_lines(model, lines)
        for one, other in zip(alone, together, strict=True):
            assert [each.text for each in one] == [each.text for each in other]
            assert [e.score for e in one] == pytest.approx([e.score for e in other], abs=1e-4)
        in_detail = inference.translate_in_detail(model, lines)
        for one, other in zip(alone_in_detail, in_detail, strict=True):
            assert [t["ids"] for t in one["translations"]] == [
                t["ids"] for t in other["translations"]
            ]

    def test_work_at_the_same_time(
        self, model: loading.LoadedModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(batching, "concurrent_batches", lambda: 3)
        others = threading.Barrier(3, timeout=60)  # breaks unless three batches meet

        def translate(text: tf.Tensor) -> dict[str, tf.Tensor]:
            others.wait()
            return {"translations": text[:, tf.newaxis], "scores": tf.zeros([len(text), 1])}

        lines = [letter * length for letter in "abc" for length in (2, 5, 3)]
        results = inference.translate_lines(model._replace(translate=translate), lines)
        assert [best.text for (best,) in results] == lines

    def test_a_failure_of_one_is_the_failure_of_all(
        self, model: loading.LoadedModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(batching, "concurrent_batches", lambda: 3)

        def translate(text: tf.Tensor) -> dict[str, tf.Tensor]:
            raise KeyError(len(text))

        with pytest.raises(KeyError):
            inference.translate_lines(model._replace(translate=translate), PHRASES)

    @pytest.mark.parametrize(
        ("lines", "gpus", "count", "expected"),
        [
            (100, [], 5, {"intra": 1, "inter": 5}),
            (2, [], 2, {"intra": 2, "inter": 2}),
            (0, [], 1, {"intra": 5, "inter": 1}),
            (100, ["GPU:0"], 1, {"intra": 0, "inter": 0}),
        ],
    )
    def test_cores_have_batches_of_their_own(
        self,
        monkeypatch: pytest.MonkeyPatch,
        lines: int,
        gpus: Sequence[str],
        count: int,
        expected: dict[str, int],
    ) -> None:
        threads, settings = {"intra": 0, "inter": 0}, tf.config.threading
        for name in threads:
            monkeypatch.setattr(
                settings,
                f"set_{name}_op_parallelism_threads",
                lambda value, name=name: threads.update({name: value}),
            )
        monkeypatch.setattr(settings, "get_intra_op_parallelism_threads", lambda: threads["intra"])
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: gpus)
        monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(5)))
        assert batching.concurrent_batches() == 1
        batching.use_cores_for_batches(lines)
        assert (batching.concurrent_batches(), threads) == (count, expected)

    def test_nothing_changes_once_tensorflow_has_begun(self, model: loading.LoadedModel) -> None:
        inference.translate_lines(model, ["a"])
        batching.use_cores_for_batches(100)
        assert batching.concurrent_batches() == 1


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
            assert tells(str(error), "input.en", "line")
        else:
            assert len(lines) in (count, count + 1)


class TestEvaluate:
    def test_scores_its_own_translations_as_perfect(self, model: loading.LoadedModel) -> None:
        sources = list(PHRASES)
        own = [best.text for best, *_ in inference.translate_lines(model, sources)]
        result = evaluate.evaluate(model, sources, own, tokenize="none")
        assert result.hypotheses == own
        assert (result.scores.exact_match, result.scores.sentences) == (1, 6)
        assert result.seconds > 0
        others = [*own[:3], *["something else"] * 3]
        assert evaluate.evaluate(model, sources, others).scores.exact_match == 0.5

    def test_mistakes_are_found_before_translating(self, model: loading.LoadedModel) -> None:
        def translate(text: tf.Tensor) -> dict[str, tf.Tensor]:
            raise AssertionError("translated")

        model = model._replace(translate=translate)
        with pytest.raises(InputError, match=mentions("source", "2", "reference", "1")):
            evaluate.evaluate(model, ["a", "b"], ["a"])
        with pytest.raises(InputError, match="'14a' is no tokenizer"):
            evaluate.evaluate(model, ["a"], ["a"], tokenize="14a")
        with pytest.raises(InputError, match="expected at least one sentence"):
            evaluate.evaluate(model, [], [])


def test_a_run_without_a_checkpoint(own_run: RunDirectory) -> None:
    shutil.rmtree(own_run.path / "checkpoints")
    with pytest.raises(InputError, match=mentions("checkpoint")):
        loading.load_model(own_run.path)


def test_weights_of_another_configuration(own_run: RunDirectory) -> None:
    config = json.loads((own_run.path / "config.json").read_text())
    config["model"]["d_ff"] = 48
    (own_run.path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=mentions("weights", "48")):
        loading.load_model(own_run.path)
