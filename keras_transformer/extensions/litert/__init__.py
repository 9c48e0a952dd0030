"""Exports a run as a LiteRT model, one file for phones."""

from keras_transformer.errors import needs_extra

with needs_extra("litert", "the format litert"):
    import ai_edge_litert  # noqa: F401
