"""Reads trained models of other toolkits.

Each format has a function that returns a `ConvertedModel`. It walks over the model from top to
bottom, and gives each weight of this package the names that it has in the other toolkit.
"""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from keras_transformer.config.schema import NonNegativeInt, PositiveInt, Settings
from keras_transformer.data.reading import require_file
from keras_transformer.errors import InputError, check_names, one_line, require
from keras_transformer.extensions.huggingface import hub

if TYPE_CHECKING:  # they load TensorFlow
    from keras_transformer.extensions.converters.source import ConvertedModel

# Name of each format → its module in this folder, and the function that reads a model.
FORMATS = {
    "marian": ("marian", "read"),
    "huggingface": ("multilingual", "read"),
    "opennmt_tf": ("opennmt_tf", "read"),
    "tensor2tensor": ("tensor2tensor", "read"),
    "fairseq": ("fairseq", "read"),
    "fsmt": ("fairseq", "read_fsmt"),
}


def _option(default: Any, formats: str, help_text: str) -> Any:
    """A field of `ConvertOptions` that applies only to some formats."""
    metadata = {"formats": formats.split(), "help": help_text}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class ConvertOptions(Settings):
    """Options of a conversion. Each applies only to some formats.

    `keras-transformer convert --help` and docs/convert.md describe them.
    """

    section = "convert"

    positions: Literal["marian", "huggingface"] | None = _option(
        None,
        "huggingface",
        "sinusoids: marian, as in OPUS-MT, or huggingface, for models that transformers trained",
    )
    source_language: str | None = _option(
        None, "huggingface", "of a model of many languages, as in eng_Latn: the default language"
    )
    target_language: str | None = _option(
        None, "huggingface", "of a model of many languages, as in deu_Latn: the default language"
    )
    config: str | None = _option(None, "opennmt_tf", "configuration that trained the model")
    source_sentencepiece: str | None = _option(
        None,
        "opennmt_tf fairseq",
        "SentencePiece model of the training data; without one, texts must be tokenized already",
    )
    target_sentencepiece: str | None = _option(
        None,
        "opennmt_tf fairseq",
        "SentencePiece model of the target; default: the same as of the source",
    )
    source_vocabulary: str | None = _option(
        None, "tensor2tensor fairseq", "vocabulary of the source; default: one next to the model"
    )
    target_vocabulary: str | None = _option(
        None, "tensor2tensor fairseq", "vocabulary of the target; default: one next to the model"
    )
    target_space: NonNegativeInt = _option(0, "tensor2tensor", "id of the problem's target space")
    num_heads: PositiveInt | None = _option(
        None, "opennmt_tf", "number of attention heads, if the model does not say it"
    )
    normalize_punctuation: str | None = _option(
        None,
        "marian huggingface",
        "unicode, or a source language such as en: normalize punctuation as Moses does",
    )
    keep_text: str | None = _option(
        None, " ".join(FORMATS), "text of both languages: keep only the tokens that it needs"
    )
    keep_languages: str | None = _option(
        None, "huggingface", "of many languages: those to keep besides the default ones, as in a,b"
    )

    @property
    def sentencepiece(self) -> tuple[str, str] | None:
        """The SentencePiece models of source and target, or None."""
        source = self.source_sentencepiece or self.target_sentencepiece
        target = self.target_sentencepiece or source
        return None if source is None or target is None else (source, target)


def make_options(**options: Any) -> ConvertOptions:
    """Returns `ConvertOptions` after a check of the names and values."""
    check_names(options, [*ConvertOptions.declarations()], "an option of convert")
    return ConvertOptions(**options)


def convert(path: str, source_format: str, **options: Any) -> ConvertedModel:
    """Reads a model of another toolkit from a path or an address; see `read_model`."""
    return read_model(hub.resolve(path, source_format), source_format, make_options(**options))


def read_model(
    path: str | Path, source_format: str, options: ConvertOptions | None = None
) -> ConvertedModel:
    """Reads a model of another toolkit from its directory or file."""
    check_names([source_format], [*FORMATS], "a format of other toolkits")
    options = options or ConvertOptions()
    for field in dataclasses.fields(options):
        formats, value = field.metadata["formats"], getattr(options, field.name)
        require(value != "", f"{field.name} is empty. Give a value, or leave it out.")
        if value != field.default and source_format not in formats:
            raise InputError(
                f"The option {field.name} applies only to {' and '.join(formats)}, but the format "
                f"is {source_format}. Remove it."
            )
    require(Path(path).exists(), f"{path} does not exist. Give the directory of the model.")
    if options.keep_text is not None:
        require_file(options.keep_text)
    module, function = FORMATS[source_format]
    read = getattr(importlib.import_module(f"{__name__}.{module}"), function)
    try:
        model: ConvertedModel = read(Path(path), options)
        model.check(Path(path))
    except InputError as error:  # it may have names of the files
        message = str(error) if str(path) in str(error) else f"{path}: {error}"
        raise type(error)(one_line(message, most=5000)) from error
    except MemoryError:  # a damaged header may have a huge shape
        raise InputError(f"{path} needs more memory than there is, or it is damaged.") from None
    if (language := options.normalize_punctuation) is not None:
        from keras_transformer.extensions.converters import normalization

        vocabulary = normalization.normalize_punctuation(model.vocabulary, language)
        model = dataclasses.replace(model, vocabulary=vocabulary)
    if options.keep_text is not None:
        from keras_transformer.extensions.converters import trimming

        model = trimming.keep_text(model, Path(options.keep_text), options.keep_languages)
    elif options.keep_languages is not None:
        from keras_transformer.extensions.converters import trimming

        model = trimming.keep_languages(model, options.keep_languages)
    return model


def write_run(model: ConvertedModel, output_dir: str | Path) -> None:
    """Writes a converted model as a new run directory, which all commands accept."""
    from keras_transformer.runs.run_directory import write_run

    model.transformer()  # checks the shapes of the weights

    write_run(Path(output_dir), model.config, model.tokenizer(), model.weights)
