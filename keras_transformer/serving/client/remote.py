"""A model on a server, used as one that has been read from disk."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.inference.loading import LoadedModel
from keras_transformer.serving.client import Client, connect

_READY_SECONDS = 5.0


def connect_model(address: str) -> LoadedModel:
    """Returns the model at an address, as `client.connect` takes it, for `inference`.

    Raises:
        InputError: where no model answers in some seconds, or it is not one of
            bin/export.py's.
    """
    client = connect(address)
    client.wait_until_ready(_READY_SECONDS)
    signatures = client.metadata()
    try:
        n_best = signatures["serving_default"].outputs["translations"].shape[1]
        _ = signatures["lengths"]
    except (KeyError, IndexError):
        raise InputError(
            f"{address} serves no model that bin/export.py has written; expected the signatures "
            "serving_default and lengths"
        ) from None
    return LoadedModel(
        address, n_best, _function(client, "serving_default"), _function(client, "lengths"), client
    )


def _function(client: Client, signature: str) -> Callable[..., dict[str, tf.Tensor]]:
    def run(**inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
        return {name: tf.constant(a) for name, a in client.predict(arrays, signature).items()}

    return run
