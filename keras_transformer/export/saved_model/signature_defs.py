"""The signatures of a SavedModel, read from its file without loading it: what a server reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.errors import InputError


def read_signature_defs(path: Path) -> dict[str, Any]:
    """Returns the `SignatureDef` of each signature that can be called, by name, sorted.

    Args:
        path: directory of a SavedModel.

    Raises:
        InputError: where there is none, or none that serves.
    """
    file = path / "saved_model.pb"
    try:
        model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    except OSError as error:
        raise InputError(
            f"{file} cannot be read ({error.strerror}); expected a SavedModel"
        ) from error
    except Exception as error:  # protobuf's exceptions have no common ancestor of their own
        raise InputError(f"{file} is no SavedModel ({error}); expected one") from error
    found = {
        name: signature
        for meta_graph in model.meta_graphs
        for name, signature in meta_graph.signature_def.items()
        if signature.method_name == tf.saved_model.PREDICT_METHOD_NAME
    }
    if not found:
        raise InputError(f"{file} has no signatures; expected at least serving_default")
    return {name: found[name] for name in sorted(found)}


def shape_of(tensor: Any) -> list[int | None]:
    """Returns the dimensions of a `TensorInfo`; None for those that vary."""
    return [None if dim.size < 0 else dim.size for dim in tensor.tensor_shape.dim]


def dtype_of(tensor: Any) -> tf.DType:
    """Returns the dtype of a `TensorInfo`."""
    return tf.dtypes.as_dtype(tensor.dtype)


def describe(tensors: Any) -> dict[str, dict[str, Any]]:
    """Returns `{"dtype": "string", "shape": [None]}` by name of `inputs` or `outputs`."""
    return {
        name: {"dtype": dtype_of(tensors[name]).name, "shape": shape_of(tensors[name])}
        for name in sorted(tensors)
    }
