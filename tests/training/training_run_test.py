"""Trains runs from prepared data: resuming gives the same bits, invalid input an error."""

import dataclasses
import functools
import itertools
import json
import shutil
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.config import Config, DecodingConfig, TrainingConfig
from keras_transformer.data.corpus import parallel_files
from keras_transformer.data.prepare import PrepareOptions, prepare
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics
from keras_transformer.inference import loading, translate
from keras_transformer.models.transformer import EXCLUDED_TOKEN_BIAS
from keras_transformer.presets import preset
from keras_transformer.runs.atomic import exclusive_lock
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.vocabulary import Vocabulary
from keras_transformer.training import start, training_run
from keras_transformer.training.data import TrainingData
from keras_transformer.training.multi_worker import Cluster
from keras_transformer.training.trainer import Trainer
from keras_transformer.training.training_run import TrainOptions
from tests.builders import eagerly, refuses, weekly
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
    "training.subword_alpha": 0.3,
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
    prepare(corpora, folder, PrepareOptions(augment={}, **options), vocab_from=vocab_from)
    return folder


def prepared(folder, plural="", **options):
    """Prepares 48 generated pairs, 4 of them for validation."""
    pairs = [
        (f"the {a} {v} the {b}{plural}", f"der {x} {w} den {y}")
        for (a, x), (v, w), (b, y) in itertools.product(ANIMALS, VERBS, ANIMALS)
    ]
    return prepared_pairs(folder / "data", pairs, vocab_size=50, valid_pairs=4, **options)


@pytest.fixture
def few_steps():
    """Training runs eagerly, because tracing takes longer."""
    with eagerly():
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return prepared(tmp_path_factory.mktemp("experiment") / "corpus")


@pytest.fixture(scope="module")
def other(data, tmp_path_factory):
    """A small corpus with the same vocabulary, in a folder named `other`."""
    pairs = [
        (f"the dog likes the bird {i % 3}", f"der Hund mag den Vogel {i % 3}") for i in range(30)
    ]
    folder = tmp_path_factory.mktemp("mixing") / "other"
    return prepared_pairs(folder, pairs, vocab_from=data, valid_pairs=3)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """A corpus with another vocabulary."""
    return prepared(tmp_path_factory.mktemp("foreign") / "corpus", plural="zz")


def train(data, run, *, options=None, **changes):
    settings = {**SETTINGS, **{name.replace("__", "."): v for name, v in changes.items()}}
    return training_run.train(data, run, None, settings, options)


MIX = TrainOptions(mix="other:1,data:2")


@pytest.fixture(scope="module")
def finished(one_replica, data, other, tmp_path_factory):
    """A run of 6 steps on two corpora, without an interruption."""
    run = tmp_path_factory.mktemp("experiment") / "run"
    result = train([data, other], run, options=MIX)
    assert (result.step, result.finished, result.interrupted) == (6, True, False)
    assert result.metrics["val_loss"] > 0 and result.tokens_per_second > 0
    assert tells(result.summary(run), "finished", "step 6") and str(run) in result.summary(run)
    return run


