"""A client of keras-transformer serve and of TF Serving, over REST.

    with connect("localhost:8501/export") as client:
        client.wait_until_ready()
        best = client.translate(["A small dog runs."])[0][0].text

It needs httpx.
"""

from __future__ import annotations

import base64
import concurrent.futures
import functools
import itertools
import json
import random
import re
import time
import urllib.parse
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from keras_transformer.errors import InputError, needs_extra
from keras_transformer.extensions.serving.tensors import DTYPES, Signature, Tensor, map_objects
from keras_transformer.inference import Translation, translations_of
from keras_transformer.inference.tags import (
    ServedTags,
    add_tag,
    check_tag,
    missing_tags,
    served_tags,
)

if TYPE_CHECKING:
    from keras_transformer.inference.loading import LoadedModel

__all__ = [
    "Client",
    "ServerError",
    "Signature",
    "Tensor",
    "Translation",
    "connect",
    "connect_model",
    "is_address",
]

_Result = TypeVar("_Result")
_ADDRESS = re.compile(
    r"(?P<host>(https?://)?[^/@,\s:]+|(https?://)?\[[^/@,\s]+\])"
    r":(?P<port>[0-9]{1,5})(/(v1/models/)?(?P<model>[^/]*)/*)?",
    re.IGNORECASE,
)
_BATCH_BYTES = 2**20  # text of a request
_READY_SECONDS = 5.0


class ServerError(InputError):
    """The server does not answer, or has failed. The message has its answer."""


class _NotNowError(Exception):
    """A temporary failure. The request is retried."""


def is_address(text: str) -> bool:
    """Returns whether a text has the form of an address, such as `localhost:8501/export`.

    Example:
    >>> is_address("localhost:8501/export"), is_address("build/run")
    (True, False)
    """
    return _ADDRESS.fullmatch(text) is not None


