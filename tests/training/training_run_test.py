"""Trains runs from prepared data: resuming gives the same bits, invalid input an error."""

import dataclasses
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import Config, DecodingConfig
from keras_transformer.data.batches import BATCH_ORDER
from keras_transformer.data.corpus import parallel_files
from keras_transformer.data.prepare import PrepareOptions, prepare
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.inference import loading, translate
from keras_transformer.models.transformer import EXCLUDED_TOKEN_BIAS
from keras_transformer.runs.atomic import exclusive_lock
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.training import progress, start, training_run
from keras_transformer.training.data import TrainingData
from keras_transformer.training.trainer import Trainer
from keras_transformer.training.training_run import TrainOptions
from tests.messages import mentions, tells
from tests.runs.checkpoints_test import assert_equal

pytestmark = pytest.mark.usefixtures("one_replica")

SETTINGS = {
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.num_heads": 2,
    "training.batch_tokens": 128,
    "training.warmup_steps": 4,
    "training.ema_decay": 0.9,
    "training.checkpoint_steps": 3,
    "training.log_steps": 2,
    "training.mixed_precision": "float32",
    "training.jit_compile": "false",
    "training.max_steps": 6,
    "decoding.length_penalty_formula": "power",
}
ANIMALS = [("dog", "Hund"), ("cow", "Stier"), ("bird", "Vogel"), ("fish", "Fisch")]
VERBS = [("sees", "sieht"), ("likes", "mag"), ("hears", "hört")]


def prepared_pairs(folder, pairs, vocab_from=None, **options):
    """Prepares pairs of sentences in `folder`, whose parent gets the corpus."""
    folder.parent.mkdir(exist_ok=True)
    files = [folder.with_name(name) for name in ("c.en", "c.de")]
    for side, file in enumerate(files):
        file.write_text("".join(pair[side] + "\n" for pair in pairs))
    corpora = parallel_files(*([file] for file in files))
    prepare(corpora, folder, PrepareOptions(**options), vocab_from=vocab_from)
    return folder


def prepared(folder, plural="", **options):
    """Prepares 48 generated pairs, 4 of them for validation."""
    pairs = [
        (f"the {a} {v} the {b}{plural}", f"der {x} {w} den {y}")
        for (a, x), (v, w), (b, y) in itertools.product(ANIMALS, VERBS, ANIMALS)
    ]
    return prepared_pairs(folder / "data", pairs, vocab_size=50, valid_pairs=4, **options)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("experiment") / "corpus")


def train(data, run, **changes):
    settings = {**SETTINGS, **{name.replace("__", "."): v for name, v in changes.items()}}
    return training_run.train(data, run, None, settings)


@pytest.fixture(scope="module")
def finished(one_replica, data, tmp_path_factory):
    """A run of 6 steps without an interruption."""
    run = tmp_path_factory.mktemp("experiment") / "run"
    trained = train(data, run)
    assert (trained.step, trained.finished, trained.interrupted) == (6, True, False)
    assert trained.metrics["val_loss"] > 0 and trained.tokens_per_second > 0
    assert tells(trained.summary(run), "finished", "step 6") and str(run) in trained.summary(run)
    return run


