"""A comparison from its data to its picture: what is trained, scored, kept, refused and drawn."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.data.corpora.corpus import parallel_files
from keras_transformer.data.preparation.prepare import PrepareOptions, prepare
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.evaluation.test_sets import EvaluationSet
from keras_transformer.inference import loading
from keras_transformer.models.encoder_decoder import get_architecture
from keras_transformer.paper import child_process
from keras_transformer.paper.baselines.flop import training_flop
from keras_transformer.paper.baselines.gru import GRURun
from keras_transformer.paper.baselines.long_sentences import length_tests, prepare_short
from keras_transformer.paper.baselines.material import Material
from keras_transformer.paper.baselines.plots import draw, perplexity_by_position
from keras_transformer.paper.baselines.studies import STUDIES, run_study, summary
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training import loop
from keras_transformer.training import training_run as experiment
from tests.messages import mentions, tells

PAIRS = [
    ("the dog sees the cow", "der Hund sieht den Stier"),
    ("the cow hears the dog", "der Stier hört den Hund"),
    ("a bird likes a fish", "ein Vogel mag einen Fisch"),
    ("the fish", "der Fisch"),
    ("a dog likes the bird", "ein Hund mag den Vogel"),
    ("the cow sees a fish", "der Stier sieht einen Fisch"),
    ("a fish hears a cow", "ein Fisch hört einen Stier"),
    ("the bird", "der Vogel"),
]
# A model that learns eight pairs in seconds.
TINY: dict[str, Any] = {
    "model.d_model": 16,
    "model.units": 24,
    "model.dropout": 0.0,
    "training.learning_rate": 0.02,
    "training.schedule": "constant",
    "training.warmup_steps": 5,
    "training.label_smoothing": 0.0,
    "training.max_steps": 60,
    "training.checkpoint_steps": 30,
    "training.bleu_steps": 30,
    "decoding.beam_size": 2,
}


@pytest.fixture(autouse=True, scope="module")
def in_this_process(one_replica: None) -> Iterator[None]:
    """Starts no other, which would load TensorFlow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child_process, "call", lambda function, *arguments: function(*arguments))
        yield


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    folder = tmp_path_factory.mktemp("studies")
    sides = [list(side) for side in zip(*PAIRS, strict=True)]
    for name, lines in zip(("c.en", "c.de"), sides, strict=True):
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    corpora = parallel_files([folder / "c.en"], [folder / "c.de"])
    options = PrepareOptions(vocab_size=50)
    data = prepare(corpora, folder / "data", options, valid_corpora=corpora).directory
    return Material(data, {"again": EvaluationSet([sides[1]], sides[0])})


@pytest.fixture(scope="module")
def trained(
    in_this_process: None, material: Material, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """A GRU that has learned its eight pairs, by way of the study, killed before a checkpoint."""
    work = tmp_path_factory.mktemp("work")

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "fit", killed)
        with pytest.raises(KeyboardInterrupt):
            run_study("models", material, work, only=["gru"], settings=TINY)
        patch.setattr(child_process, "call", lambda *_: pytest.fail("training began"))
        with pytest.raises(InputError, match=mentions("models", "training.seed", "5")):
            run_study("models", material, work, settings={**TINY, "training.seed": 5})
    assert RunDirectory(work / "gru" / "run", GRURun).checkpoints() == []
    return work, run_study("models", material, work, only=["gru"], settings=TINY)


def test_a_model_is_trained_validated_and_scored(
    trained: tuple[Path, dict[str, Any]], material: Material
) -> None:
    work, results = trained
    result = results["trials"]["gru"]
    assert result["finished"] and not results["finished"], "two models are missing"
    assert result["steps"] == 60 and result["weights"] == "best"
    run = RunDirectory(work / "gru" / "run", GRURun)
    assert run.config.architecture == "gru" and run.config.model.units == 24
    assert result["parameters"] == run.config.model.num_parameters()

    scores = result["tests"]["again"]
    assert scores["bleu"] == pytest.approx(100) and scores["exact_match"] == 1.0
    assert 1.0 <= scores["perplexity"] < 1.1
    nats, tokens = np.array(scores["nats_by_position"]), np.array(scores["tokens_by_position"])
    store = TokenStore(material.data_dir / "train")
    assert tokens[0] == 8 and tokens.sum() == store.target_lengths.sum()
    mean = float((nats * tokens).sum() / tokens.sum())
    assert math.exp(mean) == pytest.approx(scores["perplexity"], abs=1e-3)
    assert scores["source_tokens"] == pytest.approx(store.source_lengths.mean())

    first, last = result["curve"]
    assert (first["step"], last["step"]) == (30, 60)
    assert 0 < first["minutes"] < last["minutes"]
    assert last["val_bleu"] >= first["val_bleu"] and last["val_loss"] < first["val_loss"]
    once = training_flop(run.config.model, store.source_lengths, store.target_lengths)
    assert last["flop"] == pytest.approx(60 * once), "all pairs are one batch"


