"""Training a run from prepared data: continued to the same bits, or refused with a reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import experiment
from keras_transformer.data.corpus import parallel_files
from keras_transformer.data.prepare import PrepareOptions, prepare
from keras_transformer.errors import InputError
from keras_transformer.run_directory import RunDirectory
from keras_transformer.training.platform import Platform, choose_platform

SETTINGS: dict[str, Any] = {
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.d_model": 16,
    "model.d_ff": 32,
    "model.num_heads": 2,
    "training.batch_tokens": 128,
    "training.warmup_steps": 4,
    "training.checkpoint_steps": 3,
    "training.log_steps": 2,
    "training.mixed_precision": "float32",
    "training.jit_compile": "false",
    "training.max_steps": 6,
}
ANIMALS = [("dog", "Hund"), ("cow", "Stier"), ("bird", "Vogel"), ("fish", "Fisch")]
VERBS = [("sees", "sieht"), ("likes", "mag"), ("hears", "hört")]


def prepared(folder: Path, plural: str = "", **options: Any) -> Path:
    """Data of 48 invented sentences, 4 of which validate."""
    pairs = [
        (f"the {a} {v} the {b}{plural}", f"der {x} {w} den {y}")
        for a, x in ANIMALS
        for v, w in VERBS
        for b, y in ANIMALS
    ]
    folder.mkdir()
    for side, name in enumerate(("c.en", "c.de")):
        (folder / name).write_text("".join(pair[side] + "\n" for pair in pairs))
    prepare(
        parallel_files([folder / "c.en"], [folder / "c.de"]),
        folder / "data",
        PrepareOptions(vocab_size=50, valid_pairs=4, **options),
    )
    return folder / "data"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("experiment") / "corpus")


@pytest.fixture(autouse=True, scope="module")
def one_replica() -> Iterator[None]:
    """Takes one of the test process's two logical CPUs, which halves the time to trace."""

    def choose(config: Any, num_shapes: int) -> Platform:
        return choose_platform(config, num_shapes)._replace(
            strategy=tf.distribute.MirroredStrategy(["CPU:0"])
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "choose_platform", choose)
        yield


def train(data: Path, run: Path, **changes: Any) -> experiment.Trained:
    settings = {**SETTINGS, **{name.replace("__", "."): v for name, v in changes.items()}}
    return experiment.train(data, run, None, settings)


