"""Exports of a trained run. A format is an `Exporter`, which other packages can add, too.

A package declares its format as an entry point of the group `keras_transformer.exporters`. After
`pip install`, `keras-transformer export --format=NAME` knows it, and `kt.load`, the commands and
the server open its exports:

    class Onnx(Exporter):
        def write(self, translator, folder, options): ...
        def open(self, folder): ...  # returns an Engine

    EXPORTER = Onnx()

A model is opened with the module of its exporter. This module, and this one, import TensorFlow
only where it is needed, because some engines run without it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_transformer import plugins
from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics
from keras_transformer.evaluation.metrics import Scores
from keras_transformer.export.model_card import VersionFacts, check_codes, model_card, model_name
from keras_transformer.export.probes import probe_texts
from keras_transformer.inference.engine import Engine, Hypotheses, KerasEngine
from keras_transformer.inference.loading import load_model, load_translator, members
from keras_transformer.inference.manifest import file_names
from keras_transformer.inference.tags import two_letters
from keras_transformer.inference.translate import translate_lines, with_languages
from keras_transformer.runs.atomic import write_version

if TYPE_CHECKING:
    from keras_transformer.decoding.shortlist import Shortlist
    from keras_transformer.inference.translation_module import TranslationModule
    from keras_transformer.runs.run_directory import RunDirectory

__all__ = [
    "Engine",
    "ExportOptions",
    "ExportResult",
    "Exporter",
    "Hypotheses",
    "KerasEngine",
    "VersionFacts",
    "export",
]

# The search that a run has in common with engines that bring their own search.
_GREEDY = {"decoding.beam_size": 1, "decoding.n_best": 1}
_MARIAN_RULE = (
    "This format lacks decoding.early_stopping=marian, so a few translations can differ from those "
    "of the run. With decoding.early_stopping=true, both searches end in the same way."
)
_MAX_SHORTLIST_LOSS = 0.3  # BLEU, the default limit


class ExportResult(NamedTuple):
    """The result of an export. `Exporter.compare` returns the first three fields.

    Attributes:
        translations: the export's best translation of each sentence.
        ties: sentences whose tokens differ although the scores are equal up to rounding.
        largest_difference: for an engine that brings its own search, the largest difference between
            the log-probabilities of a translation in the run and in the export.
        path: the new version.
        scores: scores of the translations, if there are references.
        warning: a limitation of this export.

    Example:
    >>> ExportResult(["Ein Hund ."], ties=[], path=Path("build/export/1")).path.name
    '1'
    """

    translations: list[str]
    ties: list[str]
    largest_difference: float | None = None
    path: Path = Path()
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
        languages: codes of the source and the target language, for the model card.
        license: SPDX identifier in lower case, for the model card.
        source_language, target_language: the default languages of the export, as in "deu_Latn", of
            a model with several, such as NLLB; None for those of the run.
        test_set: what the model card calls the sentences.
        shortlist: the tokens that the search considers for each sentence. It makes the search
            faster and needs references, because translations change.
        quality: also return the quality of translations. It is learned from the sentences, at least
            100, and their references.
        extra: the options of a format by name, such as `{"text_signature": False}`.

    Example:
    >>> ExportOptions(weights="int8", references=["Ein Hund ."]).weights
    'int8'
    """

    references: Sequence[str] | None = None
    weights: str | None = None
    max_bleu_loss: float | None = None
    tokenize: str | None = None
    languages: tuple[str, str] | None = None
    license: str | None = None
    source_language: str | None = None
    target_language: str | None = None
    test_set: str = "the sentences of the export"
    shortlist: Shortlist | None = None
    quality: bool = False
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, **options: Any) -> ExportOptions:
        """Returns options by name. Those that are not fields are in `extra`."""
        fields = {field.name for field in dataclasses.fields(cls)}
        extra = {name: options.pop(name) for name in options.keys() - fields}
        return cls(**options, extra=extra)

    def __post_init__(self) -> None:
        check_codes(self.languages or (), self.license)


