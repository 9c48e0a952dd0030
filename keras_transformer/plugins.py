"""Finds features outside of the core by entry points, so that other packages can add their own.

A package declares an extension in its `setup.cfg` or `pyproject.toml`:

    [options.entry_points]
    keras_transformer.exporters = onnx = my_package.onnx:EXPORTER

After `pip install my_package`, `export --format=onnx` works. The extensions of this package are
declared in the same way. The groups are:

* `exporters`: objects that follow `keras_transformer.export.Exporter`;
* `loaders`: instances of `Loader`, for models that have no manifest;
* `resolvers`: functions that replace addresses, such as hf://USER/NAME, by paths;
* `stores`: `storage`, a module with `copy`, which returns a path for an address, and `upload`, a
  context manager with a path, whose content is uploaded at the end;
* `corpora`: objects that follow `keras_transformer.data.corpus.CorpusReader`;
* `commands`: modules with a docstring, `define_flags()` and `main()`;
* `servers`: modules with `help`, `Settings`, `UNUSED` and `run`, which `serve` uses if the flag of
  their name is given: `models_dir`;
* `text_options`: `document`, a module that translates texts of several sentences (see
  `inference.translate.split_texts`);
* `export_options`: modules with `help`, `default` and optionally `learn`, which add a flag to
  `export` (see `cli/export.py`);
* `translator_methods`: functions of an engine that are methods of `Translator`: `translate_file`;
* `presets`: mappings of names to the preset that one changes, and its changes;
* `converters`: functions that read a model of another toolkit, by the names of formats;
* `task_runners`: modules with `help`, with `connect`, which returns a `data.workers.TaskRunner` for
  the address that the flag of their name gives, and with `train`, which runs the command `train` on
  all machines there: `ray`;
* `augmentations`: classes that follow `keras_transformer.data.augmentation.Augmentation`;
* `auxiliary_losses`: functions that return the loss for the training with a vocabulary and token
  stores, or None if it is for other vocabularies;
* `after_preparation`: functions of a directory, which `prepare` calls when its data are complete;
* `after_training`: functions of a `RunDirectory`, called when a training ends, also after an error.
  An error of theirs is a warning.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import logging
from collections.abc import Callable, Iterator
from typing import Any

from keras_transformer.errors import InputError

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Loader:
    """A kind of models that have no manifest, such as the address of a server.

    An `Exporter` that also has `find` can be a loader.

    Attributes:
        kind: what messages call a model of this kind.
        find: returns what `open` opens if a path or address is such a model, otherwise None. It
            loads nothing, and its module is imported fast.
        open: opens a model and returns an `inference.engine.Engine`. Its parameters, besides the
            model, are the arguments of `load_model` that apply to this kind. `precision`,
            `jit_compile` and `threads` are passed only if given. Without a parameter `settings`,
            `Engine.with_settings` gets the settings.
        needs_tensorflow: False if models of this kind run without it.
    """

    kind: str
    find: Callable[[str], Any]
    open: Callable[..., Any]
    needs_tensorflow: bool = True


@functools.cache
def entry_points(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    """Returns the entry points of a group by name, in alphabetical order. Loads none of them."""
    points = importlib.metadata.entry_points(group=f"keras_transformer.{group}")
    return {point.name: point for point in sorted(points, key=lambda point: point.name)}


def names(group: str) -> tuple[str, ...]:
    """Returns the names of the installed extensions of a group."""
    return tuple(entry_points(group))


def find(group: str, name: str) -> Any:
    """Loads the extension of a group with this name.

    Example:
    >>> from keras_transformer import plugins
    >>> plugins.find("exporters", "pigeon")
    Traceback (most recent call last):
    keras_transformer.errors.InputError: There is no 'pigeon' among the exporters. Installed: ...
    """
    if name not in entry_points(group):
        installed = ", ".join(names(group)) or "none"
        raise InputError(f"There is no {name!r} among the {group}. Installed: {installed}.")
    return entry_points(group)[name].load()


def all_of(group: str) -> Iterator[tuple[str, Any]]:
    """Loads all extensions of a group. One that cannot be imported is a warning, not an error."""
    for name, point in entry_points(group).items():
        try:
            extension = point.load()
        except Exception as error:  # code of another package
            _LOG.warning("%s %r is left out: %s", group, name, error)
        else:
            yield name, extension


def resolve(model: str) -> str:
    """Replaces addresses, such as `hf://USER/NAME`, by paths of this machine."""
    if "://" in model:
        for _, path_of in all_of("resolvers"):
            model = path_of(model)
    return model


def auxiliary_loss(vocabulary: Any, stores: Any) -> Any:
    """Returns the first installed auxiliary loss for the vocabulary, or None."""
    losses = (make_loss(vocabulary, stores) for _, make_loss in all_of("auxiliary_losses"))
    return next((loss for loss in losses if loss is not None), None)


def call_all(group: str, *arguments: Any) -> None:
    """Calls all functions of a group. An error in one of them is a warning."""
    for name, function in all_of(group):
        try:
            function(*arguments)
        except Exception as error:
            _LOG.warning("%s %r failed: %s", group, name, error)
