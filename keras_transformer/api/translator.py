"""Translates text with any model: in memory, a run, an export or a server."""

from __future__ import annotations

import functools
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np

from keras_transformer import plugins
from keras_transformer.config import Config, DecodingConfig
from keras_transformer.errors import InputError, check_names, check_path, check_paths, require
from keras_transformer.export import ExportOptions, ExportResult, export
from keras_transformer.export.probes import probe_texts, texts_to_translate
from keras_transformer.inference import MIN_QUALITY, Translation, loading, translate
from keras_transformer.inference.batching import token_counts
from keras_transformer.inference.engine import Engine, KerasEngine
from keras_transformer.inference.translate import Evaluation
from keras_transformer.runs.run_directory import write_run

if TYPE_CHECKING:  # imported late: an engine of another kind does not load TensorFlow
    from keras_transformer.api.options import ExportSettings, FileSettings, LineOptions, TextOptions
    from keras_transformer.config.options import ConvertSettings, Scoring, SearchOptions
    from keras_transformer.inference.translation_module import TranslationModule
    from keras_transformer.models.encoder_decoder import EncoderDecoder
    from keras_transformer.text.tokenizer import Tokenizer

Texts = list[str] | tuple[str, ...] | np.ndarray
_CHOOSING = threading.Lock()
_MAX_VARIANTS = 4  # choices of search options whose graphs a translator keeps


