"""Shortlists: the candidates of a sentence, and a search that scores only them."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import DecodingConfig
from keras_transformer.decoding import SearchInputs
from keras_transformer.decoding.shortlist import Shortlist
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import eagerly, refuses
from tests.conftest import PHRASES, random_shortlist

TEXTS = [*PHRASES, "a", "", "ball " * 30]


@pytest.fixture(scope="module")
def full(run_directory: RunDirectory) -> TranslationModule:
    model = Transformer(run_directory.config.model, dtype="float32")
    model.assign_weights(run_directory.named_weights())
    return TranslationModule(
        model, run_directory.tokenizer(), DecodingConfig(n_best=3, max_extra_tokens=5)
    )


def everything(translator: TranslationModule) -> Shortlist:
    tokenizer = translator.tokenizer
    end = np.full((tokenizer.source_vocab_size, 1), tokenizer.end_id)
    return Shortlist(np.arange(tokenizer.target_vocab_size), end)


def test_candidates_are_frequent_tokens_and_translations() -> None:
    shortlist = Shortlist([3, 1], [[3, 3], [3, 3], [3, 3], [3, 3], [7, 3], [5, 6]])
    found = shortlist(tf.constant([[4, 3], [5, 5], [0, 0]])).numpy()
    assert [sorted({*row}) for row in found.tolist()] == [[1, 3, 7], [1, 3, 5, 6], [1, 3]]


def test_a_shortlist_of_all_tokens_changes_nothing(full: TranslationModule) -> None:
    expected = full.translate_to_ids(tf.constant(TEXTS))
    translator = full.with_options(shortlist=everything(full))
    found = translator.translate_to_ids(tf.constant(TEXTS))
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)


def test_outputs_contain_only_candidates_of_their_own_sentence(
    run_directory: RunDirectory, full: TranslationModule
) -> None:
    shortlist = random_shortlist(run_directory, 2)
    translator = full.with_options(shortlist=shortlist)
    result = translator.translate_to_ids(tf.constant(TEXTS))
    changed = 0
    for row, text in enumerate(TEXTS):
        source_ids, *_ = translator.source_ids(tf.constant([text]))
        allowed = {*shortlist(source_ids).numpy().ravel().tolist(), full.tokenizer.pad_id}
        assert set(result.ids[row].numpy().ravel().tolist()) <= allowed
        # The union of a batch gives each sentence what it gets in a batch of its own.
        alone = translator.translate_to_ids(tf.constant([text]))
        width = alone.ids.shape[2]
        np.testing.assert_array_equal(result.ids[row, :, :width], alone.ids[0])
        np.testing.assert_allclose(result.scores[row], alone.scores[0], atol=1e-4)
        changed += len(allowed) < full.tokenizer.target_vocab_size
    assert changed > 6


def test_a_prefix_that_is_not_on_the_shortlist_is_generated(
    run_directory: RunDirectory, full: TranslationModule
) -> None:
    tokenizer = full.tokenizer
    translator = full.with_options(shortlist=random_shortlist(run_directory, 1))
    prefix = "Fluss am Haus"
    source_ids, *_ = translator.source_ids(tf.constant([PHRASES[0]]))
    ids = tokenizer.tokenize_target(tf.constant([prefix])).to_tensor()[0, :-1].numpy().tolist()
    assert not set(ids) <= set(translator.shortlist(source_ids).numpy().ravel().tolist())
    # Ids outside the vocabulary end a prefix.
    inputs = SearchInputs(tf.constant([len(ids) + 2]), tf.constant([[*ids, 2**30, -5]]))
    with eagerly():
        found = translator.translate_ids(source_ids, inputs)
    assert found.ids[0, 0].numpy().tolist()[: len(ids)] == ids


def test_shortlists_of_other_vocabularies_are_refused(full: TranslationModule) -> None:
    size, rows = full.tokenizer.target_vocab_size, [[3]] * full.tokenizer.source_vocab_size
    for shortlist, facts in (
        (Shortlist([3, size], rows), (f"ids from 3 to {size}",)),
        (Shortlist([3], [[-1], *rows[1:]]), ("ids from -1 to 3",)),
        (Shortlist([3], rows[1:]), (len(rows) - 1, len(rows))),
    ):
        refuses(full.with_options, {"shortlist": shortlist}, "shortlist", *facts)


@pytest.mark.parametrize("changes", [{"tie_embeddings": "none"}, {"output_bias": True}])
def test_output_rows_are_those_of_all_logits(changes: dict[str, object]) -> None:
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 8, "num_heads": 2}
    model = Transformer({**sizes, **changes, "source_vocab_size": 20, "target_vocab_size": 20})
    for weight in model.weights:
        weight.assign(np.random.default_rng(5).normal(size=weight.shape))
    features, ids = tf.random.stateless_normal([3, 8], [1, 2]), tf.constant([2, 7, 19])
    rows, bias = model.output_rows(ids)
    found = tf.matmul(features, rows, transpose_b=True) + (0.0 if bias is None else bias)
    expected = tf.gather(model.logits(features), ids, axis=1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_any_function_can_choose_fewer_candidates_than_the_beam_has(
    full: TranslationModule,
) -> None:
    end, token = full.tokenizer.end_id, 9
    translator = full.with_options(
        shortlist=lambda source_ids: tf.tile([[token, end]], [tf.shape(source_ids)[0], 1])
    )
    with eagerly():
        result = translator.translate_to_ids(tf.constant(["a", "ball"]))
    assert np.isfinite(result.scores).all() and (result.lengths.numpy() > 0).all()
    assert {*result.ids.numpy().ravel().tolist()} <= {token, end, full.tokenizer.pad_id}
