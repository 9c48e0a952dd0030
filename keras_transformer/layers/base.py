"""Methods that Keras requires of every layer, and the replicas of a `tf.distribute` strategy."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import keras

# Multiplies rows `[R, d_in]` by a matrix, and returns `[R, d_out]`.
Product = Callable[[Any], Any]

# Operations that keep the positions of their inputs, so that a mask stays valid.
_ELEMENTWISE = frozenset(
    "Absolute Add Cast Divide Elu Exp Gelu LeakyRelu Maximum Minimum Multiply Negative Relu Relu6 "
    "Selu Sigmoid Silu Softplus Sqrt Square Subtract Tanh TrueDivide".split()
)

_NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY


def shows_arguments(base: Callable[..., Any]) -> Callable[[Any], Any]:
    """Shows the arguments of `base` in the signature of a constructor, instead of its `*args`."""

    def decorate(init: Any) -> Any:
        own = inspect.signature(init).parameters.values()
        inherited = inspect.signature(base).parameters.values()
        first = [parameter for parameter in own if parameter.kind is _NAMED[0]]
        last = [p for p in own if p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
        shown = [p for p in inherited if p.name != "self" and p.kind in _NAMED]
        init.__signature__ = inspect.Signature([*first, *shown, *last])
        return init

    return decorate


class BaseLayer(keras.layers.Layer):
    """A layer whose constructor arguments are attributes with the same names."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.supports_masking = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        check_padded(*args, *kwargs.values())
        return super().__call__(*args, **kwargs)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # Traces `call`: dtype and number of outputs can differ from those of the first input.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return tuple(input_shape)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        for name, value in self._arguments().items():
            if isinstance(value, (keras.Initializer, keras.Regularizer)):
                value = keras.saving.serialize_keras_object(value)
            config[name] = value
        return config

    def _arguments(self) -> dict[str, Any]:
        """Returns the arguments of the constructor, except those of Keras."""
        _, *parameters = inspect.signature(type(self).__init__).parameters.values()
        named = [parameter for parameter in parameters if parameter.kind in _NAMED]
        return {parameter.name: getattr(self, parameter.name) for parameter in named}

    def replace_products(self, make_product: Callable[[Any], Product]) -> None:
        """Replaces the products with all matrices inside, and drops the matrices.

        An export calls it for products in other number formats. Afterwards the layer has no
        matrices, so it can neither be trained nor saved. Tables of embeddings become int8.
        """
        for layer in sublayers(self):
            layer.replace_products(make_product)


def call_with_implicit_masks(self: BaseLayer, *args: Any, **kwargs: Any) -> Any:
    """The `__call__` of layers with masks, which finds more masks of its inputs than Keras.

    `call` may take a keyword `mask` of the positions of its first argument, and `NAME_mask` for
    each further argument NAME. Without these arguments, the masks that Keras has attached to the
    inputs are used. Keras loses them in operations of functional models, as in `x + positions(x)`,
    and in the layers behind them. There they are taken from the inputs of the operations. The mask
    is attached to the output, too.
    """
    names = _call_names(type(self).call)
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    for name, value in given.items():
        mask_name = "mask" if name == names[0] else f"{name}_mask"
        if mask_name in names and given.get(mask_name) is None:
            mask = _implicit_mask(value)
            if mask is not None:
                kwargs[mask_name] = mask
    return BaseLayer.__call__(self, *args, **kwargs)


@functools.cache
def _call_names(call: Callable[..., Any]) -> list[str]:
    """Returns the names of the arguments of the function `call`, without `self`."""
    return list(inspect.signature(call).parameters)[1:]


def sublayers(layer: keras.layers.Layer, recursive: bool = False) -> list[Any]:
    """Returns the layers of this package inside a layer."""
    # The public `layers` exists only in models.
    layers = layer._flatten_layers(include_self=False, recursive=recursive)
    return [inner for inner in layers if isinstance(inner, BaseLayer)]


def check_padded(*tensors: Any) -> None:
    """Checks that no tensor is ragged, because `keras.ops` treats some ragged tensors as dense."""
    for tensor in tensors:
        if hasattr(tensor, "row_splits") or getattr(tensor, "ragged", False) is True:
            raise ValueError(
                "Ragged tensors are not supported. Pad ids with ids.to_tensor(pad_id), and vectors "
                "with .to_tensor() and a mask."
            )


def integer_ids(ids: Any) -> Any:
    """Returns ids as int32, or as int64 if they are int64.

    Small integers cannot hold every vocabulary size, and TensorFlow does not index with all of
    them. A `keras.Input` without a dtype is float32.
    """
    check_padded(ids)
    if not hasattr(ids, "dtype"):
        ids = keras.ops.convert_to_tensor(ids)
    dtype = keras.backend.standardize_dtype(ids.dtype)
    return ids if dtype in ("int32", "int64") else keras.ops.cast(ids, "int32")


def new_initializer(initializer: Any) -> keras.Initializer:
    """Returns an initializer for one more weight.

    A random initializer without a seed returns the same values whenever it is called, so each
    weight needs its own.
    """
    if isinstance(initializer, keras.Initializer):
        return initializer.clone()
    return keras.initializers.get(initializer)


def _implicit_mask(tensor: Any) -> Any:
    """Returns the mask of a tensor, or of the inputs of the operations that it comes from.

    Keras has no public names for the mask and the history of a tensor.
    """
    mask = getattr(tensor, "_keras_mask", None)
    history = getattr(tensor, "_keras_history", None)
    if mask is not None or history is None:
        return mask
    operation, node, _ = history
    if isinstance(operation, keras.layers.Layer):  # Keras has found no mask of its input
        passes = type(operation).compute_mask is keras.layers.Layer.compute_mask
        if not (operation.supports_masking and passes):
            return None
    elif type(operation).__name__ not in _ELEMENTWISE:
        return None
    inputs = operation._inbound_nodes[node].input_tensors
    # The operation may broadcast another input over the positions. Its mask does not count.
    masks = (_implicit_mask(x) for x in inputs if x.shape[:2] == tensor.shape[:2])
    return next((mask for mask in masks if mask is not None), None)


def num_replicas() -> int:
    """Returns the number of replicas of the current `tf.distribute` strategy."""
    if keras.backend.backend() != "tensorflow":
        return 1
    # Keras has imported TensorFlow.
    return int(sys.modules["tensorflow"].distribute.get_strategy().num_replicas_in_sync)


def replica_context() -> Any:
    """Returns the context of this replica, or None if there is only one replica."""
    is_alone = num_replicas() == 1
    return None if is_alone else sys.modules["tensorflow"].distribute.get_replica_context()


def sum_over_replicas(value: Any) -> Any:
    """Returns the sum of tensors over all replicas; `value` itself if there is only one."""
    context = replica_context()
    return value if context is None else context.all_reduce("SUM", value)
