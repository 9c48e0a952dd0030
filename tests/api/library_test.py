"""The Python library as a user calls it: prepare, train, load, translate, save and export."""

import copy
import pickle
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_transformer as kt
from keras_transformer.api.training import _corpora
from keras_transformer.data.corpus import TsvFile
from keras_transformer.inference.engine import KerasEngine
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.training import training_run
from keras_transformer.training.training_run import TrainingResult
from tests.builders import PAIRS, old_vocabulary, refuses, tiny_data, tiny_run
from tests.messages import mentions, tells

pytestmark = pytest.mark.usefixtures("one_replica")  # which halves the time to trace
TRAINING = {
    "d_model": 16, "d_ff": 32, "num_heads": 2, "num_encoder_layers": 1, "num_decoder_layers": 2,
    "checkpoint_steps": 2, "batch_tokens": 128,
}  # fmt: skip


@pytest.fixture(scope="module")
def data() -> kt.PreparedData:
    return kt.PreparedData.open(tiny_data())


@pytest.fixture(scope="module")
def run() -> kt.Run:
    return kt.Run(tiny_run(), data=tiny_data())


@pytest.fixture(scope="module")
def translator(run: kt.Run) -> kt.Translator:
    return kt.load(run)


def test_prepare_reads_files_and_corpora(data: kt.PreparedData, tmp_path: Path) -> None:
    for side, name in enumerate(("a.en", "a.de")):
        (tmp_path / name).write_text("".join(f"{pair[side]}\n" for pair in PAIRS))
    tsv = tmp_path / "a.tsv"
    tsv.write_text("".join("\t".join(pair) + "\n" for pair in PAIRS))
    sources: tuple[dict[str, Any], ...] = (
        {"source": tmp_path / "a.en", "target": str(tmp_path / "a.de")},
        {"pairs": [TsvFile(tsv)]},
    )
    for number, source in enumerate(sources):
        prepared = kt.prepare(
            **source, output_dir=tmp_path / str(number), vocab_from=data, num_workers=1
        )
        assert prepared.report["cleaning"]["train"]["read"] == len(PAIRS)
        assert prepared.tokenizer.fingerprint == data.tokenizer.fingerprint
        assert (prepared.directory / "report.html").exists()


def test_pairs_may_be_of_other_types() -> None:
    dicts = [{"en": "a", "de": "b"}, {"de": "d", "en": "c"}]
    dataset = tf.data.Dataset.from_tensor_slices((["a", "c"], ["b", "d"]))
    for pairs in (dicts, np.array([["a", "b"], ["c", "d"]]), dataset):
        (corpus,) = _corpora(None, None, pairs, "pairs")
        assert [tuple(pair) for pair in corpus.pairs()] == [(b"a", b"b"), (b"c", b"d")]


def test_data_frames_are_pairs_but_not_texts(translator: kt.Translator) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"en": ["a", "c"], "de": ["b", "d"]})
    (corpus,) = _corpora(None, None, frame, "pairs")
    assert [*corpus.pairs()] == [(b"a", b"b"), (b"c", b"d")]
    assert type(corpus).__name__ == "PairsInMemory"  # the kind in report.json
    refuses(translator, (frame,), "DataFrame", "one column")
    assert translator(frame["en"]) == translator(["a", "c"])


