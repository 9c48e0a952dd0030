"""Exporters by format, each in a file of its own."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack

from keras_transformer.errors import InputError
from keras_transformer.evaluation.metrics import Scores
from keras_transformer.export.saved_model.model_card import About
from keras_transformer.runs.run_directory import RunDirectory

_MODULES = {
    "saved_model": "keras_transformer.export.saved_model.export",
    "litert": "keras_transformer.export.litert.export",
    "ctranslate2": "keras_transformer.export.ctranslate2",
}

FORMATS: tuple[str, ...] = tuple(_MODULES)
PRECISIONS = ("float32", "bfloat16")  # of a SavedModel


class ExportOptions(TypedDict, total=False):
    """Options that only some formats have. None is the same as no option."""

    quantization: str | None
    precision: str
    max_bleu_loss: float | None
    about: About | None


_FORMATS_WITH: dict[str, tuple[str, ...]] = {
    "quantization": ("litert", "ctranslate2"),
    "precision": ("saved_model",),
    "max_bleu_loss": ("saved_model", "litert"),
    "about": ("saved_model",),
    "references": ("saved_model", "litert"),
}


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
    **options: Unpack[ExportOptions],
) -> Exported:
    """Exports the run's selected weights as `output_dir/1`, or the next number.

    Args:
        run: the run, or anything else that `loading.load_translator` takes, such as an ensemble.
        output_dir: directory of the versions.
        sentences: source text on which export and run are compared.
        format: one of `FORMATS`.
        settings: changes to the run's `decoding.` configuration.
        references: translations of the sentences. SavedModels and LiteRT models are scored
            by them.
        quantization: type of the stored weights, for the formats litert and ctranslate2;
            "none" by default.
        precision: of weights and products, one of `PRECISIONS`, for the format saved_model.
        max_bleu_loss: how much BLEU a lower precision, or LiteRT's quantization, may lose on
            the sentences: 0.1 by default, 0.3 for int8. Needs references.
        about: facts for the model card of a SavedModel that no file contains.

    Raises:
        InputError: for an unknown format, settings or options that do not fit, no sentences,
            or an export that does not translate as the run does.
    """
    if format not in _MODULES:
        raise InputError(f"{format!r} is no format; expected one of {', '.join(FORMATS)}")
    if not sentences:
        raise InputError("there are no sentences to compare run and export on; expected some")
    precision = options.get("precision", "float32")
    if precision not in PRECISIONS:
        raise InputError(f"precision is {precision!r}; expected one of {', '.join(PRECISIONS)}")
    given = {name: value for name, value in options.items() if value is not None}
    if precision == "float32":
        given.pop("precision", None)
    for name, value in given.items():
        formats = _FORMATS_WITH[name]
        if format not in formats:
            is_short = isinstance(value, (str, int, float))
            raise InputError(
                f"{name} is {value if is_short else 'given'}, but the format is {format}; expected "
                f"the format {' or '.join(formats)}, or no {name}"
            )
    if format in _FORMATS_WITH["references"]:
        given["references"] = references
    exporter = importlib.import_module(_MODULES[format])
    exported: Exported = exporter.export(run, Path(output_dir), sentences, settings, **given)
    return exported
