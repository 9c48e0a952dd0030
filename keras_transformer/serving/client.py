"""Clients of TF Serving, by REST and by gRPC, with one interface.

    with connect("localhost:8501/export") as client:  # or grpc://localhost:8500/export
        client.wait_until_ready()
        best = client.translate(["A small dog runs."])[0][0].text

REST needs httpx, and gRPC needs grpcio and tensorflow-serving-api, which loads TensorFlow.
"""

from __future__ import annotations

import abc
import base64
import concurrent.futures
import itertools
import json
import random
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from keras_transformer.errors import InputError

_Result = TypeVar("_Result")
_BATCH_BYTES = 2**20  # of text in a request
_NO_TRANSLATION = -5e8  # a place that nothing was found for has the score -1e9
_DTYPES: dict[str, Any] = {
    "DT_STRING": object,
    "DT_BOOL": np.bool_,
    "DT_FLOAT": np.float32,
    "DT_DOUBLE": np.float64,
    "DT_INT8": np.int8,
    "DT_INT16": np.int16,
    "DT_INT32": np.int32,
    "DT_INT64": np.int64,
    "DT_UINT8": np.uint8,
    "DT_UINT16": np.uint16,
    "DT_UINT32": np.uint32,
    "DT_UINT64": np.uint64,
}


class ServerError(InputError):
    """A server that does not answer, or that fails: in its own sentence where it has one."""


class _NotNowError(Exception):
    """What may be different when it is tried again."""


class Tensor(NamedTuple):
    """An input or output of a signature."""

    dtype: Any  # of NumPy; strings are bytes, in arrays of objects
    shape: tuple[int, ...]  # -1 where any size is taken


class Signature(NamedTuple):
    """What a model takes and returns."""

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]


class Translation(NamedTuple):
    """One translation of a line."""

    text: str
    score: float


