"""Properties that all compared models share."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.decoding.cached_decoder import CachedDecoder
from keras_transformer.export import export
from keras_transformer.extensions.paper.baselines.convolutional import ConvolutionalConfig
from keras_transformer.extensions.paper.baselines.gru import GRUConfig, GRURun
from keras_transformer.runs.run_directory import RunDirectory, write_run
from keras_transformer.training.trainer import Trainer
from tests.builders import refuses
from tests.extensions.paper.baselines.tiny import MODELS, START, VOCAB, make, source_ids, target_ids
from tests.layers.layer_check import copy_weights, to_numpy


def logits_of(model: Any, source: Any, target: Any) -> Any:
    return to_numpy(model({"source_ids": source, "target_ids": target}))


each_model = pytest.mark.parametrize("name", MODELS)


@each_model
def test_padding_does_not_change_real_tokens(name: str) -> None:
    model, _ = make(name)
    sources, targets = [5, 1, 3], [2, 6, 4]
    source, target = source_ids(sources), target_ids(targets)
    together = logits_of(model, source, target)
    wider = logits_of(model, source_ids(sources, width=9), target)
    assert together.shape == (3, 6, VOCAB) and np.isfinite(together).all()
    for i, (s, t) in enumerate(zip(sources, targets, strict=True)):
        alone = logits_of(model, source[i : i + 1, :s], target[i : i + 1, :t])
        for padded in (together, wider):
            np.testing.assert_allclose(padded[i, :t], alone[0], atol=1e-5)


@each_model
def test_a_token_changes_only_later_logits(name: str) -> None:
    model, _ = make(name)
    source, target = source_ids([4]), target_ids([6])
    before = to_numpy(model({"source_ids": source, "target_ids": target}))
    target[0, 3] = 4 + (target[0, 3] - 3) % 5
    after = to_numpy(model({"source_ids": source, "target_ids": target}))
    np.testing.assert_allclose(after[0, :3], before[0, :3], atol=1e-6)
    assert (np.abs(after - before)[0, 3:].max(axis=-1) > 1e-4).all()
    source[0, 0] = 4 + (source[0, 0] - 3) % 5
    other_source = to_numpy(model({"source_ids": source, "target_ids": target}))
    assert (np.abs(other_source - after)[0].max(axis=-1) > 1e-5).all()


# A cache that grows, and one of a fixed length.
@pytest.mark.parametrize(("name", "length"), [("gru", None), ("convolutional", 5)])
def test_cached_steps_with_reordered_beams_equal_the_full_pass(
    name: str, length: int | None
) -> None:
    model, _ = make(name)
    beams, random = 3, np.random.default_rng(8)
    source = source_ids([4, 2])
    memory = model.project_memory(model.encode(source))
    decoder = CachedDecoder([model], [memory], beams, length)
    cache = decoder.init_cache()
    tokens = np.full((2, beams), START, np.int32)
    histories = np.zeros((2, beams, 0), np.int32)
    for position in range(5):
        histories = np.concatenate([histories, tokens[:, :, None]], axis=2)
        logits, cache, attention = decoder.step(
            tf.constant(tokens.reshape(-1)), tf.constant(position), cache
        )
        sources = np.repeat(source, beams, axis=0)
        full = logits_of(model, sources, histories.reshape(-1, position + 1))
        np.testing.assert_allclose(to_numpy(logits), full[:, -1], atol=1e-5)
        assert attention.shape == (len(source) * beams, 4)
        np.testing.assert_allclose(tf.reduce_sum(attention, axis=-1), 1.0, rtol=1e-5)
        assert (to_numpy(attention)[-beams:, 2:] == 0).all(), "padding is not attended to"
        parents = random.integers(0, beams, (len(source), beams), np.int32)
        histories = np.take_along_axis(histories, parents[:, :, None], axis=1)
        cache = decoder.reorder_cache(cache, tf.constant(parents))
        if position == 2:  # the first sentence has ended
            source, histories = source[1:], histories[1:]
            cache = decoder.select_rows(cache, tf.constant([1]))
        tokens = random.integers(4, VOCAB, (len(source), beams), np.int32)


@each_model
def test_parameters_are_counted_and_weights_have_paths(name: str) -> None:
    tying = "all" if name == "gru" else "target"
    model, _ = make(name, tie_embeddings=tying)
    weights = model.weights_by_path()
    assert sum(np.prod(v.shape) for v in weights.values()) == model.config.num_parameters()
    again, _ = make(name, tie_embeddings=tying)
    assert list(again.weights_by_path()) == list(weights), "names do not shift in a process"
    values = {path: np.full(v.shape, 0.25) for path, v in weights.items()}
    again.assign_weights(values)
    assert all((to_numpy(v) == 0.25).all() for v in again.weights_by_path().values())


@each_model
def test_a_model_is_rebuilt_from_its_config(name: str) -> None:
    model, _ = make(name)
    inputs = {"source_ids": source_ids([3, 2]), "target_ids": target_ids([4, 4])}
    again = type(model).from_config(model.get_config())
    again.build()
    copy_weights(model, again)
    np.testing.assert_allclose(to_numpy(again(inputs)), to_numpy(model(inputs)), atol=1e-6)


@each_model
def test_dropout_is_on_only_in_training(name: str) -> None:
    model, _ = make(name, dropout=0.4)
    inputs = {"source_ids": source_ids([3]), "target_ids": target_ids([4])}
    calls = [to_numpy(model(inputs, training=training)) for training in (True, True, False, None)]
    assert not np.allclose(calls[0], calls[1])
    np.testing.assert_array_equal(calls[2], calls[3])


@pytest.mark.parametrize(
    ("config", "changes", "facts"),
    [
        (GRUConfig, {"units": 0}, ("model.units", "0")),
        (GRUConfig, {"dropout": 1.0}, ("model.dropout", "1.0", "0", "1")),
        (GRUConfig, {"tie_embeddings": "none"}, ("model.tie_embeddings", "none", "all")),
        (GRUConfig, {"pad_id": 3}, ("four", "ids")),
        (ConvolutionalConfig, {"hidden": "x"}, ("model.hidden", "x")),
    ],
)
def test_invalid_sizes(config: Any, changes: dict[str, object], facts: tuple[str, ...]) -> None:
    refuses(config.from_dict, {"values": changes}, *facts)


@pytest.mark.parametrize("format", ["saved_model", "litert", "ctranslate2"])
def test_exports_are_refused(format: str, run_directory: RunDirectory, tmp_path: Path) -> None:
    tokenizer = run_directory.tokenizer()
    size = tokenizer.source_vocab_size
    model, weights = make("gru", source_vocab_size=size, target_vocab_size=size)
    config = dataclasses.replace(GRURun(), model=model.config)
    run = tmp_path / "run"
    write_run(run, config, tokenizer, weights)
    export_run = functools.partial(export, format=format)
    refuses(export_run, (run, tmp_path / "new", ["a"]), run, "gru", format, "Transformers")


@each_model
def test_a_checkpoint_has_the_complete_training_state(name: str) -> None:
    model, _ = make(name)
    trainer = Trainer(model, TrainingConfig())
    state = trainer.state_by_path()
    moments = [path for path in state if "momentum" in path or "velocity" in path]
    assert len(moments) == 2 * len(model.trainable_weights), "none takes another's path"
    # Only training changes the state. Seed generators are excluded.
    assert {id(v) for v in model.variables} - {id(v) for v in model.weights} == {
        id(v) for v in model.variables if "seed_generator" in v.path
    }
