"""The versions of an exported model: finds, loads, runs and unloads them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import grpc
import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.extensions.litert.loader import find_litert
from keras_transformer.extensions.serving.server import protos
from keras_transformer.extensions.serving.server.batching import (
    Arrays,
    RequestError,
)
from keras_transformer.extensions.serving.server.protos import get_model_status_pb2
from keras_transformer.inference import manifest
from keras_transformer.inference.loading import MODEL_FILES
from keras_transformer.inference.tags import check_tag

_LOG = logging.getLogger(__name__)
_DEFAULT = "serving_default"
_MAX_ANSWER_BYTES = 2**27  # size as arrays; JSON needs ten times this memory
_MAX_VERSION = 2**63 - 1  # versions are int64 in the API
_State = get_model_status_pb2.ModelVersionStatus
_Stamp = tuple[tuple[str, int, int], ...]  # path, size and time of the last change of each file


class _Folder(NamedTuple):
    """A version on disk."""

    path: Path
    stamp: _Stamp


class Engine(Protocol):
    """A model that is loaded in this process.

    Attributes:
        name: name of the engine, for the log.
        signatures: SignatureDef by name.
    """

    name: str
    signatures: Mapping[str, Any]

    def max_rows(self, signature: str) -> int | None:
        """Returns the most rows that a call of `run` should have; None for any number."""

    def run(self, signature: str, outputs: Sequence[str], inputs: Arrays) -> Arrays:
        """Returns the named outputs of a signature. It is thread-safe."""

    def warm_up(self, run: Callable[[str, Arrays], object], max_bytes: int) -> None:
        """Calls `run` with the name of a signature and inputs until the model is fast."""

    def close(self) -> None:
        """Frees the memory."""


class Version:
    """A loaded version of a model, and the checks of its requests.

    A version that contains a LiteRT model runs in LiteRT, otherwise it runs in TensorFlow.

    Args:
        path: its directory, or a LiteRT file.
        batches_at_once: number of calls of `run` at the same time, which share the cores.
        max_bytes: maximum bytes of the inputs of a warm-up request.
        source_tag: the tag that the server adds; None for none.
        number: number of the version; by default the name of the directory.

    Raises:
        InputError: if a file is missing or damaged, or the vocabulary lacks the tag.
        RequestError: if the version cannot answer a warm-up request.

    Attributes:
        engine: the model.
        symbols: the symbols of the vocabulary; None for older exports, which do not report them.
        users: number of requests that use the version.
    """

    def __init__(
        self,
        path: Path,
        batches_at_once: int,
        max_bytes: int,
        source_tag: str | None = None,
        number: int | None = None,
    ):
        self.number = int(path.name) if number is None else number
        self.users = 0
        described = manifest.check_needed_files(path) if path.is_dir() else {}
        self.engine: Engine
        if (litert_file := find_litert(path)) is not None:
            from keras_transformer.extensions.serving.server.litert import (
                LiteRTEngine,
            )  # late: optional

            self.engine = LiteRTEngine(litert_file, batches_at_once)
        else:
            from keras_transformer.extensions.serving.server.saved_model import (
                SavedModelEngine,
            )

            is_int8 = described.get("precision") == "int8"
            self.engine = SavedModelEngine(path, batches_at_once, is_int8)
        try:
            self.symbols = self._known_symbols()
            check_tag(source_tag, self.symbols, str(path))
            self.engine.warm_up(
                lambda name, inputs: self.run(name, None, self.checked(name, inputs)), max_bytes
            )
        except BaseException:
            self.close()
            raise

    @property
    def signatures(self) -> Mapping[str, Any]:
        """SignatureDef by name."""
        return self.engine.signatures

    def _known_symbols(self) -> tuple[str, ...] | None:
        if "symbols" not in self.signatures:
            return None
        found = self.run("symbols", None, {"text": np.array([b""], object)})
        return tuple(symbol.decode() for symbol in found["symbols"][0])

    def signature(self, name: str) -> Any:
        """Returns a SignatureDef; an empty name means `serving_default`.

        Raises:
            RequestError: if the signature does not exist.
        """
        signature = self.signatures.get(name or _DEFAULT)
        if signature is None or not signature.inputs:
            known = ", ".join(sorted(key for key in self.signatures if key[:2] != "__"))
            raise RequestError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f'Serving signature key "{name or _DEFAULT}" not found. Choose one of {known}',
            )
        return signature

    def checked(self, name: str, inputs: Arrays) -> Arrays:
        """Checks the inputs of a request, and returns them.

        Checked inputs cannot fail the requests that they are merged with.

        Raises:
            RequestError: for unknown or missing inputs, wrong dtypes or shapes, or different
                numbers of rows.
        """
        expected = self.signature(name).inputs
        problem = None
        if set(inputs) != set(expected):
            problem = (
                f"The inputs are {', '.join(sorted(inputs)) or 'none'}, but they must be "
                f"{', '.join(sorted(expected))}."
            )
        for key, array in inputs.items() if problem is None else ():
            dtype, shape = expected[key].dtype, expected[key].tensor_shape
            if array.dtype != protos.dtype_of(dtype):
                problem = (
                    f"The input {key} is {protos.dtype_name(array.dtype)}, but it must be "
                    f"{protos.dtype_name(dtype)}."
                )
            elif not (array.ndim and protos.is_compatible(shape, array.shape)):
                problem = (
                    f"The input {key} has the shape {list(array.shape)}, but it must have "
                    f"{protos.shape_text(shape)}."
                )
        if problem is None and len({len(array) for array in inputs.values()}) > 1:
            rows = ", ".join(f"{len(array):,} of {key}" for key, array in sorted(inputs.items()))
            problem = f"The inputs have different numbers of rows ({rows})."
        if problem is not None:
            raise RequestError(grpc.StatusCode.INVALID_ARGUMENT, problem)
        return inputs

    def output_names(self, name: str, chosen: Sequence[str] | None) -> tuple[str, ...]:
        """Returns the sorted names of the outputs to compute: `chosen`, or all if None or empty.

        Raises:
            RequestError: if the signature does not have an output.
        """
        names = set(self.signature(name).outputs)
        for output in chosen or ():
            if output not in names:
                raise RequestError(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"The signature has no output {output}. Choose one of "
                    f"{', '.join(sorted(names))}.",
                )
        return tuple(sorted(set(chosen or names)))

    def check_answer(self, name: str, outputs: Sequence[str], rows: int) -> None:
        """Refuses requests whose answer would need too much memory.

        Args:
            name: name of the signature.
            outputs: names of the requested outputs.
            rows: number of rows of the request.

        Raises:
            RequestError: if there are too many rows.
        """
        infos = [self.signature(name).outputs[output] for output in outputs]
        row_bytes = max(1, sum(map(_bytes_a_row, infos)))
        most = max(1, _MAX_ANSWER_BYTES // row_bytes)
        if rows > most:
            raise RequestError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"The answer to {rows:,} rows would have {rows * row_bytes:,} bytes. Send at most "
                f"{most:,} rows per request to {name or _DEFAULT}.",
            )

    def run(self, name: str, outputs: Sequence[str] | None, inputs: Arrays) -> Arrays:
        """Runs a signature. It is thread-safe.

        Args:
            name: name of the signature.
            outputs: names of the outputs to compute; None for all.
            inputs: inputs from `checked`.

        Raises:
            RequestError: if the model fails, with its code.
        """
        signature = self.signature(name)
        return self.engine.run(name or _DEFAULT, list(outputs or signature.outputs), inputs)

    def close(self) -> None:
        """Frees the memory of the version."""
        self.engine.close()


@dataclass(frozen=True)
class SignatureCall:
    """A `batching.Call` for outputs of a signature of a version."""

    version: Version
    signature: str
    outputs: tuple[str, ...]

    @property
    def max_rows(self) -> int | None:
        """The most rows of a batch, or None."""
        return self.version.engine.max_rows(self.signature)

    def __call__(self, inputs: Arrays) -> Arrays:
        """Runs the signature."""
        return self.version.run(self.signature, self.outputs, inputs)


class ServedModel:
    """The model of a directory of versions, or of a LiteRT file. The highest version is served.

    Args:
        path: directory of the versions, or a LiteRT file.
        name: name in requests.
        batches_at_once: number of batches at the same time.
        max_bytes: maximum bytes of the inputs of a warm-up request.
        source_tag: the tag that the server adds. Versions that lack it are not served.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        batches_at_once: int,
        max_bytes: int,
        source_tag: str | None = None,
    ):
        self.path = path
        self.name = name
        self._arguments = batches_at_once, max_bytes, source_tag
        self._current: Version | None = None
        self._states: dict[int, tuple[int, str]] = {}  # state and error
        self._failed: dict[int, _Folder] = {}  # versions that failed, with their files
        self._file: tuple[int, _Folder] | None = None  # the last LiteRT file that was found
        self._closing: set[asyncio.Future[None]] = set()

    @contextlib.contextmanager
    def version(self, name: str, number: int | None = None, label: str = "") -> Iterator[Version]:
        """Yields the version that a request names, which stays loaded during the block.

        Raises:
            RequestError: NOT_FOUND for another model or a version that is not served.
        """
        current = self._current
        if label:
            raise RequestError(
                grpc.StatusCode.INVALID_ARGUMENT, f"Unrecognized servable version label: {label}"
            )
        if name != self.name or current is None or number not in (None, current.number):
            what = f"Latest({name})" if number is None else f"Specific({name}, {number})"
            raise RequestError(grpc.StatusCode.NOT_FOUND, f"Servable not found for request: {what}")
        current.users += 1
        try:
            yield current
        finally:
            current.users -= 1
            self._unload_unused(current)

    def status(self, name: str, number: int | None = None) -> Any:
        """Returns the GetModelStatusResponse of a version, or of all.

        Raises:
            RequestError: NOT_FOUND if it does not exist.
        """
        states = self._states if name == self.name else {}
        chosen = sorted(states, reverse=True) if number is None else [number]
        if not chosen or chosen[0] not in states:
            versions = "any versions" if number is None else f"version {number}"
            raise RequestError(
                grpc.StatusCode.NOT_FOUND, f"Could not find {versions} of model {name}"
            )
        response = get_model_status_pb2.GetModelStatusResponse()
        for each in chosen:
            state, problem = states[each]
            added = response.model_version_status.add(version=each, state=state)
            added.status.error_message = problem
            added.status.error_code = grpc.StatusCode.UNKNOWN.value[0] if problem else 0
        return response

    async def start(self) -> None:
        """Loads the highest version that can be loaded.

        Raises:
            InputError: if there is none.
        """
        while await self.refresh():
            if self._current is not None:
                return
        problem = next((problem for _, problem in self._states.values()), "it is empty")
        if any((self.path / name).is_file() for name in MODEL_FILES):
            problem = f"it is a version; its directory is {self.path.resolve().parent}"
        elif not self.path.exists():
            problem = "it does not exist"
        raise InputError(
            f"{self.path} has no version that can be served ({problem}). It must be a directory of "
            "versions, as keras-transformer export writes it, or a LiteRT file."
        )

    async def watch(self, seconds: float) -> None:
        """Checks for new versions every few seconds, forever."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.refresh()
            except Exception:  # of the file system
                _LOG.exception("Cannot check %s for new versions.", self.path)

    async def refresh(self) -> bool:
        """Loads the highest version on disk. Returns False if nothing has changed.

        The old version answers until the new one is warm. A version that fails to load is tried
        again when its files change, because it may have been copied only in part. The last working
        version is kept even if its directory is deleted.
        """
        found = await asyncio.to_thread(self._found)
        current = self._current.number if self._current else None
        self._failed = {n: each for n, each in self._failed.items() if found.get(n) == each}
        self._states = {
            n: (state, problem)
            for n, (state, problem) in self._states.items()
            if n == current or (n in found and (not problem or n in self._failed))
        }
        left = (n for n in found if self._states.get(n, ("", ""))[1] == "")
        wanted = max(left, default=None)
        if wanted is None or wanted == current:
            return False
        self._states[wanted] = (_State.LOADING, "")
        try:
            version = await asyncio.to_thread(
                Version, found[wanted].path, *self._arguments, number=wanted
            )
        except Exception as error:  # any error must leave the old version loaded
            problem = " ".join(f"version {wanted} cannot be loaded: {error}".split())
            _LOG.error("%s: %s", self.name, problem)
            self._states[wanted] = (_State.END, problem)
            self._failed[wanted] = found[wanted]
            return True
        old, self._current = self._current, version
        self._states[wanted] = (_State.AVAILABLE, "")
        if newer := [n for n in sorted(self._failed) if n > wanted]:
            _LOG.warning(
                "Serving %s, version %d, because version %s cannot be loaded.",
                self.name,
                wanted,
                " and ".join(map(str, newer)),
            )
        else:
            engine = version.engine.name
            _LOG.info("Serving %s, version %d, with %s.", self.name, wanted, engine)
        if old is not None:
            self._states[old.number] = (_State.UNLOADING, "")
            self._unload_unused(old)
        return True

    def _found(self) -> dict[int, _Folder]:
        """Returns the versions on disk by number."""
        found: dict[int, _Folder] = {}
        if self.path.suffix == ".tflite":
            with contextlib.suppress(FileNotFoundError):
                file = _Folder(self.path, _stamp(self.path))
                if self._file is None or self._file[1] != file:
                    # A new file is a new version, and the newest one, even if it is dated back.
                    number = int(self.path.stat().st_mtime)
                    number = number if self._file is None else max(number, self._file[0] + 1)
                    self._file = number, file
                found = dict([self._file])
            return found
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # the last one stays
            for folder in self.path.iterdir():
                if not (folder.name.isascii() and folder.name.isdecimal()):
                    continue
                # A damaged version may have lost its model.
                if not any((folder / name).is_file() for name in MODEL_FILES):
                    continue
                if (number := int(folder.name)) <= _MAX_VERSION:
                    found[number] = _Folder(folder, _stamp(folder))
        return found

    def _unload_unused(self, version: Version) -> None:
        if version is self._current or version.users:
            return
        if self._states.get(version.number) == (
            _State.UNLOADING,
            "",
        ):  # else loaded again
            self._states[version.number] = (_State.END, "")
        closing = asyncio.get_running_loop().run_in_executor(None, version.close)
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def close(self) -> None:
        """Frees the memory of the current version."""
        if self._current is not None:
            self._current.close()


def _stamp(folder: Path) -> _Stamp:
    stamp = []
    for path in sorted(folder.rglob("*")) or [folder]:
        with contextlib.suppress(FileNotFoundError):  # deleted, or a broken link
            stat = path.stat()
            # Not the time of modification, which a copy may keep.
            stamp.append((str(path), stat.st_size, stat.st_ctime_ns))
    return tuple(stamp)


def _bytes_a_row(info: Any) -> int:
    """Returns the bytes of a row of a `TensorInfo` with constant sizes."""
    sizes = (max(dim.size, 1) for dim in info.tensor_shape.dim[1:])
    dtype = protos.dtype_of(info.dtype)  # a string counts as its pointer
    return math.prod(sizes) * dtype.itemsize
