"""Loads models for inference: runs, ensembles of runs, exports and MarianMT models."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from keras_transformer import console
from keras_transformer.config import Config
from keras_transformer.errors import InputError
from keras_transformer.extensions.huggingface import hub
from keras_transformer.inference import manifest
from keras_transformer.inference.batching import BatchFunction
from keras_transformer.runs.machine import available_cores

if TYPE_CHECKING:  # imported late: a process that runs a LiteRT model does not load TensorFlow
    from keras_transformer.inference.translation_module import TranslationModule
    from keras_transformer.runs.run_directory import RunDirectory

# A version contains one of these. A damaged one may have lost its model.
MODEL_FILES = ("saved_model.pb", "model.tflite", manifest.FILE)
PRECISIONS = ("float32", "bfloat16", "float16", "int8")
_LITERT_SETTINGS = ("decoding.length_penalty", "decoding.max_length")


class LoadedModel(NamedTuple):
    """A model that translates.

    Attributes:
        place: the path or address of the model.
        n_best: number of translations per line.
        translate: a function from `text`, string `(batch,)`, to `translations`, string
            `(batch, n_best)`, and `scores`, float32 `(batch, n_best)`. The functions of a model
            accept and return arrays or tensors.
        lengths: a function from `text`, string `(batch,)`, to `tokens`, `used` and `unknown`,
            int32 `(batch,)`, as in `TranslationModule.lengths`.
        owner: the object that keeps the weights alive.
        translate_verbose: a function from `text` and `prefix`, string `(batch,)`, to the outputs
            of `TranslationModule.translate_verbose`. LiteRT models and servers have None.
        max_train_source_length: tokens of the longest source in training, including the end
            token, or None if it is unknown.
        symbols: the symbols of the source vocabulary, sorted, such as <2de>, or None if they are
            unknown, as of older exports.
        source_tag: the symbol that a server adds to texts, or None.
        max_batch_lines: the most lines of a call; None for the default of the device.
        threads: number of calls at the same time; None: as TensorFlow is configured.

    Example:
    >>> model = load_model("build/run")
    >>> model.translate(text=np.array([b"a dog"], object))["translations"].shape
    TensorShape([1, 1])
    """

    place: str
    n_best: int
    translate: BatchFunction
    lengths: BatchFunction
    owner: Any
    translate_verbose: BatchFunction | None = None
    max_train_source_length: int | None = None
    symbols: tuple[str, ...] | None = None
    source_tag: str | None = None
    max_batch_lines: int | None = None
    threads: int | None = None

    @classmethod
    def of(
        cls,
        module: TranslationModule,
        place: str,
        max_train_source_length: int | None = None,
        jit_compile: bool = False,
    ) -> LoadedModel:
        """Returns a model that translates with the Keras models of `module`.

        Args:
            module: the models, the tokenizer and the options of the search.
            place: the name of the model in messages.
            max_train_source_length: see the attribute.
            jit_compile: compile the search with XLA, for each batch shape.
        """
        from keras_transformer.inference.translation_module import CompiledTranslation

        return cls(
            place,
            module.config.n_best,
            CompiledTranslation(module).translate if jit_compile else module.translate,
            module.lengths,
            module,
            module.translate_verbose,
            max_train_source_length,
            tuple(sorted(module.tokenizer.vocabulary.source_symbols())),
        )

    def with_settings(self, settings: Mapping[str, Any]) -> LoadedModel:
        """Returns a model that shares the weights and has other `decoding.` settings.

        Args:
            settings: changes of the configuration, as in `load_model`.

        Raises:
            InputError: for an invalid setting, or one that was fixed at export.

        Example:
        >>> load_model("build/run").with_settings({"decoding.n_best": 3}).n_best
        3
        """
        if not settings:
            return self
        if hasattr(self.owner, "translate_ids"):  # a LiteRTModel, whose package is optional
            return _litert(self.place, self.owner, settings)
        from keras_transformer.inference.translation_module import (
            CompiledTranslation,
            TranslationModule,
        )

        if isinstance(self.owner, TranslationModule):
            module = self.owner
            config = dataclasses.replace(Config(), decoding=module.config).updated(settings)
            module = TranslationModule(module.transformers, module.tokenizer, config.decoding)
            is_compiled = isinstance(getattr(self.translate, "__self__", None), CompiledTranslation)
            return self.of(module, self.place, self.max_train_source_length, is_compiled)
        raise InputError(
            f"{self.place} is a SavedModel or a server: {' and '.join(settings)} cannot be changed "
            "after the export. Use the run directory."
        )


def load_model(
    model_dir: str | Path,
    settings: Mapping[str, Any] | None = None,
    *,
    precision: str = "float32",
    jit_compile: bool = False,
    threads: int | None = None,
) -> LoadedModel:
    """Loads a model. Its kind is recognized by its content.

    Args:
        model_dir: a SavedModel, a LiteRT file, a MarianMT directory of Hugging Face, or any value
            that `load_translator` accepts. If it is a directory of numbered versions, the highest
            one is loaded. `hf://USER/NAME` downloads a model from the Hugging Face Hub.
        settings: changes of the run's `decoding.` configuration, as in
            `{"decoding.beam_size": 1}`. A LiteRT model accepts only `decoding.length_penalty`
            and `decoding.max_length`, a SavedModel none.
        precision: type of a run's weights and computation, one of `PRECISIONS`.
        jit_compile: compile the search of a run with XLA, for each batch shape.
        threads: sentences that a LiteRT model translates at the same time, each on one core. The
            default is the number of cores.

    Raises:
        InputError: if the model is missing or damaged, or if an argument does not apply to it.

    Example:
    >>> load_model("build/run", {"decoding.n_best": 3}).n_best
    3
    """
    model_dir = hub.resolve(str(model_dir))
    path = _newest_version(Path(model_dir))
    litert_file = find_litert(path)
    if litert_file is not None:
        if precision != "float32" or jit_compile:
            raise _fixed_at_export(path, "a LiteRT model", precision)
        if (path / "saved_model.pb").is_file():
            console.say(f"{path} has two models. Using model.tflite, the faster one on a CPU.")
        from keras_transformer.extensions.litert.engine import (
            LiteRTModel,
        )  # needs an optional package

        if path.is_dir():  # a file is checked by the checksum inside it
            manifest.check_needed_files(path)
        model = LiteRTModel(litert_file, threads or available_cores())
        return _litert(str(litert_file), model, settings or {})
    from keras_transformer.runs.run_directory import RunDirectory

    if RunDirectory.is_run(model_dir) or not path.exists():
        if threads is not None:
            raise _not_litert(path, threads)
        module = load_translator(model_dir, settings, precision=precision)
        longest = max_train_source_length(model_dir)
        return LoadedModel.of(module, str(model_dir), longest, jit_compile)
    if (path / "source.spm").is_file():  # a MarianMT model of Hugging Face
        if threads is not None:
            raise _not_litert(path, threads)
        from keras_transformer.extensions.converters import read_model
        from keras_transformer.inference.int8 import use_int8_products
        from keras_transformer.inference.translation_module import TranslationModule

        manifest.check_needed_files(path)
        converted = read_model(path, "huggingface")
        config = converted.config.updated(settings or {})
        transformer = converted.transformer(dtype=_compute_dtype(precision))
        if precision == "int8":
            use_int8_products(transformer)
        module = TranslationModule([transformer], converted.tokenizer(), config.decoding)
        return LoadedModel.of(module, str(model_dir), jit_compile=jit_compile)
    if precision != "float32" or jit_compile:
        raise _fixed_at_export(path, "a SavedModel", precision)
    described = manifest.check_needed_files(path)
    if not (path / "saved_model.pb").is_file():
        raise InputError(
            f"{path} is neither a run directory nor a SavedModel or LiteRT model. Create one with "
            "keras-transformer train or keras-transformer export."
        )
    if threads is not None:
        raise _not_litert(path, threads)
    if settings:
        raise InputError(
            f"{path} is a SavedModel: {' and '.join(settings)} cannot be changed after the export. "
            "Use the run directory."
        )
    if described.get("precision") == "int8":
        from keras_transformer.inference.int8 import check_int8_products

        check_int8_products()  # without oneDNN, every translation would fail
    return _load_saved_model(path)


def find_litert(model_dir: str | Path) -> Path | None:
    """Returns the LiteRT file of a model, or None if TensorFlow is needed to run the model.

    A version with both kinds of model runs as a LiteRT model, which is faster on a CPU.

    Args:
        model_dir: a LiteRT file, a version, or a directory of versions.

    Example:
    >>> find_litert("build/run") is None
    True
    """
    path = _newest_version(Path(model_dir))
    if path.is_file() or path.suffix == ".tflite":
        return path
    file = path / "model.tflite"
    return file if file.is_file() else None


def _fixed_at_export(path: Path, kind: str, precision: str) -> InputError:
    reason = "its precision was fixed at export"
    if precision == "float32":
        reason = "after the export, XLA cannot compile it"
    return InputError(f"{path} is {kind}: {reason}. Use the run directory.")


def _not_litert(path: Path, threads: int) -> InputError:
    return InputError(
        f"threads is {threads}, but {path} is not a LiteRT model. TensorFlow uses all cores."
    )


def _newest_version(path: Path) -> Path:
    """Returns the highest numbered version in a directory, or `path` if it is a version itself."""
    if not path.is_dir() or any((path / name).is_file() for name in MODEL_FILES):
        return path
    files = [file for name in MODEL_FILES for file in path.glob(f"*/{name}")]
    names = [file.parent.name for file in files]
    numbers = [int(name) for name in names if name.isdecimal() and name.isascii()]
    return path / str(max(numbers)) if numbers else path


def _litert(path: str, model: Any, settings: Mapping[str, Any]) -> LoadedModel:
    """Returns a LiteRT model with settings."""
    others = [name for name in settings if name not in _LITERT_SETTINGS]
    if others:
        raise InputError(
            f"{path} is a LiteRT model: {' and '.join(others)} cannot be changed after the export, "
            f"only {' and '.join(_LITERT_SETTINGS)}. Use the run directory."
        )
    config = Config().updated(settings).decoding  # checks the values
    penalty = config.length_penalty if "decoding.length_penalty" in settings else math.nan
    longest_output = model.metadata.max_output_tokens
    if (config.max_length or 0) > longest_output:
        raise InputError(
            f"decoding.max_length is {config.max_length}, but {path} was exported with at most "
            f"{longest_output} tokens."
        )

    def translate(text: Any) -> dict[str, np.ndarray]:
        sources = [model.source_ids(line) for line in _lines(text)]
        count = len(sources)
        found = model.translate_batch(sources, [config.max_length or 0] * count, [penalty] * count)
        texts = [[each.encode() for each in model.texts(result)] for result in found]
        return {
            "translations": np.array(texts, object),
            "scores": np.array([each.scores for each in found]),
        }

    def lengths(text: Any) -> dict[str, np.ndarray]:
        counts = zip(*map(model.lengths, _lines(text)), strict=True)
        return dict(zip(("tokens", "used", "unknown"), map(np.array, counts), strict=True))

    return LoadedModel(
        path,
        model.metadata.n_best,
        translate,
        lengths,
        model,
        max_train_source_length=model.metadata.max_train_source_length,
        symbols=tuple(sorted(model.vocabulary.source_symbols())),
        max_batch_lines=model.batch_size,
        threads=model.threads,
    )


def _lines(text: Any) -> list[str]:
    return [line.decode("utf-8", "surrogateescape") for line in np.asarray(text)]


def _load_saved_model(path: Path) -> LoadedModel:
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  registers operations

    def of_arrays(function: Any) -> BatchFunction:
        """Returns a function of arrays. Functions of SavedModels accept only tensors."""
        return lambda **inputs: function(**{n: tf.constant(each) for n, each in inputs.items()})

    try:
        loaded = tf.saved_model.load(str(path))
    except Exception as error:  # TensorFlow raises many exceptions for damaged files
        reason = " ".join(str(error).split())
        raise InputError(f"{path} cannot be loaded as a SavedModel: {reason}") from error
    try:
        translate = loaded.signatures["serving_default"]
        lengths = loaded.signatures["lengths"]
        n_best = int(translate.structured_outputs["translations"].shape[1])
    except (AttributeError, KeyError) as error:
        raise InputError(
            f"{path} is a SavedModel without {error}. Use an export of keras-transformer export."
        ) from error
    # Version 0.1.0 wrote the second names.
    verbose = getattr(loaded, "translate_verbose", getattr(loaded, "translate_in_detail", None))
    longest = getattr(loaded, "max_train_source_length", getattr(loaded, "trained_tokens", None))
    symbols = loaded.signatures.get("symbols")  # older exports have none
    return LoadedModel(
        str(path), n_best, of_arrays(translate), of_arrays(lengths), loaded,
        verbose and of_arrays(verbose),
        int(longest.numpy()) or None if longest is not None else None,
        symbols and tuple(
            each.decode() for each in symbols(text=tf.constant([""]))["symbols"].numpy()[0]
        ),
    )  # fmt: skip


def max_train_source_length(model_dir: str | Path | RunDirectory) -> int | None:
    """Returns the tokens of the longest source that all runs of a model have seen in training.

    None if it is unknown for all of them.

    Example:
    >>> max_train_source_length("build/run") is None
    True
    """
    known = [run.max_train_source_length for run, _ in members(model_dir)]
    return min((count for count in known if count), default=None)


def members(model_dir: str | Path | RunDirectory) -> list[tuple[RunDirectory, str]]:
    """Returns the runs of `DIRECTORY[@WEIGHTS][,DIRECTORY...]` and the names of their weights.

    Example:
    >>> [(run.path.name, weights) for run, weights in members("build/run@best,build/run")]
    [('run', 'best'), ('run', 'last')]
    """
    from keras_transformer.runs.run_directory import RunDirectory

    if isinstance(model_dir, RunDirectory):
        return [(model_dir, model_dir.selected)]
    runs = []
    whole = hub.resolve(str(model_dir))
    # A comma may be part of the name of a directory.
    path, name = RunDirectory.split_weights(whole)
    is_one = "," not in (name or "") and RunDirectory.is_run(path)
    for member in [whole] if is_one else whole.split(","):
        path, weights = RunDirectory.split_weights(member)
        run = RunDirectory(path)
        runs.append((run, run.selected if weights is None else weights))
    return runs


def load_translator(
    model_dir: str | Path | RunDirectory,
    settings: Mapping[str, Any] | None = None,
    *,
    precision: str = "float32",
) -> TranslationModule:
    """Returns a translator with the weights of a run, or with an ensemble of several runs.

    Args:
        model_dir: a run directory. `build/run` loads the selected weights, and `build/run@best`
            other weights (`RunDirectory.select` lists the names). Several runs with the same
            vocabulary, separated by commas, form an ensemble.
        settings: changes of the first run's `decoding.` configuration.
        precision: type of weights and computation, one of `PRECISIONS`.

    Raises:
        InputError: if a setting is invalid, if weights are missing, if an architecture is not
            registered, or if the vocabularies differ.

    Example:
    >>> ensemble = load_translator("build/run,build/run@step-00000200")
    >>> len(ensemble.transformers)
    2
    """
    from keras_transformer.inference.int8 import use_int8_products
    from keras_transformer.inference.translation_module import TranslationModule
    from keras_transformer.models.encoder_decoder import get_architecture

    dtype = _compute_dtype(precision)
    runs = members(model_dir)
    first, _ = runs[0]
    for name in settings or {}:
        if not name.startswith("decoding."):
            raise InputError(
                f"{name} cannot be changed after training. Only decoding settings can."
            )
    tokenizer = first.tokenizer()
    transformers = []
    for run, name in runs:
        if run.tokenizer().fingerprint != tokenizer.fingerprint:
            raise InputError(
                f"{first.path} and {run.path} have different vocabularies, so they are not an "
                "ensemble. Prepare the data of one with --vocab_from of the other."
            )
        architecture = get_architecture(run.config.architecture)
        transformer = architecture(run.config.model, dtype=dtype)
        transformer.build()
        transformer.assign_weights(run.named_weights(name))
        if precision == "int8":
            use_int8_products(transformer)
        transformers.append(transformer)
    return TranslationModule(transformers, tokenizer, first.config.updated(settings or {}).decoding)


def _compute_dtype(precision: str) -> str:
    """Returns the dtype policy of a model. Products in int8 have float32 inputs and outputs."""
    if precision not in PRECISIONS:
        raise InputError(f"The precision {precision!r} is unknown. Use {', '.join(PRECISIONS)}.")
    return "float32" if precision == "int8" else precision
