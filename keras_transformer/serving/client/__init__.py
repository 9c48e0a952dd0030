"""Clients of TF Serving, by REST and by gRPC, with one interface.

    with connect("localhost:8501/export") as client:  # or grpc://localhost:8500/export
        client.wait_until_ready()
        best = client.translate(["A small dog runs."])[0][0].text

REST needs httpx, and gRPC needs grpcio and tensorflow-serving-api, which loads TensorFlow.
"""

from __future__ import annotations

from typing import Any

from keras_transformer.errors import InputError, needs_extra
from keras_transformer.inference import Translation
from keras_transformer.serving.client.base import Client, ServerError
from keras_transformer.serving.client.grpc import GrpcClient
from keras_transformer.serving.client.rest import RestClient
from keras_transformer.serving.client.tensors import Signature, Tensor

__all__ = [
    "Client",
    "GrpcClient",
    "RestClient",
    "ServerError",
    "Signature",
    "Tensor",
    "Translation",
    "connect",
]


def connect(address: str, **options: Any) -> Client:
    """Returns a client for `[SCHEME://]HOST:PORT[/MODEL]`.

    Args:
        address: with grpc:// for gRPC, and http://, https:// or nothing for REST. Without
            a model, bin/serve.py is asked by REST which one it serves.
        options: of `Client`.

    Raises:
        InputError: for another form.
        ServerError: where nothing says which model there is.
    """
    scheme, separator, rest = address.rpartition("://")
    scheme = scheme.lower()
    place, _, path = rest.partition("/")
    # Also as servers print it, .../v1/models/MODEL.
    model = path.strip("/").removeprefix("v1/models/")
    host, colon, port = place.rpartition(":")
    if scheme not in ("", "http", "https", "grpc") or not (host and colon and _is_port(port)):
        raise InputError(
            f"{address} is no address of a server; expected [grpc://]HOST:PORT/MODEL, as in "
            "localhost:8501/export"
        )
    if scheme == "grpc" and not model:
        raise InputError(f"{address} names no model; expected grpc://HOST:PORT/MODEL")
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
        raise ServerError(f"nothing answers at {url} ({error}); expected a server there") from error
    except (httpx.HTTPStatusError, ValueError, KeyError, TypeError):
        raise InputError(
            f"{url} does not say which model it serves; expected HOST:PORT/MODEL"
        ) from None