@pytest.fixture
def copy(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def last(run):
    restored = RunDirectory(run).restore()
    assert restored is not None
    return restored


def steps(run):
    return [checkpoint.step for checkpoint in RunDirectory(run).checkpoints()]


def validate_as(patch, losses):
    """Replaces validation: the n-th call returns the n-th loss."""
    left = iter(losses)

    def evaluate(*_, **__):
        return {"loss": next(left), "perplexity": 2.0, "accuracy": 0.5}

    patch.setattr(Trainer, "evaluate", evaluate)


def test_a_run_contains_everything_to_resume(finished, data):
    run = RunDirectory(finished)
    assert steps(finished) == [3, 6]
    assert run.config.model.source_vocab_size == run.tokenizer().source_vocab_size
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [2, 3, 4, 6]
    assert [line["step"] for line in lines if "val_loss" in line] == [3, 6]
    assert list((finished / "tensorboard").glob("events.*"))
    assert (finished / "report.html").read_text().startswith("<!DOCTYPE html>")
    assert (finished / "data_report.json").read_bytes() == (data / "report.json").read_bytes()
    weights = last(finished).weights
    assert sum(array.size for array in weights.values()) == run.config.model.num_parameters()


def test_a_resumed_run_equals_an_uninterrupted_run_bit_for_bit(finished, data, tmp_path):
    run = tmp_path / "run"
    assert train(data, run, training__max_steps=3).step == 3
    resumed = train(data, run)
    assert (resumed.step, resumed.finished) == (6, True)
    for kind in ("weights", "state", "ema"):
        found, expected = getattr(last(run), kind), getattr(last(finished), kind)
        assert_equal(found, expected)
    first = RunDirectory(run).read_weights(RunDirectory(run).checkpoints()[0])
    assert any((first[path] != array).any() for path, array in last(run).weights.items())


def test_a_finished_run_is_unchanged(copy, data):
    before = {path: path.read_bytes() for path in copy.rglob("*.npz")}
    again = train(data, copy)
    assert (again.step, again.finished) == (6, True)
    assert again.metrics["val_loss"] == last(copy).metrics["val_loss"]
    assert {path: path.read_bytes() for path in copy.rglob("*.npz")} == before


def test_max_minutes_stops_a_run_that_later_completes_its_interval(copy, data):
    settings = {**SETTINGS, "training.max_steps": 11}
    trained = training_run.train(data, copy, None, settings, TrainOptions(max_minutes=1e-9))
    assert (trained.step, trained.finished, trained.interrupted) == (7, False, False)
    assert tells(trained.summary(copy), "same command", "step 7")
    assert steps(copy) == [3, 6, 7]
    assert train(data, copy, training__max_steps=11).finished
    assert steps(copy) == [3, 6, 9, 11]


def test_a_run_with_another_batch_order_is_not_resumed(copy, data):
    content = json.loads((copy / "data.json").read_text())
    assert content["batch_order"] == BATCH_ORDER
    (copy / "data.json").write_text(json.dumps({**content, "batch_order": 1}))
    assert train(data, copy).finished and loading.load_model(copy).translate(tf.constant(["the"]))
    with pytest.raises(InputError, match=mentions("batches", "step 6")) as e:
        train(data, copy, training__max_steps=9)
    assert f"--init_from={copy}@step-00000006" in str(e.value) and steps(copy) == [3, 6]


class TestBleu:
    def test_scores_the_weights_that_are_exported(self, data, tmp_path, monkeypatch, caplog):
        caplog.set_level("INFO")
        translated = []
        score_model, translate_lines = translate.evaluate, translate.translate_lines

        def remember(*arguments):
            translated.append(translate_lines(*arguments))
            return translated[-1]

        def score(*arguments, **options):
            evaluation = score_model(*arguments, **options)  # has a BLEU of 0 for this model
            scores = dataclasses.replace(evaluation.scores, bleu=12.5)
            return evaluation._replace(scores=scores)

        monkeypatch.setattr(translate, "translate_lines", remember)
        monkeypatch.setattr(translate, "evaluate", score)
        run = tmp_path / "run"
        trained = train(
            data, run, training__bleu_steps=4, training__bleu_sentences=3,
            decoding__beam_size=2, decoding__max_extra_tokens=5,
        )  # fmt: skip
        [scored] = translated  # at step 6, where the interval that contains step 4 ends
        sources = TokenStore(data / "valid").source_text()[:3]
        assert RunDirectory(run).selected == "ema"
        assert translate_lines(loading.load_model(run), sources) == scored
        RunDirectory(run).select("last")
        assert translate_lines(loading.load_model(run), sources) != scored

        assert trained.metrics["val_bleu"] == 12.5
        first, second = (RunDirectory(run).read_metrics(c) for c in RunDirectory(run).checkpoints())
        assert "val_bleu" not in first and second["val_bleu"] == 12.5
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines if "val_bleu" in line] == [6]
        assert caplog.text.count("|version:") == 1 and "3 sentences, beam 2, nrefs:1" in caplog.text


