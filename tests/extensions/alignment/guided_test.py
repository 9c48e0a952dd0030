"""Guided alignment of translations: the links of tokens, and the head that learns them."""

import functools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.data.token_store import TokenStore, write_index, write_shard
from keras_transformer.export import ExportOptions, export
from keras_transformer.export import quality as learning
from keras_transformer.extensions.alignment.guided import TranslationAlignment
from keras_transformer.inference.engine import KerasEngine
from keras_transformer.inference.loading import load_model, load_translator
from keras_transformer.inference.translate import translate_verbose, with_fallback
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary
from keras_transformer.training import training_run
from tests.builders import PAIRS, quality_model, refuses, tiny_data, tiny_run, weekly
from tests.runs.checkpoints_test import assert_equal

pytestmark = pytest.mark.usefixtures("one_replica")
SOURCES, TARGETS = map(list, zip(*PAIRS, strict=True))
guided_run = functools.partial(tiny_run, training__auxiliary_loss_weight=0.5)


@pytest.fixture(scope="module")
def alignment(tmp_path_factory: pytest.TempPathFactory) -> TranslationAlignment:
    """Learned from pairs in which token s is translated by s + 10, in a random order."""
    random, folder = np.random.default_rng(7), tmp_path_factory.mktemp("pairs")
    sources = [random.choice(np.arange(4, 14), 4, replace=False) for _ in range(60)]
    ids = [
        [[*source, 3] for source in sources],
        [[24, *random.permutation(source + 10), 3] for source in sources],
    ]
    shard = write_shard(folder / "0", [[b"x"] * 60] * 2, ids, (60, 60))
    write_index(folder, [("0", 60, *shard)])
    vocabulary = Vocabulary(learn_vocabulary([b"abcdefghijklmnopqrstuvwxyz"], 32))
    return TranslationAlignment(vocabulary, [TokenStore(folder)])


@pytest.mark.parametrize(
    ("source", "target", "links"),
    [
        ([4, 5, 6, 3, 0], [2, 24, 16, 14, 15], [(2, 2), (3, 0), (4, 1)]),
        ([5, 6, 5, 3], [2, 15, 24, 16, 15, 0], [(1, 0), (3, 1), (4, 2)]),
        ([5, 6, 5, 3], [2, 15, 16, 15], [(1, 0), (2, 1), (3, 2)]),
        ([5, 5, 3], [2, 15, 15], [(1, 0), (2, 1)]),
        ([5, 3], [2, 15, 15], [(1, 0)]),
        ([7, 3], [2, 15, 2], []),
    ],
    ids=[
        "in_any_order",
        "equal_tokens_by_position",
        "the_same_order",
        "twice",
        "one_to_one",
        "without_translation",
    ],
)
def test_tokens_are_aligned_with_their_translations(alignment, source, target, links):
    inputs = {"source_ids": tf.constant([source]), "target_ids": tf.constant([target])}
    found = alignment.links(inputs)[0].numpy()
    assert [*map(tuple, np.argwhere(found).tolist())] == links


def test_the_search_returns_the_alignment_of_the_guided_head() -> None:
    run = RunDirectory(guided_run())
    assert run.config.model.guided_alignment == "read"
    module = load_translator(run)
    details = module.translate_verbose(tf.constant(SOURCES), tf.constant([""] * len(SOURCES)))
    source_ids, *_ = module.source_ids(tf.constant(SOURCES))
    ids, model = details["ids"][:, 0], module.transformer
    read = tf.concat([tf.fill([len(SOURCES), 1], module.tokenizer.start_id), ids[:, :-1]], axis=1)
    _, layers = model.decode(read, model.encode(source_ids), return_attention_scores=True)
    expected, other = (
        tf.argmax(attention, axis=-1).numpy()
        for attention in (layers[-2]["cross"][:, 0], tf.reduce_mean(layers[-1]["cross"], axis=1))
    )
    # Each token has the attention of the step that reads it, except for the last one.
    lengths = details["lengths"][:, 0].numpy()
    for row, length in enumerate(lengths):
        wanted = expected[row, [*range(1, length), length - 1]]
        np.testing.assert_array_equal(details["alignments"][row, 0, :length], wanted)
    assert (expected != other)[tf.sequence_mask(lengths, ids.shape[1])].any()


@pytest.mark.long
def test_a_resumed_guided_run_equals_an_uninterrupted_run(tmp_path: Path) -> None:
    config = RunDirectory(guided_run()).config
    for steps in (3, 4):
        training_run.train([tiny_data()], tmp_path, config, {"training.max_steps": steps})
    for kind in ("weights", "state"):
        found, expected = (RunDirectory(run).restore()[2][kind] for run in (tmp_path, guided_run()))
        assert_equal(found, expected)


@pytest.mark.parametrize("format", [weekly("saved_model"), weekly("litert"), "cpu"])
def test_exports_have_the_alignments_and_the_quality_of_the_run(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, model = guided_run(), quality_model(RunDirectory(guided_run()).tokenizer())
    monkeypatch.setattr(learning, "fit", lambda *_: model)
    options = ExportOptions(TARGETS, weights="float32", quality=True)
    version = export(RunDirectory(run), tmp_path, SOURCES, options, format=format).path
    judged = KerasEngine(load_translator(run).with_options(quality=model))
    expected = translate_verbose(judged, SOURCES)
    found = translate_verbose(load_model(version), SOURCES)
    for name in ("text", "tokens", "ids", "alignment", "finished"):
        rows = ([line["translations"][0][name] for line in lines] for lines in (found, expected))
        assert next(rows) == next(rows), name
    for name in ("source_tokens", "problems"):
        assert [line[name] for line in found] == [line[name] for line in expected]
    quality = [
        [line["translations"][0]["quality"] for line in lines] for lines in (found, expected)
    ]
    np.testing.assert_allclose(*quality, atol=1e-4)
    assert len({*quality[0]}) > 1
    assert "quality" not in translate_verbose(load_model(run), SOURCES[:1])[0]["translations"][0]
    if format != "saved_model":
        model, prefixes = load_model(version), ["das"] * len(SOURCES)
        refuses(translate_verbose, (model, SOURCES, prefixes), version, "prefixes")
        refuses(translate_verbose, (model, SOURCES, None, True), version, "attention")
        short = translate_verbose(model.with_settings({"decoding.max_length": 1}), SOURCES)
        assert {len(line["translations"][0]["ids"]) for line in short} == {1}
    else:
        again = with_fallback(load_model(version), "retry", 1.0)
        for old, new in zip(found, translate_verbose(again, SOURCES), strict=True):
            if not old["problems"]:
                assert new["translations"][0]["quality"] >= old["translations"][0]["quality"]
