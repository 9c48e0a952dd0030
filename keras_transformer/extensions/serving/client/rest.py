"""The REST client."""

from __future__ import annotations

import json
import time
import urllib.parse
from typing import Any

import numpy as np

from keras_transformer.errors import InputError, needs_extra
from keras_transformer.extensions.serving.client.base import (
    Client,
    NotNowError,
    ServerError,
)
from keras_transformer.extensions.serving.client.tensors import (
    from_json,
    json_values,
)


class RestClient(Client):
    """A client that uses REST; `address` is HOST:PORT or a URL."""

    def __init__(self, address: str, model: str, version: int | None = None, **options: Any):
        with needs_extra("serving", "a server's REST API"):
            import httpx

        super().__init__(address, model, version, **options)
        url = address if "://" in address else f"http://{address}"
        place = f"/v1/models/{urllib.parse.quote(model, safe='')}"
        self._place = place if version is None else f"{place}/versions/{version}"
        try:
            self._http = httpx.Client(base_url=url)
        except httpx.InvalidURL as error:
            raise InputError(f"{address!r} is not an address ({error}). Use HOST:PORT.") from error

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def _predict(
        self, inputs: dict[str, np.ndarray], signature: str, timeout: float
    ) -> dict[str, np.ndarray]:
        columns = {name: json_values(array) for name, array in inputs.items()}
        body = {"signature_name": signature, "inputs": columns}
        outputs = self._request("outputs", "POST", f"{self._place}:predict", timeout, body)
        expected = self._signatures[signature].outputs
        if len(expected) == 1:  # a single output has no name
            outputs = dict.fromkeys(expected, outputs)
        return {name: from_json(outputs[name], tensor.dtype) for name, tensor in expected.items()}

    def _metadata(self, timeout: float) -> Any:
        return self._request("metadata", "GET", f"{self._place}/metadata", timeout)

    def _states(self, timeout: float) -> list[str]:
        versions = self._request("model_version_status", "GET", self._place, timeout)
        return [version["state"] for version in versions]

    def _request(self, field: str, method: str, path: str, timeout: float, body: Any = None) -> Any:
        """Sends a request and returns a field of the JSON answer."""
        import httpx

        content = None if body is None else json.dumps(body).encode()  # httpx refuses NaN
        end, chunks = time.monotonic() + timeout, []
        try:
            with self._http.stream(method, path, content=content, timeout=timeout) as response:
                for chunk in response.iter_bytes():
                    chunks.append(chunk)
                    if time.monotonic() > end:  # the timeout of httpx is for each read
                        raise NotNowError(f"the answer is incomplete after {timeout:g} s")
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise InputError(
                f"{self.address} is not an address ({error}). Use HOST:PORT."
            ) from error
        except httpx.RequestError as error:
            raise NotNowError(str(error) or type(error).__name__) from error
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
            raise NotNowError(sentence)
        raise (InputError if 400 <= response.status_code < 500 else ServerError)(sentence)