class TestEarlyStopping:
    def test_stops_a_run_and_marks_it_as_finished(self, data, tmp_path, monkeypatch):
        run = tmp_path / "run"
        settings = {
            "training__max_steps": 5, "training__checkpoint_steps": 1,
            "training__early_stopping": 2, "training__keep_checkpoints": 2,
        }  # fmt: skip
        validate_as(monkeypatch, [3.0, 2.0, 2.5, 2.2])
        trained = train(data, run, **settings)
        assert (trained.step, trained.finished, trained.interrupted) == (4, True, False)
        summary = trained.summary(run)
        assert tells(summary, "stopped early", "step 4", "val_loss", "2 validations", "step 2")
        assert "training.early_stopping" in summary
        assert steps(run) == [2, 3, 4]  # includes the best

        again = train(data, run, **settings)  # does not validate: no losses are left
        assert (again.step, again.finished) == (4, True)
        assert again.stopped_early == trained.stopped_early

        validate_as(monkeypatch, [1.9])
        more = train(data, run, **{**settings, "training__early_stopping": 3})
        assert (more.step, more.finished, more.stopped_early) == (5, True, "")
        assert more.metrics["best_step"] == 5


class TestInitFrom:
    def begin(self, data, run, init_from, **changes):
        # The sizes of the model and the search are those of the other run.
        settings = {name: SETTINGS[name] for name in SETTINGS if name.startswith("training.")}
        settings |= {"training.max_steps": 1, "training.learning_rate": 1e-9, **changes}
        training_run.train(data, run, None, settings, TrainOptions(init_from=str(init_from)))
        return run

    def assert_close(self, run, weights):
        restored = last(run)
        assert restored.ema is not None
        for path, array in weights.items():
            np.testing.assert_allclose(restored.weights[path], array, atol=1e-7, err_msg=path)
            np.testing.assert_allclose(restored.ema[path], array, atol=1e-7, err_msg=path)

    def test_copies_the_selected_weights(self, data, tmp_path, finished):
        run = self.begin(data, tmp_path / "run", finished)
        assert RunDirectory(finished).selected == "ema"
        self.assert_close(run, RunDirectory(finished).selected_weights())
        assert RunDirectory(run).init_from == str(finished)
        search = RunDirectory(run).config.decoding
        assert search == RunDirectory(finished).config.decoding != DecodingConfig()
        # A run that has a checkpoint resumes from it, and ignores `init_from`.
        continued = train(data, run, training__max_steps=2, training__learning_rate=1e-9)
        assert continued.step == 2
        with pytest.raises(InputError, match=mentions("run", "elsewhere")):
            self.begin(data, run, "elsewhere")

    def test_a_run_killed_before_its_first_checkpoint_starts_again(self, data, tmp_path, finished):
        run = self.begin(data, tmp_path / "run", f"{finished}@step-00000003")
        first = RunDirectory(finished).checkpoints()[0]
        self.assert_close(run, RunDirectory(finished).read_weights(first))
        shutil.rmtree(RunDirectory(run).checkpoints()[0].path)
        training_run.train(data, run)
        self.assert_close(run, RunDirectory(finished).read_weights(first))

    @pytest.mark.parametrize("separate", [pytest.param(False, marks=pytest.mark.long), True])
    def test_a_vocabulary_with_new_symbols_keeps_the_old_rows(self, tmp_path, separate):
        old = prepared(tmp_path / "old", separate_vocabularies=separate)
        train(old, tmp_path / "run", training__max_steps=3)
        new = tmp_path / "new"
        corpus = parallel_files([tmp_path / "old" / "c.en"], [tmp_path / "old" / "c.de"])
        options = PrepareOptions(symbols=("<2fr>",), source_tag="<2fr>", valid_pairs=4)
        prepare(corpus, new, options, vocab_from=tmp_path / "run" / "tokenizer")
        if separate:
            assert RunDirectory(tmp_path / "run").config.model.tie_embeddings == "target"
        before = RunDirectory(tmp_path / "run").selected_weights()
        run = self.begin(new, tmp_path / "more", tmp_path / "run")
        after, grown = last(run).weights, 0
        for path, array in before.items():
            kept = after[path][tuple(slice(size) for size in array.shape)]
            np.testing.assert_allclose(kept, array, atol=1e-7, err_msg=path)
            if after[path].shape != array.shape:
                grown += 1
                axis = 0 if after[path].shape[0] > array.shape[0] else -1
                row = np.take(after[path], -1, axis)
                np.testing.assert_allclose(row, array.mean(axis), atol=1e-6, err_msg=path)
        assert grown
        fast = {"training.max_steps": 3, "training.learning_rate": 0.1}
        trained = last(self.begin(new, tmp_path / "trained", tmp_path / "run", **fast)).weights
        moved = [p for p in before if not np.allclose(trained[p], after[p], atol=1e-5)]
        assert any("embedding" in path for path in moved), "the new tag is trained"

    def test_the_output_bias_of_new_tokens_ignores_excluded_tokens(self):
        bias = np.float32([EXCLUDED_TOKEN_BIAS, 1.0, 3.0])
        grown = start.with_rows_for_new_tokens(bias, (5,), {(3, 5)})
        np.testing.assert_array_equal(grown, [EXCLUDED_TOKEN_BIAS, 1.0, 3.0, 2.0, 2.0])

    def test_invalid_input_leaves_no_run_behind(self, data, tmp_path, finished):
        other = prepared(tmp_path / "corpus", plural="zz")
        for directory, init_from, changes, message in (
            (data, tmp_path / "none", {}, mentions("none", "keras-transformer train")),
            (data, tmp_path / "none@last", {}, mentions("none", "keras-transformer train")),
            (data, f"{finished}@mean", {}, mentions("weights", "mean", "last")),
            (data, finished, {"model.d_ff": 64}, mentions(finished, "model")),
            (other, finished, {}, mentions("vocabulary") + "(?=.*--vocab_from=.*/run/tokenizer)"),
        ):  # fmt: skip
            with pytest.raises(InputError, match=message):
                self.begin(directory, tmp_path / "run", init_from, **changes)
            assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def other(data, tmp_path_factory):
    """A small corpus with the same vocabulary, in a folder named `other`."""
    pairs = [
        (f"the dog likes the bird {i % 3}", f"der Hund mag den Vogel {i % 3}") for i in range(30)
    ]
    folder = tmp_path_factory.mktemp("mixing") / "other"
    return prepared_pairs(folder, pairs, vocab_from=data, valid_pairs=3)


