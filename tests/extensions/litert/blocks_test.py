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


class DecoderOfThree(BlockDecoder):
    steps_per_round = 3


@pytest.mark.parametrize(("beam", "window"), [(1, 4), (4, None)])
def test_a_cache_that_grows_in_blocks_changes_nothing(
    run_directory: RunDirectory, beam: int, window: int | None
) -> None:
    config = run_directory.config.replace(decoding__beam_size=beam, model__attention_window=window)
    transformer = Transformer(config.model, dtype="float32")
    transformer.build()
    transformer.assign_weights(run_directory.named_weights())
    translator = TranslationModule(transformer, run_directory.tokenizer(), config.decoding)
    source_ids, lengths = translator.source_ids(tf.constant([*PHRASES, "a", "", "ball " * 30]))
    inputs = SearchInputs(translator.max_lengths(lengths))
    search = tf.function(translator.translate_ids, autograph=False)
    expected = search(source_ids, inputs)
    found = search(source_ids, inputs, make_decoder=DecoderOfThree)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-4)
