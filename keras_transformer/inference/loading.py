"""Models read from disk: runs, ensembles of them, and what bin/export.py makes of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_text  # noqa: F401  a SavedModel needs its ops

from keras_transformer.config import Config
from keras_transformer.decoding import NEG_INF
from keras_transformer.errors import InputError
from keras_transformer.inference.translator import CompiledTranslator, Translator
from keras_transformer.models.encoder_decoder import get_architecture
from keras_transformer.runs.machine import available_cores
from keras_transformer.runs.run_directory import RunDirectory

_EXPORTS = ("saved_model.pb", "model.tflite")  # a file of each kind of version
_LITERT_SETTINGS = ("decoding.length_penalty", "decoding.max_length")


class LoadedModel(NamedTuple):
    """A translator read from disk.

    Attributes:
        place: where it was read.
        n_best: translations of each line.
        translate: text string `[B]` → `translations` string `[B, K]` and `scores`
            float32 `[B, K]`, as `Translator.translate`.
        lengths: text string `[B]` → `tokens` and `used` int32 `[B]`, as
            `Translator.lengths`.
        owner: what holds the weights.
        in_detail: text and prefix string `[B]` → `Translator.translate_verbose`'s.
        trained_tokens: of the longest source of training, the end token included, or
            None where that is not known.
    """

    place: str
    n_best: int
    translate: Callable[..., dict[str, tf.Tensor]]
    lengths: Callable[..., dict[str, tf.Tensor]]
    owner: Any
    in_detail: Callable[..., dict[str, tf.Tensor]] | None = None
    trained_tokens: int | None = None


def load_model(
    model_dir: str | Path,
    settings: Mapping[str, Any] | None = None,
    *,
    precision: str = "float32",
    jit_compile: bool = False,
    threads: int | None = None,
) -> LoadedModel:
    """Reads run directories, a SavedModel or a LiteRT model, told apart by content.

    Args:
        model_dir: a SavedModel, or a LiteRT model's file; a directory of numbered versions
            of such, of which the highest is taken; or what `load_translator` takes.
        settings: what differs from the run's `decoding.` configuration, as in
            `{"decoding.beam_size": 1}`; a SavedModel takes none, a LiteRT model
            `decoding.length_penalty` and `decoding.max_length`.
        precision: of weights and products of a run: float32, bfloat16 or float16.
        jit_compile: compile the search of a run with XLA, for each shape of a batch anew.
        threads: of a LiteRT model; as many as there are cores where it is not given.

    Raises:
        InputError: where there is neither, or for settings that do not fit.
    """
    path = Path(model_dir)
    is_run = RunDirectory.is_run(path) or (not path.exists() and path.suffix != ".tflite")
    kind = None if is_run else _kind(_newest_version(path))
    if threads is not None and kind != "LiteRT model":
        raise InputError(
            f"threads is {threads}, and {path} is no LiteRT model; expected one, or no threads"
        )
    if is_run:
        translator = load_translator(model_dir, settings, precision=precision)
        return LoadedModel(
            str(model_dir),
            translator.config.n_best,
            CompiledTranslator(translator).translate if jit_compile else translator.translate,
            translator.lengths,
            translator,
            translator.translate_verbose,
            trained_tokens(model_dir),
        )
    path = _newest_version(path)
    if kind is None:
        raise InputError(
            f"{path} is neither a run directory nor a SavedModel or LiteRT model; expected what "
            "bin/train.py or bin/export.py writes"
        )
    if precision != "float32" or jit_compile:
        raise InputError(
            f"{path} is a {kind}, whose precision was fixed at export and which is never "
            "compiled by XLA; expected neither to be asked for, or the run directory"
        )
    if kind == "LiteRT model":
        file = path / "model.tflite" if path.is_dir() else path
        return _load_litert(file, settings or {}, threads or available_cores())
    if settings:
        raise InputError(
            f"{path} is a SavedModel, in which {' and '.join(settings)} were fixed at export; "
            "expected none of them, or the run directory"
        )
    return _load_saved_model(path)


def _kind(path: Path) -> str | None:
    """Says what an export is, by its content; a file that was named as one is one, too."""
    if (path / "saved_model.pb").is_file():
        return "SavedModel"
    file = path / "model.tflite" if path.is_dir() else path
    if not file.is_file():
        return None
    try:
        with open(file, "rb") as content:
            is_lite = content.read(8)[4:] == b"TFL3"
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}); expected a model") from error
    return "LiteRT model" if is_lite or file.suffix == ".tflite" else None


def _newest_version(path: Path) -> Path:
    """Returns the highest numbered version under a directory that is no version itself."""
    if not path.is_dir() or any((path / name).is_file() for name in _EXPORTS):
        return path
    files = [file for name in _EXPORTS for file in path.glob(f"*/{name}")]
    names = [file.parent.name for file in files]
    numbers = [int(name) for name in names if name.isdecimal() and name.isascii()]
    return path / str(max(numbers)) if numbers else path


def _load_litert(path: Path, settings: Mapping[str, Any], threads: int) -> LoadedModel:
    from keras_transformer.inference.litert import LiteRTModel  # needs a package that others do not

    others = [name for name in settings if name not in _LITERT_SETTINGS]
    if others:
        raise InputError(
            f"{path} is a LiteRT model, and its export has fixed {' and '.join(others)}; expected "
            f"none but {' and '.join(_LITERT_SETTINGS)}, or the run directory"
        )
    # As a configuration, so that values are checked as everywhere.
    config = Config().updated(settings).decoding
    penalty = config.length_penalty if "decoding.length_penalty" in settings else math.nan
    model = LiteRTModel(path, threads)
    longest_output = model.about.max_output_tokens
    if (config.max_length or 0) > longest_output:
        raise InputError(
            f"decoding.max_length is {config.max_length}; {path} was exported with at most "
            f"{longest_output} tokens in a translation"
        )

    def translate(text: tf.Tensor) -> dict[str, tf.Tensor]:
        k = model.about.n_best
        rows = [
            model.translate(
                each.decode("utf-8", "surrogateescape"), config.max_length or 0, penalty
            )
            for each in text.numpy()
        ]
        return {
            "translations": tf.constant(
                [[*(t.text for t in row), *[""] * (k - len(row))] for row in rows]
            ),
            "scores": tf.constant(
                [[*(t.score for t in row), *[NEG_INF] * (k - len(row))] for row in rows]
            ),
        }

    def lengths(text: tf.Tensor) -> dict[str, tf.Tensor]:
        counts = [model.lengths(each.decode("utf-8", "surrogateescape")) for each in text.numpy()]
        tokens, used = zip(*counts, strict=True)
        return {"tokens": tf.constant(tokens), "used": tf.constant(used)}

    longest = model.about.trained_tokens
    return LoadedModel(str(path), model.about.n_best, translate, lengths, model, None, longest)


def _load_saved_model(path: Path) -> LoadedModel:
    try:
        loaded = tf.saved_model.load(str(path))
    except (OSError, ValueError, KeyError, tf.errors.OpError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path} cannot be read as a SavedModel ({reason})") from error
    try:
        translate = loaded.signatures["serving_default"]
        lengths = loaded.signatures["lengths"]
        n_best = int(translate.structured_outputs["translations"].shape[1])
    except (AttributeError, KeyError) as error:
        raise InputError(
            f"{path} is a SavedModel without {error}; expected what bin/export.py writes"
        ) from error
    in_detail = getattr(loaded, "translate_in_detail", None)
    longest = loaded.trained_tokens.numpy() if hasattr(loaded, "trained_tokens") else 0
    return LoadedModel(
        str(path), n_best, translate, lengths, loaded, in_detail, int(longest) or None
    )


def trained_tokens(model_dir: str | Path | RunDirectory) -> int | None:
    """Tokens of the longest source that the runs of `load_translator` all have seen, if known."""
    known = [run.trained_tokens for run, _ in members(model_dir)]
    return min((count for count in known if count), default=None)


def members(
    model_dir: str | Path | RunDirectory,
) -> list[tuple[RunDirectory, str]]:
    """Returns runs, and the names of their weights, of `DIRECTORY[@WEIGHTS][,DIRECTORY...]`."""
    if isinstance(model_dir, RunDirectory):
        return [(model_dir, model_dir.selected)]
    whole = str(model_dir)
    path, name = _path_and_weights(whole)
    alone = RunDirectory.is_run(path) and "," not in (name or "")
    runs = []
    for path, name in map(_path_and_weights, [whole] if alone else whole.split(",")):
        run = RunDirectory(Path(path))
        runs.append((run, run.selected if name is None else name))
    return runs


def _path_and_weights(member: str) -> tuple[str, str | None]:
    """Splits `DIRECTORY[@WEIGHTS]`, whatever signs are in the directory's own name."""
    path, at, name = member.rpartition("@")
    return (path, name) if at and not RunDirectory.is_run(member) else (member, None)