class TestMixing:
    def test_a_resumed_run_equals_an_uninterrupted_run_bit_for_bit(
        self, data, other, tmp_path, caplog
    ):
        def go(run, max_steps):
            settings = {**SETTINGS, "training.max_steps": max_steps, "training.subword_alpha": 0.3}
            training_run.train(
                [data, other], tmp_path / run, None, settings, TrainOptions(mix="other:1,data:2")
            )
            return last(tmp_path / run)

        caplog.set_level("INFO")
        whole = go("whole", 4)
        go("resumed", 2)
        assert_equal(go("resumed", 4).weights, whole.weights)
        for number, directory in (("", data), ("_2", other)):
            report = (tmp_path / f"whole/data_report{number}.json").read_bytes()
            assert report == (directory / "report.json").read_bytes()
        assert tells(caplog.text, "filler rows")

    def test_each_mixture_has_a_different_fingerprint(self, data, other):
        both = [data, other]
        fingerprints = {
            TrainingData.open(directories, mix, temperature).fingerprint
            for directories, mix, temperature in (
                (both, None, None),
                (both, "data:1,other:9", None),
                (both, None, 5.0),
                ([other, data], None, None),
                (data, None, None),
            )
        }
        assert len(fingerprints) == 5

    def test_names_of_corpora_come_from_the_paths_that_the_user_gave(
        self, data, other, tmp_path, monkeypatch
    ):
        (tmp_path / "latest").symlink_to(other)
        monkeypatch.chdir(data)
        for directory, name in ((tmp_path / "latest", "latest"), (data / ".." / "data", "data")):
            opened = TrainingData.open([other, directory], f"other:1,{name}:2")
            assert opened.weights == [1, 2]
        assert TrainingData.open([other, Path()], "other:1,data:2").weights == [1, 2]

    def test_validation_uses_all_validation_sets(self, data, other):
        _, valid = TrainingData.open([data, other]).batches(Config().training)
        rows = [valid.batch(step)[1] for step in range(valid.steps_per_epoch)]
        assert sum(int((labels[:, 0] != 0).sum()) for labels in rows) == 4 + 3

    def test_invalid_mixtures_raise_errors(self, data, other, tmp_path):
        foreign = prepared(tmp_path / "corpus", plural="zz")
        for directories, options, message in (
            ([data, foreign], {}, mentions("vocabulary", "--vocab_from=")),
            ([data, other], {"mix": "data:1"}, mentions("weight", "data", "other")),
            ([data, other], {"mix": "data:1,other:1", "mix_temperature": 2.0}, "given twice"),
        ):
            with pytest.raises(InputError, match=message):
                training_run.train(
                    directories, tmp_path / "run", None, SETTINGS, TrainOptions(**options)
                )
            assert not (tmp_path / "run").exists()