def connect(address: str, **options: Any) -> Client:
    """Returns a client for `[http[s]://]HOST:PORT[/MODEL]`.

    Args:
        address: the address. Without MODEL, `keras-transformer serve` reports its model.
        **options: arguments of `Client`.

    Raises:
        InputError: for an invalid address.
        ServerError: if no server reports its model.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) >= 2**16:
        raise InputError(
            f"{address} is not the address of a server. Use HOST:PORT/MODEL, as in "
            "localhost:8501/export."
        )
    host = f"{match['host']}:{match['port']}"
    return Client(host, match["model"] or _served_model(host), **options)


def _served_model(host: str) -> str:
    with needs_extra("serving", "a server's REST API"):
        import httpx

    try:
        return str(httpx.get(f"{_url(host)}/healthz").raise_for_status().json()["model"])
    except httpx.TransportError as error:
        raise ServerError(f"No server responds at {host} ({error}).") from error
    except (httpx.HTTPStatusError, ValueError, KeyError, TypeError):
        raise InputError(
            f"{host} does not report which model it serves. Use HOST:PORT/MODEL."
        ) from None


def _url(host: str) -> str:
    return host if "://" in host else f"http://{host}"


def connect_model(address: str) -> LoadedModel:
    """Returns a model on a server for the functions of `inference`."""
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
        lambda **inputs: client.predict(inputs),
        lambda **inputs: client.predict(inputs, "lengths"),
        client,
        symbols=tags.symbols,
        source_tag=tags.source_tag,
    )


class Client:
    """A client of a model. It is thread-safe.

    Args:
        address: HOST:PORT or a URL.
        model: name of the model.
        version: number of the version; None for the version that is served.
        timeout: seconds that a call may take, including retries.
        max_batch_size: maximum rows of a request. Larger inputs are split.
        connections: number of parallel requests of `translate`.
    """

    def __init__(
        self,
        address: str,
        model: str,
        version: int | None = None,
        *,
        timeout: float = 60.0,
        max_batch_size: int = 64,
        connections: int = 4,
    ):
        with needs_extra("serving", "a server's REST API"):
            import httpx

        if not (timeout > 0 and max_batch_size >= 1 and connections >= 1):
            raise InputError(
                f"timeout is {timeout}, max_batch_size {max_batch_size} and connections "
                f"{connections}. The first must be more than 0, the others at least 1."
            )
        self.address = address
        self.model = model
        self.timeout = timeout
        self.max_batch_size = max_batch_size
        self.connections = connections
        self._path = f"/v1/models/{urllib.parse.quote(model, safe='')}"
        if version is not None:
            self._path += f"/versions/{version}"
        self._signatures: dict[str, Signature] = {}
        self._tags: ServedTags | None = None
        try:
            self._http = httpx.Client(base_url=_url(address))
        except httpx.InvalidURL as error:
            raise InputError(f"{address!r} is not an address ({error}). Use HOST:PORT.") from error

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def predict(
        self,
        inputs: Mapping[str, Any],
        signature: str = "serving_default",
        timeout: float | None = None,
    ) -> dict[str, np.ndarray]:
        """Runs a signature.

        Args:
            inputs: arrays or nested lists by name, with the batch as first dimension. Text is str
                or UTF-8 bytes.
            signature: name of the signature.
            timeout: seconds; None for the timeout of the client.

        Returns:
            Arrays by name. Strings are bytes in arrays of objects.

        Raises:
            InputError: for invalid inputs, also if the server refuses them.
            ServerError: if the server fails, or does not answer in time.
        """
        deadline = self._deadline(timeout)
        known = self._signature(signature, deadline)
        if set(inputs) != set(known.inputs):
            raise InputError(
                f"The inputs are {', '.join(sorted(inputs)) or 'none'}, but {signature} of "
                f"{self.model} takes {', '.join(sorted(known.inputs))}."
            )
        arrays = {
            name: _input_array(name, inputs[name], known.inputs[name].dtype) for name in inputs
        }
        rows = {len(array) for array in arrays.values()}
        if len(rows) != 1 or rows == {0}:
            raise InputError(
                f"The inputs have {sorted(rows)} rows. All need the same number, at least 1."
            )

        def part(start: int) -> dict[str, np.ndarray]:
            end = start + self.max_batch_size
            columns = {name: _json_values(array[start:end]) for name, array in arrays.items()}
            body = {"signature_name": signature, "inputs": columns}
            outputs = self._again(
                lambda left: self._request("outputs", "POST", ":predict", left, body), deadline
            )
            if len(known.outputs) == 1:  # a single output has no name
                outputs = dict.fromkeys(known.outputs, outputs)
            return {name: _from_json(outputs[name], t.dtype) for name, t in known.outputs.items()}

        parts = [part(start) for start in range(0, rows.pop(), self.max_batch_size)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def translate(
        self, lines: Sequence[str], timeout: float | None = None, *, source_tag: str | None = None
    ) -> list[list[Translation]]:
        """Translates lines in batches of similar lengths, several at the same time.

        Args:
            lines: lines of text.
            timeout: seconds for each batch; None for the timeout of the client.
            source_tag: begins every line that is not empty, as in "<2de>".

        Returns:
            The translations of each line, best first. If the model has tags of target languages,
            and lines have none, a `UserWarning` says so.

        Raises:
            InputError: for invalid lines, or a tag that the model does not have.
            ServerError: if the server fails, or does not answer in time.
        """
        if isinstance(lines, (str, bytes)):
            raise InputError(f"{lines[:40]!r} is a string. Pass a list of lines.")
        try:
            texts = [_bytes(line) for line in lines]
        except (TypeError, UnicodeEncodeError) as error:
            raise InputError(f"The lines cannot be sent as text ({error}).") from error
        known = self.tags(timeout) if texts else ServedTags()
        check_tag(source_tag, known.symbols, self.address)
        decoded = [text.decode("utf-8", "surrogateescape") for text in texts]
        if remark := missing_tags(decoded, known.symbols, source_tag or known.source_tag):
            warnings.warn(remark, stacklevel=2)
        if source_tag:
            texts = [
                add_tag(text, source_tag).encode("utf-8", "surrogateescape") for text in decoded
            ]
        results: list[list[Translation]] = [[] for _ in texts]
        batches = list(_batches(texts, self.max_batch_size))

        def translated(batch: list[int]) -> dict[str, np.ndarray]:
            return self.predict({"text": [texts[i] for i in batch]}, timeout=timeout)

        pool = concurrent.futures.ThreadPoolExecutor(self.connections)
        try:
            for batch, outputs in zip(batches, pool.map(translated, batches), strict=True):
                rows = zip(batch, outputs["translations"], outputs["scores"], strict=True)
                for index, best, scores in rows:
                    results[index] = translations_of(best, scores)
        finally:
            pool.shutdown(cancel_futures=True)
        return results

    def metadata(self, timeout: float | None = None) -> dict[str, Signature]:
        """Returns the signatures of the model, by name, as the server has them now."""
        fields = self._again(
            lambda left: self._request("metadata", "GET", "/metadata", left),
            self._deadline(timeout),
        )
        try:
            self._signatures = {
                name: Signature(_tensors(infos["inputs"]), _tensors(infos["outputs"]))
                for name, infos in fields["signature_def"]["signature_def"].items()
                if infos.get("inputs")  # without the initialization of the model
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ServerError(
                f"{self.address} gives metadata that is not of TF Serving ({error!r})"
            ) from error
        self._tags = None
        return dict(self._signatures)

    def tags(self, timeout: float | None = None) -> ServedTags:
        """Returns the symbols of the model and the tag that the server adds.

        Args:
            timeout: seconds for each request; None for the timeout of the client.
        """
        names = self._signatures or self.metadata(timeout)
        if self._tags is None:
            ask = functools.partial(self.predict, timeout=timeout)
            self._tags = served_tags(
                {name: functools.partial(ask, signature=name) for name in names}
            )
        return self._tags

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Returns when the model is available.

        Raises:
            ServerError: if it is not available in time, with the last answer of the server.
        """

        def check(left: float) -> None:
            try:
                versions = self._request("model_version_status", "GET", "", left)
            except InputError as error:  # it may be loading
                raise _NotNowError(str(error)) from error
            states = [version["state"] for version in versions]
            if "AVAILABLE" not in states:
                raise _NotNowError(f"the states of {self.model} are {', '.join(states)}")

        self._again(check, self._deadline(timeout))

    def _deadline(self, timeout: float | None) -> float:
        return time.monotonic() + (self.timeout if timeout is None else timeout)

    def _signature(self, name: str, deadline: float) -> Signature:
        if name not in self._signatures:
            self.metadata(deadline - time.monotonic())
        if name not in self._signatures:
            raise InputError(
                f"{self.model} at {self.address} has no signature {name}. Choose one of "
                f"{', '.join(sorted(self._signatures))}."
            )
        return self._signatures[name]

    def _again(self, call: Callable[[float], _Result], deadline: float) -> _Result:
        """Calls `call` with the seconds left, and retries until the deadline."""
        start = time.monotonic()
        for attempt in itertools.count():
            try:
                return call(max(deadline - time.monotonic(), 0.001))
            except _NotNowError as error:
                pause = min(0.05 * 2**attempt, 5.0) * random.uniform(0.5, 1)
                if time.monotonic() + pause >= deadline:
                    raise ServerError(
                        f"{self.address} did not respond within {deadline - start:.1f} s "
                        f"({error}). Is a server with the model {self.model} running there?"
                    ) from error
            time.sleep(pause)
        raise AssertionError("unreachable")

    def _request(self, field: str, method: str, path: str, timeout: float, body: Any = None) -> Any:
        """Sends a request and returns a field of the JSON answer."""
        import httpx

        content = None if body is None else json.dumps(body).encode()  # httpx refuses NaN
        end, chunks = time.monotonic() + timeout, []
        url = self._path + path
        try:
            with self._http.stream(method, url, content=content, timeout=timeout) as response:
                for chunk in response.iter_bytes():
                    chunks.append(chunk)
                    if time.monotonic() > end:  # the timeout of httpx is for each read
                        raise _NotNowError(f"the answer is incomplete after {timeout:g} s")
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise InputError(
                f"{self.address} is not an address ({error}). Use HOST:PORT."
            ) from error
        except httpx.RequestError as error:
            raise _NotNowError(str(error) or type(error).__name__) from error
        text = b"".join(chunks).decode("utf-8", "replace")
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            answer = None
        if response.is_success and isinstance(answer, dict) and field in answer:
            return answer[field]
        has_error = isinstance(answer, dict) and "error" in answer
        details = answer["error"] if has_error else text[:200].strip()
        sentence = f"{self.address} answers {response.status_code}: {details}"
        if response.status_code in (429, 503):
            raise _NotNowError(sentence)
        raise (InputError if 400 <= response.status_code < 500 else ServerError)(sentence)


