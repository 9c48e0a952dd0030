"""Layers with matrices, whose products an export can replace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keras import ops

from keras_transformer.layers import fast_paths
from keras_transformer.layers.base import BaseLayer, Product, new_initializer


class ProjectingLayer(BaseLayer):
    """A layer with matrices, which `replace_products` of `BaseLayer` changes."""

    def __init__(self, **kwargs: Any):
        super().__init__(**kwargs)
        self._matrix_names: tuple[str, ...] = ()
        self._products: dict[str, Product] = {}  # replace matrices, by name

    def _add_matrix(
        self,
        name: str,
        shape: tuple[int, int],
        initializer: Any,
        regularizer: Any = None,
        **options: Any,
    ) -> None:
        """Adds the weight `name`."""
        self._matrix_names += (name,)
        weight = self.add_weight(
            shape=shape, initializer=initializer, regularizer=regularizer, name=name, **options
        )
        setattr(self, name, weight)

    def _multiply(self, inputs: Any, name: str) -> Any:
        """Returns `inputs` `[..., d_in]` times a matrix `[d_in, d_out]`, in the inputs' dtype."""
        if name in self._products:
            return fast_paths.multiply_rows(self._products[name], inputs)
        matrix = ops.cast(getattr(self, name), inputs.dtype)
        return fast_paths.multiply_rows(lambda rows: ops.matmul(rows, matrix), inputs)

    def replace_products(self, make_product: Callable[[Any], Product]) -> None:
        self._check_matrices()
        for name in self._matrix_names:
            matrix = getattr(self, name)
            self._products[name] = make_product(ops.convert_to_numpy(ops.cast(matrix, "float32")))
            # `delattr` would do both, but Keras collects garbage after each.
            self._untrack_variable(matrix)
            setattr(self, name, None)

    def _check_matrices(self) -> None:
        """Raises `ValueError` if `replace_products` has dropped the matrices."""
        if self._products:
            raise ValueError(
                f"{self.name} has no matrices, because its products were replaced for an export. "
                "Load the model again."
            )

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