class Translator:
    """Translates text. Call it with one text or with a list of texts.

    `load` returns a translator for a run, an export or a server. This constructor makes one from
    Keras models in memory.

    Args:
        model: a `Transformer`, or several with the same vocabulary, which form an ensemble.
        tokenizer: the tokenizer of the training data.
        decoding: options of the search: a `DecodingConfig`, or a dict of its fields. The default
            is a beam of 4, as in the paper.

    Example:
    >>> import keras_transformer as kt
    >>> tokenizer = kt.load("build/run").tokenizer
    >>> model = kt.Transformer.from_preset("tiny", tokenizer.source_vocab_size)
    >>> kt.Translator(model, tokenizer)
    <Translator of the model in memory>
    """

    def __init__(
        self,
        model: EncoderDecoder | Sequence[EncoderDecoder],
        tokenizer: Tokenizer,
        decoding: DecodingConfig | Mapping[str, Any] | None = None,
    ):
        from keras_transformer.inference.translation_module import TranslationModule
        from keras_transformer.models.encoder_decoder import EncoderDecoder
        from keras_transformer.text.tokenizer import Tokenizer

        require(
            isinstance(tokenizer, Tokenizer),
            f"tokenizer is a {type(tokenizer).__name__}. Use a Tokenizer, such as "
            "`data.tokenizer` or `Tokenizer.load(directory)`.",
        )
        for m in model if isinstance(model, list | tuple) else [model]:
            message = f"{m!r:.60} is not a Transformer. `load` opens runs, exports and servers."
            require(isinstance(m, EncoderDecoder), message)
        if not isinstance(decoding, DecodingConfig):
            decoding = Config().updated(_settings(decoding or {})).decoding
        module = TranslationModule(model, tokenizer, decoding)
        self._model: Engine = KerasEngine(module, "the model in memory")
        self._variants: dict[str, Engine] = {}  # key: the options; the newest is last
        self._load: Callable[[], Translator] | None = None

    @classmethod
    def from_engine(cls, model: Engine, load: Callable[[], Translator] | None = None) -> Translator:
        """Returns a translator for a loaded model. `load` loads it again in another process."""
        translator = cls.__new__(cls)
        translator._model, translator._variants, translator._load = model, {}, load
        return translator

    def __repr__(self) -> str:
        return f"<Translator of {self._model.label}>"

    def __copy__(self) -> Translator:
        return Translator.from_engine(self._model, self._load)

    def __reduce__(self) -> Any:
        """Makes a translator in another process load the model again, from the same path."""
        if self._load is None:
            raise InputError(
                "A translator of a model in memory cannot be copied or sent to another process. "
                "Save it with `save`, and `load` it there."
            )
        return self._load, ()

    @overload
    def __call__(self, text: str, **options: Unpack[TextOptions]) -> str: ...

    @overload
    def __call__(self, text: Texts, **options: Unpack[TextOptions]) -> list[str]: ...

    def __call__(self, text: str | Texts, **options: Unpack[TextOptions]) -> str | list[str]:
        """Returns the best translation of a text, or a list of them for a list of texts.

        An array or a tensor of texts counts as a list. `options` are `document`, `glossary`,
        `terms`, `casing`, `source_language`, `target_language` and `decoding` of `translate`.
        """
        lines = [text] if isinstance(text, str) else text
        best = [found[0].text for found in self.translate(lines, **options)]
        return best[0] if isinstance(text, str) else best

    def translate(
        self,
        lines: Sequence[str] | np.ndarray,
        *,
        return_details: bool = False,
        prefixes: Sequence[str] | None = None,
        document: bool | None = None,
        glossary: Any = None,
        on_low_quality: str = "keep",
        min_quality: float = MIN_QUALITY,
        **options: Unpack[LineOptions],
    ) -> list[list[Translation]]:
        """Translates lines and returns all translations of each line, best first.

        A text that is too long is truncated, with a warning. Another warning names the first number
        that the vocabulary of an old model changes, such as 10³.

        Args:
            lines: the texts. The order of the results is the same.
            return_details: also return tokens, log-probabilities, alignment and quality, in
                `Translation.details`. Exports for phones and servers have none.
            prefixes: for each line the beginning of its translations.
            document: True if texts may have several sentences and lines. They are translated
                sentence by sentence and joined again, and keep their variables, URLs and tags. The
                default is True for texts with several sentences, if the model was trained on single
                sentences. It needs the extra `documents` and `n_best` 1.
            glossary: terms and their translations, as a mapping, as pairs, or as a file (TBX, or
                lines with a tab). They are in the translations in exactly this form. Lines with
                terms are translated as with `document`.
            on_low_quality: what to return instead of a translation of low quality: "source",
                "empty", "retry" (the better one of two searches), or by default the translation.
                This needs an export with `quality=True`.
            min_quality: a lower quality is low. So are loops, copies, missing parts and text in
                another script, whatever its quality.
            **options: fields of `DecodingConfig`, such as `beam_size`, `n_best` or
                `length_penalty`, which are fixed for an export, `casing`, `terms`, and
                `source_language` and `target_language` of a model with several languages, such as
                "deu_Latn".
                With `casing="auto"`, texts in capitals are translated like others, and written in
                capitals again. This is the default for texts that are translated as with
                `document`. "keep" turns it off. With `terms="soft"`, the model may change the
                endings of terms of the glossary, or leave them out. It must be trained for it
                (`augment={"terms": 0.1}` of `prepare`).

        Returns:
            For each line a list of up to `n_best` translations with `text`, `score` and `details`.
            A line without a translation has one with the text "" and the score minus infinity. The
            score of a text that was split is 0.

        Example:
        >>> import keras_transformer as kt
        >>> translator = kt.load("build/run")
        >>> [[best, second]] = translator.translate(["a dog"], beam_size=3, n_best=2)
        >>> best.score >= second.score
        True
        """
        lines = checked_texts(lines)
        prefixes = None if prefixes is None else checked_texts(prefixes)
        terms, casing = options.pop("terms", None), options.pop("casing", None)
        languages = options.pop("source_language", None), options.pop("target_language", None)
        model = translate.with_languages(self._with(options), *languages)
        model = translate.with_fallback(model, on_low_quality, min_quality)
        is_plain = not return_details and prefixes is None
        has_options = any(option is not None for option in (glossary, terms, casing))
        message = "document, glossary and casing allow no details and no prefixes."
        require(is_plain or not (document or has_options), message)
        if has_options:
            with_options = plugins.find("text_options", "document").with_options
            model = with_options(model, glossary, terms, casing)
        split, remarks, _ = translate.split_texts(model, lines, is_plain and document, "", 0)
        for remark in remarks:
            warnings.warn(remark, stacklevel=2)
        counts = token_counts(model.lengths, lines)
        for number, (tokens, used) in enumerate(zip(counts["tokens"], counts["used"], strict=True)):
            if used < tokens and number not in split:
                warnings.warn(
                    f"Text {number} has {tokens:,} tokens. Only the first {used:,} are translated "
                    "(max_source_tokens).",
                    stacklevel=2,
                )
        for number, remark in translate.changed_numbers(model, lines)[:1]:
            warnings.warn(f"Text {number}: {remark}", stacklevel=2)
        if is_plain:
            return translate.translate_lines(model, lines, split)
        verbose = translate.translate_verbose(model, lines, prefixes, counts=counts)
        return translate.with_details(verbose)

    def _with(self, decoding: Mapping[str, Any]) -> Engine:
        """Returns the model with other options. The graphs of the newest choices are kept."""
        settings = _settings(decoding)
        if not settings:
            return self._model
        key = repr(sorted(settings.items()))
        with _CHOOSING:
            variant = self._variants.pop(key, None) or self._model.with_settings(settings)
            self._variants[key] = variant
            if len(self._variants) > _MAX_VARIANTS:
                del self._variants[next(iter(self._variants))]
        return variant

    def translate_file(
        self, input: str | Path, output: str | Path, **options: Unpack[FileSettings]
    ) -> dict[str, int]:
        r"""Translates the text of a file. Everything else in it stays the same, byte for byte.

        Args:
            input: an HTML, Markdown, DOCX, XLIFF, PO, JSON, SRT, WebVTT, Android strings.xml, iOS
                .strings or text file.
            output: the file to write. It appears only when it is complete.
            **options: `format`, such as "html", if the suffix does not show it; `spans`, regular
                expressions of more texts to keep, such as r"ACME\w*"; `source_tag`, a symbol for
                each sentence, such as "<2de>"; `glossary`, `terms`, `casing`, `on_low_quality`,
                `min_quality`, `source_language` and `target_language` as for `translate`; and
                `overwrite`, to replace an existing output.

        Returns:
            The number of `texts`, and how many sentences kept their protected spans in which way:
            `symbols`, `kept`, `aligned` or `appended` (docs/real_text.md). For `empty` ones, the
            model returned nothing, so they are not translated.

        Example:
        >>> import keras_transformer as kt
        >>> from pathlib import Path
        >>> _ = Path("page.html").write_text("<p>a dog</p>")
        >>> kt.load("build/run").translate_file("page.html", "seite.html")["texts"]
        1
        """
        method = plugins.find("translator_methods", "translate_file")
        return dict(method(self._model, input, output, **options))

    def evaluate(
        self,
        sources: Texts,
        references: Texts,
        *,
        source_language: str | None = None,
        target_language: str | None = None,
        **options: Unpack[Scoring],
    ) -> Evaluation:
        """Translates texts and scores the translations with BLEU and chrF.

        Args:
            sources: the texts.
            references: a reference translation of each text.
            source_language, target_language: as for `translate`.
            **options: `tokenize`, sacreBLEU's tokenizer for BLEU, which by default depends on the
                script, and `lowercase`, True to ignore case.

        Example:
        >>> import keras_transformer as kt
        >>> kt.load("build/run").evaluate(["a dog"], ["ein Hund"]).scores.sentences
        1
        """
        texts = checked_texts(sources), checked_texts(references)
        model = translate.with_languages(self._model, source_language, target_language)
        return translate.evaluate(model, *texts, **options)

    def save(self, run_dir: str | Path) -> None:
        """Writes the model as a run directory, which `load` and all commands accept.

        Args:
            run_dir: a new directory.
        """
        module = self._module
        if len(module.transformers) > 1:
            raise InputError("An ensemble cannot be saved as one run. Save its models one by one.")
        _save(module, module.transformer, Path(check_path(run_dir, "run_dir")))

    def export(
        self,
        output_dir: str | Path,
        format: str = "saved_model",
        *,
        weights: str | None = None,
        sentences: Sequence[str] | None = None,
        **options: Unpack[ExportSettings],
    ) -> ExportResult:
        """Exports the translator as `output_dir/1`, or the next number.

        The export is compared with this translator before it gets its number.

        Args:
            output_dir: directory of the versions.
            format: "saved_model" for TF Serving, or another installed format, such as "cpu" for
                CPUs or "litert" for phones.
            weights: number format of the weights: "float32", "bfloat16", "float16", "int8", or
                another one of the format. The default is "float32", for cpu "int8".
            sentences: texts for the comparison, best from a validation set. By default they are
                generated from the vocabulary. Rounded weights need `references` of them.
            **options: other fields of `ExportOptions`, such as `references`, and options of the
                format.

        Example:
        >>> import keras_transformer as kt
        >>> translator = kt.load("build/run")
        >>> translator.export("build/new", sentences=["a dog"], format="ctranslate2").path
        PosixPath('build/new/1')
        """
        module = self._module
        if sentences is None:
            vocabulary = module.tokenizer.vocabulary
            sentences = texts_to_translate(vocabulary, probe_texts(vocabulary, []))
        with tempfile.TemporaryDirectory() as folder:
            runs = [Path(folder) / f"model_{i}" for i in range(len(module.transformers))]
            for run, transformer in zip(runs, module.transformers, strict=True):
                _save(module, transformer, run)
            models, sentences = ",".join(map(str, runs)), checked_texts(sentences)
            export_options = ExportOptions.of(weights=weights, **options)
            return export(models, output_dir, sentences, export_options, format=format)

    @property
    def transformer(self) -> Any:
        """The Keras model, or the first one of an ensemble. Exports and servers have none."""
        return self._module.transformer

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model. Exports and servers have none."""
        return self._module.tokenizer

    @property
    def _module(self) -> TranslationModule:
        if not isinstance(self._model, KerasEngine):
            raise InputError(
                f"{self._model.label} is an export or a server, which contains no Keras model. "
                "Load the run directory."
            )
        return self._model.module


def load(
    model: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    tokenizer: Tokenizer | None = None,
    precision: str = "float32",
    jit_compile: bool = False,
    threads: int | None = None,
    **decoding: Unpack[SearchOptions],
) -> Translator:
    """Loads a translator. The kind of the model is recognized by its content.

    Args:
        model: a run directory, `RUN@WEIGHTS` such as "run@best", a list of runs for an ensemble,
            a SavedModel, a model of an installed format, such as a LiteRT file or a MarianMT
            directory of Hugging Face, the address of a server such as "localhost:8501", or the
            address of a model on the Hugging Face Hub, as in "hf://user/name@revision".
        tokenizer: the tokenizer for a model that Keras has saved ("model.keras").
        precision: type of a run's weights and computation: float32, bfloat16, float16 or int8.
        jit_compile: compile the search of a run with XLA, for each batch shape.
        threads: cores of a model that needs no TensorFlow, such as LiteRT. The default are all.
        **decoding: options of the search, such as `beam_size=8`, as in `Translator.translate`.

    Example:
    >>> import keras_transformer as kt
    >>> translator = kt.load("build/run", beam_size=2)
    >>> translator
    <Translator of build/run>
    """
    paths = check_paths(model, "model")
    if not paths:
        raise InputError("The list of models is empty. Give at least one run.")
    is_keras = all(path.endswith(".keras") for path in paths)
    if is_keras != (tokenizer is not None):
        has = "has no tokenizer. Give" if is_keras else "has a tokenizer. Leave out"
        raise InputError(f"{paths[0]} {has} tokenizer=data.tokenizer.")
    if tokenizer is not None:
        if (precision, jit_compile, threads) != ("float32", False, None):
            raise InputError("precision, jit_compile and threads are not for a model.keras.")
        if missing := [path for path in paths if not os.path.exists(path)]:
            raise InputError(f"{missing[0]} does not exist.")
        import keras

        from keras_transformer.models import transformer  # noqa: F401  # registers its classes

        return Translator([keras.saving.load_model(path) for path in paths], tokenizer, decoding)
    options: dict[str, Any] = {
        "precision": precision,
        "jit_compile": jit_compile,
        "threads": threads,
    }
    loaded = loading.load_model(",".join(paths), _settings(decoding), **options)
    absolute = [os.path.abspath(p) if os.path.exists(p.rsplit("@", 1)[0]) else p for p in paths]
    return Translator.from_engine(loaded, functools.partial(load, absolute, **options, **decoding))


def convert(
    path: str | Path,
    output_dir: str | Path | None = None,
    *,
    source_format: str,
    **options: Unpack[ConvertSettings],
) -> Translator:
    """Converts a trained model of another toolkit.

    Args:
        path: the directory of the model, or its file, or `hf://USER/NAME` on the Hugging Face Hub.
        output_dir: a new directory for the model as a run, which all commands accept. None writes
            nothing.
        source_format: "marian", "huggingface", "opennmt_tf", "tensor2tensor", "fairseq" or
            "fsmt".
        **options: fields of `converters.ConvertOptions`, such as `positions`.

    Returns:
        A translator with the converted model.

    Example:
    >>> import keras_transformer as kt
    >>> translator = kt.convert("build/opus-mt", "build/converted", source_format="marian")
    >>> kt.load("build/converted")
    <Translator of build/converted>
    """
    path = check_path(path, "path")
    model = plugins.find("converters", source_format)(path, source_format, **options)
    translator = Translator(model.transformer(), model.tokenizer(), model.config.decoding)
    if output_dir is not None:
        translator.save(output_dir)
    return translator


def _settings(decoding: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options of the search as settings of a configuration."""
    check_names(decoding, [*DecodingConfig.declarations()], "an option of the search")
    return {f"decoding.{name}": value for name, value in decoding.items()}


