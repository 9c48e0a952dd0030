"""Reads trained models of other toolkits.

Each format has a module with a function `read`, which returns a `ConvertedModel`. It contains a
table from the names of the other toolkit to the names of this package.
"""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_type_hints

from keras_transformer.config import NonNegativeInt, PositiveInt
from keras_transformer.errors import InputError, check_names
from keras_transformer.extensions.huggingface import hub
from keras_transformer.schema import check_scalar

if TYPE_CHECKING:  # they load TensorFlow
    from keras_transformer.extensions.converters.converted import ConvertedModel

# Name of each format → its module in this folder.
FORMATS = {
    "marian": "marian",
    "huggingface": "huggingface",
    "opennmt_tf": "opennmt_tf",
    "tensor2tensor": "tensor2tensor",
    "fairseq": "fairseq",
    "fsmt": "fsmt",
}


def _option(default: Any, *formats: str) -> Any:
    """A field of `ConvertOptions` that applies only to some formats."""
    return dataclasses.field(default=default, metadata={"formats": formats})


@dataclasses.dataclass(frozen=True)
class ConvertOptions:
    """Options of a conversion. Each applies only to the formats that it names.

    Attributes:
        positions: for `huggingface`, the sinusoids of the model: "marian" for models that Marian
            trained, such as OPUS-MT, or "huggingface" for models that transformers trained. If
            None, exports of this package have their own, and all others "marian".
        config: for `opennmt_tf`, the configuration that trained the model, such as "data.yml". By
            default it is the only `.yml` file in the directory.
        source_sentencepiece, target_sentencepiece: for `opennmt_tf` and `fairseq`, the
            SentencePiece models of the training data. The default for the target is the model of
            the source. Without any, texts must be tokenized already.
        source_vocabulary, target_vocabulary: for `tensor2tensor`, the files of subwords, and for
            `fairseq`, the dictionaries. By default they are files in the directory of the model.
        target_space: for `tensor2tensor`, the id of the target space that the problem of the model
            sets, 0 for most.
        num_heads: for `opennmt_tf`, the number of attention heads, if the model does not say it.
        normalize_punctuation: for `marian` and `huggingface`, normalizes the punctuation of source
            texts in the graph, as scripts of Moses do: "unicode" for replace-unicode-punctuation,
            a language code such as "en" also for normalize-punctuation. Needs sacremoses.

    Example:
    >>> ConvertOptions(positions="huggingface").sentencepiece is None
    True
    """

    positions: Literal["marian", "huggingface"] | None = _option(None, "huggingface")
    config: str | None = _option(None, "opennmt_tf")
    source_sentencepiece: str | None = _option(None, "opennmt_tf", "fairseq")
    target_sentencepiece: str | None = _option(None, "opennmt_tf", "fairseq")
    source_vocabulary: str | None = _option(None, "tensor2tensor", "fairseq")
    target_vocabulary: str | None = _option(None, "tensor2tensor", "fairseq")
    target_space: NonNegativeInt = _option(0, "tensor2tensor")
    num_heads: PositiveInt | None = _option(None, "opennmt_tf")
    normalize_punctuation: str | None = _option(None, "marian", "huggingface")

    @property
    def sentencepiece(self) -> tuple[str, str] | None:
        """The SentencePiece models of source and target, or None."""
        source = self.source_sentencepiece or self.target_sentencepiece
        target = self.target_sentencepiece or source
        return None if source is None or target is None else (source, target)

    def check_apply_to(self, source_format: str) -> None:
        """Raises an `InputError` for an option that does not apply to a format.

        Args:
            source_format: one of `FORMATS`.

        Example:
        >>> ConvertOptions(positions="marian").check_apply_to("fairseq")
        Traceback (most recent call last):
        keras_transformer.errors.InputError: The option positions applies only to huggingface, ...
        """
        for field in dataclasses.fields(self):
            formats = field.metadata["formats"]
            if getattr(self, field.name) != field.default and source_format not in formats:
                raise InputError(
                    f"The option {field.name} applies only to {' and '.join(formats)}, but the "
                    f"format is {source_format}. Remove it."
                )


def make_options(**options: Any) -> ConvertOptions:
    """Returns `ConvertOptions` after a check of the names and values.

    Raises:
        InputError: for an unknown option or value.

    Example:
    >>> make_options(positions="huggingface").positions
    'huggingface'
    """
    hints = get_type_hints(ConvertOptions, include_extras=True)
    check_names(options, list(hints), "an option of convert")
    for name, value in options.items():
        check_scalar(name, hints[name], value)
    return ConvertOptions(**options)


def convert(path: str, source_format: str, **options: Any) -> ConvertedModel:
    """Reads a model of another toolkit from a path or an address; see `read_model`."""
    return read_model(hub.resolve(path, source_format), source_format, make_options(**options))


def read_model(
    path: str | Path, source_format: str, options: ConvertOptions | None = None
) -> ConvertedModel:
    """Reads a model of another toolkit.

    Args:
        path: the directory of the model, or its file.
        source_format: one of `FORMATS`.
        options: options of the conversion.

    Raises:
        InputError: for an unknown format, an option that does not apply to it, a missing or
            damaged file, a missing package, or a model that this package cannot express.

    Example:
    >>> model = read_model("build/opus-mt", "marian")
    >>> model.config.model.tie_embeddings, model.vocabulary.source_symbols()
    ('all', {...})
    """
    if source_format not in FORMATS:
        raise InputError(
            f"The format {source_format!r} is unknown. Choose one of {', '.join(FORMATS)}."
        )
    options = options or ConvertOptions()
    options.check_apply_to(source_format)
    if not Path(path).exists():
        raise InputError(f"{path} does not exist. Give the directory of the model.")
    module = importlib.import_module(f"{__name__}.{FORMATS[source_format]}")
    model: ConvertedModel = module.read(Path(path), options)
    if options.normalize_punctuation is not None:
        from keras_transformer.extensions.converters.punctuation import (
            normalize_punctuation,
        )

        vocabulary = normalize_punctuation(model.vocabulary, options.normalize_punctuation)
        model = dataclasses.replace(model, vocabulary=vocabulary)
    return model


def write_run(model: ConvertedModel, output_dir: str | Path) -> None:
    """Writes a converted model as a run directory, which all commands accept.

    Args:
        model: the model.
        output_dir: a new directory.

    Raises:
        InputError: if the weights do not fit the configuration, or if the directory exists or
            cannot be written.

    Example:
    >>> write_run(read_model("build/opus-mt", "marian"), "build/new")
    >>> Path("build/new/config.json").is_file()
    True
    """
    from keras_transformer.runs.run_directory import write_run

    model.transformer()  # checks the shapes of the weights

    write_run(Path(output_dir), model.config, model.tokenizer(), model.weights)
