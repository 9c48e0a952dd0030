"""Exporters by format, each in a file of its own."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_transformer.errors import InputError
from keras_transformer.evaluation.metrics import Scores
from keras_transformer.export.saved_model.model_card import About
from keras_transformer.runs.run_directory import RunDirectory

if TYPE_CHECKING:
    from keras_transformer.export.extra_signatures import ExtraSignaturesFn

_MODULES = {
    "saved_model": "keras_transformer.export.saved_model.export",
    "litert": "keras_transformer.export.litert.export",
    "ctranslate2": "keras_transformer.export.ctranslate2",
}

FORMATS: tuple[str, ...] = tuple(_MODULES)
PRECISIONS = ("float32", "bfloat16")  # of a SavedModel


_FORMATS_WITH: dict[str, tuple[str, ...]] = {
    "quantization": ("litert", "ctranslate2"),
    "precision": ("saved_model",),
    "max_bleu_loss": ("saved_model", "litert"),
    "about": ("saved_model",),
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


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """What an export may be told besides its format.

    Attributes:
        references: translations of the sentences, by which SavedModels and LiteRT models
            are scored.
        quantization: type that the weights are stored in, for the formats litert and
            ctranslate2; float32 if it is "none" or not given.
        precision: of weights and products, one of `PRECISIONS`, for the format saved_model.
        max_bleu_loss: maximum loss of BLEU on the sentences that a precision or LiteRT's
            quantization other than float32 may cause; 0.1, or 0.3 for int8, if not given. It
            needs references.
        about: facts for the model card of a SavedModel that no file knows.
        extra_signatures: the hook that adds the signatures of another task to a SavedModel; the
            other formats have none.
    """

    references: Sequence[str] | None = None
    quantization: str | None = None
    precision: str = "float32"
    max_bleu_loss: float | None = None
    about: About | None = None
    extra_signatures: ExtraSignaturesFn | None = None


def export(
    run: str | Path | RunDirectory,
    output_dir: str | Path,
    sentences: Sequence[str],
    options: ExportOptions = ExportOptions(),
    *,
    format: str = "saved_model",
    settings: Mapping[str, Any] | None = None,
) -> Exported:
    """Exports the run's selected weights as `output_dir/1`, or the next number.

    Args:
        run: the run, or anything else that `loading.load_translator` takes, such as an ensemble.
        output_dir: directory of the versions.
        sentences: source text on which export and run are compared.
        options: what else there is to say.
        format: one of `FORMATS`.

    Raises:
        InputError: for an unknown format, settings or options that do not fit, no sentences,
            or an export that does not translate as the run does.
    """
    if format not in _MODULES:
        raise InputError(f"{format!r} is no format; expected one of {', '.join(FORMATS)}")
    if not sentences:
        raise InputError("there are no sentences to compare run and export on; expected some")
    precision = options.precision
    if precision not in PRECISIONS:
        raise InputError(f"precision is {precision!r}; expected one of {', '.join(PRECISIONS)}")
    for name, formats in _FORMATS_WITH.items():
        value = getattr(options, name)
        if format not in formats and value not in (None, getattr(ExportOptions, name)):
            is_short = isinstance(value, (str, int, float))
            raise InputError(
                f"{name} is {value if is_short else 'given'}, but the format is {format}; expected "
                f"the format {' or '.join(formats)}, or no {name}"
            )
    exporter = importlib.import_module(_MODULES[format])
    exported: Exported = exporter.export(run, Path(output_dir), sentences, settings, options)
    return exported
