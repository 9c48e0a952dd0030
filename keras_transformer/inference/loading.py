"""Loads models for inference: runs, ensembles of runs, SavedModels, and what extensions add.

A package adds a kind of model as an entry point of the group `keras_transformer.loaders`, whose
value is a `Loader`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_transformer import plugins
from keras_transformer.config import Config
from keras_transformer.errors import InputError, one_line
from keras_transformer.inference import PRECISIONS, manifest
from keras_transformer.inference.batching import BatchFunction

if TYPE_CHECKING:  # imported late: an engine of another kind does not load TensorFlow
    from keras_transformer.inference.translation_module import TranslationModule
    from keras_transformer.runs.run_directory import RunDirectory

# A version contains one of these. A damaged one may have lost its model.
MODEL_FILES = ("saved_model.pb", manifest.FILE)
_DEFAULTS = {"settings": {}, "precision": "float32", "jit_compile": False, "threads": None}


class LoadedModel(NamedTuple):
    """A model that translates.

    Attributes:
        label: the path or address of the model.
        n_best: number of translations per line.
        translate: a function from `text`, string `(batch,)`, to `translations`, string
            `(batch, n_best)`, and `scores`, float32 `(batch, n_best)`. The functions of a model
            accept and return arrays or tensors.
        lengths: a function from `text`, string `(batch,)`, to `tokens`, `used` and `unknown`,
            int32 `(batch,)`, as in `TranslationModule.lengths`.
        owner: the object that keeps the weights alive.
        translate_verbose: a function from `text` and `prefix`, string `(batch,)`, to the outputs
            of `TranslationModule.translate_verbose`; None if the model cannot return them.
        max_train_source_length: tokens of the longest source in training, including the end
            token, or None if it is unknown.
        symbols: the symbols of the source vocabulary, sorted, such as <2de>, or None if they are
            unknown.
        source_tag: the symbol that a server adds to texts, or None.
        source_language: code of the source language, as in "de", or None if it is unknown.
        max_batch_lines: the most lines of a call; None for the default of the device.
        threads: number of calls at the same time; None: as TensorFlow is configured.
        normalize_target: returns texts as the model writes them; None if unknown.
        change: returns the same model with other `decoding.` settings; None if all are fixed.
    """

    label: str
    n_best: int
    translate: BatchFunction
    lengths: BatchFunction
    owner: Any
    translate_verbose: BatchFunction | None = None
    max_train_source_length: int | None = None
    symbols: tuple[str, ...] | None = None
    source_tag: str | None = None
    source_language: str | None = None
    max_batch_lines: int | None = None
    threads: int | None = None
    normalize_target: Callable[[Sequence[str]], Sequence[str]] | None = None
    change: Callable[[Mapping[str, Any]], LoadedModel] | None = None

    @classmethod
    def of(cls, module: TranslationModule, label: str, jit_compile: bool = False) -> LoadedModel:
        """Returns a model that translates with `module`.

        `jit_compile` compiles the search with XLA, for each batch shape.
        """
        from keras_transformer.inference.translation_module import compiled_translation

        def change(settings: Mapping[str, Any]) -> LoadedModel:
            config = dataclasses.replace(Config(), decoding=module.config).updated(settings)
            return cls.of(module.with_options(config.decoding), label, jit_compile)

        return cls(
            label,
            module.config.n_best,
            compiled_translation(module) if jit_compile else module.translate,
            module.lengths,
            module,
            module.translate_verbose,
            module.max_train_source_length,
            tuple(sorted(module.tokenizer.vocabulary.source_symbols())),
            normalize_target=module.tokenizer.vocabulary.normalized_target,
            change=change,
        )

    def with_settings(self, settings: Mapping[str, Any]) -> LoadedModel:
        """Returns a model that shares the weights and has other `decoding.` settings.

        Args:
            settings: changes of the configuration, as in `load_model`.

        Raises:
            InputError: for an invalid setting, or one that was fixed at export.
        """
        if not settings:
            return self
        if self.change is None:
            raise InputError(
                f"{self.label} is a SavedModel or a server: {' and '.join(settings)} cannot be "
                "changed after the export. Use the run directory."
            )
        return self.change(settings)


@dataclasses.dataclass(frozen=True)
class Loader:
    """A kind of models.

    Attributes:
        kind: what messages call a model of this kind.
        accepts: returns whether a path or address is such a model. It loads nothing, and its module
            is imported fast.
        open: loads a model that `accepts` has accepted. Its parameters, besides the model, are the
            arguments of `load_model` that apply to this kind. They are passed only if given.
        needs_tensorflow: False if models of this kind run without it.
    """

    kind: str
    accepts: Callable[[str], bool]
    open: Callable[..., LoadedModel]
    needs_tensorflow: bool = True


def _is_run(model: str) -> bool:
    path = Path(model)
    is_run = all((path / name).is_file() for name in ("config.json", "data.json"))
    return is_run or not path.exists()


def _open_run(
    model: str,
    settings: Mapping[str, Any] | None = None,
    precision: str = "float32",
    jit_compile: bool = False,
) -> LoadedModel:
    module = load_translator(model, settings, precision=precision)
    return LoadedModel.of(module, model, jit_compile)


RUN_LOADER = Loader("a run", _is_run, _open_run)  # also ensembles


def resolve(model: str) -> str:
    """Replaces addresses, such as `hf://USER/NAME`, by paths of this machine."""
    if "://" in model:
        for _, path_of in plugins.all_of("resolvers"):
            model = path_of(model)
    return model


def loader_of(model: str) -> Loader:
    """Returns the loader of a path or address: of an extension, of a run, or of a SavedModel.

    Extensions are asked in the alphabetical order of their entry points.
    """
    loaders: list[Loader] = [loader for _, loader in plugins.all_of("loaders")]
    found = (loader for loader in [*loaders, RUN_LOADER] if loader.accepts(model))
    return next(found, Loader("a SavedModel", lambda _: True, _open_saved_model))


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
        model_dir: a SavedModel, a model of an installed format, such as a LiteRT file, or any
            value that `load_translator` accepts. If it is a directory of numbered versions, the
            highest one is loaded. Installed resolvers replace addresses such as `hf://USER/NAME`.
        settings: changes of the run's `decoding.` configuration, as in
            `{"decoding.beam_size": 1}`. A SavedModel accepts none, and other formats only some.
        precision: type of a run's weights and computation, one of `PRECISIONS`.
        jit_compile: compile the search of a run with XLA, for each batch shape.
        threads: sentences that a model without TensorFlow translates at the same time, each on
            one core. The default is the number of cores.
    """
    model = resolve(str(model_dir))
    loader = loader_of(model)
    options: dict[str, Any] = {"settings": dict(settings or {}), "precision": precision}
    options |= {"jit_compile": jit_compile, "threads": threads}
    given = {name: value for name, value in options.items() if value != _DEFAULTS[name]}
    for name in given.keys() - inspect.signature(loader.open).parameters:
        shown = " and ".join(given[name]) if name == "settings" else f"{name}={given[name]}"
        raise InputError(
            f"{model} is {loader.kind}, which does not support {shown}. Leave this out."
        )
    return loader.open(model, **given)