def checked_texts(lines: Sequence[str] | np.ndarray) -> list[str]:
    """Returns a list of texts, also of a tensor; raises an `InputError` for anything else."""
    if isinstance(lines, Mapping) or hasattr(lines, "columns"):
        raise InputError(
            f"The texts are a {type(lines).__name__}, whose names would be translated. Give one "
            "column, as in translator(list(table['text']))."
        )
    if isinstance(lines, str | bytes) or not hasattr(lines, "__iter__"):
        raise InputError(
            f"{lines!r:.60} is not a list of texts. Give a list, or call the translator with one "
            "text: translator('...')."
        )
    if hasattr(lines, "__array__"):  # an array, a tensor, or a column of a table
        array = np.asarray(lines)
        if array.ndim != 1:
            raise InputError(f"An array of texts has one dimension, but this has {array.ndim}.")
        lines = [t.decode(errors="replace") if isinstance(t, bytes) else t for t in array.tolist()]
    lines = list(lines)
    for number, line in enumerate(lines):
        if not is_text(line):
            raise InputError(
                f"Text {number} is {line!r:.60}, a {type(line).__name__}. Texts must be str, of "
                "valid Unicode."
            )
    return lines


def is_text(value: Any) -> bool:
    r"""Returns whether a value is a str that UTF-8 can encode: without half of a surrogate pair."""
    return isinstance(value, str) and value.encode(errors="ignore").decode() == value


def _save(module: TranslationModule, transformer: EncoderDecoder, path: Path) -> None:
    """Writes one model as a run with a single checkpoint."""
    weights = transformer.weights_by_path()
    if any(weight.dtype == "int8" for weight in weights.values()):
        raise InputError(
            "The model has int8 weights, which a run cannot contain. Export with `weights` instead "
            "of quantizing the model."
        )
    arrays = {name: np.array(weight) for name, weight in weights.items()}
    config = transformer.run_config(model=transformer.config, decoding=module.config)
    write_run(path, config, module.tokenizer, arrays)
