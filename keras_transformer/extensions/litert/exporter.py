"""LiteRT: `model.tflite`, one file that translates without Python and TensorFlow.

`LiteRTSignatures` describes its signatures. `translate_ids` uses only LiteRT's own operations.
`translate` also contains the tokenizer, as two operations of tensorflow-text, if these segment text
like SentencePiece does. The search is the same as in the SavedModel, with a cache, but
for one sentence at a time.
"""

from __future__ import annotations

import copy
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.config import Config
from keras_transformer.errors import InputError
from keras_transformer.export import Engine, Exporter, ExportOptions, Hypotheses, VersionFacts
from keras_transformer.export.probes import escaped, probe_texts
from keras_transformer.inference import Status
from keras_transformer.inference.loading import newest_version
from keras_transformer.runs.machine import available_cores

if TYPE_CHECKING:  # imported late: a model is opened without TensorFlow
    from keras_transformer.extensions.litert.engine import LiteRTModel, LiteRTResult
    from keras_transformer.inference.translation_module import TranslationModule

FILE = "model.tflite"
_WITHOUT_TEXT = (
    "The model has only the signature translate_ids, not translate, because LiteRT's tokenizer "
    "would find other tokens: {}. Tokenize with the .model file of the export."
)
_ABOUT = f"`{FILE}` contains the model, the beam search and the vocabulary for LiteRT."
_USE_ON_PHONES = "    python example.py <input.txt"
_USE_ON_CPUS = "    keras-transformer translate --model_dir=. <input.txt"
_SIGNATURES = (
    "\n\nSignatures: {}. Tokenize with {} in this directory for signatures with ids. `translate` "
    "takes text, and needs two SentencePiece operations of tensorflow-text in the runtime."
)
_EXAMPLE = Path(__file__).with_name("example.py")


