"""Shortlists: the candidates of a sentence, and a search that scores only them."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import DecodingConfig
from keras_transformer.decoding import SearchInputs
from keras_transformer.decoding.shortlist import Shortlist
from keras_transformer.errors import InputError
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES, random_shortlist
from tests.messages import mentions

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


def test_candidates_are_the_union_and_a_mask_of_each_sentence() -> None:
    rows = [[3, 3], [3, 3], [3, 3], [3, 3], [7, 3], [5, 6]]
    shortlist = Shortlist([3, 1], rows)
    ids, mask = shortlist.candidates(tf.constant([[4, 3], [5, 5], [0, 0]]), vocab_size=9)
    assert ids.numpy().tolist() == [1, 3, 5, 6, 7]
    assert mask.numpy().astype(int).tolist() == [
        [1, 1, 0, 0, 1],
        [1, 1, 1, 1, 0],
        [1, 1, 0, 0, 0],
    ]
    prefix = tf.constant([[8, -1], [9, -5]])  # ids outside the vocabulary are ignored
    ids, mask = shortlist.candidates(tf.constant([[4], [4]]), 9, prefix)
    assert ids.numpy().tolist() == [1, 3, 7, 8]
    assert mask.numpy()[:, 3].tolist() == [True, False]


def test_a_shortlist_of_all_tokens_changes_nothing(full: TranslationModule) -> None:
    expected = full.search(tf.constant(TEXTS))
    translator = full.with_options(shortlist=everything(full))
    found = translator.search(tf.constant(TEXTS))
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)


def test_outputs_contain_only_candidates_of_their_own_sentence(
    run_directory: RunDirectory, full: TranslationModule
) -> None:
    shortlist = random_shortlist(run_directory, 2)
    translator = full.with_options(shortlist=shortlist)
    result = translator.search(tf.constant(TEXTS))
    changed = 0
    for row, text in enumerate(TEXTS):
        source_ids, *_ = translator.source_ids(tf.constant([text]))
        candidates, _ = shortlist.candidates(source_ids, full.tokenizer.target_vocab_size)
        allowed = {*candidates.numpy().tolist(), full.tokenizer.pad_id}
        assert set(result.ids[row].numpy().ravel().tolist()) <= allowed
        # The union of a batch gives each sentence what it gets in a batch of its own.
        alone = translator.search(tf.constant([text]))
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
    candidates, _ = translator.shortlist.candidates(source_ids, tokenizer.target_vocab_size)
    ids = tokenizer.tokenize_target(tf.constant([prefix])).to_tensor()[0, :-1].numpy().tolist()
    assert not set(ids) <= set(candidates.numpy().tolist())
    inputs = SearchInputs(tf.constant([len(ids) + 2]), tf.constant([ids]))
    found = translator.translate_ids(source_ids, inputs)
    assert found.ids[0, 0].numpy().tolist()[: len(ids)] == ids


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


def test_a_shortlist_that_is_too_small_for_the_beam_is_an_error(full: TranslationModule) -> None:
    rows = np.full((full.tokenizer.source_vocab_size, 1), 3)
    with pytest.raises(InputError, match=mentions("beam", 4, 8, "frequent")):
        full.with_options(shortlist=Shortlist(np.arange(7), rows))
