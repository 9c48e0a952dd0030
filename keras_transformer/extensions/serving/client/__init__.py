"""Clients of TF Serving for REST and gRPC, with the same interface.

    with connect("localhost:8501/export") as client:  # or grpc://localhost:8500/export
        client.wait_until_ready()
        best = client.translate(["A small dog runs."])[0][0].text

REST needs httpx, and gRPC needs grpcio and tensorflow-serving-api, which loads TensorFlow.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from keras_transformer.errors import InputError, needs_extra
from keras_transformer.extensions.serving.client.base import Client, ServerError
from keras_transformer.extensions.serving.client.grpc import GrpcClient
from keras_transformer.extensions.serving.client.rest import RestClient
from keras_transformer.extensions.serving.client.tensors import Signature, Tensor
from keras_transformer.inference import Translation

if TYPE_CHECKING:
    import numpy as np

    from keras_transformer.inference.loading import LoadedModel

__all__ = [
    "Client",
    "GrpcClient",
    "RestClient",
    "ServerError",
    "Signature",
    "Tensor",
    "Translation",
    "connect",
    "connect_model",
    "is_address",
]

_READY_SECONDS = 5.0


_ADDRESS = re.compile(r"((https?|grpc)://)?[^/@,\s]+:\d+(/.*)?", re.IGNORECASE)


def is_address(place: str) -> bool:
    """Returns whether a text has the form of an address, such as `localhost:8501/export`.

    Example:
    >>> is_address("grpc://localhost:8500/export"), is_address("build/run")
    (True, False)
    """
    return _ADDRESS.fullmatch(place) is not None


def connect(address: str, **options: Any) -> Client:
    """Returns a client for `[SCHEME://]HOST:PORT[/MODEL]`.

    Args:
        address: the address. grpc:// means gRPC; http://, https:// and no scheme mean REST.
            Without MODEL, keras-transformer serve reports its model (only REST).
        **options: arguments of `Client`.

    Raises:
        InputError: for an invalid address.
        ServerError: if no server reports its model.
    """
    scheme, separator, rest = address.rpartition("://")
    scheme = scheme.lower()
    place, _, path = rest.partition("/")
    # Also as servers print it, .../v1/models/MODEL.
    model = path.strip("/").removeprefix("v1/models/")
    host, colon, port = place.rpartition(":")
    if scheme not in ("", "http", "https", "grpc") or not (host and colon and _is_port(port)):
        raise InputError(
            f"{address} is not the address of a server. Use [grpc://]HOST:PORT/MODEL, as in "
            "localhost:8501/export."
        )
    if scheme == "grpc" and not model:
        raise InputError(f"{address} names no model. Use grpc://HOST:PORT/MODEL.")
    if scheme == "grpc":
        return GrpcClient(place, model, **options)
    url = f"{scheme}{separator}{place}"
    return RestClient(url, model or _served_model(url), **options)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text[:6]) < 2**16


def _served_model(url: str) -> str:
    with needs_extra("serving", "a server's REST API"):
        import httpx

    health = f"{url if '://' in url else f'http://{url}'}/healthz"
    try:
        return str(httpx.get(health).raise_for_status().json()["model"])
    except httpx.TransportError as error:
        raise ServerError(f"No server responds at {url} ({error}).") from error
    except (httpx.HTTPStatusError, ValueError, KeyError, TypeError):
        raise InputError(
            f"{url} does not report which model it serves. Use HOST:PORT/MODEL."
        ) from None


def connect_model(address: str) -> LoadedModel:
    """Returns a model on a server for the functions of `inference`.

    Args:
        address: address as in `connect`.

    Raises:
        InputError: if no model answers, or the model was not written by keras-transformer export.
    """
    from keras_transformer.inference.loading import LoadedModel

    client = connect(address)
    client.wait_until_ready(_READY_SECONDS)
    signatures = client.metadata()
    try:
        n_best = signatures["serving_default"].outputs["translations"].shape[1]
        _ = signatures["lengths"]
    except (KeyError, IndexError):
        raise InputError(
            f"The model at {address} was not written by keras-transformer export: it needs the "
            "signatures serving_default and lengths."
        ) from None
    tags = client.tags()
    return LoadedModel(
        address,
        n_best,
        _function(client, "serving_default"),
        _function(client, "lengths"),
        client,
        symbols=tags.symbols,
        source_tag=tags.source_tag,
    )


def _function(client: Client, signature: str) -> Callable[..., dict[str, np.ndarray]]:
    return lambda **inputs: client.predict(inputs, signature)