class Client(abc.ABC):
    """What both clients do. It may be used by several threads at once.

    Args:
        address: HOST:PORT.
        model: the model's name.
        version: its number; the one that is served where it is None.
        timeout: seconds that a call may take, with all that is tried again.
        max_batch_size: most rows that the server takes at once; what has more is split.
        connections: requests that `translate` has under way at once.
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
        self.address = address
        self.model = model
        self.version = version
        self.timeout = timeout
        self.max_batch_size = max_batch_size
        self.connections = connections
        self._signatures: dict[str, Signature] = {}

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def predict(
        self,
        inputs: Mapping[str, Any],
        signature: str = "serving_default",
        timeout: float | None = None,
    ) -> dict[str, np.ndarray]:
        """Runs a signature.

        Args:
            inputs: arrays or nested lists by name, with the batch as first dimension;
                text is str or UTF-8 bytes.
            signature: its name.
            timeout: seconds, where they are not the client's.

        Returns:
            Arrays by name; strings are bytes, in arrays of objects.

        Raises:
            InputError: for inputs that the signature does not take, or that the server
                refuses, in its sentence.
            ServerError: where it fails, or gives no answer in time.
        """
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        known = self._signature(signature, deadline)
        if set(inputs) != set(known.inputs):
            raise InputError(
                f"the inputs are {', '.join(sorted(inputs)) or 'none'}; expected "
                f"{', '.join(sorted(known.inputs))}, which {signature} of {self.model} takes"
            )
        arrays = {name: _array(name, inputs[name], known.inputs[name].dtype) for name in inputs}
        rows = {len(array) for array in arrays.values()}
        if len(rows) != 1 or rows == {0}:
            raise InputError(
                f"the inputs have {sorted(rows)} rows; expected the same number, at least 1"
            )

        def part(start: int) -> dict[str, np.ndarray]:
            some = {name: a[start : start + self.max_batch_size] for name, a in arrays.items()}
            return self._again(lambda left: self._predict(some, signature, left), deadline)

        parts = [part(start) for start in range(0, rows.pop(), self.max_batch_size)]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def translate(
        self, lines: Sequence[str], timeout: float | None = None
    ) -> list[list[Translation]]:
        """Translates lines; each result, in their order, is best first, with what was found.

        They are sent in batches of similar lengths, several at once.

        Raises:
            InputError, ServerError: as `predict`; the timeout is that of a batch.
        """
        results: list[list[Translation]] = [[] for _ in lines]
        batches = list(_batches([line.encode() for line in lines], self.max_batch_size))

        def translated(batch: list[int]) -> dict[str, np.ndarray]:
            return self.predict({"text": [lines[i] for i in batch]}, timeout=timeout)

        pool = concurrent.futures.ThreadPoolExecutor(self.connections)
        try:
            for batch, outputs in zip(batches, pool.map(translated, batches), strict=True):
                for index, texts, scores in zip(
                    batch, outputs["translations"], outputs["scores"], strict=True
                ):
                    results[index] = [
                        Translation(text.decode("utf-8", "replace"), float(score))
                        for text, score in zip(texts, scores, strict=True)
                        if score > _NO_TRANSLATION
                    ]
        finally:
            pool.shutdown(cancel_futures=True)
        return results

    def metadata(self, timeout: float | None = None) -> dict[str, Signature]:
        """Returns the signatures of the model, by name, as the server has them now."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        self._signatures = _signatures(self._again(self._metadata, deadline))
        return dict(self._signatures)

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Returns when the model is available.

        Raises:
            ServerError: where it is not in time, with what the server said last.
        """

        def ready(left: float) -> None:
            try:
                states = self._states(left)
            except InputError as error:  # not there yet
                raise _NotNowError(str(error)) from error
            if "AVAILABLE" not in states:
                raise _NotNowError(f"the states of {self.model} are {', '.join(states)}")

        self._again(ready, time.monotonic() + (self.timeout if timeout is None else timeout))

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the connections."""

    @abc.abstractmethod
    def _predict(
        self, inputs: dict[str, np.ndarray], signature: str, timeout: float
    ) -> dict[str, np.ndarray]: ...

    @abc.abstractmethod
    def _metadata(self, timeout: float) -> Any:
        """Returns `{signature: {"inputs": {name: TensorInfo}, "outputs": ...}}`, as JSON has it."""

    @abc.abstractmethod
    def _states(self, timeout: float) -> list[str]:
        """Returns the states of the model's versions."""

    def _signature(self, name: str, deadline: float) -> Signature:
        if name not in self._signatures:
            self.metadata(deadline - time.monotonic())
        if name not in self._signatures:
            raise InputError(
                f"{self.model} at {self.address} has no signature {name}; expected one of "
                f"{', '.join(sorted(self._signatures))}"
            )
        return self._signatures[name]

    def _again(self, call: Callable[[float], _Result], deadline: float) -> _Result:
        """Returns what `call` does; it is told the seconds left, and tried again until then."""
        start = time.monotonic()
        for attempt in itertools.count():
            try:
                return call(max(deadline - time.monotonic(), 0.001))
            except _NotNowError as error:
                pause = min(0.05 * 2**attempt, 5.0) * random.uniform(0.5, 1)
                if time.monotonic() + pause >= deadline:
                    raise ServerError(
                        f"{self.address} gave no answer in {deadline - start:.1f} s ({error}); "
                        "expected TF Serving or bin/serve.py there"
                    ) from error
            time.sleep(pause)
        raise AssertionError("unreachable")


