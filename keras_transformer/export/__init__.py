"""Exports of a trained run: SavedModel, LiteRT, CTranslate2, MarianMT and Argos Translate."""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_transformer.errors import InputError
from keras_transformer.evaluation.metrics import Scores
from keras_transformer.export.model_card import ModelCardData, TaskCard
from keras_transformer.extensions.huggingface import hub
from keras_transformer.runs.run_directory import RunDirectory

if TYPE_CHECKING:
    from keras_transformer.decoding.shortlist import Shortlist
    from keras_transformer.inference.translation_module import TranslationModule

_EXPORTERS = {
    "saved_model": "keras_transformer.export.saved_model.export:export",
    "cpu": "keras_transformer.extensions.litert.exporter:export_for_cpu",
    "litert": "keras_transformer.extensions.litert.exporter:export",
    "ctranslate2": "keras_transformer.extensions.ctranslate2.exporter:export",
    "huggingface": "keras_transformer.extensions.huggingface.exporter:export",
    "argos": "keras_transformer.extensions.argos.exporter:export",
}
FORMATS: tuple[str, ...] = tuple(_EXPORTERS)
PRECISIONS = ("float32", "bfloat16", "int8")  # of a SavedModel
# The formats that each option applies to.
_FORMATS_OF_OPTION: dict[str, tuple[str, ...]] = {
    "quantization": ("cpu", "litert", "ctranslate2", "argos"),
    "precision": ("saved_model",),
    "max_bleu_loss": ("saved_model", "cpu", "litert"),
    "card": ("saved_model", "huggingface", "argos"),
    "text_signature": ("litert",),
    "shortlist": ("saved_model", "cpu", "litert", "ctranslate2"),
}


@dataclasses.dataclass(frozen=True)
class ExtraSignatures:
    """Additional signatures of a model for a task other than translation.

    Attributes:
        functions: `tf.function`s with an input signature, by name.
        compared: for each function whose output `scores` is compared with the run before the
            export is published: the name of its string input `[B]`.
        card: texts for the model card.
        owner: an object that keeps the variables of the functions alive.

    Example:
    >>> from keras_transformer.export.model_card import TRANSLATION
    >>> ExtraSignatures(functions={}, compared={}, card=TRANSLATION).card.name
    'translation'
    """

    functions: Mapping[str, Callable[..., Any]]
    compared: Mapping[str, str]
    card: TaskCard
    owner: Any = None


# Returns the extra signatures of a translator, or None if the model only translates.
ExtraSignaturesFn = Callable[["TranslationModule"], ExtraSignatures | None]


class ExportResult(NamedTuple):
    """The result of an export.

    Attributes:
        path: the new version.
        sentences: number of sentences in the comparison of the export with the run.
        ties: sentences whose tokens differ although the scores are equal up to rounding.
        largest_difference: only for CTranslate2, because its search differs: the largest difference
            between the log-probabilities of a translation in the run and in the export.
        scores: scores of the export's translations, if there are references.
        warning: a limitation of this export.
        url: the page of the model on the Hugging Face Hub, if it was uploaded.

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
    url: str | None = None


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """Options of an export.

    Attributes:
        references: reference translations of the sentences. SavedModels and LiteRT models are
            scored against them.
        quantization: type of the stored weights, for the formats cpu, litert and ctranslate2.
            The default is int8 for cpu, and float32 for the others.
        precision: type of weights and computation, for the format saved_model.
        max_bleu_loss: the largest allowed loss of BLEU on the sentences when weights are
            rounded, or with a shortlist. The default is 0.1, for int8 and a shortlist 0.3, and for
            int4 0.5. It needs references.
        tokenize: sacreBLEU's tokenizer for BLEU; None for `metrics.choose_tokenizer`.
        card: facts for the model card of a SavedModel that the run does not contain.
        extra_signatures: adds the signatures of another task to a SavedModel.
        push_to_hub: name of a model on the Hugging Face Hub, as in "user/en-de". The export is
            uploaded there.
        text_signature: whether a LiteRT model also gets the signature `translate`, which contains
            the tokenizer. LiteRT.js loads no models with text inputs.
        shortlist: the tokens that the search considers for each sentence. It makes the search
            faster and needs references, because translations change.

    Example:
    >>> ExportOptions(quantization="int8", references=["Ein Hund ."]).precision
    'float32'
    """

    references: Sequence[str] | None = None
    quantization: str | None = None
    precision: str = "float32"
    max_bleu_loss: float | None = None
    tokenize: str | None = None
    card: ModelCardData | None = None
    extra_signatures: ExtraSignaturesFn | None = None
    push_to_hub: str | None = None
    text_signature: bool = True
    shortlist: Shortlist | None = None


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
        format: one of `FORMATS`.
        settings: changes of the run's `decoding.` configuration.

    Raises:
        InputError: if the format, a setting or an option is invalid, if there are no
            sentences, if the export does not translate like the run, or if the upload fails.

    Example:
    >>> export("build/run", "build/new", ["a dog"], format="ctranslate2").path
    PosixPath('build/new/1')
    """
    if format not in _EXPORTERS:
        raise InputError(f"The format {format!r} is unknown. Use one of {', '.join(FORMATS)}.")
    if not sentences:
        raise InputError("There are no sentences on which to compare the export with the run.")
    if options.precision not in PRECISIONS:
        raise InputError(
            f"precision is {options.precision!r}, but must be one of {', '.join(PRECISIONS)}."
        )
    for name, formats in _FORMATS_OF_OPTION.items():
        value = getattr(options, name)
        if format not in formats and value not in (None, getattr(ExportOptions, name)):
            shown = f"{name}={value}" if isinstance(value, (str, int, float)) else name
            raise InputError(
                f"The format {format} does not support {shown}. "
                f"Leave it out, or use the format {' or '.join(formats)}."
            )
    if options.push_to_hub is not None:
        hub.check_name(options.push_to_hub)
    write = pkgutil.resolve_name(_EXPORTERS[format])  # imports only what the format needs
    result: ExportResult = write(run, Path(output_dir), sentences, settings, options)
    if options.push_to_hub is not None:
        result = result._replace(url=hub.upload(result.path, options.push_to_hub))
    return result
