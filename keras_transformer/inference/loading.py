"""Loads models for inference: runs, ensembles of runs, exports, and what extensions add.

The manifest of an export names its format. The exporter of this format opens it. Models without
such a manifest are recognized by `Loader`s, entry points of the group `keras_transformer.loaders`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer import plugins
from keras_transformer.errors import InputError
from keras_transformer.inference import PRECISIONS, manifest, updated_decoding
from keras_transformer.inference.engine import Engine, KerasEngine
from keras_transformer.inference.tags import two_letters
from keras_transformer.runs.run_directory import RunDirectory

if TYPE_CHECKING:  # imported late: an engine of another kind does not load TensorFlow
    from keras_transformer.inference.translation_module import TranslationModule

# A version contains one of these. A damaged one may have lost its model.
MODEL_FILES = ("saved_model.pb", manifest.FILE)
_DEFAULTS = {"precision": "float32", "jit_compile": False, "threads": None}


def _find_run(model: str) -> str | None:
    return model if RunDirectory.is_run(model) or not Path(model).exists() else None


def _open_run(
    model: str, settings: Any = None, precision: str = "float32", jit_compile: bool = False
) -> Engine:
    engine = KerasEngine(load_translator(model, settings, precision=precision), model, jit_compile)
    engine.single_sentences = all(run.single_sentences for run, _ in members(model))
    return engine


RUN_LOADER = plugins.Loader("a run", _find_run, _open_run)  # it also opens ensembles


def find_loader(model: str) -> tuple[Any, Any]:
    """Returns the `Exporter` or `Loader` of a path or address, and what its `open` opens.

    Loaders of extensions are asked in the alphabetical order of their entry points, then the one
    for runs. Everything else is a SavedModel.
    """
    version = newest_version(Path(model))
    format = manifest.read(version).get("format")
    loaders = [] if format else [*(loader for _, loader in plugins.all_of("loaders")), RUN_LOADER]
    for loader in loaders:
        found = loader.find(model)
        if found is not None:
            return loader, found
    return plugins.find("exporters", format or "saved_model"), version


def load_model(
    model_dir: str | Path,
    settings: Mapping[str, Any] | None = None,
    *,
    precision: str = "float32",
    jit_compile: bool = False,
    threads: int | None = None,
) -> Engine:
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
    model = plugins.resolve(str(model_dir))
    loader, found = find_loader(model)
    options = {"precision": precision, "jit_compile": jit_compile, "threads": threads}
    given = {name: value for name, value in options.items() if value != _DEFAULTS[name]}
    accepted = inspect.signature(loader.open).parameters.keys()
    for name in given.keys() - accepted:
        raise InputError(
            f"{model} is {loader.kind}, which does not support {name}={given[name]}. Leave this "
            "out."
        )
    facts = manifest.check_needed_files(found) if isinstance(found, Path) else {}
    if "settings" in accepted:  # they are checked before the weights are read
        given["settings"], settings = settings, None
    engine: Engine = loader.open(found, **given).with_settings(settings or {})
    known = engine.vocabulary and engine.vocabulary.languages
    languages = [*map(two_letters, known)] if known else facts.get("languages")
    engine.source_language, engine.target_language = languages or (None, None)
    engine.single_sentences = facts.get("single_sentences", engine.single_sentences)
    return engine


def newest_version(path: Path) -> Path:
    """Returns the highest numbered version in a directory, or `path` if it is a model itself."""
    if not path.is_dir() or any((path / name).is_file() for name in (*MODEL_FILES, "data.json")):
        return path
    files = [file for name in MODEL_FILES for file in path.glob(f"*/{name}")]
    names = [file.parent.name for file in files]
    numbers = [int(name) for name in names if name.isdecimal() and name.isascii()]
    return path / str(max(numbers)) if numbers else path


def members(model_dir: str | Path | RunDirectory) -> list[tuple[RunDirectory, str]]:
    """Returns the runs of `DIRECTORY[@WEIGHTS][,DIRECTORY...]` and the names of their weights."""
    if isinstance(model_dir, RunDirectory):
        return [(model_dir, model_dir.selected)]
    runs = []
    whole = plugins.resolve(str(model_dir))
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
    decoding = updated_decoding(first.config.decoding, settings or {})
    tokenizer = first.tokenizer()
    transformers = []
    for run, name in runs:
        if run.tokenizer().fingerprint != tokenizer.fingerprint:
            raise InputError(
                f"{first.path} and {run.path} have different vocabularies, so they are not an "
                "ensemble. Prepare the data of one with vocab_from of the other."
            )
        architecture = get_architecture(run.config.architecture)
        transformer = architecture(run.config.model, dtype=dtype)
        transformer.build()
        transformer.assign_weights(run.named_weights(name))
        if precision == "int8":
            use_int8_products(transformer)
        transformers.append(transformer)
    known = [run.max_train_source_length for run, _ in runs]
    longest = min((count for count in known if count), default=None)
    return TranslationModule(transformers, tokenizer, decoding, max_train_source_length=longest)


def compute_dtype(precision: str) -> str:
    """Returns the dtype policy of a model. Products in int8 have float32 inputs and outputs."""
    if precision not in PRECISIONS:
        raise InputError(f"The precision {precision!r} is unknown. Use {', '.join(PRECISIONS)}.")
    return "float32" if precision == "int8" else precision