@pytest.fixture
def copy(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


@pytest.fixture
def go_on(copy, data, other):
    """Resumes a copy of the run."""
    return functools.partial(train, [data, other], copy, options=MIX)


def last(run):
    """The arrays of the last checkpoint."""
    _, _, arrays = RunDirectory(run).restore()
    return arrays


def steps(run):
    return [checkpoint.step for checkpoint in RunDirectory(run).checkpoints()]


def logged(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_contains_everything_to_resume(finished, data, other):
    run = RunDirectory(finished)
    assert steps(finished) == [3, 6]
    assert run.config.model.source_vocab_size == run.tokenizer().source_vocab_size
    assert [line["step"] for line in logged(finished) if "loss" in line] == [2, 3, 4, 6]
    assert [line["step"] for line in logged(finished) if "val_loss" in line] == [3, 6]
    assert list((finished / "tensorboard").glob("events.*"))
    assert (finished / "report.html").read_text().startswith("<!DOCTYPE html>")
    for number, directory in (("", data), ("_2", other)):
        report = (finished / f"data_report{number}.json").read_bytes()
        assert report == (directory / "report.json").read_bytes()
    weights = last(finished)["weights"]
    assert sum(array.size for array in weights.values()) == run.config.model.num_parameters()


def test_a_resumed_run_equals_an_uninterrupted_run_bit_for_bit(finished, data, other, tmp_path):
    run = tmp_path / "run"
    assert train([data, other], run, options=MIX, training__max_steps=3).step == 3
    resumed = train([data, other], run, options=MIX)
    assert (resumed.step, resumed.finished) == (6, True)
    for kind in ("weights", "state", "ema"):
        assert_equal(last(run)[kind], last(finished)[kind])
    first = RunDirectory(run).read_weights(RunDirectory(run).checkpoints()[0])
    assert any((first[path] != array).any() for path, array in last(run)["weights"].items())


@pytest.mark.long
@pytest.mark.usefixtures("few_steps")
def test_a_resumed_run_of_recurrent_units_has_the_same_bits(data, tmp_path):
    settings = {"model__decoder_self_attention": "ssru", "training__checkpoint_steps": 1}
    train(data, tmp_path / "whole", training__max_steps=2, **settings)
    for step in (1, 2):
        train(data, tmp_path / "resumed", training__max_steps=step, **settings)
    for kind, arrays in last(tmp_path / "whole").items():
        assert_equal(last(tmp_path / "resumed")[kind], arrays)


def test_a_start_checks_the_configuration_once(data, tmp_path, monkeypatch):
    preset("base")  # has been checked from here on
    monkeypatch.setattr(training_run, "fit", lambda *_: {})
    checks = mock.Mock(side_effect=TrainingConfig.__post_init__)
    monkeypatch.setattr(TrainingConfig, "__post_init__", lambda config: checks(config))
    opened = mock.Mock(side_effect=RunDirectory.__init__)
    monkeypatch.setattr(RunDirectory, "__init__", lambda *arguments: opened(*arguments))
    kt.train(data, tmp_path / "run", **SETTINGS)
    assert (checks.call_count, opened.call_count) == (1, 0)
    kt.train(data, tmp_path / "run", **SETTINGS)  # reads config.json, too
    assert (checks.call_count, opened.call_count) == (1 + 2, 1)


def test_a_finished_run_is_unchanged(copy, go_on):
    before = {path: path.read_bytes() for path in copy.rglob("*.npz")}
    again = go_on()
    assert (again.step, again.finished) == (6, True)
    assert again.metrics["val_loss"] == RunDirectory(copy).restore()[1]["val_loss"]
    assert {path: path.read_bytes() for path in copy.rglob("*.npz")} == before


@pytest.mark.usefixtures("few_steps")
def test_max_minutes_stops_a_run(copy, go_on):
    options = MIX._replace(max_minutes=1e-9)
    result = go_on(options=options, training__max_steps=11)
    assert (result.step, result.finished, result.interrupted) == (7, False, False)
    assert tells(result.summary(copy), "same command", "step 7")
    assert steps(copy) == [3, 6, 7]


@pytest.mark.usefixtures("few_steps")
def test_bleu_scores_the_weights_that_are_exported(data, tmp_path, monkeypatch, capsys, caplog):
    translated = []
    score_model, translate_lines = translate.evaluate, translate.translate_lines

    def remember(*arguments):
        translated.append(translate_lines(*arguments))
        return translated[-1]

    def score(*arguments, **options):
        evaluation = score_model(*arguments, **options)  # has a BLEU of 0 for this model
        return evaluation._replace(scores=dataclasses.replace(evaluation.scores, bleu=12.5))

    monkeypatch.setattr(translate, "translate_lines", remember)
    monkeypatch.setattr(translate, "evaluate", score)
    monkeypatch.setattr(Vocabulary, "normalized_target", lambda _, texts: [*texts[:2], "½"])
    monkeypatch.setattr(metrics, "_tokenizer_remark", lambda _: "BLEU compares characters")
    run = tmp_path / "run"
    result = train(
        data, run, training__bleu_steps=4, training__bleu_sentences=3,
        decoding__beam_size=2, decoding__max_extra_tokens=1,
    )  # fmt: skip
    [scored] = translated  # at step 6, where the interval that contains step 4 ends
    sources = TokenStore(data / "valid").source.text()[:3]
    assert RunDirectory(run).selected == "ema"
    model = loading.load_model(run)
    assert translate_lines(model, sources) == scored
    model.module.transformer.assign_weights(RunDirectory(run).named_weights("last"))
    assert translate_lines(model, sources) != scored
    assert result.metrics["val_bleu"] == 12.5
    first, second = (RunDirectory(run).read_metrics(c) for c in RunDirectory(run).checkpoints())
    assert "val_bleu" not in first and second["val_bleu"] == 12.5
    assert [line["step"] for line in logged(run) if "val_bleu" in line] == [6]
    shown = capsys.readouterr().err
    assert shown.count("|version:") == 1 and "3 sentences, beam 2, nrefs:1" in shown
    # TensorFlow may warn, too.
    warnings = [entry.message for entry in caplog.records if entry.levelname == "WARNING"]
    assert any("changes 1 of 3 references" in warning for warning in warnings)
    assert warnings.count("BLEU compares characters") == 1


@pytest.mark.usefixtures("few_steps")
def test_early_stopping_marks_a_run_as_finished(data, tmp_path, monkeypatch):
    left = iter([3.0, 2.0, 2.5, 2.2])

    def evaluate(*_, **__):
        return {"loss": next(left), "perplexity": 2.0, "accuracy": 0.5}

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    run = tmp_path / "run"
    settings = {
        "training__max_steps": 5, "training__checkpoint_steps": 1,
        "training__early_stopping": 2, "training__keep_checkpoints": 2,
    }  # fmt: skip
    result = train(data, run, **settings)
    assert (result.step, result.finished, result.interrupted) == (4, True, False)
    summary = result.summary(run)
    assert tells(summary, "stopped early", "step 4", "val_loss", "2 validations", "step 2")
    assert "training.early_stopping" in summary
    assert steps(run) == [2, 3, 4]  # includes the best
    again = train(data, run, **settings)  # does not validate: no losses are left
    assert (again.step, again.finished) == (4, True)
    assert again.stopped_early == result.stopped_early


@pytest.mark.usefixtures("few_steps")
class TestInitFrom:
    def begin(self, data, run, init_from, **changes):
        # The sizes of the model and the search are those of the other run.
        settings = {name: SETTINGS[name] for name in SETTINGS if name.startswith("training.")}
        settings |= {"training.max_steps": 1, "training.learning_rate": 1e-9, **changes}
        training_run.train(data, run, None, settings, TrainOptions(init_from=str(init_from)))
        return run

    def assert_close(self, run, weights):
        arrays = last(run)
        for path, array in weights.items():
            for found in (arrays["weights"], arrays["ema"]):
                np.testing.assert_allclose(found[path], array, atol=1e-7, err_msg=path)

    def test_copies_the_selected_weights_also_after_an_early_kill(self, data, tmp_path, finished):
        run, selected = tmp_path / "run", RunDirectory(finished).named_weights()
        self.assert_close(self.begin(data, run, finished), selected)
        assert RunDirectory(finished).selected == "ema"
        assert RunDirectory(run).init_from == str(finished)
        search = RunDirectory(run).config.decoding
        assert search == RunDirectory(finished).config.decoding != DecodingConfig()
        refuses(self.begin, (data, run, "elsewhere"), "run", "elsewhere")
        # A run that was killed before its first checkpoint starts again from the same weights.
        shutil.rmtree(RunDirectory(run).checkpoints()[0].path)
        training_run.train(data, run)
        self.assert_close(run, selected)

    @pytest.mark.parametrize("separate", [False, weekly(True)])
    def test_a_vocabulary_with_new_symbols_keeps_the_old_rows(
        self, tmp_path, data, finished, separate
    ):
        old, run = data, finished
        if separate:
            old, run = prepared(tmp_path / "old", separate_vocabularies=True), tmp_path / "run"
            train(old, run, training__max_steps=1)
        corpus = parallel_files([old.with_name("c.en")], [old.with_name("c.de")])
        options = PrepareOptions(symbols=("<2fr>",), source_tag="<2fr>", valid_pairs=4)
        prepare(corpus, tmp_path / "new", options, vocab_from=run / "tokenizer")
        before = RunDirectory(run).named_weights()
        after = last(self.begin(tmp_path / "new", tmp_path / "more", run))["weights"]
        grown = 0
        for path, array in before.items():
            kept = after[path][tuple(slice(size) for size in array.shape)]
            np.testing.assert_allclose(kept, array, atol=1e-7, err_msg=path)
            if after[path].shape != array.shape:
                grown += 1
                axis = 0 if after[path].shape[0] > array.shape[0] else -1
                row = np.take(after[path], -1, axis)
                np.testing.assert_allclose(row, array.mean(axis), atol=1e-6, err_msg=path)
        assert grown

    def test_the_output_bias_of_new_tokens_ignores_excluded_tokens(self):
        bias = np.float32([EXCLUDED_TOKEN_BIAS, 1.0, 3.0])
        grown = start.with_rows_for_new_tokens(bias, (5,), {(3, 5)})
        np.testing.assert_array_equal(grown, [EXCLUDED_TOKEN_BIAS, 1.0, 3.0, 2.0, 2.0])

    def test_invalid_input_leaves_no_run_behind(self, data, foreign, tmp_path, finished):
        for directory, init_from, changes, message in (
            (data, tmp_path / "none@last", {}, mentions("none", "keras-transformer train")),
            (data, f"{finished}@mean", {}, mentions("weights", "mean", "last")),
            (data, finished, {"model.d_ff": 64}, mentions(finished, "model")),
            (foreign, finished, {}, mentions("vocabulary") + "(?=.* vocab_from=.*/run/tokenizer)"),
        ):  # fmt: skip
            with pytest.raises(InputError, match=message):
                self.begin(directory, tmp_path / "run", init_from, **changes)
            assert not (tmp_path / "run").exists()


class TestMixing:
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
        for directory, name in ((tmp_path / "latest", "latest"), (Path(), "data")):
            assert TrainingData.open([other, directory], f"other:1,{name}:2").weights == [1, 2]

    def test_validation_uses_all_validation_sets(self, data, other):
        _, valid = TrainingData.open([data, other]).batches(Config().training)
        rows = [valid.batch(step)[1] for step in range(valid.steps_per_epoch)]
        assert sum(int((labels[:, 0] != 0).sum()) for labels in rows) == 4 + 3

    def test_invalid_mixtures_raise_errors(self, data, other, foreign):
        for directories, arguments, facts in (
            ([data, foreign], (), ("vocabulary", "vocab_from=")),
            ([data, other], ("data:1",), ("weight", "data", "other")),
            ([data, other], ("data:1,other:1", 2.0), ("given twice",)),
        ):
            refuses(TrainingData.open, (directories, *arguments), *facts)


class TestErrors:
    @pytest.mark.parametrize(
        "changes, facts",
        [
            ({"training__sed": 2}, ("training.sed", "training.seed")),
            ({"training__batch_tokens": 3}, ("batch_tokens", "3", "longest target")),
            ({"data": "nowhere"}, ("nowhere",)),
        ],
    )
    def test_invalid_settings_leave_no_run_behind(self, data, tmp_path, changes, facts):
        refuses(train, {"data": data, "run": tmp_path / "run", **changes}, *facts)
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize(
        "file, part",
        [("train/*/source_ids.npy", b"\3"), ("valid/*/target.txt", b"d"), ("*/*.model", b"nfkc_")],
    )
    def test_a_flipped_bit_in_the_data(self, data, tmp_path, file, part):
        damaged = shutil.copytree(data, tmp_path / "damaged")
        [path] = damaged.glob(file)
        content = bytearray(path.read_bytes())
        content[content.rindex(part)] ^= 1
        path.write_bytes(content)
        refuses(train, (damaged, tmp_path / "run"), damaged, "is damaged")
        assert not (tmp_path / "run").exists()

    def test_other_data_with_the_same_vocabulary(self, copy, data):
        refuses(train, (data, copy), "trained", "corpus")

    def test_a_run_in_use_by_another_training_process(self, copy, go_on):
        in_use = mentions("another", "process", copy)
        with exclusive_lock(copy), pytest.raises(InputError, match=in_use):
            go_on(training__max_steps=9)
        assert steps(copy) == [3, 6]

    @pytest.mark.parametrize(
        "message, fact",
        [
            ("OOM when allocating", "training.num_microbatches"),
            ("/tmp/x; No space left on device", "disk is full"),
        ],
    )
    def test_problems_of_memory_and_of_disks(self, copy, go_on, monkeypatch, message, fact):
        def fit(*_, **__):
            raise tf.errors.ResourceExhaustedError(None, None, message)

        monkeypatch.setattr(Trainer, "fit", fit)
        (copy / "report.html").unlink()
        refuses(go_on, {"training__max_steps": 9}, fact)
        assert (copy / "report.html").exists()

    def test_workers_with_other_data_or_settings(self, data, tmp_path, monkeypatch):
        compared = {}

        def compare(cluster, values):
            compared.update(values)
            raise InputError("different")

        monkeypatch.setattr(Cluster, "check_equal_on_all_workers", compare)
        with pytest.raises(InputError, match="different"):
            train(data, tmp_path / "run", training__seed=3)
        names = {"training data", "validation data", "vocabulary", "mixture", "init_from"}
        assert names < compared.keys() and compared["training.seed"] == 3

    def test_state_of_another_precision(self, copy, go_on):
        arrays = last(copy)
        state = {**arrays["state"], "loss_scale": np.float32(8)}
        RunDirectory(copy).save_checkpoint(7, arrays["weights"], state, {}, arrays.get("ema"))
        refuses(go_on, (), "precision", "written")
