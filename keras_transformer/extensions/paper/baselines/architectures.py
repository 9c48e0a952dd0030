"""Registers the baselines. Import this module to load or train their runs."""

from keras_transformer.extensions.paper.baselines import convolutional, gru  # noqa: F401