def test_data_that_is_not_there(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        refuses(kt.PreparedData.open, {"directory": folder}, folder, "prepared data")


def rows(dataset: Any) -> Iterator[bytes]:
    for inputs, labels in dataset:
        for source, target in zip(inputs["source_ids"].numpy(), labels.numpy(), strict=True):
            if source.any():
                yield bytes(np.trim_zeros(source)) + b"|" + bytes(np.trim_zeros(target))


def test_datasets_have_every_pair_once_in_a_new_order(data: kt.PreparedData) -> None:
    train, valid = data.train_dataset(batch_tokens=64), data.valid_dataset(batch_tokens=64)
    first, second = list(rows(train)), list(rows(train))
    assert sorted(first) == sorted(second) and len(first) == len(PAIRS)
    assert first != second
    assert list(rows(valid)) == list(rows(valid))
    assert len(list(rows(valid))) == 4
    assert int(train.cardinality()) == len(list(train))


def test_train_resumes_and_reports_its_result(
    run: kt.Run, data: kt.PreparedData, tmp_path: Path
) -> None:
    again = kt.train(data, shutil.copytree(run.path, tmp_path / "run"))
    assert again.result is not None and again.result.step == 4 and again.result.finished
    assert again.config == run.config
    assert "finished at step 4" in repr(again) and str(data.directory) in repr(data)


def test_an_interrupted_training_ends_the_script(
    data: kt.PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = TrainingResult(2, False, True, "", "last", "float32", {})
    monkeypatch.setattr(training_run, "train", lambda *_, **__: result)
    with pytest.raises(KeyboardInterrupt, match="stopped .* at step 2; new"):
        kt.train(data, "new", "tiny")


def test_callbacks_see_a_training_that_starts_from_a_saved_model(
    run: kt.Run, data: kt.PreparedData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kt.load(run).save(tmp_path / "with,comma")
    seen: list[dict[str, float]] = []
    state = random.getstate()
    tuned = kt.train(
        data,
        tmp_path / "run",
        kt.preset("tiny"),
        max_steps=4,
        init_from=tmp_path / "with,comma",
        callbacks=[
            keras.callbacks.LambdaCallback(on_epoch_end=lambda _, logs: seen.append(logs)),
            keras.callbacks.ModelCheckpoint(tmp_path / "model.keras"),
        ],
        **TRAINING,
    )
    assert random.getstate() == state  # the generator of the user
    shown = capsys.readouterr().err
    assert all(tells(shown, start) for start in ("devices:", "parameters:", "step 1 of 4: loss"))
    assert len(seen) == 2 and all("val_loss" in logs for logs in seen)
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    trained = kt.load(tuned).transformer
    np.testing.assert_equal(loaded.get_weights(), trained.get_weights())


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"max_step": 5}, ("max_step", "Did you mean max_steps?")),
        ({"data": b"data"}, ("data", "b'data'", "path")),
        ({"run_dir": None}, ("run_dir", "None", "path")),
        ({"init_from": 3}, ("init_from", 3, "path")),
        ({"epochs": 5}, ("epochs", "max_steps")),
        ({"batch_size": 5}, ("batch_size", "batch_tokens")),
        ({"colour": 5}, ("colour", "max_steps", "beam_size")),
        ({"preset": kt.ModelConfig()}, ("ModelConfig", "'tiny'", "d_model=256")),
        ({"callbacks": [keras.callbacks.ReduceLROnPlateau()]}, ("ReduceLROnPlateau", "schedule")),
        ({"callbacks": [keras.callbacks.EarlyStopping(restore_best_weights=True)]}, ("@best",)),
    ],
)
def test_unusable_arguments_of_train(
    settings: dict[str, Any], facts: tuple[str, ...], data: kt.PreparedData, tmp_path: Path
) -> None:
    refuses(kt.train, {"data": data, "run_dir": tmp_path / "run", **settings}, *facts)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"pairs": [("a",)]}, ("Pair 0", "('a',)", "two texts")),
        ({"pairs": [("a", "b"), ("\udce4", "c")]}, ("Pair 1", "valid Unicode")),
        ({"pairs": ["ab", "cd"]}, ("Pair 0", "'ab'")),
        ({"pairs": [(b"\xff", b"a")]}, ("Pair 0", "valid Unicode")),
        ({"pairs": [{"en": "a", "de": "b"}, {"de": "c"}]}, ("Pair 1", "None")),
        ({"pairs": []}, ("pairs is empty",)),
        ({"pairs": PAIRS, "vocab_sise": 60}, ("vocab_sise", "vocab_size")),
        ({"pairs": PAIRS, "vocab_size": "many"}, ("vocab_size", "many")),
        ({"pairs": PAIRS, "symbols": 5}, ("symbols", 5, "list")),
        ({"source": 3, "target": "a.de"}, ("file", 3, "path")),
        ({"pairs": PAIRS, "vocab_from": 3}, ("vocab_from", 3, "path")),
        ({"pairs": PAIRS, "output_dir": None}, ("output_dir", "None", "path")),
        ({}, ("Give a corpus",)),
        ({"pairs": PAIRS, "symbols": "<2de>"}, ("symbols", "['<2de>']")),
        ({"pairs": PAIRS, "valid_pairs": []}, ("valid_pairs is empty",)),
        ({"source": "a.en"}, ("1 source files", "0 target files")),
    ],
)
def test_unusable_arguments_of_prepare(
    arguments: dict[str, Any], facts: tuple[str, ...], tmp_path: Path
) -> None:
    refuses(kt.prepare, {"output_dir": tmp_path / "data", **arguments}, *facts)
    assert not (tmp_path / "data").exists()


