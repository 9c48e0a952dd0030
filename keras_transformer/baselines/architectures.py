"""Every architecture by the name that its runs have."""

from __future__ import annotations

from keras_transformer.baselines.attention import AdditiveTransformer, UnscaledTransformer
from keras_transformer.baselines.convolutional import Convolutional
from keras_transformer.baselines.gru import GRU
from keras_transformer.encoder_decoder import EncoderDecoder
from keras_transformer.model import Transformer

ARCHITECTURES: dict[str, type[EncoderDecoder]] = {
    each.run_config.architecture: each
    for each in (Transformer, GRU, Convolutional, UnscaledTransformer, AdditiveTransformer)
}
