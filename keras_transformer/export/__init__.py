"""Exports of a trained run. A format is an `Exporter`, which other packages can add, too.

A package declares its format as an entry point of the group `keras_transformer.exporters`. After
`pip install`, `keras-transformer export --format=NAME` and `export(..., format=NAME)` know it:

    class Onnx(Exporter):
        def write(self, translator, folder, options): ...
        def open(self, folder): ...  # returns an Engine

    EXPORTER = Onnx()
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from keras_transformer import plugins
from keras_transformer.decoding.shortlist import Shortlist
from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics
from keras_transformer.evaluation.metrics import Scores
from keras_transformer.export.comparison import (
    MAX_SHORTLIST_LOSS,
    Comparison,
    Engine,
    Hypotheses,
    change_of,
    check_loss,
    check_references,
    compare_log_probs,
    compare_tokens,
)
from keras_transformer.export.manifest import Provenance, write_manifest
from keras_transformer.export.model_card import (
    TRANSLATION,
    FormatCard,
    ModelCardData,
    TaskCard,
    model_card,
    model_name,
)
from keras_transformer.export.probes import ProbeTexts, probe_texts
from keras_transformer.inference.loading import load_model, load_translator
from keras_transformer.inference.translate import translate_lines
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.runs.atomic import write_version
from keras_transformer.runs.run_directory import RunDirectory

__all__ = [
    "Engine",
    "ExportOptions",
    "ExportResult",
    "Exporter",
    "FormatCard",
    "Hypotheses",
    "VersionFacts",
    "export",
    "find_exporter",
    "formats",
]


class ExportResult(NamedTuple):
    """The result of an export.

    Attributes:
        path: the new version.
        sentences: number of sentences in the comparison of the export with the run.
        ties: sentences whose tokens differ although the scores are equal up to rounding.
        largest_difference: for an engine with a search of its own, the largest difference between
            the log-probabilities of a translation in the run and in the export.
        scores: scores of the export's translations, if there are references.
        warning: a limitation of this export.

    Example:
    >>> ExportResult(Path("build/export/1"), sentences=1000, ties=[]).path.name
    '1'
    """

    path: Path
    sentences: int
    ties: list[str]
    largest_difference: float | None = None
    scores: Scores | None = None
    warning: str | None = None


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """Options of an export. `Exporter.options` names those that a format understands.

    Attributes:
        references: reference translations of the sentences, for BLEU.
        weights: number format of the weights, one of `Exporter.weights`, such as "int8". The
            default is the first one.
        max_bleu_loss: the largest allowed loss of BLEU on the sentences when weights are
            rounded, or with a shortlist. The default is 0.1, for int8 and a shortlist 0.3, and for
            int4 0.5. It needs references.
        tokenize: sacreBLEU's tokenizer for BLEU; None for `metrics.choose_tokenizer`.
        card: facts for the model card that the run does not contain.
        text_signature: whether a LiteRT model also gets the signature `translate`, which contains
            the tokenizer. LiteRT.js loads no models with text inputs.
        shortlist: the tokens that the search considers for each sentence. It makes the search
            faster and needs references, because translations change.

    Example:
    >>> ExportOptions(weights="int8", references=["Ein Hund ."]).weights
    'int8'
    """

    references: Sequence[str] | None = None
    weights: str | None = None
    max_bleu_loss: float | None = None
    tokenize: str | None = None
    card: ModelCardData | None = None
    text_signature: bool = True
    shortlist: Shortlist | None = None


class VersionFacts(NamedTuple):
    """What an exporter knows about a version that it has written.

    Attributes:
        card: the part of the model card that is about the format, or None for no card.
        signatures: `{name: {"inputs": ..., "outputs": ...}}`, for the manifest.
        warning: a limitation of this export.
    """

    card: FormatCard | None = None
    signatures: Mapping[str, Any] = {}
    warning: str | None = None


class Exporter:
    """A format of exports. A subclass has at least `write` and `open`.

    `export` does for every format what is the same: it loads the run, makes the next version,
    compares it with the run, and writes the model card and the manifest.

    Attributes:
        options: the fields of `ExportOptions` that the format understands, besides `references`
            and `tokenize`, which every format accepts.
        weights: the number formats of weights, with the loss of BLEU that each may cause. The
            first one is the default. Only `float32` changes nothing.
        compared: `tokens` if the engine must find the hypotheses of the run. `log_probs` if it has
            a search of its own, and must give the run's translations the same log-probabilities.
        task: texts of the model card about the task of the model.
    """

    options: frozenset[str] = frozenset()
    weights: Mapping[str, float] = MappingProxyType({"float32": 0.0})
    compared: str = "tokens"
    task: TaskCard = TRANSLATION

    def write(self, translator: TranslationModule, folder: Path, options: ExportOptions) -> None:
        """Writes the model into an empty folder.

        Args:
            translator: the translator, as `load` returns it.
            folder: the folder of the new version, not published yet.
            options: the options of the export.
        """
        raise NotImplementedError

    def open(self, folder: Path) -> Engine:
        """Opens what `write` has written, as its users will, without the run."""
        raise NotImplementedError

    # What a format may change.

    def weights_of(self, options: ExportOptions) -> str:
        """Returns the number format of the weights, one of `weights`."""
        return options.weights or next(iter(self.weights))

    def load(
        self,
        run: str | Path | RunDirectory,
        settings: Mapping[str, Any] | None,
        options: ExportOptions,
    ) -> TranslationModule:
        """Loads the run, and refuses a model or settings that the format cannot express."""
        return load_translator(run, settings).with_shortlist(options.shortlist)

    def probes(self, translator: TranslationModule, sentences: Sequence[str]) -> ProbeTexts:
        """Returns generated texts that are compared besides the sentences."""
        return probe_texts(translator.tokenizer.vocabulary, sentences)

    def compare(
        self,
        translator: TranslationModule,
        engine: Engine,
        sentences: Sequence[str],
        probes: ProbeTexts,
        options: ExportOptions,
    ) -> Comparison:
        """Compares an opened version with the run, and raises `InputError` if they differ."""
        is_exact = self.weights_of(options) == "float32"
        function = compare_tokens if self.compared == "tokens" else compare_log_probs
        return function(translator, engine, sentences, probes, is_exact=is_exact)

    def describe(
        self,
        translator: TranslationModule,
        folder: Path,
        sentences: Sequence[str],
        options: ExportOptions,
    ) -> VersionFacts:
        """Describes the compared version, and may add files to it."""
        return VersionFacts()

    # What is the same for all formats.

    def export(
        self,
        run: str | Path | RunDirectory,
        output_dir: Path,
        sentences: Sequence[str],
        settings: Mapping[str, Any] | None,
        options: ExportOptions,
    ) -> ExportResult:
        """Exports a run as the next version under `output_dir`, with the arguments of `export`."""
        weights = self.weights_of(options)
        if weights not in self.weights:
            raise InputError(
                f"weights is {weights!r}, but must be one of {', '.join(self.weights)}."
            )
        change = self._change(options)
        check_references(sentences, options.references, change, options.tokenize)
        translator = self.load(run, settings, options)
        provenance = Provenance.of(run, translator, weights)
        if options.shortlist is not None:
            provenance = dataclasses.replace(provenance, shortlist=options.shortlist.describe())
        probes = self.probes(translator, sentences)

        def write(folder: Path) -> tuple[Comparison, Scores | None, str | None]:
            folder.mkdir()
            self.write(translator, folder, options)
            with contextlib.closing(self.open(folder)) as engine:
                comparison = self.compare(translator, engine, sentences, probes, options)
            scores = self._scores(run, settings, comparison.translations, sentences, options)
            facts = self.describe(translator, folder, sentences, options)
            if facts.card is not None:
                data = options.card or ModelCardData()
                text = model_card(
                    model_name(output_dir),
                    provenance,
                    dataclasses.replace(data, scores=scores),
                    facts.card,
                    self.task,
                )
                (folder / "README.md").write_text(text, encoding="utf-8")
            write_manifest(folder, provenance, facts.signatures, facts.warning)
            return comparison, scores, facts.warning

        path, (comparison, scores, warning) = write_version(output_dir, write)
        return ExportResult(
            path,
            len(sentences),
            comparison.ties,
            comparison.largest_difference,
            scores,
            warning,
        )

    def _change(self, options: ExportOptions) -> str | None:
        """Returns the options that change translations so that BLEU must judge them, or None."""
        if "max_bleu_loss" not in self.options:
            return None
        weights = self.weights_of(options)
        rounding = None if weights == "float32" else f"weights is {weights}"
        change = change_of(rounding, options.shortlist)
        if change is None and options.max_bleu_loss is not None:
            raise InputError(
                f"max_bleu_loss is a bound for rounded weights, but weights is {weights}. "
                "Leave the bound out."
            )
        return change

    def _scores(
        self,
        run: str | Path | RunDirectory,
        settings: Mapping[str, Any] | None,
        translations: Sequence[str],
        sentences: Sequence[str],
        options: ExportOptions,
    ) -> Scores | None:
        """Scores translations of the export, and refuses those that lose too much BLEU."""
        if options.references is None:
            return None
        scores = metrics.evaluate(translations, options.references, tokenize=options.tokenize)
        change = self._change(options)
        if change is not None:
            limits = self.weights[self.weights_of(options)], MAX_SHORTLIST_LOSS
            limit = options.max_bleu_loss
            if limit is None:
                limit = max(limits) if options.shortlist is not None else limits[0]
            model = load_model(run.path if isinstance(run, RunDirectory) else run, settings)
            exact = [best.text for best, *_ in translate_lines(model, sentences)]
            exact_scores = metrics.evaluate(exact, options.references, tokenize=options.tokenize)
            check_loss(scores, exact_scores, change, limit)
        return scores if self.task is TRANSLATION else None  # BLEU of trees says nothing


def formats() -> tuple[str, ...]:
    """Returns the names of the installed formats."""
    return ("saved_model", *plugins.names("exporters"))


def find_exporter(format: str) -> Exporter:
    """Loads the exporter of a format, with what this format needs."""
    if format == "saved_model":
        from keras_transformer.export.saved_model.exporter import EXPORTER

        return EXPORTER
    exporter: Exporter = plugins.find("exporters", format)
    return exporter


def export(
    run: str | Path | RunDirectory,
    output_dir: str | Path,
    sentences: Sequence[str],
    options: ExportOptions = ExportOptions(),
    *,
    format: str = "saved_model",
    settings: Mapping[str, Any] | None = None,
) -> ExportResult:
    """Exports the selected weights of a run as `output_dir/1`, or the next number.

    The export is compared with the run before it gets its number.

    Args:
        run: a run, or any other value that `load_translator` accepts, such as an ensemble.
        output_dir: directory of the versions.
        sentences: source sentences for the comparison of the export with the run.
        options: further options.
        format: one of `formats()`.
        settings: changes of the run's `decoding.` configuration.

    Raises:
        InputError: if the format, a setting or an option is invalid, if there are no
            sentences, or if the export does not translate like the run.

    Example:
    >>> export("build/run", "build/new", ["a dog"], format="ctranslate2").path
    PosixPath('build/new/1')
    """
    if format not in formats():
        raise InputError(f"The format {format!r} is unknown. Use one of {', '.join(formats())}.")
    if not sentences:
        raise InputError("There are no sentences on which to compare the export with the run.")
    exporter = find_exporter(format)
    for field in dataclasses.fields(ExportOptions):
        value = getattr(options, field.name)
        known = {"references", "tokenize", *exporter.options}
        if field.name not in known and value != field.default:
            shown = f"{field.name}={value}" if isinstance(value, str | int | float) else field.name
            understood = ", ".join(sorted(exporter.options)) or "none"
            raise InputError(
                f"The format {format} does not support {shown}. Leave it out. Options of this "
                f"format: {understood}."
            )
    return exporter.export(run, Path(output_dir), sentences, settings, options)