def test_one_text_or_several(translator: kt.Translator) -> None:
    texts = [source for source, _ in PAIRS[:3]]
    found = translator(texts)
    assert found == [translator(text) for text in texts]
    assert translator([]) == [] and translator("") == ""
    assert all(isinstance(text, str) for text in found)
    assert translator(tf.constant(texts)) == found == translator(np.array(texts))
    assert (
        translator(texts[0], beam_size=1) == translator.translate(texts[:1], beam_size=1)[0][0].text
    )


def test_options_of_the_search_are_per_call(translator: kt.Translator) -> None:
    texts = [PAIRS[0][0], PAIRS[7][0]]
    for line in translator.translate(texts, beam_size=8, n_best=4):
        assert len(line) == 4
        scores = [translation.score for translation in line]
        assert scores == sorted(scores, reverse=True)
        assert all(translation.details is None for translation in line)
    plain, detailed, started = (
        translator.translate(texts[:1], beam_size=1, **options)[0]
        for options in ({}, {"return_details": True}, {"prefixes": ["das"]})
    )
    assert plain[0].text == detailed[0].text
    details = detailed[0].details
    assert details is not None and len(details["tokens"]) == len(details["token_log_probs"])
    assert details["source_tokens"][-1] == "</s>"
    assert started[0].text.startswith("das")


def test_runs_form_an_ensemble(run: kt.Run, translator: kt.Translator) -> None:
    ensemble = kt.load([run, f"{run}@last"], beam_size=1)
    assert ensemble(PAIRS[0][0]) == translator(PAIRS[0][0], beam_size=1)
    refuses(ensemble.save, ("never",), "ensemble", "one by one")


def test_a_translator_is_copied_by_loading_it_again(run: kt.Run) -> None:
    loaded = kt.load(run, beam_size=2)
    again = pickle.loads(pickle.dumps(loaded))
    assert repr(again) == repr(loaded) and again._module.config.beam_size == 2
    in_memory = kt.Translator(loaded.transformer, loaded.tokenizer)
    refuses(lambda: copy.deepcopy(in_memory), {}, "save", "load")
    assert copy.copy(in_memory).transformer is loaded.transformer


def test_a_model_of_keras_is_loaded_with_a_tokenizer(
    translator: kt.Translator, tmp_path: Path
) -> None:
    translator.transformer.save(tmp_path / "model.keras")
    refuses(kt.load, {"model": tmp_path / "model.keras"}, "tokenizer=")
    loaded = kt.load(tmp_path / "model.keras", tokenizer=translator.tokenizer, beam_size=2)
    assert loaded._module.config.beam_size == 2 and loaded.tokenizer is translator.tokenizer
    np.testing.assert_equal(loaded.transformer.get_weights(), translator.transformer.get_weights())


def test_weights_that_change_are_used(run: kt.Run, tmp_path: Path) -> None:
    translator = kt.load(shutil.copytree(run.path, tmp_path / "run"), beam_size=1)
    texts = [source for source, _ in PAIRS[:3]]
    before, score = translator(texts), translator.evaluate(texts, translator(texts)).scores.bleu
    for weight in translator.transformer.weights:
        weight.assign(tf.zeros_like(weight))
    assert translator(texts) != before
    assert translator.evaluate(texts, before).scores.bleu < score


