"""Token embeddings, which are also the pre-softmax product (paper, section 3.4)."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.linear import linear, shape_for_reshape


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenEmbedding(keras.layers.Layer):
    """Looks tokens up in a matrix E `[V, d_model]`, and multiplies by its transpose for logits.

    Args:
        vocab_size: number of tokens, V.
        d_model: width.
        scale: multiply what is looked up by √d_model (section 3.4).

    Call arguments:
        ids: int `[...]`, or whole numbers as floats, as of a `keras.Input` without a dtype.

    Returns:
        `[..., d_model]` in float32: positions are added before it is rounded.
    """

    def __init__(self, vocab_size: int, d_model: int, scale: bool = True, **kwargs: Any):
        super().__init__(**kwargs)
        self.autocast = False  # ids that come as floats are still whole numbers
        self.vocab_size = vocab_size
        self.d_model = d_model
        self.scale = scale

    def build(self, input_shape: Any) -> None:
        self.embeddings = self.add_weight(
            shape=(self.vocab_size, self.d_model),
            # Scaled by √d_model when looked up, these have variance 1; as a kernel, they
            # give logits of about that size.
            initializer=keras.initializers.RandomNormal(stddev=self.d_model**-0.5),
            name="embeddings",
            autocast=False,  # or a whole table would be cast for a few looked-up rows
        )

    def call(self, ids: Any) -> Any:
        if not keras.backend.is_int_dtype(ids.dtype):
            ids = ops.cast(ids, "int32")
        # As one list of rows: of such alone LiteRT looks up int8 with a scale for each row.
        rows = ops.take(self.embeddings, ops.reshape(ids, (-1,)), axis=0)
        rows = ops.cast(rows, "float32")
        rows = rows * self.d_model**0.5 if self.scale else rows
        return ops.reshape(rows, (*shape_for_reshape(ids), self.d_model))

    def logits(self, inputs: Any, parts: int = 1) -> Any:
        """Returns `inputs Eᵀ`: `[..., d_model]` to `[..., V]`, in the dtype of `inputs`.

        Args:
            inputs: float `[..., d_model]`.
            parts: products that the one is made of, each of a part of the vocabulary. A few
                rows take no longer than reading E does, and several cores read faster.
        """
        kernel = ops.cast(self.embeddings, inputs.dtype)
        if parts == 1:
            return linear(inputs, ops.transpose(kernel))
        cuts = [part * self.vocab_size // parts for part in range(1, parts)]
        kernels = ops.split(kernel, cuts, axis=0)  # rows of E: nothing is copied
        return ops.concatenate([linear(inputs, ops.transpose(each)) for each in kernels], axis=-1)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (*input_shape, self.d_model)

    def compute_output_spec(self, ids: Any) -> Any:
        return keras.KerasTensor(self.compute_output_shape(ids.shape), dtype="float32")

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "vocab_size": self.vocab_size,
            "d_model": self.d_model,
            "scale": self.scale,
        }
