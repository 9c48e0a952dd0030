"""Every architecture by the name that its runs have."""

from __future__ import annotations

from keras_transformer.models.encoder_decoder import EncoderDecoder
from keras_transformer.models.transformer import Transformer
from keras_transformer.paper.baselines.attention import AdditiveTransformer, UnscaledTransformer
from keras_transformer.paper.baselines.convolutional import Convolutional
from keras_transformer.paper.baselines.gru import GRU

ARCHITECTURES: dict[str, type[EncoderDecoder]] = {
    each.run_config.architecture: each
    for each in (Transformer, GRU, Convolutional, UnscaledTransformer, AdditiveTransformer)
}
