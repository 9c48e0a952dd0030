"""The search of the baselines equals brute force."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import decoding
from keras_transformer.config import DecodingConfig
from keras_transformer.decoding import SearchInputs, SearchResult, SpecialIds
from keras_transformer.decoding.cached_decoder import CachedDecoder
from keras_transformer.models.encoder_decoder import EncoderDecoder
from tests.extensions.paper.baselines.tiny import END, PAD, START, Array, make, source_ids
from tests.layers.layer_check import to_numpy
from tests.reference import log_softmax


def search(model: EncoderDecoder, source: Array, longest: int, **config: object) -> SearchResult:
    """The search of `TranslationModule`, without text."""

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)], autograph=False)
    def found(source: tf.Tensor) -> SearchResult:
        settings = DecodingConfig(**config)
        memory = model.project_memory(model.encode(source, training=False))
        decoder = CachedDecoder([model], [memory], settings.beam_size)
        lengths = tf.fill([tf.shape(source)[0]], longest)
        inputs = SearchInputs(lengths, source_mask=decoder.source_mask)
        return decoding.search(decoder, inputs, settings, SpecialIds(START, END, PAD))

    return found(tf.constant(source))


@pytest.mark.parametrize("name", ["gru", "convolutional"])
def test_the_search_equals_brute_force(name: str) -> None:
    vocab, longest, alpha = 7, 3, 0.6
    model, _ = make(name, scale=1.0, source_vocab_size=vocab, target_vocab_size=vocab)
    source = np.minimum(source_ids([4, 1, 3]), vocab - 1)
    result = search(model, source, longest, beam_size=20, n_best=3, length_penalty=alpha)
    words = [1, 4, 5, 6]  # the tokens except the end token
    prefixes = [p for n in range(longest) for p in itertools.product(words, repeat=n)]
    full = np.full((len(prefixes), longest), PAD, np.int32)  # all prefixes as targets
    full[:, 0] = START
    for row, prefix in zip(full, prefixes, strict=True):
        row[1 : len(prefix) + 1] = prefix
    for sentence, (ids, scores) in enumerate(zip(result.ids, result.scores, strict=True)):
        repeated = np.repeat(source[sentence : sentence + 1], len(full), axis=0)
        logits = to_numpy(model({"source_ids": repeated, "target_ids": full}))
        log_probs = log_softmax(logits.astype(np.float64))
        outputs = {}
        for row, prefix in enumerate(prefixes):
            so_far = sum(log_probs[row, i, token] for i, token in enumerate(prefix))
            ends = [END, *words] if len(prefix) == longest - 1 else [END]
            for token in ends:  # an output of maximum length needs no end token
                log_prob = so_far + log_probs[row, len(prefix), token]
                penalty = ((5 + len(prefix) + 1) / 6) ** alpha
                outputs[(*prefix, token)] = log_prob / penalty
        best = sorted(outputs, key=lambda output: -outputs[output])[:3]
        found = [tuple(row[row != PAD]) for row in to_numpy(ids)]
        assert found == best
        np.testing.assert_allclose(scores, [outputs[output] for output in best], atol=1e-4)
