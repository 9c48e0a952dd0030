"""The versions of a model: finds and loads the newest one."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.extensions.serving import Settings
from keras_transformer.extensions.serving.engines import Version, open_engine, with_sentences
from keras_transformer.extensions.serving.tensors import RequestError
from keras_transformer.inference.loading import MODEL_FILES
from keras_transformer.inference.tags import check_tag
from keras_transformer.inference.translate import changed_numbers, with_languages

_LOG = logging.getLogger(__name__)
_MAX_VERSION = 2**63 - 1  # versions are int64 in the API


class ServedModel:
    """The newest version of a model: the highest one of a directory, or what `kt.load` opens.

    A LiteRT file may be replaced while it is served. Versions that lack the tag that the server
    adds are not served.
    """

    def __init__(self, settings: Settings, name: str, batches_at_once: int):
        self.path = settings.model_dir
        self.name = name
        self._settings = settings
        self._batches_at_once = batches_at_once
        self._current: Version | None = None
        self._loading: int | None = None
        # For each version that cannot be loaded: the time of its last change, and the error.
        self._failed: dict[int, tuple[int, str]] = {}
        self._file = (0, 0)  # number of a single file, and time of its last change

    def version(self, name: str, number: int | None = None) -> Version:
        """Returns the version that a request names."""
        current = self._current
        if name != self.name or current is None or number not in (None, current.number):
            what = f"Latest({name})" if number is None else f"Specific({name}, {number})"
            raise RequestError(404, f"Servable not found for request: {what}")
        return current

    def status(self, name: str, number: int | None = None) -> list[dict[str, Any]]:
        """Returns the states of a version, or of all, in TF Serving's format."""
        states = {failed: ("END", problem) for failed, (_, problem) in self._failed.items()}
        if self._current is not None:
            states[self._current.number] = ("AVAILABLE", "")
        if self._loading is not None:
            states[self._loading] = ("LOADING", "")
        chosen = {n: s for n, s in states.items() if name == self.name and number in (None, n)}
        if not chosen:
            versions = "any versions" if number is None else f"version {number}"
            raise RequestError(404, f"Could not find {versions} of model {name}")
        return [
            {
                "version": str(version),
                "state": state,
                "status": {
                    "error_code": "UNKNOWN" if problem else "OK",
                    # Clients see the names of files, but not where they are.
                    "error_message": re.sub(r"[^\s'\"]*/", "", problem.replace(str(self.path), "")),
                },
            }
            for version, (state, problem) in sorted(chosen.items(), reverse=True)
        ]

    async def start(self) -> None:
        """Loads the highest version that can be loaded."""
        while self._current is None and await self.refresh():
            pass
        if self._current is None:
            problems = [problem for _, problem in self._failed.values()]
            raise InputError(
                f"{self.path} has no version that can be served "
                f"({problems[-1] if problems else 'it has no model'}). It must be a directory of "
                "versions, as keras-transformer export writes it, or a model."
            )

    async def watch(self, seconds: float) -> None:
        """Checks for new versions every few seconds, forever."""
        while True:
            await asyncio.sleep(seconds)
            try:
                await self.refresh()
            except OSError:
                _LOG.exception("Cannot check %s for new versions.", self.path)

    async def refresh(self) -> bool:
        """Loads the highest version on disk. Returns False if nothing has changed.

        The old version answers until the new one is warm. A version that fails to load is tried
        again when its files change, because it may have been copied only in part. The last working
        version is kept even if its directory is deleted.
        """
        found = await asyncio.to_thread(self._found)
        self._failed = {n: it for n, it in self._failed.items() if found.get(n, [0])[0] == it[0]}
        wanted = max(found.keys() - self._failed.keys(), default=None)
        if wanted is None or (self._current and wanted == self._current.number):
            return False
        changed, path = found[wanted]
        self._loading = wanted
        try:
            version = await asyncio.to_thread(self._load, path)
            self._current = version._replace(number=wanted)
        except Exception as error:  # any error must leave the old version loaded
            problem = " ".join(f"version {wanted} cannot be loaded: {error}".split())
            _LOG.error("%s: %s", self.name, problem)
            self._failed[wanted] = changed, problem
            return True
        finally:
            self._loading = None
        await asyncio.to_thread(gc.collect)  # a SavedModel of an old version has cycles
        broken = " and ".join(str(n) for n in sorted(self._failed) if n > wanted)
        reason = f", because version {broken} cannot be loaded" if broken else ""
        _LOG.info("Serving %s, version %d%s.", self.name, wanted, reason)
        return True

    def _load(self, path: Path) -> Version:
        settings = self._settings
        version = open_engine(path, self._batches_at_once)
        languages = settings.source_language, settings.target_language
        version = version._replace(engine=with_languages(version.engine, *languages))
        options = {name: getattr(settings, name) for name in ("glossary", "terms", "casing")}
        version = with_sentences(version, settings.document, **options)
        check_tag(settings.source_tag, version.engine.symbols, str(path))
        for _, remark in changed_numbers(version.engine, ["10³"]):
            _LOG.warning("%s: %s", self.name, remark)
        return version

    def _found(self) -> dict[int, tuple[int, Path]]:
        """Returns the time of the last change and the path of each version on disk."""
        folders = list(self.path.iterdir()) if self.path.is_dir() else []
        numbers = {
            int(folder.name): folder
            for folder in folders
            if folder.name.isascii()
            and folder.name.isdecimal()
            # A damaged version may have lost its model.
            and any((folder / name).is_file() for name in MODEL_FILES)
        }
        found = {n: (last_change(p), p) for n, p in numbers.items() if n <= _MAX_VERSION}
        if not found and (folders or self.path.is_file()):  # a model
            changed = last_change(self.path) if self.path.is_file() else 1
            if changed != self._file[1]:
                self._file = self._file[0] + 1, changed
            found = {self._file[0]: (changed, self.path)}
        return found


def last_change(path: Path) -> int:
    """Returns a time in ns that a copy does not keep, unlike the time of modification."""
    paths = [path, *path.rglob("*")]
    return max(file.lstat().st_ctime_ns for file in paths)