class LiteRTEngine(Engine):
    """A LiteRT model with settings of the search, by default those of the export."""

    changeable = ("decoding.length_penalty", "decoding.max_length")

    def __init__(self, model: LiteRTModel):
        self.model, self.label = model, str(model.path)
        self.n_best, self.threads = model.metadata.n_best, model.threads
        self.max_train_source_length = model.metadata.max_train_source_length
        self.vocabulary = model.vocabulary
        self.max_batch_lines = model.batch_size
        self.has_quality = model.metadata.has_quality
        if model.metadata.has_alignments:
            self.translate_verbose = self._translate_verbose
        self._max_length, self._length_penalty = 0, math.nan  # they mean: as exported

    def with_settings(self, settings: Mapping[str, Any]) -> LiteRTEngine:
        super().with_settings(settings)  # refuses others
        decoding = Config().updated(settings).decoding  # checks the values
        changed, limit = copy.copy(self), self.model.metadata.max_output_tokens
        if self.translate_verbose is not None:
            changed.translate_verbose = changed._translate_verbose
        if "decoding.max_length" in settings:
            changed._max_length = decoding.max_length or 0
        if "decoding.length_penalty" in settings:
            changed._length_penalty = decoding.length_penalty
        if changed._max_length > limit:
            raise InputError(
                f"decoding.max_length is {changed._max_length}, but {self.label} was exported "
                f"with at most {limit} tokens."
            )
        return changed

    def translate(
        self, text: Any, max_length: Any = None, length_penalty: Any = None
    ) -> Mapping[str, Any]:
        """Translates lines. Each may have its own `max_length` and `length_penalty`.

        The result has `lengths`, `truncated` and `status`, too, like the signature of a SavedModel.
        """
        found = self.results(_lines(text), max_length, length_penalty)
        limit = self.model.metadata.max_source_bytes
        was_long = np.array([len(line) > limit for line in np.asarray(text)])
        status = np.array([result.status for result in found]) | Status.SOURCE_CUT * was_long
        return {
            **self._outputs(found),
            "truncated": status & Status.SOURCE_CUT > 0,
            "status": status,
        }

    def _translate_verbose(self, text: Any, prefix: Any) -> Mapping[str, Any]:
        """Returns the outputs of `TranslationModule.translate_verbose` that LiteRT models have."""
        if any(prefix):
            raise InputError(
                f"{self.label} accepts no prefixes. Use the run directory or a SavedModel."
            )
        results, vocabulary = self.results(_lines(text)), self.model.vocabulary
        ids = np.array([result.ids for result in results])
        pieces = np.array([piece.encode() for piece in vocabulary.pieces()[1]], object)
        names = ("quality", "status") if self.has_quality else ()
        return {
            **self._outputs(results),
            **{n: np.array([getattr(result, n) for result in results]) for n in names},
            "finished": np.any(ids == vocabulary.end_id, axis=2),
            "ids": ids,
            "tokens": pieces[ids],
            "alignments": np.array([result.alignments for result in results]),
            "source_tokens": self.tokens(text)["tokens"],
        }

    def _outputs(self, results: Sequence[LiteRTResult]) -> dict[str, Any]:
        """Returns the translations of results, as arrays."""
        texts = [[best.encode() for best in self.model.texts(result)] for result in results]
        return {
            "translations": np.array(texts, object),
            "scores": np.array([result.scores for result in results]),
            "lengths": np.array([result.lengths for result in results]),
        }

    def release_memory(self) -> None:
        self.model.release_memory()

    def lengths(self, text: Any) -> Mapping[str, Any]:
        counts = zip(*map(self.model.lengths, _lines(text)), strict=True)
        return dict(zip(("tokens", "used", "unknown"), map(np.array, counts), strict=True))

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        limit = self.model.metadata.max_source_tokens
        rows = map(self.model.source_ids, texts)
        return [ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]] for ids in rows]

    def tokens(self, text: Any) -> dict[str, Any]:
        """Returns the padded `ids` and `tokens` of lines, and `lengths`, like a SavedModel."""
        vocabulary, width = self.model.vocabulary, self.model.metadata.max_source_tokens
        rows = self.tokenize(_lines(text))
        lengths = np.array([len(row) for row in rows], np.int32)
        ids = np.full((len(rows), width), vocabulary.pad_id, np.int32)
        is_token = np.arange(width) < lengths[:, None]
        ids[is_token] = np.concatenate(rows)
        pieces = np.array([piece.encode() for piece in vocabulary.pieces()[0]], object)
        return {"ids": ids, "tokens": np.where(is_token, pieces[ids], b""), "lengths": lengths}

    def search(self, texts: Sequence[str]) -> list[Hypotheses]:
        size = self.model.batch_size
        starts = range(0, len(texts), size)  # the texts of a batch have any lengths
        results = [result for i in starts for result in self.results(texts[i : i + size])]
        return [Hypotheses(*result[:3], quality=result.quality) for result in results]

    def results(
        self, texts: Sequence[str], max_length: Any = None, length_penalty: Any = None
    ) -> list[LiteRTResult]:
        """Returns the search results of the texts of one batch."""
        count = len(texts)
        limits = [self._max_length] * count if max_length is None else max_length
        penalties = [self._length_penalty] * count if length_penalty is None else length_penalty
        sources = [self.model.source_ids(text) for text in texts]
        return self.model.translate_batch(sources, limits, penalties)


class ComparedEngine(LiteRTEngine):
    """A model file. Both runtimes and all signatures must give the same results.

    Only LiteRT's `Interpreter` can run `translate_batch`, whose shapes are not constant.
    """

    def __init__(self, file: Path):
        from keras_transformer.extensions.litert.convert import load_text_signature
        from keras_transformer.extensions.litert.engine import LiteRTModel

        super().__init__(LiteRTModel(file))
        is_batch = self.model.batch_size > 1
        self._compiled = None if is_batch else LiteRTModel(file, low_memory=True)
        has_text = self.model.metadata.has_text
        self._translate_text = load_text_signature(file) if has_text else None

    def results(self, texts: Sequence[str], *options: Any) -> list[LiteRTResult]:
        results = super().results(texts, *options)
        for text, result in zip(texts, results, strict=True):
            self._check(text, result)
        return results

    def _check(self, text: str, result: LiteRTResult) -> None:
        """Raises `InputError` unless the other runtime and `translate` find the same."""
        model, best = self.model, self.model.texts(result)[0]
        if self._compiled is not None:
            other = self._compiled.translate_ids(model.source_ids(text))
            pairs = ((getattr(result, name), getattr(other, name)) for name in result._fields)
            if not all(np.array_equal(a, b) for a, b in pairs):
                raise InputError(
                    f"For {escaped(text)}, LiteRT's CompiledModel finds "
                    f"{escaped(model.texts(other)[0])} ({other.scores[0]:.5f}), but its "
                    f"Interpreter finds {escaped(best)} ({result.scores[0]:.5f}). Nothing was "
                    "exported."
                )
        if self._translate_text is not None:
            found = self._translate_text(model.truncate(text))[0][0]
            if found != best:
                raise InputError(
                    f"For {escaped(text)}, the signature translate finds {escaped(found)}, but "
                    f"translate_ids finds {escaped(best)}. Nothing was exported. Leave translate "
                    "out (text_signature)."
                )


