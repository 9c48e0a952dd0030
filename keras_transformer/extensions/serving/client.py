"""A client of keras-transformer serve and of TF Serving, over REST.

    with connect("localhost:8501/export") as client:
        client.wait_until_ready()
        best = client.translate(["A small dog runs."])[0][0].text

It needs httpx.
"""

from __future__ import annotations

import base64
import functools
import json
import random
import re
import time
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer import plugins
from keras_transformer.errors import InputError, needs_extra
from keras_transformer.extensions.serving import LOOPBACK
from keras_transformer.extensions.serving.tensors import DTYPES, Signature, Tensor, map_objects
from keras_transformer.inference import Translation, translations_of
from keras_transformer.inference.batching import outputs_by_line
from keras_transformer.inference.engine import Engine
from keras_transformer.inference.tags import add_tag, check_tag, missing_tags
from keras_transformer.inference.translate import split_texts
from keras_transformer.plugins import Loader

_HOST = r"([^/@,\s:\[\]]+|\[[^/@,\s]+\])"
_PORT = r":(?P<{}>[0-9]{{1,5}})"
_ADDRESS = re.compile(
    rf"(?P<server>https?://{_HOST}({_PORT.format('port')})?|{_HOST}{_PORT.format('bare_port')})"
    r"(?P<prefix>(/[^/,\s]+)*?)(/(v1/models/)?(?P<model>[^/]*)/*)?",
    re.IGNORECASE,
)
_READY_SECONDS = 5.0


class ServerError(InputError):
    """The server does not answer, or has failed. The message has its answer."""


class _NotNowError(Exception):
    """A temporary failure. The request is retried."""


