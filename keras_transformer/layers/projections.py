"""Matrices that can be quantized to int8, or adapted with LoRA (Hu et al., arXiv:2106.09685)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import keras
from keras import ops

from keras_transformer.layers import fast_paths
from keras_transformer.layers.base import BaseLayer, Product


class ProjectingLayer(BaseLayer):
    """A layer with matrices that `quantize` and `enable_lora` of `BaseLayer` change.

    A subclass adds its matrices with `_add_matrix` and multiplies by them with `_multiply`. Keras's
    `Dense` has one kernel and does the same for it, but our layers have several or fused ones.

    An int8 matrix has a float32 scale for each output, `[d_out]`, under its name plus `_scale`.
    Only weights are int8: on a CPU with TensorFlow, Keras's product of two int8 matrices is slower
    than one in float32, and its error is larger.
    """

    # The axis that a scale is shared along: the inputs of a kernel `[d_in, d_out]`.
    _shared_axis: ClassVar[int] = 0
    dtype_policy: Any

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self.lora_rank: int | None = None
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
        autocast: bool = True,
    ) -> None:
        """Adds the weight `name`, which is int8 if the layer was saved after `quantize`."""
        self._matrix_names += (name,)
        if self.quantization_mode is not None:
            self._add_int8_matrix(name, shape)
            self._is_quantized = True  # read by Keras
            return
        weight = self.add_weight(
            shape=shape,
            initializer=initializer,
            regularizer=regularizer,
            name=name,
            autocast=autocast,
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
        """Returns `inputs` `[..., d_in]` times a matrix `[d_in, d_out]`, in the inputs' dtype."""
        if name in self._products:
            return fast_paths.multiply_rows(self._products[name], inputs)
        outputs = fast_paths.project(inputs, ops.cast(getattr(self, name), inputs.dtype))
        if self.quantization_mode is not None:
            outputs = outputs / ops.cast(getattr(self, f"{name}_scale"), inputs.dtype)
        if self.lora_rank is not None:
            down, up = (ops.cast(each, inputs.dtype) for each in self._adapter(name))
            adapted = fast_paths.project(fast_paths.project(inputs, down), up)
            outputs = outputs + adapted * self._lora_scale
        return outputs

    def _check_matrices(self) -> None:
        """Raises `ValueError` if `replace_products` has dropped the matrices."""
        if self._products:
            raise ValueError(
                f"{self.name} has no matrices, because its products were replaced for an export. "
                "Load the model again."
            )

    def _quantize_matrices(self, config: Any) -> None:
        self._check_matrices()
        policy = self.dtype_policy
        if isinstance(policy, keras.dtype_policies.DTypePolicyMap):
            policy = policy[self.path]
        quantized = {
            name: self._to_int8(getattr(self, name), config) for name in self._matrix_names
        }
        for name, values in quantized.items():
            old = getattr(self, name)
            self._untrack_variable(old)
            self._add_int8_matrix(name, old.shape)
            self._assign_int8(name, values)
        self._is_quantized = True  # read by Keras
        self.dtype_policy = keras.dtype_policies.get(f"int8_from_{policy.name}")

    def _to_int8(self, matrix: Any, config: Any = None) -> tuple[Any, Any]:
        """Returns int8 values, and the float32 scales that they are divided by."""
        quantizer = getattr(config, "weight_quantizer", None) or keras.quantizers.AbsMaxQuantizer()
        values, scale = quantizer(ops.cast(matrix, "float32"), axis=self._shared_axis)
        return values, ops.squeeze(scale, self._shared_axis)

    def _assign_int8(self, name: str, values: tuple[Any, Any]) -> None:
        getattr(self, name).assign(values[0])
        getattr(self, f"{name}_scale").assign(values[1])

    def _replace_products(self, make_product: Callable[[Any], Product]) -> None:
        self._check_matrices()
        for name in self._matrix_names:
            self._products[name] = make_product(ops.convert_to_numpy(self._matrix(name)))
            suffixes = ["_scale"] if self.quantization_mode is not None else []
            suffixes += ["_lora_a", "_lora_b"] if self.lora_rank is not None else []
            for each in (name, *(name + suffix for suffix in suffixes)):
                self._untrack_variable(getattr(self, each))
                setattr(self, each, None)  # Keras collects garbage after each `delattr`

    def _add_adapters(self, rank: int, scale: float) -> None:
        self._check_matrices()
        if not self.built:
            raise ValueError(f"{self.name} has no weights yet. Call or build it first.")
        if self.lora_rank is not None:
            raise ValueError(f"{self.name} has adapters of rank {self.lora_rank} already.")
        self._tracker.unlock()
        for name in self._matrix_names:
            rows, columns = getattr(self, name).shape
            for suffix, shape, initializer in (
                ("lora_a", (rows, rank), "he_uniform"),
                ("lora_b", (rank, columns), "zeros"),  # the output does not change at first
            ):
                weight = self.add_weight(
                    shape=shape, initializer=initializer, dtype="float32", name=f"{name}_{suffix}"
                )
                setattr(self, weight.name, weight)
        self._tracker.lock()
        self.lora_rank = rank
        self._lora_scale = scale

    def _adapter(self, name: str) -> tuple[Any, Any]:
        return getattr(self, f"{name}_lora_a"), getattr(self, f"{name}_lora_b")

    def _matrix(self, name: str) -> Any:
        """Returns a matrix in float32, with its adapter."""
        value = ops.cast(getattr(self, name), "float32")
        if self.quantization_mode is not None:
            value = value / ops.expand_dims(getattr(self, f"{name}_scale"), self._shared_axis)
        if self.lora_rank is not None:
            value = value + ops.matmul(*self._adapter(name)) * self._lora_scale
        return value

    def save_own_variables(self, store: Any) -> None:
        self._check_matrices()
        if self.lora_rank is None:
            super().save_own_variables(store)
            return
        merged: dict[int, Any] = {}  # by the id of the variable
        for name in self._matrix_names:
            matrix, value = getattr(self, name), self._matrix(name)
            if self.quantization_mode is not None:
                scale = getattr(self, f"{name}_scale")
                merged[id(matrix)], merged[id(scale)] = self._to_int8(value)
            else:
                merged[id(matrix)] = ops.cast(value, matrix.dtype)
        for i, variable in enumerate(self._without_adapters()):
            store[str(i)] = merged.get(id(variable), variable)

    def load_own_variables(self, store: Any) -> None:
        self._check_matrices()
        if self.lora_rank is None:
            super().load_own_variables(store)
            return
        for i, variable in enumerate(self._without_adapters()):
            variable.assign(store[str(i)])
        for name in self._matrix_names:
            _, up = self._adapter(name)
            up.assign(ops.zeros(up.shape, up.dtype))

    def _without_adapters(self) -> list[Any]:
        """Returns the variables that are saved, in Keras's order."""
        adapters = {id(each) for name in self._matrix_names for each in self._adapter(name)}
        variables = [*self._trainable_variables, *self._non_trainable_variables]
        return [each for each in variables if id(each) not in adapters]
