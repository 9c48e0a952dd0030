"""The Transformer, and the protocol that other encoder-decoder models follow."""

from keras_transformer.models.encoder_decoder import (
    Decoded,
    EncoderDecoder,
    Memory,
    get_architecture,
    register_architecture,
)
from keras_transformer.models.transformer import Transformer

__all__ = [
    "Decoded",
    "EncoderDecoder",
    "Memory",
    "Transformer",
    "get_architecture",
    "register_architecture",
]
