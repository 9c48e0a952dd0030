"""Texts to texts: detection, routes through models, markup, glossaries, and the cache."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import copy
import functools
import itertools
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import cachetools
import lingua
import numpy as np
import regex

from keras_transformer.data.cleaning import LINGUA_CODES
from keras_transformer.errors import InputError
from keras_transformer.extensions.documents import markup, protection, spans
from keras_transformer.extensions.documents.glossary import Glossary
from keras_transformer.extensions.documents.text_formats import Unit, html_units
from keras_transformer.extensions.gateway import Settings
from keras_transformer.extensions.gateway.models import Loaded, Model, Models
from keras_transformer.extensions.serving.batching import Batcher, concatenate
from keras_transformer.extensions.serving.server import while_connected
from keras_transformer.extensions.serving.tensors import Arrays, RequestError
from keras_transformer.inference import EMPTY_SCORE
from keras_transformer.inference.engine import Engine

_BATCHES_AT_ONCE = 4  # of a request with many sentences
_DETECTED_CHARACTERS = 1_000
_ENTRY_BYTES = 1_600  # memory of an entry of the cache besides its outputs
_LONGEST_KEY = 1_000  # bytes of a line that is cached
# Symbols of models that were trained for formality.
FORMALITY = {"more": "<formal>", "less": "<informal>"}
# Texts of XML end at line breaks, at empty elements in words, and between two elements.
_XML_CUT = regex.compile(r"(?P<line>[\r\n]\s*+)|</[^<>]*>\K(?=<\w)|\w<[^<>]*/>\K(?=\w)")
# A language, and how likely it is among the languages of the models.
Detected: TypeAlias = tuple[str, float]
_Value = TypeVar("_Value")
_LANGUAGES = {known.iso_code_639_1.name.lower(): known for known in lingua.Language.all()}


class TextRequest(NamedTuple):
    """What all protocols ask for.

    Attributes:
        texts: the texts.
        source: code of their language; None to detect it.
        target: code of the language of the translations.
        format: "text", "html" or "xml".
        sentences: "1" to split texts at stops and line breaks, "nonewlines" only at stops, "0" not.
        glossary: terms and their translations.
        formality: "more" or "less"; with "prefer_", models without it are used; "": the default.
        alternatives: the number of other translations.
        ignored: elements of XML that are kept as they are.
    """

    texts: Sequence[str]
    source: str | None
    target: str
    format: str = "text"
    sentences: str = "1"
    glossary: Mapping[str, str] = {}
    formality: str = ""
    alternatives: int = 0
    ignored: Sequence[str] = ()


class Result(NamedTuple):
    """The translation of a text, its source language, and the languages in between."""

    text: str
    source: Detected
    pivots: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()


def pivots_of(results: Sequence[Result]) -> tuple[str, ...]:
    """Returns the languages in between of the first text that has some."""
    return next((result.pivots for result in results if result.pivots), ())


class Translator:
    """Translates with the models, in batches across requests.

    Outputs of models are cached by the hash of the model, the kind of the call and the line.
    """

    def __init__(self, models: Models, batcher: Batcher, settings: Settings) -> None:
        self.models, self._batcher = models, batcher
        self._cache: Any = cachetools.LRUCache(settings.cache_mb << 20, _entry_bytes)
        self._lock = threading.Lock()
        # No request waits for the thread of another one.
        self._threads = concurrent.futures.ThreadPoolExecutor(settings.max_connections, "request")

    def language(self, code: str, side: int) -> str | None:
        """Returns the language of the models that a code means, if necessary without its region.

        `side` is 0 for a source, and 1 for a target. Languages of the other side come last.
        """
        pairs, wanted = self.models.pairs(), code.lower().replace("_", "-")
        for codes in ({pair[side] for pair in pairs}, {pair[1 - side] for pair in pairs}):
            known = {own.split("-")[0]: own for own in sorted(codes, reverse=True)}
            known |= {own.lower(): own for own in codes}
            if found := known.get(wanted) or known.get(wanted.split("-")[0]):
                return found
        return None

    async def detect(self, texts: Sequence[str]) -> list[list[Detected]]:
        """Returns the languages of each text, the most likely one first."""
        codes = tuple(self.models.languages())

        def languages() -> list[list[Detected]]:
            plain = (re.sub(r"<[^<>]*>", " ", text)[:_DETECTED_CHARACTERS] for text in texts)
            return [detected_languages(text, codes) for text in plain]

        return await asyncio.get_running_loop().run_in_executor(self._threads, languages)

    async def sources(self, texts: Sequence[str], target: str) -> list[Detected]:
        """Returns the most likely language of each text from which the target can be reached."""
        leading = {code for code, others in self.models.targets().items() if target in others}
        known = await self.detect(texts)
        return [next((f for f in found if f[0] in leading), found[0]) for found in known]

    async def translate(self, request: TextRequest) -> list[Result]:
        """Translates the texts of a request."""
        sources = [(request.source or "", 1.0)] * len(request.texts)
        if request.source is None:
            sources = await self.sources(request.texts, request.target)
        results: dict[int, Result] = {}
        for code in dict.fromkeys(code for code, _ in sources):
            chosen = [index for index, source in enumerate(sources) if source[0] == code]
            texts = [request.texts[index] for index in chosen]
            work = functools.partial(_translate_texts, request, code)
            found, pivots = await self.along_route(code, request.target, [texts], work)
            for index, (best, *others) in zip(chosen, zip(*found, strict=True), strict=True):
                rest = tuple(text for text in dict.fromkeys(others) if text != best)
                results[index] = Result(best, sources[index], pivots, rest)
        return [results[index] for index in range(len(sources))]

    async def along_route(
        self, source: str, target: str, value: _Value,
        work: Callable[[Model, Callable[[int], Engine], _Value], _Value],
    ) -> tuple[_Value, tuple[str, ...]]:  # fmt: skip
        """Applies `work` in a thread with each model of the route. Returns the pivots, too.

        If a model cannot be loaded, there may be a route without it. `work` gets the model, and a
        function that returns its engine for the best translations (0) or others (1, 2, ...).
        """
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        try:
            while (route := self.models.routes(source).get(target)) is not None:
                result = value
                for model in route:
                    async with self.models.lease(model) as loaded:
                        if loaded is None:
                            break
                        run = functools.partial(self._run, loop, end, model, loaded)
                        engines = functools.partial(_engine, model, loaded[0], run)
                        call = functools.partial(work, model, engines, result)
                        result = await loop.run_in_executor(self._threads, call)
                else:
                    return result, tuple(model.pair[1] for model in route[:-1])
        finally:
            end.set()  # if the client has left, its thread waits no longer
        raise RequestError(400, f"{target} is not available as a target language from {source}")

    def _run(
        self, loop: Any, end: asyncio.Event, model: Model, loaded: Loaded,
        name: str, columns: Arrays,
    ) -> Arrays:  # fmt: skip
        """Calls a function of an engine. Rows that are not cached join the batches of others."""
        engine, calls = loaded
        keys = [(model.key, name, *row) for row in zip(*columns.values(), strict=True)]
        with self._lock:
            rows = [self._cache.get(key) for key in keys]
        missing = [index for index, row in enumerate(rows) if row is None]
        if missing:
            inputs = {column: np.asarray(array)[missing] for column, array in columns.items()}
            batches = self._batcher.run(calls[name], inputs, engine.max_batch_lines, model.name)
            work = while_connected(end.wait(), batches)
            found = asyncio.run_coroutine_threadsafe(work, loop).result()
            for position, index in enumerate(missing):
                # A copy, since a view would keep the whole batch in memory.
                row = {n: array[position : position + 1].copy() for n, array in found.items()}
                rows[index] = row
                is_short = sum(map(len, keys[index][2:])) <= _LONGEST_KEY
                with self._lock:
                    if is_short and _entry_bytes(row) <= self._cache.maxsize:
                        self._cache[keys[index]] = row
        return concatenate(rows)


def _engine(model: Model, engine: Engine, run: Callable[..., Arrays], rank: int) -> Engine:
    """Returns an engine that calls `run`, and whose best translations have a rank of the model's.

    If a line has fewer translations, it gets the last one.
    """
    engine = copy.copy(engine)
    engine.n_best, engine.max_batch_lines, engine.threads = 1, None, _BATCHES_AT_ONCE
    engine.source_language, engine.target_language = model.pair

    def translate(text: Any) -> Arrays:
        found = run("translate", {"text": text})
        last = np.maximum((found["scores"] > EMPTY_SCORE).sum(axis=1) - 1, 0)
        chosen, names = np.minimum(rank, last)[:, None], ("translations", "scores")
        return {name: np.take_along_axis(found[name], chosen, 1) for name in names}

    vars(engine)["translate"] = translate
    if engine.translate_verbose is not None:
        engine.translate_verbose = lambda **columns: run("translate_verbose", columns)
    return engine


def _translate_texts(
    request: TextRequest, source: str, model: Model, engines: Callable[[int], Engine],
    texts: Sequence[Sequence[str]],
) -> list[list[str]]:  # fmt: skip
    """Returns the translations of texts in the first list, and at the end of a route others, too.

    Terms are translated by the first model of the route, and the others keep them.
    """
    is_last = model.pair[1] == request.target
    terms = request.glossary
    if model.pair[0] != source:
        terms = {term: term for term in terms.values()}
    outputs = []
    for rank in range(1 + request.alternatives * is_last):
        engine = engines(rank)
        engine.glossary = Glossary(terms, source, engine.target_language) if terms else None
        engine.splits_texts = request.sentences != "0"
        tag = FORMALITY.get(request.formality.removeprefix("prefer_"), "") if is_last else ""
        if tag and tag not in (engine.symbols or ()):
            if not request.formality.startswith("prefer_"):
                raise InputError("'formality' is not supported for given 'target_lang'.")
            tag = ""
        outputs.append(_translated(engine, texts[0], request, tag))
        if outputs[:-1] and outputs[-1] == outputs[-2]:
            break  # the model returns no more
    return outputs


def _translated(engine: Engine, texts: Sequence[str], request: TextRequest, tag: str) -> list[str]:
    """Translates texts of a format."""
    is_plain = request.format == "text"
    if is_plain and request.sentences == "nonewlines":
        texts = [text.replace("\r", " ").replace("\n", " ") for text in texts]
    units = [_units(text, request) for text in texts]
    fragments = [unit.tokens for found in units for unit in found]
    written = protection.without_entities if is_plain else protection.with_entities
    outputs, *_ = protection.translate_tokens(engine, fragments, (), tag, written)
    remaining = iter(outputs)
    changes = [[(unit.start, unit.end, next(remaining)) for unit in found] for found in units]
    return [spans.spliced(*parts) for parts in zip(texts, changes, strict=True)]


def _units(text: str, request: TextRequest) -> list[Unit]:
    """Returns the parts of a text that are translated separately, with their tags."""
    if request.format == "html":
        with contextlib.suppress(InputError):  # a tag does not end
            return [*html_units(text, "")]
    ignored = frozenset(request.ignored if request.format == "xml" else ())
    tokens = markup.tokenize(text, ignored, request.format != "text")
    if request.format != "xml":
        return [Unit(0, len(text), tokens)]
    ends = itertools.accumulate(len(token.raw) for token in tokens)
    tags = [(b - len(t.raw), b) for t, b in zip(tokens, ends, strict=True) if t.kind != "text"]
    found = _XML_CUT.finditer(text)
    cuts = [m.span() for m in found if request.sentences == "1" or not m["line"]]
    edges = [0, *itertools.chain(*spans.outside(cuts, tags)), len(text)]
    parts = zip(edges[::2], edges[1::2], strict=True)
    return [Unit(a, b, markup.tokenize(text[a:b], ignored)) for a, b in parts]


def _entry_bytes(outputs: Arrays) -> int:
    """Returns the approximate memory of an entry of the cache, with its key, which is short."""
    strings = (array.flat for array in outputs.values() if array.dtype == object)
    characters = sum(len(value) + 50 for values in strings for value in values)
    return _ENTRY_BYTES + 2 * characters + sum(array.nbytes for array in outputs.values())


def detected_languages(text: str, codes: tuple[str, ...]) -> list[Detected]:
    """Returns which of the languages a text may be in, the most likely one first."""
    detector, names = _detector(codes)
    found = detector.compute_language_confidence_values(text) if detector else []
    known = [(code, entry.value) for entry in found for code in names[entry.language]]
    if not codes:
        raise RequestError(503, "The server has no model that can be used.")
    return known or [(codes[0], 0.0)]


@functools.lru_cache(maxsize=4)
def _detector(codes: tuple[str, ...]) -> tuple[Any, dict[Any, list[str]]]:
    """Returns a detector of languages, or None if fewer than two are known, and their codes."""
    names: dict[Any, list[str]] = {}
    for code in codes:  # several regions may have one language
        if (found := _lingua_language(code)) is not None:
            names.setdefault(found, []).append(code)
    builder = lingua.LanguageDetectorBuilder.from_languages
    return (builder(*names).build() if len(names) > 1 else None), names


def _lingua_language(code: str) -> Any:
    base = re.split("[-_]", code.lower())[0]
    return _LANGUAGES.get(LINGUA_CODES.get(base, base))


def language_name(code: str) -> str:
    """Returns the English name of a language, or its code if the name is unknown."""
    found = _lingua_language(code)
    return code if found is None else found.name.title()