@pytest.fixture(scope="module")
def finished(one_replica: None, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 6 steps in one go."""
    run = tmp_path_factory.mktemp("experiment") / "run"
    trained = train(data, run)
    assert (trained.step, trained.finished, trained.interrupted) == (6, True, False)
    assert trained.metrics["val_loss"] > 0 and trained.tokens_per_second > 0
    assert "finished at step 6" in trained.summary(run) and str(run) in trained.summary(run)
    return run


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def last(run: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    directory = RunDirectory(run)
    return directory.read_checkpoint(directory.checkpoints()[-1])


def test_a_run_holds_all_that_it_takes_to_go_on(finished: Path, data: Path) -> None:
    run = RunDirectory(finished)
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [3, 6]
    assert run.config.model.source_vocab_size == run.tokenizer().source_vocab_size
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [2, 3, 4, 6]
    assert [line["step"] for line in lines if "val_loss" in line] == [3, 6]
    assert list((finished / "tensorboard").glob("events.*"))
    weights, state = last(finished)
    assert int(state["adam/iteration"]) == 6
    assert sum(array.size for array in weights.values()) == run.config.model.num_parameters()


def test_a_resumed_run_has_the_bits_of_one_never_stopped(
    finished: Path, data: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train(data, run, training__max_steps=3).step == 3
    resumed = train(data, run)
    assert (resumed.step, resumed.finished) == (6, True)
    for found, expected in zip(last(run), last(finished), strict=True):
        assert found.keys() == expected.keys()
        for path, array in expected.items():
            np.testing.assert_array_equal(found[path], array, err_msg=path)
    weights = RunDirectory(run)
    first = weights.read_weights(weights.checkpoints()[0])
    assert any((first[path] != array).any() for path, array in last(run)[0].items())


def test_a_finished_run_is_left_as_it_is(copy: Path, data: Path) -> None:
    before = {path: path.read_bytes() for path in copy.rglob("*.npz")}
    again = train(data, copy)
    assert (again.step, again.finished) == (6, True)
    assert (
        again.metrics["val_loss"]
        == RunDirectory(copy).read_metrics(RunDirectory(copy).checkpoints()[-1])["val_loss"]
    )
    assert {path: path.read_bytes() for path in copy.rglob("*.npz")} == before


def test_time_ends_a_run_that_can_be_continued(copy: Path, data: Path) -> None:
    settings = {**SETTINGS, "training.max_steps": 100}
    trained = experiment.train(data, copy, None, settings, max_minutes=1e-9)
    assert (trained.step, trained.finished, trained.interrupted) == (7, False, False)
    assert "stopped (the same command continues) at step 7" in trained.summary(copy)
    assert RunDirectory(copy).checkpoints()[-1].step == 7


def test_the_runs_own_configuration_is_the_default(copy: Path, data: Path) -> None:
    trained = experiment.train(data, copy, settings={"training.max_steps": 7})
    assert trained.step == 7
    assert RunDirectory(copy).config.model.d_model == 16


class TestRefusals:
    def test_other_data_with_the_same_vocabulary(
        self, copy: Path, data: Path, tmp_path: Path
    ) -> None:
        other = Path(shutil.copytree(data, tmp_path / "other"))
        shutil.rmtree(other / "train")
        shutil.copytree(other / "valid", other / "train")
        with pytest.raises(InputError, match="trained on another corpus"):
            train(other, copy)

    def test_another_vocabulary(self, copy: Path, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="trained with another vocabulary"):
            train(
                prepared(tmp_path / "corpus", plural="zz"), copy,
                model__source_vocab_size=RunDirectory(copy).config.model.source_vocab_size,
                model__target_vocab_size=RunDirectory(copy).config.model.target_vocab_size,
            )  # fmt: skip

    def test_a_changed_configuration(self, copy: Path, data: Path) -> None:
        with pytest.raises(InputError, match=r"model.d_ff 32, not 64; expected the configuration"):
            train(data, copy, model__d_ff=64)
        with pytest.raises(InputError, match=r"training.seed 1, not 2; expected the configuration"):
            train(data, copy, training__seed=2)

    def test_a_damaged_checkpoint(self, copy: Path, data: Path) -> None:
        file = RunDirectory(copy).checkpoints()[-1].path / "weights.npz"
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(InputError, match=r"step-00000006/weights.npz cannot be read"):
            train(data, copy)

    def test_state_of_another_precision(self, copy: Path, data: Path) -> None:
        file = RunDirectory(copy).checkpoints()[-1].path / "state.npz"
        with np.load(file) as state:
            np.savez(file, **state, loss_scale=np.float32(8))
        with pytest.raises(InputError, match="written in another precision"):
            train(data, copy)

    def test_an_unknown_preset_or_field(self, data: Path, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="'huge' is no preset; expected one of tiny, "):
            experiment.train(data, tmp_path / "run", "huge")
        with pytest.raises(InputError, match="'training.sed' is no setting; the fields of"):
            train(data, tmp_path / "run", training__sed=2)
        assert not (tmp_path / "run").exists()

    def test_a_batch_smaller_than_a_sentence(self, data: Path, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="batch_tokens is 3, but the longest target sentence"):
            train(data, tmp_path / "run", training__batch_tokens=3)
        assert not (tmp_path / "run").exists()

    def test_a_missing_data_directory(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="nowhere"):
            train(tmp_path / "nowhere", tmp_path / "run")
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("replicas", [3, 6, 16])
    def test_devices_that_cannot_share_a_batch(
        self, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replicas: int
    ) -> None:
        strategy: Any = SimpleNamespace(num_replicas_in_sync=replicas)
        monkeypatch.setattr(
            experiment, "choose_platform", lambda *_: Platform(strategy, "float32", False, ())
        )
        with pytest.raises(InputError, match=f"{replicas} replicas cannot share .* 1, 2, 4 or 8"):
            train(data, tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_separate_vocabularies_tie_the_targets_embeddings(tmp_path: Path) -> None:
    data = prepared(tmp_path / "corpus", separate_vocabularies=True)
    trained = train(data, tmp_path / "run", training__max_steps=1)
    assert trained.finished and np.isfinite(trained.metrics["val_loss"])
    config = RunDirectory(tmp_path / "run").config.model
    assert config.tie_embeddings == "target"
    weights, _ = last(tmp_path / "run")
    assert weights["source_embedding/embeddings"].shape == (config.source_vocab_size, 16)
    assert weights["target_embedding/embeddings"].shape == (config.target_vocab_size, 16)
