"""Arguments and inputs that do not fit are refused."""

from typing import Any

import numpy as np
import pytest

from keras_transformer.layers import (
    Dropout,
    Encoder,
    EncoderLayer,
    FeedForward,
    SelfAttention,
    SinusoidalPositions,
)
from tests.messages import mentions

X = np.ones((1, 4, 8), np.float32)


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (lambda: SelfAttention(0, 3), ("num_heads", 0, 1)),
        (lambda: SelfAttention(2, 0), ("key_dim", 0, 1)),
        (lambda: SelfAttention(2, 3, 0), ("value_dim", 0, 1)),
        (lambda: SelfAttention(2, 3, window=0), ("window", 0, 1)),
        (lambda: FeedForward(0), ("d_ff", 0)),
        (lambda: Encoder(0, 2, 9), ("num_layers", 0)),
        (lambda: EncoderLayer(2, 9, norm_position="middle"), ("norm_position", "middle")),
        (lambda: EncoderLayer(2, 9, decoder_self_attention="gru"), ("gru", "ssru")),
        (lambda: Dropout(-0.1), ("rate", 0, 1)),
        (lambda: Dropout(1.0), ("rate", 0, 1)),
        (lambda: SinusoidalPositions(5), ("d_model", 5)),
        (lambda: SinusoidalPositions(6, layout="spiral"), ("layout", "spiral")),
        (lambda: SinusoidalPositions(6, frequencies="octaves"), ("frequencies", "octaves")),
        (lambda: EncoderLayer(2, 9)(X, mask=X[None] > 0), ("(1, 1, 4, 8)", "[batch, positions]")),
        (lambda: EncoderLayer(num_heads=3, d_ff=4)(X), (8, "num_heads", 3, "key_dim")),
    ],
)
def test_the_error_names_what_does_not_fit(make: Any, facts: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match=mentions(*facts)):
        make()
