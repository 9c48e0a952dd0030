"""Exporters by format, each in a file of its own."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.errors import InputError
from keras_transformer.run_directory import RunDirectory

_MODULES = {"saved_model": "keras_transformer.export.saved_model"}

FORMATS: tuple[str, ...] = tuple(_MODULES)


class Exported(NamedTuple):
    """What an export has made."""

    path: Path
    sentences: int  # that run and export were compared on
    ties: list[str]  # sentences with other tokens of the same score, told apart by rounding


def export(
    run: RunDirectory,
    output_dir: str | Path,
    sentences: Sequence[str],
    *,
    format: str = "saved_model",
    settings: Mapping[str, Any] | None = None,
) -> Exported:
    """Exports the run's selected weights as `output_dir/1`, or the next number.

    Args:
        run: the run.
        output_dir: directory of the versions.
        sentences: source text on which export and run are compared.
        format: one of `FORMATS`.
        settings: what differs from the run's `decoding.` configuration.

    Raises:
        InputError: for an unknown format, settings that do not fit, no sentences,
            or an export that does not translate as the run does.
    """
    if format not in _MODULES:
        raise InputError(f"{format!r} is no format; expected one of {', '.join(FORMATS)}")
    if not sentences:
        raise InputError("there are no sentences to compare run and export on; expected some")
    exporter = importlib.import_module(_MODULES[format])
    exported: Exported = exporter.export(run, Path(output_dir), sentences, settings)
    return exported
