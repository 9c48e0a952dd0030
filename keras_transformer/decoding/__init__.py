"""Search over a step function `(ids, position, cache) → (logits, cache, cross-attention)`.

TensorFlow only: nothing here knows of layers, tokenizers or files.
"""

from keras_transformer.decoding.beam import SearchResult, beam_search

__all__ = ["SearchResult", "beam_search"]