def test_a_model_generates_ids_like_its_translator(
    translator: kt.Translator, tmp_path: Path
) -> None:
    translator.transformer.save(tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras")
    module = translator._with({"beam_size": 3, "n_best": 2}).module  # type: ignore[attr-defined]
    ids, *_ = module.source_ids(tf.constant([PAIRS[0][0], "", PAIRS[7][0]]))
    expected = module.translate_to_ids(tf.constant([PAIRS[0][0], "", PAIRS[7][0]]))
    # A model has no options of a run.
    limits = {"max_extra_tokens": 5, "max_source_tokens": 40}
    for given in (ids.numpy().tolist(), tf.cast(ids, tf.int64), np.pad(ids, ((0, 0), (0, 3)))):
        found = model.generate(given, beam_size=3, n_best=2, **limits)
        for name in ("ids", "scores", "lengths"):
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-5)
    sampled = [
        kt.generate(model, given, sample=True, max_length=4, seed=seed).ids.numpy()
        for given, seed in ((ids, 1), (np.pad(ids, ((0, 0), (0, 3))), 1), (ids, 2))
    ]
    np.testing.assert_array_equal(sampled[0], sampled[1])
    assert not np.array_equal(sampled[0], sampled[2])
    assert all(found.shape[2] <= 4 for found in sampled)
    assert vars(model)["_search_of"].cache_info().currsize == 3


def test_graphs_of_old_search_options_are_dropped(translator: kt.Translator) -> None:
    made = [translator._with({"max_extra_tokens": length}) for length in range(1, 8)]
    assert [*translator._variants.values()] == made[3:]


def test_a_text_that_is_too_long_is_reported(translator: kt.Translator) -> None:
    with pytest.warns(UserWarning, match=mentions("Text 1", "40", "max_source_tokens")):
        assert len(translator(["the dog", "dog " * 2000])) == 2


def test_a_number_that_an_old_vocabulary_changes_is_reported(
    translator: kt.Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translator._model, "vocabulary", old_vocabulary())
    with pytest.warns(UserWarning, match=mentions("Text 1", "10³", "103")):
        translator(["the dog", "10³"])


def test_a_model_in_memory_is_saved_and_exported(run: kt.Run, tmp_path: Path) -> None:
    loaded = kt.load(run)
    model = kt.Translator(loaded.transformer, loaded.tokenizer, {"beam_size": 1})
    model.save(tmp_path / "saved")
    saved = kt.load(tmp_path / "saved")
    assert saved._module.config == model._module.config
    assert saved.tokenizer.fingerprint == model.tokenizer.fingerprint
    np.testing.assert_equal(saved.transformer.get_weights(), loaded.transformer.get_weights())
    refuses(model.save, {"run_dir": tmp_path / "saved"}, tmp_path / "saved", "new directory")
    # It is compared with the model, on generated texts.
    assert model.export(tmp_path / "export", "ctranslate2").path == tmp_path / "export" / "1"


def test_an_export_has_fixed_options_and_no_keras_model(litert_version: Path) -> None:
    model = kt.load(litert_version)
    for use in (lambda: model.transformer, lambda: model.tokenizer, lambda: model.export("x")):
        refuses(use, {}, litert_version, "run directory")
    refuses(lambda: model.translate(["a"], beam_size=2), {}, "decoding.beam_size", "export")
    refuses(lambda: kt.load(litert_version, beam_size=2), {}, "decoding.beam_size", "export")


def learned_positions() -> kt.Transformer:
    return kt.Transformer.from_preset("tiny", 20, positions="learned", max_positions=2)


