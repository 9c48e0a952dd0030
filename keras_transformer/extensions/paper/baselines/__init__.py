"""Baselines for the Transformer, with the same data, training and search (paper, Table 2).

Import this package to load or train their runs.
"""

from keras_transformer.extensions.paper.baselines import convolutional, gru

__all__ = ["convolutional", "gru"]
