"""The cache of `CachedDecoder`, in blocks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.decoding.cached_decoder import CachedDecoder
from keras_transformer.models.transformer import Transformer


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
    decoder = CachedDecoder([model], [memory], beam=2, block=2)
    cache = decoder.extend_cache(decoder.init_cache(), tf.constant(0))
    tokens = tf.constant([2, 2])
    for position, parents in enumerate([[[0, 0]], [[1, 0]]]):
        _, cache, _ = decoder.step(tokens, tf.constant(position), cache)
        cache = decoder.reorder_cache(cache, tf.constant(parents))
    keys = cache["layers"][0][0]["key"].numpy()
    cache = decoder.extend_cache(cache, tf.constant(2))
    np.testing.assert_array_equal(cache["past_visible"], np.array([seen], bool))
    if window is None:
        np.testing.assert_array_equal(cache["past"][0][0]["key"], keys[:, :, [0, 2, 3]])
    assert (cache["ancestors"].numpy() == -1).all()
