"""The Transformer, and the protocol that other encoder-decoder models follow."""

from keras_transformer.models.encoder_decoder import EncoderDecoder, get_architecture
from keras_transformer.models.transformer import Transformer

__all__ = ["EncoderDecoder", "Transformer", "get_architecture"]
