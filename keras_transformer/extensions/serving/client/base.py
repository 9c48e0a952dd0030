"""The base class of the clients."""

from __future__ import annotations

import abc
import concurrent.futures
import functools
import itertools
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.extensions.serving.client.tensors import (
    Signature,
    input_array,
    signatures_of,
)
from keras_transformer.inference import Translation, translations_of
from keras_transformer.inference.tags import (
    ServedTags,
    add_tag,
    check_tag,
    missing_tags,
    served_tags,
)

_Result = TypeVar("_Result")
_BATCH_BYTES = 2**20  # text of a request


class ServerError(InputError):
    """The server does not answer, or has failed. The message has its answer."""


class NotNowError(Exception):
    """A temporary failure. The request is retried."""


class Client(abc.ABC):
    """A client of a model. It is thread-safe.

    Args:
        address: HOST:PORT.
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
        if not (timeout > 0 and max_batch_size >= 1 and connections >= 1):
            raise InputError(
                f"timeout is {timeout}, max_batch_size {max_batch_size} and connections "
                f"{connections}. The first must be more than 0, the others at least 1."
            )
        self.address = address
        self.model = model
        self.version = version
        self.timeout = timeout
        self.max_batch_size = max_batch_size
        self.connections = connections
        self._signatures: dict[str, Signature] = {}
        self._tags: ServedTags | None = None

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
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        known = self._signature(signature, deadline)
        if set(inputs) != set(known.inputs):
            raise InputError(
                f"The inputs are {', '.join(sorted(inputs)) or 'none'}, but {signature} of "
                f"{self.model} takes {', '.join(sorted(known.inputs))}."
            )
        arrays = {
            name: input_array(name, inputs[name], known.inputs[name].dtype) for name in inputs
        }
        rows = {len(array) for array in arrays.values()}
        if len(rows) != 1 or rows == {0}:
            raise InputError(
                f"The inputs have {sorted(rows)} rows. All need the same number, at least 1."
            )

        def part(start: int) -> dict[str, np.ndarray]:
            some = {name: a[start : start + self.max_batch_size] for name, a in arrays.items()}
            return self._again(lambda left: self._predict(some, signature, left), deadline)

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
        texts = [_text_bytes(line) for line in lines]
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
                for index, texts, scores in zip(
                    batch, outputs["translations"], outputs["scores"], strict=True
                ):
                    results[index] = translations_of(texts, scores)
        finally:
            pool.shutdown(cancel_futures=True)
        return results

    def metadata(self, timeout: float | None = None) -> dict[str, Signature]:
        """Returns the signatures of the model, by name, as the server has them now."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        fields = self._again(self._metadata, deadline)
        try:
            self._signatures = signatures_of(fields["signature_def"]["signature_def"])
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
            self._tags = served_tags(
                {
                    name: functools.partial(self.predict, signature=name, timeout=timeout)
                    for name in names
                }
            )
        return self._tags

    def wait_until_ready(self, timeout: float | None = None) -> None:
        """Returns when the model is available.

        Raises:
            ServerError: if it is not available in time, with the last answer of the server.
        """

        def ready(left: float) -> None:
            try:
                states = self._states(left)
            except InputError as error:  # it may be loading
                raise NotNowError(str(error)) from error
            if "AVAILABLE" not in states:
                raise NotNowError(f"the states of {self.model} are {', '.join(states)}")

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
        """Returns the unchecked field `metadata` of the REST answer."""

    @abc.abstractmethod
    def _states(self, timeout: float) -> list[str]:
        """Returns the states of all versions."""

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
            except NotNowError as error:
                pause = min(0.05 * 2**attempt, 5.0) * random.uniform(0.5, 1)
                if time.monotonic() + pause >= deadline:
                    raise ServerError(
                        f"{self.address} did not respond within {deadline - start:.1f} s "
                        f"({error}). Is a server with the model {self.model} running there?"
                    ) from error
            time.sleep(pause)
        raise AssertionError("unreachable")


def _text_bytes(line: Any) -> bytes:
    try:
        return line.encode() if isinstance(line, str) else bytes(memoryview(line))
    except (TypeError, UnicodeEncodeError) as error:
        raise InputError(f"{line!r} cannot be sent as text ({error}).") from error


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