def _tensors(infos: Mapping[str, Any]) -> dict[str, Tensor]:
    tensors = {}
    for name, info in infos.items():
        dims = info.get("tensor_shape", {}).get("dim", ())
        shape = tuple(int(dim.get("size", 0)) for dim in dims)
        tensors[name] = Tensor(DTYPES.get(info["dtype"]), shape)
    return tensors


def _input_array(name: str, value: Any, dtype: Any) -> np.ndarray:
    """Returns an input as an array of at least one dimension."""
    try:
        if dtype is object:
            array = map_objects(_bytes, np.asarray(value, object))
        else:
            given = np.asarray(value)
            array = given.astype(dtype, casting="same_kind")
            if array.dtype.kind in "iu" and np.any(array != given):
                raise ValueError(f"{given[array != given].flat[0]} does not fit")
        if not array.ndim:
            raise ValueError("it has no batch dimension")
    except (TypeError, ValueError) as error:
        expected = "strings" if dtype is object else f"values of {np.dtype(dtype).name}"
        raise InputError(
            f"The input {name} cannot be sent ({error}). It must be {expected}."
        ) from error
    return array


def _bytes(text: Any) -> bytes:
    if not isinstance(text, (str, bytes)):
        raise TypeError(f"{text!r} is not text")
    return text.encode() if isinstance(text, str) else bytes(text)


def _json_values(array: np.ndarray) -> Any:
    """Returns an array as nested lists for JSON. Invalid UTF-8 becomes base64."""
    return (map_objects(_json_text, array) if array.dtype == object else array).tolist()


def _json_text(text: bytes) -> Any:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(text).decode()}


def _from_json(value: Any, dtype: Any) -> np.ndarray:
    array = np.asarray(value, dtype)
    return map_objects(_output_bytes, array) if dtype is object else array


def _output_bytes(text: Any) -> bytes:
    return base64.b64decode(text["b64"]) if isinstance(text, dict) else text.encode()


def _batches(texts: Sequence[bytes], most: int) -> Iterator[list[int]]:
    """Yields the indices of texts in batches of similar lengths, the longest first."""
    batch: list[int] = []
    for index in sorted(range(len(texts)), key=lambda i: -len(texts[i])):
        too_long = batch and (len(batch) + 1) * len(texts[batch[0]]) > _BATCH_BYTES
        if len(batch) == most or too_long:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