def load_translator(
    model_dir: str | Path | RunDirectory,
    settings: Mapping[str, Any] | None = None,
    *,
    precision: str = "float32",
) -> Translator:
    """Returns a translator with the weights of a run, or of several that decide together.

    Args:
        model_dir: a run directory, whose selected weights are taken; other weights of it,
            as in `build/run@best` (the names are `RunDirectory.select`'s); or several of
            these, with commas between them, whose vocabulary is the same: an ensemble.
        settings: what differs from the (first) run's `decoding.` configuration.
        precision: of weights and products: float32, bfloat16 or float16.

    Raises:
        InputError: for settings that do not fit, weights that are not there, or runs of
            an architecture that is not registered or of different vocabularies.
    """
    if precision not in ("float32", "bfloat16", "float16"):
        raise InputError(
            f"the precision {precision!r} is unknown; expected float32, bfloat16 or float16"
        )
    runs = members(model_dir)
    first, _ = runs[0]
    for name in settings or {}:
        if not name.startswith("decoding."):
            raise InputError(
                f"{name} cannot be changed after training; expected settings of decoding"
            )
    tokenizer = first.tokenizer()
    transformers = []
    for run, name in runs:
        if run.tokenizer().fingerprint != tokenizer.fingerprint:
            raise InputError(
                f"{first.path} and {run.path} have different vocabularies; expected one of all "
                "models of an ensemble (bin/prepare.py --vocab_from)"
            )
        architecture = get_architecture(run.config.architecture)
        transformer = architecture(run.config.model, dtype=precision)
        transformer.build()
        transformer.assign_weights(run.named_weights(name))
        transformers.append(transformer)
    return Translator(transformers, tokenizer, first.config.updated(settings or {}).decoding)