class Exporter:
    """A format of exports. A subclass has at least `write` and `open`.

    `export` does for every format what is the same: it loads the run, makes the next version,
    compares it with the run, and writes the model card and the manifest.

    Attributes:
        options: names of further options that the format understands: `shortlist`, `quality`, and
            names in `ExportOptions.extra`. The entry point `export_options` gives an option a flag.
        weights: the number formats of weights, with the loss of BLEU that each may cause. The
            first one is the default. Only `float32` changes nothing.
        comparison: `tokens` if the engine must find the hypotheses of the run. With rounded weights
            or a shortlist, BLEU is compared instead. `log_probs` if the engine has a search of its
            own, and must give the run's translations the same log-probabilities.
        has_card: whether a version has a model card.
        has_search: whether a version has the options of the search.
        ensembles: whether a model of the format can be an ensemble.
        only_transformers: whether the format has only the architecture `Transformer`.
        rounds_run: whether the run is rounded like the export, and then compared with it.
        kind: what messages call a model of this format.
        needs_tensorflow: whether its engine needs TensorFlow.
    """

    options: frozenset[str] = frozenset()
    weights: Mapping[str, float] = {"float32": 0.0}
    comparison: str = "tokens"
    has_card: bool = True
    has_search: bool = True
    ensembles: bool = True
    only_transformers: bool = True
    rounds_run: bool = False
    kind: str = "an export"
    needs_tensorflow: bool = True

    def write(self, translator: TranslationModule, folder: Path, options: ExportOptions) -> None:
        """Writes the model into an empty folder.

        Args:
            translator: the translator, as `prepare` returns it.
            folder: the folder of the new version, not published yet.
            options: the options of the export.
        """
        raise NotImplementedError

    def open(self, folder: Path) -> Engine:
        """Opens what `write` has written, without the run.

        An exporter can have further arguments of `load_model`, such as `threads`.
        """
        raise NotImplementedError

    # A format may override these methods.

    def weights_of(self, options: ExportOptions) -> str:
        """Returns the number format of the weights, one of `weights`."""
        return options.weights or next(iter(self.weights))

    def prepare(self, translator: TranslationModule, options: ExportOptions) -> TranslationModule:
        """Refuses a model or a search that the format cannot express.

        Returns:
            The translator whose results the export must have.
        """
        return translator

    def open_for_comparison(self, folder: Path) -> Engine:
        """Opens a version to compare it with the run, by default like its users."""
        return self.open(folder)

    def probes(self, translator: TranslationModule, sentences: Sequence[str]) -> list[str]:
        """Returns generated texts that are compared besides the sentences."""
        return probe_texts(translator.tokenizer.vocabulary, sentences)

    def compare(
        self,
        translator: TranslationModule,
        engine: Engine,
        sentences: Sequence[str],
        probes: Sequence[str],
        options: ExportOptions,
    ) -> ExportResult:
        """Compares an opened version with the run, and raises `InputError` if they differ."""
        from keras_transformer.export.comparison import compare_log_probs, compare_tokens

        is_exact = self.rounds_run or self.weights_of(options) == "float32"
        function = compare_tokens if self.comparison == "tokens" else compare_log_probs
        return function(translator, engine, sentences, probes, is_exact=is_exact)

    def describe(
        self, translator: TranslationModule, folder: Path, options: ExportOptions
    ) -> VersionFacts:
        """Describes the compared version, and may add files to it."""
        return VersionFacts()


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
        format: name of an installed format. `keras-transformer export --help` lists them.
        settings: changes of the run's `decoding.` configuration.

    Example:
    >>> export("build/run", "build/new", ["a dog"], format="ctranslate2").path
    PosixPath('build/new/1')
    """
    from keras_transformer.export.comparison import check_quality
    from keras_transformer.export.manifest import describe_version, write_manifest
    from keras_transformer.export.quality import fit
    from keras_transformer.models.transformer import Transformer

    exporter: Exporter = plugins.find("exporters", format)
    weights = exporter.weights_of(options)
    _check_options(exporter, format, options, settings)
    losses = _losses(exporter, options)
    _check_sentences(sentences, options, " and ".join(losses))
    precision = weights if exporter.rounds_run else "float32"
    translator = load_translator(run, settings, precision=precision)
    languages = options.source_language, options.target_language
    translator = translator.with_languages(*languages)
    if len(translator.transformers) > 1 and not exporter.ensembles:
        raise InputError(
            f"{run} is an ensemble, but a model of this format is a single one. Export a single "
            "run."
        )
    if exporter.only_transformers and not isinstance(translator.transformer, Transformer):
        raise InputError(
            f"The architecture of {run} is {translator.transformer.run_config.architecture}, but "
            f"the format {format} supports only Transformers."
        )
    translator = exporter.prepare(translator, options)
    if options.quality:
        quality = fit(translator, sentences, options.references or [])
        translator = translator.with_options(shortlist=translator.shortlist, quality=quality)
    probes = exporter.probes(translator, sentences)
    manifest = describe_version(run, translator, weights)
    own = [*map(two_letters, translator.tokenizer.vocabulary.languages or ())] or None
    manifest |= {"format": format, "languages": options.languages or own}
    manifest["license"] = options.license
    manifest["shortlist"] = None if options.shortlist is None else options.shortlist.describe()

    def score(translations: Sequence[str]) -> Scores:
        assert options.references is not None
        return metrics.evaluate(translations, options.references, tokenize=options.tokenize)

    def write(folder: Path) -> ExportResult:
        exporter.write(translator, folder, options)
        needed = file_names(folder)
        manifest["bytes"] = sum((folder / name).stat().st_size for name in needed)
        write_manifest(folder, manifest, needed)  # `open` reads it
        with contextlib.closing(exporter.open_for_comparison(folder)) as engine:
            result = exporter.compare(translator, engine, sentences, probes, options)
            found, search = result.translations, settings
            if losses and exporter.comparison == "log_probs":  # its beam search is another one
                search = {**(settings or {}), **_GREEDY}
                engine = engine.with_settings(_GREEDY)
                found = [best.text for best, *_ in translate_lines(engine, sentences)]
        scores = None if options.references is None else score(result.translations)
        if losses:
            model = load_model(run if isinstance(run, str | Path) else run.path, search)
            model = with_languages(model, *languages)
            exact = [best.text for best, *_ in translate_lines(model, sentences)]
            manifest["agreement"] = check_quality(found, exact, score, losses)
        facts = exporter.describe(translator, folder, options)
        if exporter.comparison == "log_probs" and translator.config.early_stopping == "marian":
            warning = " ".join(filter(None, (facts.warning, _MARIAN_RULE)))
            facts = facts._replace(warning=warning, limit=f"{facts.limit}\n- {_MARIAN_RULE}")
        if facts.task != "translation" or not (exporter.has_search or weights == "float32"):
            scores = None  # these are not translations, or not those of the export
        if exporter.has_card:
            runs, name = [member for member, _ in members(run)], model_name(Path(output_dir))
            card = model_card(name, manifest, runs, facts, scores=scores, test_set=options.test_set)
            (folder / "README.md").write_text(card, encoding="utf-8")
        described = {"signatures": dict(facts.signatures), "warning": facts.warning}
        write_manifest(folder, {**manifest, **described}, needed)
        return result._replace(scores=scores, warning=facts.warning)

    path, result = write_version(Path(output_dir), write)
    return result._replace(path=path)


def _check_options(
    exporter: Exporter, format: str, options: ExportOptions, settings: Mapping[str, Any] | None
) -> None:
    """Refuses an option that a format does not support."""
    weights = exporter.weights_of(options)
    if weights not in exporter.weights:
        raise InputError(
            f"The format {format} does not support weights={weights}. Use one of "
            f"{', '.join(exporter.weights)}."
        )
    optional = ("shortlist", "quality", "languages", "license")
    given = {name for name in optional if getattr(options, name)} | {*options.extra}
    supported = exporter.options | ({"languages", "license"} if exporter.has_card else set())
    for name in sorted(given - supported):
        raise InputError(
            f"The format {format} does not support {name}. Leave it out, or use another format."
        )
    if settings and not exporter.has_search:
        raise InputError(
            f"A version of this format does not store {' and '.join(settings)}. Leave this out, "
            "and set the options of the search when you translate."
        )


def _losses(exporter: Exporter, options: ExportOptions) -> dict[str, float]:
    """Returns the options that change translations, with the allowed loss of BLEU."""
    weights, losses = exporter.weights_of(options), {}
    if weights != "float32":
        losses[f"weights is {weights}"] = exporter.weights[weights]
    if options.shortlist is not None:
        change = f"the shortlist has {options.shortlist.size} translations of each token"
        losses[change] = _MAX_SHORTLIST_LOSS
    given = options.max_bleu_loss
    return losses if given is None else dict.fromkeys(losses, given)


def _check_sentences(sentences: Sequence[str], options: ExportOptions, change: str) -> None:
    """Checks that an export can be compared with its run, and that BLEU can judge a change."""
    references = options.references
    if not sentences:
        raise InputError("There are no sentences on which to compare the export with the run.")
    if references is not None and len(references) != len(sentences):
        raise InputError(
            f"There are {len(sentences):,} sentences, but {len(references):,} references. Give one "
            "for each sentence."
        )
    if not change:
        return
    if references is None:
        raise InputError(
            f"{change}, which changes translations. Add references to measure the loss of BLEU."
        )
    own = metrics.blind_score(references, options.tokenize)
    if own is not None:
        raise InputError(
            f"{change}, but BLEU cannot judge it: the references score {own:.1f} against "
            "themselves. Use longer sentences, or another tokenizer (tokenize)."
        )
