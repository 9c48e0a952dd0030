"""Exporters by format, each in a file of its own."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.errors import InputError
from keras_transformer.evaluation.metrics import Scores
from keras_transformer.export.saved_model.model_card import About
from keras_transformer.runs.run_directory import RunDirectory

_MODULES = {
    "saved_model": "keras_transformer.export.saved_model.export",
    "litert": "keras_transformer.export.litert.export",
    "ctranslate2": "keras_transformer.export.ctranslate2",
}
_QUANTIZED = ("litert", "ctranslate2")  # formats that hold weights in other types than float32

FORMATS: tuple[str, ...] = tuple(_MODULES)
PRECISIONS = ("float32", "bfloat16")  # of a SavedModel


class Exported(NamedTuple):
    """What an export has made."""

    path: Path
    sentences: int  # that run and export were compared on
    ties: list[str]  # sentences with other tokens of the same score, told apart by rounding
    # Of a format with a search of its own, which is compared by what it thinks of the run's
    # translations: the largest difference between the two log-probabilities of one of them.
    largest_difference: float | None = None
    scores: Scores | None = None  # of the export's translations, where there are references
    remark: str | None = None  # what it cannot do that another could


def export(
    run: str | Path | RunDirectory,
    output_dir: str | Path,
    sentences: Sequence[str],
    *,
    format: str = "saved_model",
    settings: Mapping[str, Any] | None = None,
    references: Sequence[str] | None = None,
    quantization: str | None = None,
    precision: str = "float32",
    max_bleu_loss: float | None = None,
    about: About | None = None,
) -> Exported:
    """Exports the run's selected weights as `output_dir/1`, or the next number.

    Args:
        run: the run, or what else `loading.load_translator` takes, as an ensemble.
        output_dir: directory of the versions.
        sentences: source text on which export and run are compared.
        format: one of `FORMATS`.
        settings: what differs from the run's `decoding.` configuration.
        references: translations of the sentences, by which SavedModels and LiteRT models
            are scored.
        quantization: type that the weights are stored in, of the formats litert and
            ctranslate2; float32 where it is "none" or not given.
        precision: of weights and products, one of `PRECISIONS`, of the format saved_model.
        max_bleu_loss: by how much BLEU a precision or LiteRT's quantization other than float32
            may lose on the sentences; where it is not given 0.1, of int8 0.3. It needs references.
        about: what the model card of a SavedModel says that no file knows.

    Raises:
        InputError: for an unknown format, settings that do not fit, no sentences,
            or an export that does not translate as the run does.
    """
    if format not in _MODULES:
        raise InputError(f"{format!r} is no format; expected one of {', '.join(FORMATS)}")
    if not sentences:
        raise InputError("there are no sentences to compare run and export on; expected some")
    arguments: dict[str, Any] = {}
    if quantization is not None:
        if format not in _QUANTIZED:
            raise InputError(
                f"quantization is {quantization}, but the format is {format}; expected the format "
                f"{' or '.join(_QUANTIZED)}, or no quantization"
            )
        arguments["quantization"] = quantization
    if precision not in PRECISIONS:
        raise InputError(f"precision is {precision!r}; expected one of {', '.join(PRECISIONS)}")
    if precision != "float32":
        if format != "saved_model":
            raise InputError(
                f"precision is {precision}, but the format is {format}; expected the format "
                "saved_model, or no precision"
            )
        arguments["precision"] = precision
    if format != "saved_model" and about is not None:
        raise InputError(
            f"only the format saved_model has a model card, and the format is {format}; expected "
            "nothing to be said there"
        )
    if format == "ctranslate2" and max_bleu_loss is not None:
        raise InputError(
            "the format ctranslate2 has no bound on BLEU's loss; expected saved_model or litert"
        )
    if format == "saved_model":
        arguments["about"] = about
    if format != "ctranslate2":
        arguments["references"] = references
        if max_bleu_loss is not None:
            arguments["max_bleu_loss"] = max_bleu_loss
    exporter = importlib.import_module(_MODULES[format])
    exported: Exported = exporter.export(run, Path(output_dir), sentences, settings, **arguments)
    return exported