def _lines(text: Any) -> list[str]:
    return [line.decode("utf-8", "surrogateescape") for line in np.asarray(text)]


class LiteRTExporter(Exporter):
    """Writes a LiteRT model, for phones or for servers on CPUs (`translate_batch`)."""

    options = frozenset({"alignments", "quality", "shortlist"})
    kind = "a LiteRT model"
    needs_tensorflow = False

    def __init__(self, *, for_cpu: bool):
        self._for_cpu = for_cpu
        weights = {"float32": 0.0, "float16": 0.1, "int8": 0.3, "int4": 0.5}
        self.weights = {"int8": 0.3, **weights} if for_cpu else weights
        if not for_cpu:
            self.options |= {"text_signature"}

    def find(self, model: str) -> Path | None:
        """Returns a LiteRT file, or a directory that holds one, and None for other paths."""
        path = newest_version(Path(model))
        is_file = path.suffix == ".tflite" or (path.is_file() and _is_litert(path))
        return path if is_file or (path / FILE).is_file() else None

    def prepare(self, translator: TranslationModule, options: ExportOptions) -> TranslationModule:
        for name, value, needed, reason in (
            ("sample", True, "false", "draws random outputs, which LiteRT cannot reproduce"),
            ("unknown", "replace", "allow", "is replace, which LiteRT does not support"),
        ):
            if getattr(translator.config, name) == value:
                raise InputError(f"decoding.{name} {reason}. Use decoding.{name}={needed}.")
        return translator.with_options(shortlist=ids) if (ids := options.shortlist) else translator

    def write(self, translator: TranslationModule, folder: Path, options: ExportOptions) -> None:
        from keras_transformer.extensions.litert.convert import write_file

        write_file(
            folder / FILE,
            translator,
            self.weights_of(options),
            with_text=self._needs_text(options) and _text_problem(translator) is None,
            for_cpu=self._for_cpu,
            with_alignments=options.quality or options.extra.get("alignments", False),
        )

    def _needs_text(self, options: ExportOptions) -> bool:
        """Whether the model should also have the signature `translate`."""
        return not self._for_cpu and options.extra.get("text_signature", True)

    def open(self, folder: Path, threads: int | None = None) -> LiteRTEngine:
        from keras_transformer.extensions.litert.engine import LiteRTModel  # needs a package

        file = folder / FILE if folder.is_dir() else folder  # `find` also accepts files
        cores = available_cores() if threads is None else threads
        return LiteRTEngine(LiteRTModel(file, cores))

    def open_for_comparison(self, folder: Path) -> LiteRTEngine:
        return ComparedEngine(folder / FILE)

    def describe(
        self, translator: TranslationModule, folder: Path, options: ExportOptions
    ) -> VersionFacts:
        from keras_transformer.extensions.litert import passes

        translator.tokenizer.save(folder)  # some programs do not read the archive
        signatures = passes.describe_signatures(passes.read((folder / FILE).read_bytes()))
        names, files = (
            ", ".join(f"`{name}`" for name in found)
            for found in (signatures, translator.tokenizer.vocabulary.models())
        )
        use, warning = _USE_ON_CPUS, None
        if not self._for_cpu:
            shutil.copyfile(_EXAMPLE, folder / "example.py")
            use = _USE_ON_PHONES
            if self._needs_text(options) and "translate" not in signatures:
                warning = _WITHOUT_TEXT.format(_text_problem(translator))
        use += _SIGNATURES.format(names, files) + (f"\n\n{warning}" if warning else "")
        tags = ("transformer", "litert")
        return VersionFacts(_ABOUT, use, tags, signatures=signatures, warning=warning)


def _text_problem(translator: TranslationModule) -> str | None:
    from keras_transformer.extensions.litert.tokenizer import text_problem

    vocabulary = translator.tokenizer.vocabulary
    return text_problem(vocabulary, probe_texts(vocabulary, ()))


def _is_litert(file: Path) -> bool:
    with file.open("rb") as content:
        return content.read(8)[4:] == b"TFL3"


EXPORTER = LiteRTExporter(for_cpu=False)
CPU_EXPORTER = LiteRTExporter(for_cpu=True)
