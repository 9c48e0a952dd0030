"""The layers of the paper, as Keras layers that use only `keras.ops`."""

from keras_transformer.layers.attention import (
    CrossAttention,
    SelfAttention,
    scaled_dot_product_attention,
)
from keras_transformer.layers.block import Block
from keras_transformer.layers.dropout import Dropout, dropout_seed
from keras_transformer.layers.embedding import TokenAndPositionEmbedding, TokenEmbedding
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.layers.layer_norm import LayerNorm
from keras_transformer.layers.masks import padding_mask, position_mask
from keras_transformer.layers.positions import LearnedPositions, SinusoidalPositions
from keras_transformer.layers.ssru import SSRU
from keras_transformer.layers.stacks import Decoder, DecoderLayer, Encoder, EncoderLayer
from keras_transformer.layers.state import DecodeState

__all__ = [
    "SSRU",
    "Block",
    "CrossAttention",
    "DecodeState",
    "Decoder",
    "DecoderLayer",
    "Dropout",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "LayerNorm",
    "LearnedPositions",
    "SelfAttention",
    "SinusoidalPositions",
    "TokenAndPositionEmbedding",
    "TokenEmbedding",
    "dropout_seed",
    "padding_mask",
    "position_mask",
    "scaled_dot_product_attention",
]
