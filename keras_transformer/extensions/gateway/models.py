"""The models of a directory: which pairs they translate, and which of them are in memory."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import ctypes
import dataclasses
import functools
import gc
import hashlib
import itertools
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from keras_transformer import plugins, tf_import
from keras_transformer.errors import InputError, one_line, require
from keras_transformer.extensions.gateway import Settings
from keras_transformer.extensions.serving.batching import Call, fair_share
from keras_transformer.extensions.serving.engines import open_engine
from keras_transformer.extensions.serving.models import last_change
from keras_transformer.extensions.serving.tensors import Arrays, RequestError
from keras_transformer.inference import manifest
from keras_transformer.inference.engine import Engine
from keras_transformer.inference.loading import RUN_LOADER, find_loader, newest_version

_LOG = logging.getLogger(__name__)
_PAIR = re.compile(r"(?:.*[-_.])?([a-z]{2,3}(?:-[A-Z]\w+)?)[-_]([a-z]{2,3}(?:-[A-Z]\w+)?)")
# A model in memory: its engine, and its functions that compute batches, by name.
Loaded: TypeAlias = tuple[Engine, Mapping[str, Call]]
# Loads the engine of a path, for a number of batches at the same time.
OpenModel: TypeAlias = Callable[[Path, int], Engine]
_MAX_HOPS = 3  # a text goes through at most two other languages


@dataclasses.dataclass(eq=False)
class Model:
    """A model of the directory.

    Attributes:
        name: the name of its folder.
        path: its newest version.
        pair: the codes of its languages.
        changed: the time of the last change of its files.
        size: bytes of its files, and of its memory when it has been loaded.
        key: a hash of its content.
        loaded: the engine and its functions while the model is in memory.
        loading: the task that loads it, since its first request.
        failure: why it cannot be loaded, or "".
        idle: set while no requests use it or wait for it.
        used: the number of the last request that used it.
    """

    name: str
    path: Path
    pair: tuple[str, str]
    changed: int
    size: int
    key: str
    loaded: Loaded | None = None
    loading: asyncio.Task[Loaded | None] | None = None
    failure: str = ""
    idle: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    used: int = 0


class Models:
    """Loads models at their first request, and drops the least recently used ones.

    A model that cannot be loaded counts as missing until its files change. `open_model` loads the
    engine of a path. The models divide the requests of all connections by `fair_share`.
    """

    def __init__(self, settings: Settings, open_model: Callable[[Path], Engine]):
        self._settings, self._open = settings, open_model
        self._memory_bytes = settings.memory_mb << 20
        self._users: collections.Counter[Model] = collections.Counter()  # requests of each model
        self._models: dict[str, Model] = {}
        self._left_out: dict[str, str] = {}  # the last reason for each folder
        self._turn = asyncio.Lock()  # to load a model; its order is that of the requests
        self._requests = itertools.count(1)

    async def start(self) -> None:
        """Finds the models. Raises `InputError` if there are none."""
        await self.refresh()
        if not self._models:
            advice = "Export one for each pair of languages, such as en-de."
            raise InputError(f"{self._settings.model_dir} has no folders with models. {advice}")

    async def watch(self, seconds: float) -> None:
        """Checks for new and changed models every few seconds, forever."""
        while True:
            await asyncio.sleep(seconds)
            await self.refresh()

    async def refresh(self) -> None:
        """Reads the directory. Changed models are loaded again at their next request."""
        found = await asyncio.to_thread(lambda: {m.name: m for m in self._found()})
        known = self._models.items()
        unchanged = {n: m for n, m in known if n in found and found[n].changed == m.changed}
        if found.keys() == self._models.keys() == unchanged.keys():
            return
        self._models = dict(sorted((found | unchanged).items()))
        pairs = self.pairs()
        for model in self._models.values():
            if pairs.get(model.pair, model) is not model:
                first, pair = pairs[model.pair].name, "-".join(model.pair)
                _LOG.warning("%s and %s translate %s. %s is used.", first, model.name, pair, first)
        _LOG.info("Models: %s.", ", ".join(sorted(map("-".join, pairs))))

    def _found(self) -> Iterator[Model]:
        """Yields the models of the directory, whose languages are in manifests or names."""
        loaders = [RUN_LOADER, *(loader for _, loader in plugins.all_of("loaders"))]
        for folder in sorted(self._settings.model_dir.glob("*/")):
            try:
                path = newest_version(folder)
                facts = manifest.read(path)
                name = _PAIR.fullmatch(folder.name)
                pair = facts.get("languages") or (list(name.groups()) if name else None)
                # `find_loader` takes everything else for a SavedModel, and loads TensorFlow.
                needed = facts.get("needed", ()) if facts else ("saved_model.pb",)
                is_complete = all((path / name).is_file() for name in needed)
                if not is_complete and all(loader.find(str(path)) is None for loader in loaders):
                    raise ValueError("it has no model")
                if not isinstance(pair, list) or len(pair) != 2:
                    raise ValueError(f"its languages are {pair!r:.50}, not two codes")
                source, target = pair
                changed = last_change(path)
                file = path / manifest.FILE
                content = file.read_bytes() if facts else f"{path} {changed}".encode()
                size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            except (InputError, OSError, ValueError) as error:  # it may be copied now
                if (reason := one_line(error)) != self._left_out.get(folder.name):
                    _LOG.warning("%s is left out: %s", folder.name, reason)
                self._left_out[folder.name] = reason
                continue
            key = hashlib.sha256(content).hexdigest()
            yield Model(folder.name, path, (str(source), str(target)), changed, size, key)

    def pairs(self) -> dict[tuple[str, str], Model]:
        """Returns the models that can be used, by their languages. The first name counts."""
        usable = [model for model in self._models.values() if not model.failure]
        return {model.pair: model for model in reversed(usable)}

    def languages(self) -> list[str]:
        """Returns the codes of all languages."""
        return sorted({code for pair in self.pairs() for code in pair})

    def routes(self, source: str) -> dict[str, list[Model]]:
        """Returns the models to each language that can be reached, as few as possible.

        No route contains a language twice.
        """
        pairs = sorted(self.pairs().items(), key=lambda item: item[0])
        routes: dict[str, list[Model]] = {source: []}
        reached = dict(routes)
        for _ in range(_MAX_HOPS):
            found: dict[str, list[Model]] = {}
            for (start, end), model in pairs:
                if start in reached and end not in routes:
                    found.setdefault(end, [*reached[start], model])
            routes |= found
            reached = found
        return routes

    def targets(self) -> dict[str, list[str]]:
        """Returns the languages that texts of each language can be translated into."""
        return {code: sorted(self.routes(code)) for code in self.languages()}

    @contextlib.asynccontextmanager
    async def lease(self, model: Model) -> AsyncIterator[Loaded | None]:
        """Yields a model that stays in memory until the end of the block, or None.

        It is None if the model cannot be loaded. The log has the reason.
        """
        model = self._models.get(model.name, model)  # it may have been dropped meanwhile
        if fair_share(self._users[model], self._users.total(), self._settings.max_connections) < 1:
            raise RequestError(429, f"{model.name} has its share of requests. Try again later.")
        if model.loading is None:
            model.loading = asyncio.ensure_future(self._load_in_turn(model))
        model.used = next(self._requests)
        self._users[model] += 1
        model.idle.clear()
        try:
            # A client that disconnects does not stop the loading.
            yield await asyncio.shield(model.loading)
        finally:
            self._users[model] -= 1
            if not self._users[model]:
                del self._users[model]
                model.idle.set()

    async def _load_in_turn(self, model: Model) -> Loaded | None:
        async with self._turn:
            try:
                model.loaded = await self._load(model)
                _LOG.info("Loaded %s (%d MB).", model.name, model.size >> 20)
            except Exception as error:  # any error must leave the others usable
                model.failure = one_line(error)
                if isinstance(error, MemoryError | OSError):  # it may work after the next refresh
                    self._models.pop(model.name, None)
                _LOG.error("%s cannot be loaded: %s", model.name, model.failure)
            return model.loaded

    async def _load(self, model: Model) -> Loaded:
        changed = await asyncio.to_thread(last_change, model.path)
        require(changed == model.changed, "Its files have changed.")
        loader, _ = find_loader(str(model.path))
        if loader.needs_tensorflow:  # it does not count to the memory of the model
            await asyncio.to_thread(tf_import.load_tensorflow)
        await self._make_room(model.size)
        for other, _ in [m.loaded for m in self._models.values() if m.loaded]:
            other.release_memory()
        await asyncio.to_thread(_free_memory)
        before = _resident_bytes()
        engine = await asyncio.to_thread(self._open, model.path)
        # Other work may need memory at the same time, so this is no reason to refuse a model.
        model.size = min(max(model.size, _resident_bytes() - before), self._memory_bytes)
        await self._make_room(model.size)
        # Requests with the same function can share a batch.
        names = ("translate", "translate_verbose")
        return engine, {n: functools.partial(_arrays, getattr(engine, n)) for n in names}

    async def _make_room(self, size: int) -> None:
        """Drops models until `size` bytes are free. Waits for the requests that use them."""
        if size > self._memory_bytes:
            limit = self._memory_bytes >> 20
            raise InputError(f"it needs {size >> 20:,} MB, but --memory_mb is {limit:,}.")
        while True:
            loaded = [m for m in self._models.values() if m.loaded is not None]
            if sum(m.size for m in loaded) + size <= self._memory_bytes:
                return
            oldest = min(loaded, key=lambda m: (not m.idle.is_set(), m.used))
            # The next request loads the copy. Only those that came before use this one.
            fresh: Any = {"loaded": None, "loading": None, "idle": asyncio.Event()}
            self._models[oldest.name] = dataclasses.replace(oldest, **fresh)
            await oldest.idle.wait()
            oldest.loaded = oldest.loading = None
            _LOG.info("Dropped %s.", oldest.name)
            await asyncio.to_thread(_free_memory)


def open_model(path: Path, batches_at_once: int) -> Engine:
    """Loads a model and warms it up."""
    return open_engine(path, batches_at_once).engine


def _arrays(function: Any, columns: Arrays) -> Arrays:
    """Calls a function of an engine, which may return tensors."""
    return {name: np.asarray(value) for name, value in function(**columns).items()}


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _free_memory() -> None:
    """Returns freed memory to the system, which glibc keeps otherwise."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
