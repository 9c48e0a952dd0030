"""Random attention for tests."""

from collections.abc import Sequence

import numpy as np

from keras_transformer.extensions.pages.attention import Attention

SOURCE = ["▁the", "▁cat", "▁sleep", "s", "</s>"]
READ = ["<s>", "▁die", "▁katze", "▁schläft"]
PREDICTED = [*READ[1:], "</s>"]


def random_attention(
    source: Sequence[str] = SOURCE,
    read: Sequence[str] = READ,
    predicted: Sequence[str] = PREDICTED,
    *,
    layers: tuple[int, int] = (2, 3),
    heads: int = 2,
    seed: int = 0,
    target_text: str = "die katze schläft",
) -> Attention:
    """Returns rows that sum to 1, with some large weights. The decoder is causal."""
    random = np.random.default_rng(seed)
    s, t = len(source), len(read)

    def weights(count: int, rows: int, columns: int, causal: bool = False) -> np.ndarray:
        scores = random.normal(size=(count, heads, rows, columns), scale=2)
        if causal:
            scores += np.triu(np.full((rows, columns), -1e9), 1)
        powers = np.exp(scores)
        return (powers / powers.sum(-1, keepdims=True)).astype(np.float32)

    encoder, cross = weights(layers[0], s, s), weights(layers[1], t, s)
    decoder = weights(layers[1], t, t, causal=True)
    tokens = list(source), list(read), list(predicted)
    return Attention(*tokens, encoder, decoder, cross, target_text)
