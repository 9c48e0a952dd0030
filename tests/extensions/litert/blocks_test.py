"""The cache of LiteRT's batches, in blocks."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import SearchInputs
from keras_transformer.extensions.litert.blocks import BlockDecoder
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES


class DecoderOfTwo(BlockDecoder):
    steps_per_round = 2


class DecoderOfThree(BlockDecoder):
    steps_per_round = 3


@pytest.mark.parametrize(
    ("window", "seen"),
    [
        # The token of the second hypothesis at position 0 is in no history.
        (None, [[1, 0, 1], [1, 1, 0]]),
        # A window counts places, so all of them stay, with the position before the first.
        (3, [[0, 0, 1, 0, 0, 1], [0, 0, 1, 0, 1, 0]]),
    ],
)
def test_the_past_has_only_places_that_some_hypothesis_may_see(
    window: int | None, seen: list[list[int]]
) -> None:
    model = Transformer.from_preset(
        "tiny", vocab_size=20, d_model=8, num_heads=2, attention_window=window
    )
    memory = model.project_memory(model.encode(tf.constant([[5, 6, 3]])))
    decoder = DecoderOfTwo([model], [memory], beam=2)
    cache = decoder.begin_round(decoder.init_cache(), tf.constant(0))
    tokens = tf.constant([2, 2])
    for position, parents in enumerate([[[0, 0]], [[1, 0]]]):
        _, cache, _ = decoder.step(tokens, tf.constant(position), cache)
        cache = decoder.reorder_cache(cache, tf.constant(parents))
    keys = cache["layers"][0][0]["key"].numpy()
    cache = decoder.begin_round(cache, tf.constant(2))
    np.testing.assert_array_equal(cache["past_visible"], np.array([seen], bool))
    if window is None:
        np.testing.assert_array_equal(cache["past"][0][0]["key"], keys[:, :, [0, 2, 3]])
    assert (cache["ancestors"].numpy() == -1).all()


@pytest.mark.parametrize(("beam", "window"), [(1, 4), (4, None)])
def test_a_cache_that_grows_in_blocks_changes_nothing(
    run_directory: RunDirectory, beam: int, window: int | None
) -> None:
    config = run_directory.config.replace(decoding__beam_size=beam, model__attention_window=window)
    transformer = Transformer(config.model, dtype="float32")
    transformer.build()
    transformer.assign_weights(run_directory.selected_weights())
    translator = TranslationModule(transformer, run_directory.tokenizer(), config.decoding)
    source_ids, lengths = translator.source_ids(tf.constant([*PHRASES, "a", "", "ball " * 30]))
    inputs = SearchInputs(translator.max_lengths(lengths))
    expected = translator.translate_ids(source_ids, inputs)
    found = tf.function(translator.translate_ids)(source_ids, inputs, make_decoder=DecoderOfThree)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)