class RestClient(Client):
    """Asks by REST; `address` is HOST:PORT, or a URL that the paths of the API follow."""

    def __init__(self, address: str, model: str, version: int | None = None, **options: Any):
        import httpx

        super().__init__(address, model, version, **options)
        url = address if "://" in address else f"http://{address}"
        place = f"/v1/models/{urllib.parse.quote(model, safe='')}"
        self._place = place if version is None else f"{place}/versions/{version}"
        self._http = httpx.Client(base_url=url)

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def _predict(
        self, inputs: dict[str, np.ndarray], signature: str, timeout: float
    ) -> dict[str, np.ndarray]:
        columns = {name: _json_values(array) for name, array in inputs.items()}
        body = {"signature_name": signature, "inputs": columns}
        outputs = self._asked("POST", f"{self._place}:predict", timeout, body)["outputs"]
        expected = self._signatures[signature].outputs
        if len(expected) == 1:  # then it has no name
            outputs = dict.fromkeys(expected, outputs)
        return {name: _from_json(outputs[name], tensor.dtype) for name, tensor in expected.items()}

    def _metadata(self, timeout: float) -> Any:
        metadata = self._asked("GET", f"{self._place}/metadata", timeout)["metadata"]
        return metadata["signature_def"]["signature_def"]

    def _states(self, timeout: float) -> list[str]:
        versions = self._asked("GET", self._place, timeout)["model_version_status"]
        return [version["state"] for version in versions]

    def _asked(self, method: str, path: str, timeout: float, body: Any = None) -> Any:
        """Returns the answer's JSON."""
        import httpx

        content = None if body is None else json.dumps(body).encode()  # with NaN, unlike httpx's
        end, chunks = time.monotonic() + timeout, []
        try:
            with self._http.stream(method, path, content=content, timeout=timeout) as response:
                for chunk in response.iter_bytes():
                    chunks.append(chunk)
                    if time.monotonic() > end:  # httpx's time-out is of each read alone
                        raise _NotNowError(f"the answer is not whole after {timeout:g} s")
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise InputError(
                f"{self.address} is no address ({error}); expected HOST:PORT"
            ) from error
        except httpx.TransportError as error:
            raise _NotNowError(str(error) or type(error).__name__) from error
        text = b"".join(chunks).decode("utf-8", "replace")
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            answer = None
        if response.is_success and isinstance(answer, dict):
            return answer
        said = answer.get("error") if isinstance(answer, dict) else text[:200].strip()
        sentence = f"{self.address} answers {response.status_code}: {said}"
        if response.status_code in (429, 503):
            raise _NotNowError(sentence)
        raise (InputError if 400 <= response.status_code < 500 else ServerError)(sentence)


class GrpcClient(Client):
    """Asks by gRPC, without encryption; `address` is HOST:PORT."""

    def __init__(self, address: str, model: str, version: int | None = None, **options: Any):
        import grpc
        from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc

        super().__init__(address, model, version, **options)
        any_size = [(f"grpc.max_{what}_message_length", -1) for what in ("send", "receive")]
        self._channel = grpc.insecure_channel(address, any_size)
        self._prediction = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
        self._model = model_service_pb2_grpc.ModelServiceStub(self._channel)

    def close(self) -> None:
        """Closes the connection."""
        self._channel.close()

    def _predict(
        self, inputs: dict[str, np.ndarray], signature: str, timeout: float
    ) -> dict[str, np.ndarray]:
        import tensorflow as tf
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest()
        self._fill(request.model_spec)
        request.model_spec.signature_name = signature
        for name, array in inputs.items():
            dtype = tf.string if array.dtype == object else None
            request.inputs[name].CopyFrom(tf.make_tensor_proto(array, dtype))
        response = self._asked(self._prediction.Predict, request, timeout)
        return {name: tf.make_ndarray(tensor) for name, tensor in response.outputs.items()}

    def _metadata(self, timeout: float) -> Any:
        from google.protobuf import json_format
        from tensorflow_serving.apis import get_model_metadata_pb2

        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        self._fill(request.model_spec)
        response = self._asked(self._prediction.GetModelMetadata, request, timeout)
        signatures = get_model_metadata_pb2.SignatureDefMap()
        response.metadata["signature_def"].Unpack(signatures)
        fields = json_format.MessageToDict(signatures, preserving_proto_field_name=True)
        return fields["signature_def"]

    def _states(self, timeout: float) -> list[str]:
        from tensorflow_serving.apis import get_model_status_pb2

        request = get_model_status_pb2.GetModelStatusRequest()
        self._fill(request.model_spec)
        response = self._asked(self._model.GetModelStatus, request, timeout)
        state = get_model_status_pb2.ModelVersionStatus.State
        return [state.Name(version.state) for version in response.model_version_status]

    def _fill(self, spec: Any) -> None:
        spec.name = self.model
        if self.version is not None:
            spec.version.value = self.version

    def _asked(self, method: Callable[..., Any], request: Any, timeout: float) -> Any:
        """Returns the answer of a method."""
        import grpc

        try:
            return method(request, timeout=timeout)
        except grpc.RpcError as error:
            code, said = error.code(), error.details()
            sentence = f"{self.address} answers {code.name}: {said}"
            too_large = "larger than max" in said  # which is RESOURCE_EXHAUSTED, too, and stays so
            again = (
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                grpc.StatusCode.DEADLINE_EXCEEDED,
            )
            if code in again and not too_large:
                raise _NotNowError(sentence) from error
            ours = (
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.NOT_FOUND,
                grpc.StatusCode.FAILED_PRECONDITION,
                grpc.StatusCode.OUT_OF_RANGE,
                grpc.StatusCode.UNIMPLEMENTED,
            )
            raise (InputError if too_large or code in ours else ServerError)(sentence) from error


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
    place, _, model = rest.partition("/")
    host, colon, port = place.rpartition(":")
    if scheme not in ("", "http", "https", "grpc") or not (host and colon and port.isdecimal()):
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