def newest_version(path: Path, *model_files: str) -> Path:
    """Returns the highest numbered version in a directory, or `path` if it is a version itself.

    `model_files` make a folder a version, besides `MODEL_FILES`.
    """
    known = (*MODEL_FILES, *model_files)
    if not path.is_dir() or any((path / name).is_file() for name in known):
        return path
    files = [file for name in known for file in path.glob(f"*/{name}")]
    names = [file.parent.name for file in files]
    numbers = [int(name) for name in names if name.isdecimal() and name.isascii()]
    return path / str(max(numbers)) if numbers else path


def _open_saved_model(model: str) -> LoadedModel:
    path = newest_version(Path(model))
    described = manifest.check_needed_files(path)
    if not (path / "saved_model.pb").is_file():
        raise InputError(
            f"{path} is neither a run directory nor a SavedModel or another export. Create one "
            "with keras-transformer train or keras-transformer export."
        )
    if described.get("weights") == "int8":
        from keras_transformer.inference.int8 import check_int8_products

        check_int8_products()  # without oneDNN, every translation would fail
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  registers operations

    def of_arrays(function: Any) -> BatchFunction:
        """Returns a function of arrays. Functions of SavedModels accept only tensors."""
        return lambda **inputs: function(**{n: tf.constant(x) for n, x in inputs.items()})

    try:
        loaded = tf.saved_model.load(str(path))
    except Exception as error:  # TensorFlow raises many exceptions for damaged files
        raise InputError(f"{path} cannot be loaded as a SavedModel: {one_line(error)}") from error
    try:
        translate = loaded.signatures["serving_default"]
        found = loaded.signatures["symbols"](text=tf.constant([""]))["symbols"]
        return LoadedModel(
            str(path),
            int(translate.structured_outputs["translations"].shape[1]),
            of_arrays(translate),
            of_arrays(loaded.signatures["lengths"]),
            loaded,
            of_arrays(loaded.translate_verbose),
            int(loaded.max_train_source_length.numpy()) or None,
            tuple(symbol.decode() for symbol in found.numpy()[0]),
            source_language=(described.get("languages") or [None])[0],
        )
    except (AttributeError, KeyError) as error:
        raise InputError(
            f"{path} is a SavedModel without {error}. Use an export of keras-transformer export."
        ) from error


def members(model_dir: str | Path | RunDirectory) -> list[tuple[RunDirectory, str]]:
    """Returns the runs of `DIRECTORY[@WEIGHTS][,DIRECTORY...]` and the names of their weights."""
    from keras_transformer.runs.run_directory import RunDirectory

    if isinstance(model_dir, RunDirectory):
        return [(model_dir, model_dir.selected)]
    runs = []
    whole = resolve(str(model_dir))
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
    """
    from keras_transformer.inference.int8 import use_int8_products
    from keras_transformer.inference.translation_module import TranslationModule
    from keras_transformer.models.encoder_decoder import get_architecture

    dtype = compute_dtype(precision)
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
    decoding = first.config.updated(settings or {}).decoding
    known = [run.max_train_source_length for run, _ in runs]
    longest = min((count for count in known if count), default=None)
    return TranslationModule(transformers, tokenizer, decoding, max_train_source_length=longest)


def compute_dtype(precision: str) -> str:
    """Returns the dtype policy of a model. Products in int8 have float32 inputs and outputs."""
    if precision not in PRECISIONS:
        raise InputError(f"The precision {precision!r} is unknown. Use {', '.join(PRECISIONS)}.")
    return "float32" if precision == "int8" else precision
