"""Matrices that can be quantized to int8, or replaced by products in other number formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import keras
from keras import ops

from keras_transformer.layers import fast_paths
from keras_transformer.layers.base import BaseLayer, Product, new_initializer


class ProjectingLayer(BaseLayer):
    """A layer with matrices that `quantize` and `replace_products` of `BaseLayer` change.

    Keras's `Dense` has one kernel and does the same for it, but our layers have several or fused
    ones. An int8 matrix has a float32 scale for each output, `[d_out]`, under its name plus
    `_scale`. Only weights are int8: on a CPU with TensorFlow, Keras's product of two int8 matrices
    is slower than one in float32, and its error is larger.
    """

    # The axis that a scale is shared along: the inputs of a kernel `[d_in, d_out]`, or of a
    # transposed one.
    _shared_axis: ClassVar[int] = 0
    dtype_policy: Any

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self._matrix_names: tuple[str, ...] = ()
        self._products: dict[str, Product] = {}  # of replaced matrices, by name

    def _flatten_layers(self, include_self: bool = True, recursive: bool = True) -> list[Any]:
        # `keras.Model.quantize` quantizes only layers without sublayers. Here the only sublayer is
        # a dropout, which has no weights.
        return [self] if include_self else []

    def _add_matrix(
        self,
        name: str,
        shape: tuple[int, int],
        initializer: Any,
        regularizer: Any = None,
        **options: Any,
    ) -> None:
        """Adds the weight `name`, which is int8 if the layer was saved after `quantize`."""
        self._matrix_names += (name,)
        if self.quantization_mode is not None:
            self._add_int8_matrix(name, shape)
            self._is_quantized = True  # read by Keras
            return
        weight = self.add_weight(
            shape=shape, initializer=initializer, regularizer=regularizer, name=name, **options
        )
        setattr(self, name, weight)

    def _add_int8_matrix(self, name: str, shape: tuple[int, int]) -> None:
        matrix = self.add_weight(
            shape=shape, initializer="zeros", dtype="int8", trainable=False, name=name
        )
        scale = self.add_weight(
            shape=(shape[1 - self._shared_axis],),
            initializer="ones",
            dtype="float32",
            trainable=False,
            autocast=False,
            name=f"{name}_scale",
        )
        setattr(self, name, matrix)
        setattr(self, f"{name}_scale", scale)

    def _multiply(self, inputs: Any, name: str) -> Any:
        """Returns `inputs` `[..., d_in]` times a matrix, in the inputs' dtype."""
        if name in self._products:
            return fast_paths.multiply_rows(self._products[name], inputs)
        matrix = ops.cast(getattr(self, name), inputs.dtype)
        matrix = matrix if self._shared_axis == 0 else ops.transpose(matrix)
        outputs = fast_paths.multiply_rows(lambda rows: ops.matmul(rows, matrix), inputs)
        if self.quantization_mode is not None:
            outputs = outputs / ops.cast(getattr(self, f"{name}_scale"), inputs.dtype)
        return outputs

    def _check_matrices(self) -> None:
        """Raises `ValueError` if `replace_products` has dropped the matrices."""
        if self._products:
            raise ValueError(
                f"{self.name} has no matrices, because its products were replaced for an export. "
                "Load the model again."
            )

    def quantize(self, mode: Any = None, type_check: bool = True, config: Any = None) -> None:
        super().quantize(mode, type_check, config)
        self._check_matrices()
        policy = self.dtype_policy
        if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
            policy = policy[self.path]
        for name in self._matrix_names:
            old = getattr(self, name)
            values = self._to_int8(old, config)
            self._untrack_variable(old)
            self._add_int8_matrix(name, old.shape)
            getattr(self, name).assign(values[0])
            getattr(self, f"{name}_scale").assign(values[1])
        self._is_quantized = True  # read by Keras
        self.dtype_policy = keras.dtype_policies.get(f"int8_from_{policy.name}")

    def _to_int8(self, matrix: Any, config: Any = None) -> tuple[Any, Any]:
        """Returns int8 values, and the float32 scales that they are divided by."""
        quantizer = getattr(config, "weight_quantizer", None) or keras.quantizers.AbsMaxQuantizer()
        values, scale = quantizer(ops.cast(matrix, "float32"), axis=self._shared_axis)
        return values, ops.squeeze(scale, self._shared_axis)

    def replace_products(self, make_product: Callable[[Any], Product]) -> None:
        self._check_matrices()
        for name in self._matrix_names:
            self._products[name] = make_product(ops.convert_to_numpy(self._matrix(name)))
            suffixes = ["", *(["_scale"] if self.quantization_mode is not None else [])]
            for suffix in suffixes:
                self._untrack_variable(getattr(self, name + suffix))
                setattr(self, name + suffix, None)  # Keras collects garbage after each `delattr`

    def _matrix(self, name: str) -> Any:
        """Returns a matrix in float32."""
        value = ops.cast(getattr(self, name), "float32")
        if self.quantization_mode is not None:
            value = value / ops.expand_dims(getattr(self, f"{name}_scale"), self._shared_axis)
        return value

    def save_own_variables(self, store: Any) -> None:
        self._check_matrices()
        super().save_own_variables(store)


class LinearLayer(ProjectingLayer):
    """A layer with linear transformations, which have kernels and optional biases."""

    def __init__(
        self,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.kernel_initializer = kernel_initializer
        self.bias_initializer = bias_initializer
        self.kernel_regularizer = kernel_regularizer
        self.bias_regularizer = bias_regularizer

    def _add_projection(self, name: str, inputs: int, *widths: int, use_bias: bool = True) -> None:
        """Adds a kernel `[inputs, sum(widths)]`, initialized as one for each width, and a bias."""

        def initialize(shape: Any, dtype: Any = None) -> Any:
            kernels = [
                new_initializer(self.kernel_initializer)((inputs, width), dtype) for width in widths
            ]
            return ops.concatenate(kernels, axis=-1)

        shape = (inputs, sum(widths))
        self._add_matrix(f"{name}_kernel", shape, initialize, self.kernel_regularizer)
        if use_bias:
            bias = self.add_weight(
                shape=shape[1:],
                initializer=new_initializer(self.bias_initializer),
                regularizer=self.bias_regularizer,
                name=f"{name}_bias",
            )
            setattr(self, bias.name, bias)

    def _project(self, name: str, inputs: Any, use_bias: bool = True) -> Any:
        """Returns `[..., d_in]` times a kernel, plus its bias, in the inputs' dtype."""
        outputs = self._multiply(inputs, f"{name}_kernel")
        if use_bias:
            outputs = outputs + ops.cast(getattr(self, f"{name}_bias"), inputs.dtype)
        return outputs
