"""Registers the baselines. Import this module to load or train run directories of them."""

from keras_transformer.paper.baselines import (  # noqa: F401
    attention,
    convolutional,
    gru,
)