def connect(address: str, **options: Any) -> Client:
    """Returns a client for `HOST:PORT[/MODEL]` or `http[s]://HOST[:PORT][/PATH][/MODEL]`.

    Args:
        address: the address. PATH is what a proxy in front of the server adds. Without PATH and
            MODEL, `keras-transformer serve` reports its model.
        **options: arguments of `Client`.

    Raises:
        InputError: for an invalid address.
        ServerError: if no server reports its model.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"] or match["bare_port"] or 0) >= 2**16:
        raise InputError(
            f"{address} is not the address of a server. Use HOST:PORT/MODEL, as in "
            "localhost:8501/export, or https://HOST/MODEL."
        )
    host, model = match["server"] + match["prefix"], match["model"]
    if not model:
        with Client(host, "", timeout=_READY_SECONDS) as anyone:
            try:
                model = anyone._request("GET", "/healthz", "model")
            except InputError as error:
                raise type(error)(f"{error} (or name the model: HOST:PORT/MODEL)") from error
    return Client(host, model, **options)


class ServerEngine(Engine):
    """A model on a server, for the functions of `inference`."""

    def __init__(self, address: str, client: Client | None = None):
        self.label, self.client = address, client or connect(address)
        self.client.wait_until_ready(_READY_SECONDS)
        self.threads = self.client.connections  # this number is known without TensorFlow
        signatures = self.client.metadata()
        if "lengths" not in signatures or "serving_default" not in signatures:
            raise InputError(
                f"The model at {address} was not written by keras-transformer export: it needs the "
                "signatures serving_default and lengths."
            )
        self.n_best = signatures["serving_default"].outputs["translations"].shape[1]
        self.symbols, self.source_tag = self.client.tags()

    def translate(self, text: Any) -> Mapping[str, Any]:
        return self.client.predict({"text": text})

    def lengths(self, text: Any) -> Mapping[str, Any]:
        return self.client.predict({"text": text}, "lengths")


def _find(model: str) -> str | None:
    is_address = model.lower().startswith(("http://", "https://")) or _ADDRESS.fullmatch(model)
    return model if is_address and not Path(model).exists() else None


LOADER = Loader("a server", _find, ServerEngine, needs_tensorflow=False)


class Client:
    """A client of a model. It is thread-safe.

    Args:
        address: HOST:PORT or a URL.
        model: name of the model.
        version: number of the version; None for the version that is served.
        timeout: seconds that a request may take, including retries.
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

        self.address = address
        self.model = model
        self.timeout = timeout
        self.max_batch_size = max_batch_size
        self.connections = connections
        self._path = f"/v1/models/{urllib.parse.quote(model, safe='')}"
        if version is not None:
            self._path += f"/versions/{version}"
        self._signatures: dict[str, Signature] = {}
        self._tags: tuple[tuple[str, ...] | None, str | None] | None = None
        url = address if "://" in address else f"http://{address}"
        # This machine is reached without the proxy of `http_proxy`.
        direct: Any = {f"all://{name}": None for name in LOOPBACK}
        try:
            self._http = httpx.Client(base_url=url, mounts=direct)
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
        self, inputs: Mapping[str, Any], signature: str = "serving_default"
    ) -> dict[str, np.ndarray]:
        """Runs a signature.

        Args:
            inputs: arrays or nested lists by name, with the batch as first dimension. Text is str
                or UTF-8 bytes.
            signature: name of the signature.

        Returns:
            Arrays by name. Strings are bytes in arrays of objects.

        Raises:
            InputError: for invalid inputs, also if the server refuses them.
            ServerError: if the server fails, or does not answer in time.
        """
        if signature not in self._signatures and signature not in self.metadata():
            raise InputError(
                f"{self.model} at {self.address} has no signature {signature}. Choose one of "
                f"{', '.join(sorted(self._signatures))}."
            )
        known = self._signatures[signature].outputs
        arrays = {name: np.asarray(value, object) for name, value in inputs.items()}
        shapes = {array.shape[:1] for array in arrays.values()}
        if len(shapes) != 1 or shapes <= {(), (0,)}:
            raise InputError(
                f"The inputs have the rows {sorted(shapes)}. All need the same number, at least 1."
            )
        parts = []
        for start in range(0, shapes.pop()[0], self.max_batch_size):
            end = start + self.max_batch_size
            columns = {name: array[start:end].tolist() for name, array in arrays.items()}
            body = {"signature_name": signature, "inputs": columns}
            outputs = self._request("POST", f"{self._path}:predict", "outputs", body)
            if len(known) == 1:  # a single output has no name
                outputs = dict.fromkeys(known, outputs)
            parts.append({name: _array(outputs[name], tensor) for name, tensor in known.items()})
        return {name: np.concatenate([part[name] for part in parts]) for name in known}

    def translate(
        self,
        lines: Sequence[str],
        *,
        source_tag: str | None = None,
        document: bool = False,
        **options: Any,
    ) -> list[list[Translation]]:
        """Translates lines in batches of similar lengths, several at the same time.

        Args:
            lines: lines of text.
            source_tag: begins every line that is not empty, as in "<2de>".
            document: True for lines of several sentences, which are split here, as in
                `kt.Translator.translate`. A plain TF Serving does not split them.
            **options: `glossary`, `terms` and `casing`, as in `kt.Translator.translate`. They are
                applied here, too, so that any server has them.

        Returns:
            The translations of each line, best first. If the model has tags of target languages,
            and lines have none, a `UserWarning` says so.

        Raises:
            InputError: for invalid lines, or a tag that the model does not have.
            ServerError: if the server fails, or does not answer in time.
        """
        if isinstance(lines, str):
            raise InputError(f"{lines[:40]!r} is a string. Pass a list of lines.")
        symbols, added_tag = self.tags() if lines else (None, None)
        check_tag(source_tag, symbols, self.address)
        if remark := missing_tags(lines, symbols, source_tag or added_tag):
            warnings.warn(remark, stacklevel=2)
        texts = dict[int, str]()
        if document or options:
            engine = ServerEngine(self.address, self)
            engine = plugins.find("text_options", "document").with_options(engine, **options)
            texts, remarks, _ = split_texts(engine, lines, document, source_tag or "", 1)
            for remark in remarks:
                warnings.warn(remark, stacklevel=2)
        rows = outputs_by_line(
            lambda text: self.predict({"text": text}),
            [add_tag(line, source_tag or "") for i, line in enumerate(lines) if i not in texts],
            max_lines=self.max_batch_size,
            threads=self.connections,
        )
        found = (translations_of(row["translations"], row["scores"]) for row in rows)
        numbers = range(len(lines))
        return [[Translation(texts[i], 0.0)] if i in texts else next(found) for i in numbers]

    def metadata(self) -> dict[str, Signature]:
        """Returns the signatures of the model, by name, as the server has them now."""
        fields = self._request("GET", f"{self._path}/metadata", "metadata")
        try:
            self._signatures = {
                name: Signature(
                    _tensors(infos["inputs"]),
                    _tensors(infos["outputs"]),
                    functools.partial(self.predict, signature=name),
                )
                for name, infos in fields["signature_def"]["signature_def"].items()
                if infos.get("inputs")  # the initialization of the model has none
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ServerError(
                f"{self.address} has no metadata of TF Serving ({error!r})"
            ) from error
        self._tags = None
        return dict(self._signatures)

    def tags(self) -> tuple[tuple[str, ...] | None, str | None]:
        """Returns the symbols of the model, and the tag that the server adds to texts."""
        signatures = self._signatures or self.metadata()
        if self._tags is None:
            self._tags = served_tags({name: s.call for name, s in signatures.items()})
        return self._tags

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Returns when the model is available.

        Raises:
            ServerError: if it is not available in time, with the last answer of the server.
        """

        def check(seconds: float) -> None:
            try:
                versions = self._ask(seconds, "GET", self._path, "model_version_status")
            except InputError as error:  # it may be loading
                raise _NotNowError(str(error)) from error
            states = [version["state"] for version in versions]
            if "AVAILABLE" not in states:
                raise _NotNowError(f"the states of {self.model} are {', '.join(states)}")

        self._retry(check, self.timeout if timeout is None else timeout)

    def _request(self, *request: Any) -> Any:
        return self._retry(lambda seconds: self._ask(seconds, *request), self.timeout)

    def _retry(self, call: Callable[[float], Any], timeout: float) -> Any:
        """Calls `call` with the seconds left, until it succeeds or the time is over."""
        end, pause = time.monotonic() + timeout, 0.05
        while True:
            try:
                return call(max(end - time.monotonic(), 0.001))
            except _NotNowError as error:
                if time.monotonic() + pause >= end:
                    raise ServerError(
                        f"{self.address} did not respond within {timeout:.1f} s ({error}). Is a "
                        f"server running there?{self._proxy_remark()}"
                    ) from error
            time.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, 5.0)

    def _ask(self, seconds: float, method: str, path: str, field: str, body: Any = None) -> Any:
        """Sends a request and returns a field of the JSON answer."""
        import httpx

        content = None if body is None else json.dumps(body, default=_json_value).encode()
        try:
            response = self._http.request(method, path, content=content, timeout=seconds)
        except httpx.RequestError as error:
            raise _NotNowError(str(error) or type(error).__name__) from error
        try:
            answer = response.json()
        except (ValueError, RecursionError):
            answer = None
        fields = answer if isinstance(answer, dict) else {}
        if response.is_success and field in fields:
            return fields[field]
        details = fields.get("error", response.text[:200].strip())
        sentence = f"{self.address} answers {response.status_code}: {details}"
        if answer is None:  # another kind of server has answered
            sentence += self._proxy_remark()
        if response.status_code in (429, 503):
            raise _NotNowError(sentence)
        raise (InputError if response.is_client_error else ServerError)(sentence)

    def _proxy_remark(self) -> str:
        """Returns a sentence for an error, if a proxy stands between this machine and the host."""
        url = self._http.base_url
        proxy = urllib.request.getproxies().get(url.scheme)
        is_local = any(url.host == name.strip("[]") for name in LOOPBACK)
        if proxy is None or is_local or urllib.request.proxy_bypass(url.host):
            return ""
        return f" The request went through the proxy {proxy}. no_proxy={url.host} would avoid it."


def _tensors(infos: Mapping[str, Any]) -> dict[str, Tensor]:
    tensors = {}
    for name, info in infos.items():
        dims = info.get("tensor_shape", {}).get("dim", ())
        shape = tuple(int(dim.get("size", 0)) for dim in dims)
        tensors[name] = Tensor(DTYPES.get(info["dtype"]), shape)
    return tensors


def _json_value(value: Any) -> Any:
    """Returns bytes and NumPy scalars as JSON. Invalid UTF-8 becomes base64."""
    if isinstance(value, np.generic):
        return value.item()
    if not isinstance(value, bytes):
        raise InputError(f"{value!r} cannot be sent. Inputs are numbers, str or bytes.")
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}


def _array(value: Any, tensor: Tensor) -> np.ndarray:
    array = np.asarray(value, tensor.dtype)
    return map_objects(_output_bytes, array) if tensor.dtype is object else array


def _output_bytes(text: Any) -> bytes:
    return base64.b64decode(text["b64"]) if isinstance(text, dict) else text.encode()


def served_tags(
    signatures: Mapping[str, Callable[..., Mapping[str, Any]]],
) -> tuple[tuple[str, ...] | None, str | None]:
    """Returns the symbols of an export or a server, and those that it adds to texts.

    Args:
        signatures: functions from lists of inputs to arrays, by name.
    """
    if not {"symbols", "tokenize"} <= set(signatures):
        return None, None
    text = {"text": ["a"]}
    symbols = tuple(symbol.decode() for symbol in signatures["symbols"](text)["symbols"][0])
    # A server with --source_tag adds it to this text, too, and a model its default languages.
    tokens = [token.decode() for token in signatures["tokenize"](text)["tokens"][0]]
    texts = (token.removeprefix("\u2581") for token in tokens)
    return symbols, " ".join(filter(symbols.__contains__, texts)) or None
