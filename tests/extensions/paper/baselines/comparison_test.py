"""The comparison of architectures, from the data to the chart."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keras_transformer.data.corpus import parallel_files
from keras_transformer.data.prepare import PrepareOptions, prepare
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.evaluation.test_sets import EvaluationSet
from keras_transformer.extensions.paper import child_process
from keras_transformer.extensions.paper.baselines.comparison import (
    MODELS,
    ComparisonData,
    draw,
    run_comparison,
    summary,
)
from keras_transformer.extensions.paper.baselines.flop import training_flop
from keras_transformer.extensions.paper.baselines.gru import GRURun
from keras_transformer.inference import loading
from keras_transformer.models.encoder_decoder import get_architecture
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.training import loop, training_run
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
    "training.learning_rate": 0.01,  # with 0.02, rounding decides whether 60 steps are enough
    "training.schedule": "constant",
    "training.warmup_steps": 5,
    "training.label_smoothing": 0.0,
    "training.max_steps": 100,
    "training.checkpoint_steps": 50,
    "training.bleu_steps": 50,
    "decoding.beam_size": 2,
}


@pytest.fixture(autouse=True, scope="module")
def in_this_process(one_replica: None) -> Iterator[None]:
    """Trains in the test process, because a new process would load TensorFlow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child_process, "call", lambda function, *arguments: function(*arguments))
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> ComparisonData:
    folder = tmp_path_factory.mktemp("comparison")
    sides = [list(side) for side in zip(*PAIRS, strict=True)]
    for name, lines in zip(("c.en", "c.de"), sides, strict=True):
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    corpora = parallel_files([folder / "c.en"], [folder / "c.de"])
    options = PrepareOptions(vocab_size=50)
    prepared = prepare(corpora, folder / "data", options, valid_corpora=corpora)
    return ComparisonData(prepared.directory, EvaluationSet([sides[1]], sides[0]))