def test_what_is_done_is_not_done_again_and_nothing_else_is_taken_for_it(
    trained: tuple[Path, dict[str, Any]], material: Material, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, results = trained
    assert results == json.loads((work / "models.json").read_text())
    picture = (work / "models.svg").read_text()
    assert "GRU with attention" in picture and "training FLOP" in picture
    monkeypatch.setattr(experiment, "train", lambda *_, **__: pytest.fail("training began"))
    assert run_study("models", material, work, only=["gru"], settings=TINY) == results
    with pytest.raises(InputError, match=mentions("models", "training.schedule", "constant")):
        run_study("models", material, work, only=["gru"], settings={})
    other = dataclasses.replace(material, tokenize="none")
    with pytest.raises(InputError, match=mentions("data and tests")):
        run_study("models", other, work, only=["gru"], settings=TINY)
    with pytest.raises(InputError, match=mentions("models", "transformer", "training.seed")):
        run_study(
            "models", material, work, only=["transformer"], settings={**TINY, "training.seed": 5}
        )
    table = summary(results)
    assert "BLEU" in table and "gru" in table and "published: 28.1" in table


def test_a_model_that_diverges_is_a_result(material: Material, tmp_path: Path) -> None:
    settings = {**TINY, "training.learning_rate": 1e30, "training.max_skipped_steps": 1}
    results = run_study("models", material, tmp_path, only=["gru"], settings=settings)
    result = results["trials"]["gru"]
    assert result["finished"] and "diverged" in result and result["tests"] == {}
    assert "diverged: " in summary(results)
    assert "diverged" in (tmp_path / "models.svg").read_text()
    again = run_study("models", material, tmp_path, only=["gru"], settings=settings)
    assert again == results


def test_settings_that_are_refused_begin_nothing(material: Material, tmp_path: Path) -> None:
    for seed in ("first", "second"):  # the second is not told of the first
        with pytest.raises(InputError, match=mentions("training.seed", seed)):
            run_study("models", material, tmp_path, settings={"training.seed": seed})


def test_a_loss_that_is_no_number_in_the_end_has_diverged(
    trained: tuple[Path, dict[str, Any]],
    material: Material,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def train(data_dir: Path, run_dir: Path, **_: Any) -> experiment.Trained:
        of = RunDirectory(trained[0] / "gru" / "run", GRURun)
        RunDirectory.create(run_dir, of.config, of.tokenizer(), of.data_fingerprint)
        return experiment.Trained(60, True, False, "", "last", "float32", {})

    monkeypatch.setattr(experiment, "train", train)
    results = run_study("models", material, tmp_path, only=["gru"], settings=TINY)
    result = results["trials"]["gru"]
    assert result["finished"] and result["tests"] == {}
    assert tells(result["diverged"], "gru/run", "60", "training.learning_rate")


def test_a_run_is_read_as_what_it_is(
    trained: tuple[Path, dict[str, Any]], material: Material
) -> None:
    run_dir = trained[0] / "gru" / "run"
    message = mentions("run/config.json", "gru", "transformer")
    with pytest.raises(InputError, match=message):
        experiment.train(material.data_dir, run_dir, "tiny")
    translator = loading.load_translator(run_dir)
    assert type(translator.transformer) is get_architecture("gru")


def test_models_are_trained_in_turn_until_the_time_is_over(
    material: Material, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []

    def call(function: Any, directory: Path, minutes: float, model: Any, _: Any) -> dict[str, Any]:
        called.append((model.name, model.settings["training.seed"], 0 < minutes <= 1))
        (directory / "run").mkdir()
        return {**FOUND, "finished": model.name == "scaled_16"}

    monkeypatch.setattr(child_process, "call", call)
    results = run_study(
        "attention", material, tmp_path, settings={"training.seed": 9}, max_minutes=1.0
    )
    assert called == [("scaled_16", 9, True), ("unscaled_16", 9, True)]
    assert not results["finished"] and list(results["trials"]) == ["scaled_16", "unscaled_16"]
    assert results["trials"]["scaled_16"]["title"] == "softmax(QKᵀ/√d_k), d_k 16"


FOUND: dict[str, Any] = {"parameters": 3, "steps": 2, "curve": [], "tests": {}}


@pytest.mark.parametrize("study", STUDIES)
def test_every_setting_fits_its_architecture(study: str) -> None:
    trials = STUDIES[study]()
    sizes = {"model.source_vocab_size": 4000, "model.target_vocab_size": 4000}
    configs = [
        get_architecture(trial.architecture).run_config().updated({**trial.settings, **sizes})
        for trial in trials
    ]
    assert len({trial.name for trial in trials}) == len(trials)
    first = configs[0]
    assert all(config.training == first.training for config in configs), "the same training"
    assert all(config.decoding == first.decoding for config in configs), "and search"
    if study == "positions":
        assert [config.model.positions for config in configs] == ["sinusoidal", "learned"]
    if study == "attention":
        assert {c.model.num_heads for c in configs} == {8, 2}
        for config in configs[::3]:  # scaled: what queries and keys are made by
            weights = get_architecture("transformer")(config.model)
            weights.build()
            kernel = weights.encoder.layers[0].self_attention.qkv_kernel
            assert np.var(kernel[:, : 2 * 128]) * 128 == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize(
    ("study", "changes", "options", "message"),
    [
        ("size", {}, {}, mentions("study", "size", "models", "positions", "attention")),
        ("models", {}, {"only": ["lstm"]}, mentions("model", "lstm", "transformer")),
        ("models", {}, {"max_minutes": 0}, mentions("max_minutes", "0")),
        ("models", {"tests": {}}, {}, mentions("models", "score")),
        ("models", {"tokenize": "x"}, {}, mentions("x", "tokenizer", "sacreBLEU")),
        ("positions", {}, {}, mentions("positions", "tests")),
        ("positions", {"tests": {}}, {"longest": 200}, mentions("pairs", "201 to 266")),
    ],
)
def test_mistakes(
    material: Material, tmp_path: Path, study: str, changes: dict[str, Any],
    options: dict[str, Any], message: str,
) -> None:  # fmt: skip
    with pytest.raises(InputError, match=message):
        run_study(study, dataclasses.replace(material, **changes), tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared data of 80 sentences of 1 to 10 words, 20 of which validate."""
    folder, random = tmp_path_factory.mktemp("lengths"), np.random.default_rng(4)
    for name in ("c.en", "c.de"):
        lines = (" ".join(random.choice(WORDS, i % 10 + 1)) for i in range(80))
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    corpora = parallel_files([folder / "c.en"], [folder / "c.de"])
    options = PrepareOptions(vocab_size=30, valid_pairs=20)
    return prepare(corpora, folder / "data", options).directory


WORDS = ["ba", "do", "ki", "lu"]


def test_training_on_short_sentences_leaves_out_the_longer_ones(
    corpus: Path, tmp_path: Path
) -> None:
    whole, longest = TokenStore(corpus / "train"), 8
    store = TokenStore(prepare_short(corpus, tmp_path, longest) / "train")
    fits = np.maximum(whole.source_lengths, whole.target_lengths) <= longest
    assert 0 < len(store) == fits.sum() < len(whole)
    assert max(store.source_lengths.max(), store.target_lengths.max()) <= longest
    places = np.flatnonzero(fits)
    assert (store.source_ids(np.arange(len(store))) == whole.source_ids(places)).all()
    valid = TokenStore(tmp_path / "data" / "valid")
    assert max(valid.source_lengths.max(), valid.target_lengths.max()) <= longest


def test_tests_have_the_lengths_that_their_names_say(corpus: Path) -> None:
    stores = [TokenStore(corpus / part) for part in ("train", "valid")]
    tokens = {
        line: length
        for store in stores
        for side in ("source", "target")
        for line, length in zip(
            getattr(store, f"{side}_text")(), getattr(store, f"{side}_lengths"), strict=True
        )
    }
    longest, most = 6, 4
    tests = length_tests(corpus, longest, most)
    assert list(tests) == ["up to 6", "7 to 8", "9 to 10", "over 10", "two joined", "three joined"]
    bounds = {"up to 6": (0, 6), "7 to 8": (7, 8), "9 to 10": (9, 10), "over 10": (11, 99)}
    for name, (low, high) in bounds.items():
        sources, [references] = tests[name].sources or [], tests[name].references
        assert 0 < len(sources) == len(references) <= most
        assert all(low <= tokens[source] <= high for source in sources)
        assert all((tokens[each] <= longest) == (high == longest) for each in references)
    training, validation = (
        set(zip(store.source_text(), store.target_text(), strict=True)) for store in stores
    )
    for name, test in tests.items():
        pairs = set(zip(test.sources or [], test.references[0], strict=True))
        if name in bounds:
            assert pairs <= (validation if name == "up to 6" else training)
    joins = [*(tests["two joined"].sources or []), *(tests["three joined"].sources or [])]
    counts = Tokenizer.load(corpus).tokenize_source(tf.constant(joins)).row_lengths()
    assert joins and counts.numpy().min() > longest
    short = {each for each in stores[1].source_text() if tokens[each] <= longest}
    twice = tests["two joined"].sources or []
    assert all(any(text.startswith(f"{each} ") for each in short) for text in twice)
    assert tests == length_tests(corpus, longest, most), "the same each time"


def fake_results(study: str) -> dict[str, Any]:
    """Of trials that have never been."""

    def test(tokens: float) -> dict[str, Any]:
        return {
            "bleu": 50.0 - tokens, "perplexity": 3.0, "source_tokens": tokens, "signature": "none",
            "nats_by_position": [0.5, 1.5], "tokens_by_position": [80, 60],
        }  # fmt: skip

    curve = [
        {"step": s, "flop": 1e12 * s, "minutes": s / 60, "val_bleu": 5.0 + s, "val_loss": 9.0 - s}
        for s in (1, 2, 3)
    ]
    names = ["up to 18", "two joined", "three joined"] if study == "positions" else ["flickr"]
    trials = {
        trial.name: {
            "title": trial.title, "parameters": 9_000_000, "steps": 3, "finished": True,
            "commit": "abc", "machine": {"processor": "p"},
            "curve": curve, "tests": {name: test(7.0 + i) for i, name in enumerate(names)},
        }
        for trial in STUDIES[study]()
    }  # fmt: skip
    return {"study": study, "finished": True, "trials": trials, "longest": 18}


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_is_drawn(study: str, tmp_path: Path) -> None:
    results, file = fake_results(study), tmp_path / "plot.svg"
    draw(results, file)
    picture = file.read_text()
    for trial in results["trials"].values():
        assert trial["title"].partition(",")[0] in picture
    assert "flickr" in summary(results) or study == "positions"
    assert list(tmp_path.iterdir()) == [file]


def test_a_study_of_which_there_is_nothing_yet_is_drawn(tmp_path: Path) -> None:
    results = fake_results("models")
    nothing = {"transformer": {**results["trials"]["transformer"], "curve": []}}
    draw({**results, "trials": nothing}, tmp_path / "plot.svg")
    assert "minutes of training" in (tmp_path / "plot.svg").read_text()
    assert "transformer" in summary({**results, "trials": nothing})


def test_models_of_two_commits_are_told() -> None:
    results = fake_results("models")
    assert "Not all of one commit" not in summary(results)
    results["trials"]["gru"]["commit"] = "def"
    assert "Not all of one commit and one processor: transformer: abc on p; " in summary(results)


def test_perplexity_by_position_is_of_the_tokens_of_all_tests() -> None:
    tests = [
        {"nats_by_position": [1.0, 2.0, 9.0], "tokens_by_position": [60, 30, 1]},
        {"nats_by_position": [4.0, 5.0], "tokens_by_position": [20, 20]},
    ]
    places, perplexity = perplexity_by_position(tests)
    assert places == [1, 2], "one token says nothing"
    means = [(60 * 1 + 20 * 4) / 80, (30 * 2 + 20 * 5) / 50]
    np.testing.assert_allclose(perplexity, np.exp(means))