class TestErrors:
    @pytest.mark.parametrize(
        "changes, message",
        [
            ({"training__auxiliary_loss_weight": 0.3}, mentions("auxiliary_loss_weight", "0.3")),
            ({"training__sed": 2}, mentions("training.sed", "fields")),
            ({"training__batch_tokens": 3}, mentions("batch_tokens", "3", "longest target")),
            ({"data": "nowhere"}, mentions("nowhere")),
        ],
    )
    def test_invalid_settings_leave_no_run_behind(self, data, tmp_path, changes, message):
        with pytest.raises(InputError, match=message):
            train(**{"data": data, "run": tmp_path / "run", **changes})
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("changed, into", [("train", "valid"), ("valid", "train")])
    def test_other_data_with_the_same_vocabulary(self, copy, data, tmp_path, changed, into):
        other = Path(shutil.copytree(data, tmp_path / "other"))
        shutil.rmtree(other / changed)
        shutil.copytree(other / into, other / changed)
        with pytest.raises(InputError, match=mentions("trained", "corpus")):
            train(other, copy)

    def test_a_run_in_use_by_another_training_process(self, copy, data):
        before = steps(copy)
        in_use = mentions("another", "process", copy)
        with exclusive_lock(copy), pytest.raises(InputError, match=in_use):
            train(data, copy, training__max_steps=9)
        assert steps(copy) == before

    @pytest.mark.parametrize(
        ("error", "expected"),
        [
            (
                tf.errors.ResourceExhaustedError,
                ("OOM when allocating", "training.num_microbatches"),
            ),
            (tf.errors.ResourceExhaustedError, ("/tmp/x; No space left on device", "disk is full")),
            (tf.errors.InternalError, ("Read less bytes", "programs", "Delete this folder")),
        ],
    )
    def test_problems_of_memory_and_of_disks(self, copy, data, monkeypatch, error, expected):
        def fit(*_, **__):
            raise error(None, None, expected[0])

        monkeypatch.setattr(Trainer, "fit", fit)
        monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_persistent_cache_directory=programs")
        with pytest.raises(InputError, match=mentions(*expected)):
            train(data, copy, training__max_steps=9)

    def test_gradients_that_are_not_finite(self, copy, data, monkeypatch):
        monkeypatch.setattr(progress, "MAX_SKIPPED_STEPS", 4)
        restored = last(copy)
        broken = {path: np.full_like(array, np.nan) for path, array in restored.weights.items()}
        RunDirectory(copy).save_checkpoint(6, broken, restored.state, restored.metrics, broken)
        facts = ("4 steps", "step 7", "10", "/checkpoints/step-00000006", "--init_from")
        with pytest.raises(InputError, match=mentions(*facts, "training.learning_rate")):
            train(data, copy, training__max_steps=20)
        assert steps(copy) == [3, 6]  # not 9, where the loss is not finite
        assert (copy / "report.html").is_file()

    def test_state_of_another_precision(self, copy, data):
        restored = last(copy)
        state = {**restored.state, "loss_scale": np.float32(8)}
        RunDirectory(copy).save_checkpoint(7, restored.weights, state, {}, restored.ema)
        with pytest.raises(InputError, match=mentions("precision", "written")):
            train(data, copy)


def test_a_bleu_of_zero_cannot_select_the_best_checkpoint(tmp_path):
    pairs = [(f"animal {i}", f"Tier {i}") for i in range(40)]
    data = prepared_pairs(tmp_path / "data", pairs, vocab_size=40, valid_pairs=4)
    bleu = {"training__bleu_steps": 3, "training__best_metric": "bleu"}
    with pytest.raises(InputError, match=mentions("best_metric", "0.0", "best_metric=loss")):
        train(data, tmp_path / "run", **bleu)
