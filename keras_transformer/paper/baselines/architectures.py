"""Registers the baselines. Import this module to load or train their runs."""

from keras_transformer.paper.baselines import convolutional, gru  # noqa: F401
