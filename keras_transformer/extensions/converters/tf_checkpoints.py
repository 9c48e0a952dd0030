"""Checkpoints of TensorFlow 1 and 2."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.protobuf import trackable_object_graph_pb2

from keras_transformer.errors import InputError, one_line
from keras_transformer.runs.checkpoints import reading

_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# TensorFlow's reader turns its status codes into these exceptions of Python.
_READ_ERRORS = (IndexError, KeyError, NotImplementedError, OSError, RuntimeError, ValueError)
_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


class TFCheckpoint:
    """The variables of a TensorFlow checkpoint."""

    def __init__(self, prefix: str | Path):
        self.path = Path(prefix)
        self.directory = self.path.parent
        if not Path(f"{prefix}.index").is_file():
            raise InputError(
                f"{prefix}.index does not exist. Give a directory with a TensorFlow checkpoint, or "
                "the .index file of a checkpoint."
            )
        try:
            self._reader: Any = tf.train.load_checkpoint(str(prefix))
            self._shapes: dict[str, list[int]] = self._reader.get_variable_to_shape_map()
        except (tf.errors.OpError, *_READ_ERRORS) as error:
            raise self._damaged(error) from None

    @classmethod
    def find(cls, path: Path) -> TFCheckpoint:
        """Opens the newest checkpoint of a directory, or the one with an `.index` file."""
        if not path.is_dir():
            return cls(str(path).removesuffix(".index"))
        with reading(path / "checkpoint", "the name of a TensorFlow checkpoint"):
            newest = tf.train.latest_checkpoint(str(path))
        if newest is None:
            raise InputError(
                f"{path} contains no TensorFlow checkpoint. It needs the file checkpoint, with the "
                "files that it names. Or give the .index file of a checkpoint."
            )
        return cls(newest)

    def variables(self, scope: str) -> dict[str, np.ndarray]:
        """Returns the variables of a scope of TensorFlow 1, such as "transformer/", by name."""
        return {name: self._read(name) for name in self._shapes if name.startswith(scope)}

    def object_weights(self, root: str) -> dict[str, np.ndarray]:
        """Returns the variables below a root of an object-based checkpoint, without slots."""
        if _GRAPH not in self._shapes:
            raise InputError(f"{self.path} was written by TensorFlow 1. Convert it with its tools.")
        names = [
            name.removeprefix(f"{root}/").removesuffix(_SUFFIX)
            for name in self._shapes
            if name.startswith(f"{root}/") and ".OPTIMIZER_SLOT" not in name
        ]
        return {name: self._read(f"{root}/{name}{_SUFFIX}") for name in names}

    def object_name(self, root: str, name: str) -> str:
        """Returns the name under which a variable is stored. Shared variables are stored once."""
        nodes = self._graph.nodes
        node = nodes[0]
        for part in (root, *name.split("/")):
            ids = [child.node_id for child in node.children if child.local_name == part]
            if not ids or not 0 <= ids[0] < len(nodes):
                return name
            node = nodes[ids[0]]
        keys = [each.checkpoint_key for each in node.attributes if each.name == "VARIABLE_VALUE"]
        return keys[0].removeprefix(f"{root}/").removesuffix(_SUFFIX) if keys else name

    @functools.cached_property
    def _graph(self) -> Any:
        try:
            content = self._read(_GRAPH).item()
            graph = trackable_object_graph_pb2.TrackableObjectGraph.FromString(content)
        except (DecodeError, TypeError) as error:
            raise self._damaged(error) from None
        if not graph.nodes:
            raise self._damaged("its object graph is empty")
        return graph

    def _read(self, name: str) -> np.ndarray:
        try:
            return np.asarray(self._reader.get_tensor(name))
        except (tf.errors.OpError, *_READ_ERRORS) as error:
            raise self._damaged(error) from None

    def _damaged(self, reason: object) -> InputError:
        return InputError(f"{self.path} is a damaged checkpoint: {one_line(reason)}")