@pytest.fixture(scope="module")
def trained(
    in_this_process: None, data: ComparisonData, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """A comparison with a GRU that has learned eight pairs. It was interrupted at the start."""
    work = tmp_path_factory.mktemp("work")

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "fit", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_comparison(data, work, only=["gru"], settings=TINY)
        patch.setattr(child_process, "call", lambda *_: pytest.fail("training started"))
        with pytest.raises(InputError, match=mentions("models", "training.seed", "5")):
            run_comparison(data, work, settings={**TINY, "training.seed": 5})
    assert RunDirectory(work / "gru" / "run", GRURun).checkpoints() == []
    return work, run_comparison(data, work, only=["gru"], settings=TINY)


def test_a_model_is_trained_validated_and_scored(
    trained: tuple[Path, dict[str, Any]], data: ComparisonData
) -> None:
    work, results = trained
    result = results["trials"]["gru"]
    assert result["finished"] and not results["finished"], "two models are missing"
    assert result["steps"] == 100 and result["weights"] == "best"
    run = RunDirectory(work / "gru" / "run", GRURun)
    assert run.config.architecture == "gru" and run.config.model.units == 24
    assert result["parameters"] == run.config.model.num_parameters()
    assert result["test"]["bleu"] == pytest.approx(100) and result["test"]["exact_match"] == 1.0
    assert 1.0 <= result["test"]["perplexity"] < 1.1

    first, last = result["curve"]
    assert (first["step"], last["step"]) == (50, 100)
    assert 0 < first["minutes"] < last["minutes"]
    assert last["val_bleu"] >= first["val_bleu"] and last["val_loss"] < first["val_loss"]
    store = TokenStore(data.data_dir / "train")
    once = training_flop(run.config.model, store.source_lengths, store.target_lengths)
    assert last["flop"] == pytest.approx(100 * once), "all pairs are one batch"


def test_finished_models_are_skipped_and_different_settings_are_errors(
    trained: tuple[Path, dict[str, Any]], data: ComparisonData, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, results = trained
    assert results == json.loads((work / "results.json").read_text())
    picture = (work / "chart.svg").read_text()
    assert "GRU with attention" in picture and "training FLOP" in picture
    monkeypatch.setattr(training_run, "train", lambda *_, **__: pytest.fail("training started"))
    assert run_comparison(data, work, only=["gru"], settings=TINY) == results
    with pytest.raises(InputError, match=mentions("models", "training.schedule", "constant")):
        run_comparison(data, work, only=["gru"], settings={})
    with pytest.raises(InputError, match=mentions("data and test")):
        other = dataclasses.replace(data, tokenize="none")
        run_comparison(other, work, only=["gru"], settings=TINY)
    with pytest.raises(InputError, match=mentions("models", "transformer", "training.seed")):
        run_comparison(data, work, only=["transformer"], settings={**TINY, "training.seed": 5})
    table = summary(results)
    assert "BLEU" in table and "gru" in table and "28.1" in table


def test_a_model_that_diverges_is_a_result(data: ComparisonData, tmp_path: Path) -> None:
    settings = {**TINY, "training.learning_rate": 1e30}
    results = run_comparison(data, tmp_path, only=["gru"], settings=settings)
    result = results["trials"]["gru"]
    assert result["finished"] and "diverged" in result and result["test"] is None
    assert "diverged: " in summary(results)
    assert "diverged" in (tmp_path / "chart.svg").read_text()
    assert run_comparison(data, tmp_path, only=["gru"], settings=settings) == results


def test_a_final_loss_that_is_not_finite_has_diverged(
    trained: tuple[Path, dict[str, Any]], data: ComparisonData, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def train(data_dir: Path, run_dir: Path, *_: Any, **__: Any) -> training_run.TrainingResult:
        of = RunDirectory(trained[0] / "gru" / "run", GRURun)
        RunDirectory.create(run_dir, of.config, of.tokenizer(), of.data_fingerprint)
        return training_run.TrainingResult(60, True, False, "", "last", "float32", {})

    monkeypatch.setattr(training_run, "train", train)
    results = run_comparison(data, tmp_path, only=["gru"], settings=TINY)
    result = results["trials"]["gru"]
    assert result["finished"] and result["test"] is None
    assert tells(result["diverged"], "gru/run", "60", "training.learning_rate")


def test_runs_of_a_baseline_load_with_their_architecture(
    trained: tuple[Path, dict[str, Any]], data: ComparisonData
) -> None:
    run_dir = trained[0] / "gru" / "run"
    with pytest.raises(InputError, match=mentions("run/config.json", "gru", "transformer")):
        training_run.train(data.data_dir, run_dir, "tiny")
    assert type(loading.load_translator(run_dir).transformer) is get_architecture("gru")


FOUND: dict[str, Any] = {"parameters": 3, "steps": 2, "curve": [], "test": None}


def test_all_models_have_the_same_training_search_and_size() -> None:
    sizes = {"model.source_vocab_size": 4000, "model.target_vocab_size": 4000}
    configs = [
        get_architecture(model.architecture).run_config().updated({**model.settings, **sizes})
        for model in MODELS
    ]
    assert len({model.name for model in MODELS}) == len(MODELS)
    assert all(8.7e6 < config.model.num_parameters() < 9.3e6 for config in configs)
    assert all(config.training == configs[0].training for config in configs)
    assert all(config.decoding == configs[0].decoding for config in configs)


@pytest.mark.parametrize(
    ("tokenize", "options", "message"),
    [
        (None, {"only": ["lstm"]}, mentions("model", "lstm", "transformer")),
        (None, {"max_minutes": 0}, mentions("max_minutes", "0")),
        (None, {"settings": {"training.seed": "x"}}, mentions("training.seed", "x")),
        ("x", {}, mentions("x", "tokenizer")),
    ],
)
def test_mistakes(
    data: ComparisonData, tmp_path: Path, tokenize: str | None, options: dict[str, Any],
    message: str,
) -> None:  # fmt: skip
    with pytest.raises(InputError, match=message):
        run_comparison(dataclasses.replace(data, tokenize=tokenize), tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


def fake_results() -> dict[str, Any]:
    """Returns the results of a comparison that was never run."""
    curve = [{"step": s, "flop": 1e12 * s, "minutes": s / 60, "val_bleu": 5.0 + s} for s in (1, 2)]
    test = {"bleu": 40.0, "perplexity": 3.0, "signature": "nrefs:1"}
    trials = {
        model.name: {
            "title": model.title, "parameters": 9_000_000, "steps": 3, "finished": True,
            "commit": "abc", "machine": {"processor": "p"}, "curve": curve, "test": test,
        }
        for model in MODELS
    }  # fmt: skip
    return {"finished": True, "trials": trials}


def test_the_chart_and_the_table_show_all_models(tmp_path: Path) -> None:
    results, file = fake_results(), tmp_path / "plot.svg"
    draw(results, file)
    assert all(model.title in file.read_text() for model in MODELS)
    assert all(model.name in summary(results) for model in MODELS) and "nrefs:1" in summary(results)
    assert list(tmp_path.iterdir()) == [file]
    results["trials"]["transformer"]["curve"] = []
    draw(results, file)
    assert "Transformer" in file.read_text() and "transformer" in summary(results)
    results = fake_results()
    assert "Results from different commits" not in summary(results)
    results["trials"]["gru"]["commit"] = "def"
    assert "Results from different commits or processors: transformer: abc on p; " in summary(
        results
    )