def _served_model(url: str) -> str:
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


def _signatures(fields: Mapping[str, Any]) -> dict[str, Signature]:
    """Reads what `Client._metadata` returns."""

    def tensors(infos: Mapping[str, Any]) -> dict[str, Tensor]:
        return {
            name: Tensor(
                _DTYPES.get(info["dtype"]),
                tuple(int(dim["size"]) for dim in info.get("tensor_shape", {}).get("dim", ())),
            )
            for name, info in infos.items()
        }

    return {
        name: Signature(tensors(signature["inputs"]), tensors(signature["outputs"]))
        for name, signature in fields.items()
        if signature.get("inputs")  # all but what initializes the model
    }


def _array(name: str, value: Any, dtype: Any) -> np.ndarray:
    """Returns an input as an array of at least one dimension.

    Raises:
        InputError: for values that are not of the dtype, or lists of different lengths.
    """
    try:
        if dtype is object:
            array = _each(_bytes, np.asarray(value, object))
        else:
            array = np.asarray(value).astype(dtype, casting="same_kind")
        if not array.ndim:
            raise ValueError("it has no batch dimension")
    except (TypeError, ValueError) as error:
        expected = "strings" if dtype is object else f"values of {np.dtype(dtype).name}"
        raise InputError(f"input {name} cannot be sent ({error}); expected {expected}") from error
    return array


def _each(function: Callable[[Any], Any], array: np.ndarray) -> np.ndarray:
    """Returns an array of objects, of what the function returns for each value."""
    result = np.empty(array.size, object)
    result[:] = [function(value) for value in array.flat]
    return result.reshape(array.shape)


def _bytes(text: Any) -> bytes:
    if not isinstance(text, (str, bytes)):
        raise TypeError(f"{text!r} is no text")
    return text.encode() if isinstance(text, str) else bytes(text)


def _json_values(array: np.ndarray) -> Any:
    """Returns an array as nested lists for JSON; what is no text goes in base64."""
    if array.dtype != object:
        return array.tolist()
    return _each(_json_text, array).tolist()


def _json_text(text: bytes) -> Any:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(text).decode()}


def _from_json(value: Any, dtype: Any) -> np.ndarray:
    """Returns the array of an output."""
    array = np.asarray(value, dtype)
    return _each(_text_bytes, array) if dtype is object else array


def _text_bytes(text: Any) -> bytes:
    return base64.b64decode(text["b64"]) if isinstance(text, dict) else text.encode()
