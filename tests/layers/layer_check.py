"""Checks every layer against the rules of Keras, like its `run_layer_test`."""

import inspect
import json
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"]
if keras.backend.backend() != "torch":  # on which Keras does not have it
    INTEGERS.append("uint64")


def to_numpy(tensors: Any) -> Any:
    """Converts nested tensors to NumPy arrays, with floats as float32."""

    def convert(tensor: Any) -> Array:
        if keras.backend.standardize_dtype(tensor.dtype) in ("bfloat16", "float16"):
            tensor = keras.ops.cast(tensor, "float32")
        return np.asarray(keras.ops.convert_to_numpy(tensor))

    return keras.tree.map_structure(convert, tensors)


def randomize(layer: keras.Layer, seed: int = 0, scale: float = 0.3) -> dict[str, Array]:
    """Gives all trainable weights random values (biases, gammas and betas too).

    Returns:
        The values as float64, by path inside the layer.
    """
    rng = np.random.default_rng(seed)
    values = {}
    for variable in layer.trainable_weights:
        centre = 1.0 if variable.path.endswith("gamma") else 0.0
        value = rng.normal(centre, scale, variable.shape).astype(np.float32)
        variable.assign(value)
        values[variable.path.partition("/")[2]] = value.astype(np.float64)
    assert len(values) == len(layer.trainable_weights), "two weights share a path"
    return values


def copy_weights(source: keras.Layer, target: keras.Layer) -> None:
    pairs = zip(source.trainable_weights, target.trainable_weights, strict=True)
    for value, variable in pairs:
        assert value.path.partition("/")[2] == variable.path.partition("/")[2]
        variable.assign(value)


def assert_same(actual: Any, expected: Any, tolerance: float = 1e-5) -> None:
    keras.tree.assert_same_structure(actual, expected)
    for a, e in zip(keras.tree.flatten(actual), keras.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(a, e, rtol=tolerance, atol=tolerance)


def check_layer(
    layer_class: type[keras.Layer],
    arguments: dict[str, Any],
    inputs: dict[str, Array],
    output_shape: Any,
    options: dict[str, Any] | None = None,
    output_dtype: str | None = None,
) -> None:
    """Checks configuration, rebuilding, serialization, shapes, symbolic calls and dtypes.

    Args:
        layer_class: the layer; takes `arguments` at construction.
        inputs: its tensor arguments by name, in order.
        output_shape: shape, or structure of shapes, of its output for `inputs`.
        options: its other call arguments.
        output_dtype: dtype of its outputs under every policy; the policy's
            compute dtype by default.
    """
    options = options or {}
    layer = layer_class(**arguments)
    layer(**inputs, **options)
    randomize(layer)
    outputs = to_numpy(layer(**inputs, **options))
    assert keras.tree.map_structure(np.shape, outputs) == output_shape

    check_config(layer, arguments)
    serialized = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
    assert serialized["registered_name"] == f"keras_transformer>{layer_class.__name__}"
    rebuilt = keras.saving.deserialize_keras_object(serialized)
    if not rebuilt.built:
        rebuilt.build_from_config(layer.get_build_config())
    copy_weights(layer, rebuilt)  # all weights exist before the first call
    assert_same(to_numpy(rebuilt(**inputs, **options)), outputs)

    check_shapes(layer, inputs, options, outputs)
    check_symbolic(layer, inputs, options, outputs)
    assert dtypes(outputs)[0] == (output_dtype or "float32")
    for policy in ("mixed_bfloat16", "mixed_float16"):
        mixed = layer_class(**arguments, dtype=policy)
        mixed.build_from_config(layer.get_build_config())
        copy_weights(layer, mixed)
        tensors = mixed(**inputs, **options)
        assert dtypes(tensors)[0] == (output_dtype or mixed.compute_dtype), policy
        assert dtypes(mixed(**symbols(inputs), **options)) == dtypes(tensors), policy
        assert all(w.dtype == "float32" for w in mixed.trainable_weights), policy
        assert_same(to_numpy(tensors), outputs, tolerance=0.1)


def check_config(layer: keras.Layer, arguments: dict[str, Any]) -> None:
    config = layer.get_config()
    named = set()
    for ancestor in type(layer).__mro__[: type(layer).__mro__.index(keras.Layer)]:
        parameters = inspect.signature(ancestor.__init__).parameters.values()
        named |= {p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD} - {"self"}
    assert named, "no constructor argument found"
    assert named <= config.keys(), f"get_config lacks {named - config.keys()}"
    for name, value in arguments.items():
        assert config[name] == value, f"get_config has {name} {config[name]}, given {value}"
    assert type(layer).from_config(config).get_config() == config


def check_shapes(
    layer: keras.Layer, inputs: dict[str, Array], options: dict[str, Any], outputs: Any
) -> None:
    """Checks `compute_output_shape` and `compute_output_spec`."""
    shape = keras.tree.flatten(outputs)[0].shape
    parameters = inspect.signature(layer.compute_output_shape).parameters
    # `summary` calls one with the arguments of the other.
    assert list(parameters) == list(inspect.signature(layer.build).parameters)
    shapes = {f"{name}_shape": array.shape for name, array in inputs.items()}
    first = next(iter(shapes.values()))
    if len(parameters) == 1:
        shapes = {next(iter(parameters)): first}
    wanted = {name: shapes[name] for name in parameters if name in shapes}
    assert tuple(layer.compute_output_shape(**wanted)) == shape
    spec = layer.compute_output_spec(**symbols(inputs), **options)
    assert keras.tree.map_structure(lambda s: tuple(s.shape), spec) == keras.tree.map_structure(
        np.shape, outputs
    )


def symbols(inputs: dict[str, Array]) -> dict[str, keras.KerasTensor]:
    return {name: keras.KerasTensor(a.shape, dtype=str(a.dtype)) for name, a in inputs.items()}


def dtypes(tensors: Any) -> list[str]:
    return [keras.backend.standardize_dtype(t.dtype) for t in keras.tree.flatten(tensors)]


def check_symbolic(
    layer: keras.Layer, inputs: dict[str, Array], options: dict[str, Any], outputs: Any
) -> None:
    """Checks that a functional model with unknown lengths equals the eager layer."""
    unknown = {}
    for name, array in inputs.items():
        width = array.shape[-1:] if array.dtype.kind == "f" else (None,)
        shape = (*[None] * (array.ndim - 1), *width)
        unknown[name] = keras.Input(batch_shape=shape, dtype=str(array.dtype), name=name)
    result = layer(**unknown, **options)
    assert dtypes(result) == dtypes(layer(**inputs, **options))
    for tensor, array in zip(keras.tree.flatten(result), keras.tree.flatten(outputs), strict=True):
        assert len(tensor.shape) == array.ndim
        assert all(s in (None, n) for s, n in zip(tensor.shape, array.shape, strict=True))
    model = keras.Model(unknown, result)
    assert_same(to_numpy(model(inputs)), outputs)
