"""The cache of LiteRT's batches, in blocks."""

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding import SearchInputs
from keras_transformer.extensions.litert.blocks import BlockDecoder
from keras_transformer.inference import loading
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import weekly
from tests.conftest import PHRASES


class DecoderOfThree(BlockDecoder):
    steps_per_round = 3


@pytest.mark.parametrize(("beam", "window"), [weekly(1, 4), weekly(4, None), (4, 4)])
def test_a_cache_that_grows_in_blocks_changes_nothing(
    run_directory: RunDirectory, beam: int, window: int | None
) -> None:
    config = run_directory.config.updated(decoding__beam_size=beam, model__attention_window=window)
    transformer = Transformer(config.model, dtype="float32")
    transformer.build()
    transformer.assign_weights(run_directory.named_weights())
    translator = TranslationModule(transformer, run_directory.tokenizer(), config.decoding)
    source_ids, *_ = translator.source_ids(tf.constant([*PHRASES, "a", "", "ball " * 30]))
    inputs = SearchInputs(translator.max_lengths(source_ids))
    search = tf.function(translator.translate_ids, autograph=False)
    expected = search(source_ids, inputs)
    found = search(source_ids, inputs, make_decoder=DecoderOfThree)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)


@pytest.mark.parametrize(("parents", "kept"), [([0, 1, 2], 9), ([1, 1, 1], 3)])
def test_entries_of_discarded_hypotheses_do_not_move_to_the_past(
    run_directory: RunDirectory, parents: list[int], kept: int
) -> None:
    module = loading.load_translator(run_directory)
    memories = module.encode(tf.constant([[5, 6, module.tokenizer.end_id]]))
    decoder = DecoderOfThree(module.transformers, memories, beam=3)
    cache = decoder.begin_round(decoder.init_cache(), tf.constant(0))
    for position in range(3):
        _, cache, _ = decoder.step(tf.constant([4, 5, 6]), tf.constant(position), cache)
        cache = decoder.reorder_cache(cache, tf.constant([parents]))
    past = decoder.begin_round(cache, tf.constant(3))["past"]
    assert {entries.shape[2] for entries in tf.nest.flatten(past)} == {kept}