@pytest.mark.parametrize(
    ("use", "facts"),
    [
        (lambda t: t.translate("a dog"), ("list of texts", "'a dog'")),
        (lambda t: t([b"a"]), ("Text 0", "bytes")),
        (lambda t: t(b"a"), ("b'a'", "list of texts")),
        (lambda t: t(np.array("a")), ("one dimension", 0)),
        (lambda t: t(tf.constant([5])), ("Text 0", "int")),
        (lambda t: kt.load("a.keras", tokenizer=t.tokenizer), ("a.keras", "not exist")),
        (lambda t: kt.load("run", tokenizer=t.tokenizer), ("run", "tokenizer")),
        (lambda t: t({"text": ["a"]}), ("dict", "one column")),
        (lambda t: t(["a", "\ud83d"]), ("Text 1", "valid Unicode")),
        (lambda t: t.translate(["a"], max_length=[5]), ("max_length", "[5]")),
        (lambda t: t(5), ("5",)),
        (lambda t: t.translate(["a"], beams=4), ("beams", "beam_size")),
        (lambda t: t.translate(["a"], n_best=9), ("n_best", "9")),
        (lambda t: kt.Translator(t.transformer, "data"), ("tokenizer", "str")),
        (lambda t: t.translate(["a"] * 3, prefixes="das"), ("'das'", "list of texts")),
        (lambda t: kt.Translator("run", t.tokenizer), ("'run'", "load")),
        (lambda t: kt.Translator(t.transformer, t.tokenizer, {"beam": 2}), ("beam_size",)),
        (lambda t: kt.load([]), ("empty", "one run")),
        (lambda t: kt.load(["run", None]), ("model", "None", "path")),
        (lambda t: t.save(3), ("run_dir", "3", "path")),
        (lambda t: kt.PreparedData.open(None), ("directory", "None", "path")),
        (lambda t: kt.Tokenizer.load(None), ("directory", "None", "path")),
        (lambda t: kt.preset(["tiny"]), ("['tiny']", "preset")),
        (lambda t: t.transformer.generate([5, 3]), ("source_ids", "(2,)", "[batch, length]")),
        (lambda t: t.transformer.generate([[5, 3]], max_source_tokens=1), ("(1, 2)", 1)),
        (lambda t: learned_positions().generate([[5, 6, 3]]), ("(1, 3)", 2, "positions")),
        (lambda t: t.transformer.generate([[5, 3]], beams=2), ("beams", "beam_size")),
        (lambda t: t.transformer.generate([[5, 3]], banned="um"), ("banned", "Translator")),
        (lambda t: kt.generate(t, [[5, 3]]), ("Translator", "Transformer")),
        (lambda t: kt.load("missing"), ("missing",)),
        (lambda t: kt.load("https://me:x@host/m"), ("https://me:x@host/m", "address", "HOST")),
        (lambda t: kt.load("localhost:1", beam_size=2), ("localhost:1", "server")),
    ],
)
def test_unusable_models_texts_and_options(
    use: Any, facts: tuple[str, ...], translator: kt.Translator
) -> None:
    refuses(use, {"t": translator}, *facts)


def test_other_backends_get_a_clear_sentence(
    translator: kt.Translator, data: kt.PreparedData, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"model": translator.transformer, "tokenizer": translator.tokenizer}
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    for use, arguments in ((kt.Translator, model), (kt.train, {"data": data, "run_dir": "new"})):
        refuses(use, arguments, "Keras uses the backend jax, but")


def test_a_killed_save_leaves_no_run(
    run: kt.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = kt.load(run)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "save_checkpoint", stop)
        with pytest.raises(KeyboardInterrupt):
            loaded.save(tmp_path / "run")
    assert not list(tmp_path.iterdir())
    loaded.save(tmp_path / "run")
    (tmp_path / "file").write_text("")
    below = tmp_path / "file" / "run"
    refuses(loaded.save, (below,), "cannot be saved", below)


def test_a_compiled_search_stays_compiled_with_other_options(run: kt.Run) -> None:
    variant = kt.load(run, jit_compile=True)._with({"beam_size": 2})
    assert isinstance(variant, KerasEngine)
    assert "compiled_translation" in variant._translate.__qualname__
