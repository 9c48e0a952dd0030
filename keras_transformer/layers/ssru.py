"""A recurrent unit that may replace the self-attention of a decoder."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.attention import combine_masks
from keras_transformer.layers.base import call_with_implicit_masks, shows_arguments
from keras_transformer.layers.projections import LinearLayer
from keras_transformer.layers.state import DecodeState


@keras.saving.register_keras_serializable(package="keras_transformer")
class SSRU(LinearLayer):
    """The simpler simple recurrent unit (Kim et al., 2019, after Lei et al., 2018).

    For inputs x, forget gates f, cells c and outputs y, it computes

        f_t = σ(W_f x_t + b_f)
        c_t = f_t ∘ c_(t-1) + (1 - f_t) ∘ W x_t
        y_t = max(0, c_t)

    A decode step needs only the last cell, so its cost does not depend on the position. A whole
    sequence takes log₂ T rounds, not T. Gates and cells are float32.

    Args:
        kernel_initializer: initializer of W and W_f, which are one kernel.
        bias_initializer: initializer of b_f.
        kernel_regularizer: a loss that depends on the kernel.
        bias_regularizer: a loss that depends on the bias.

    Call arguments:
        inputs: `[B, T, d_model]`.
        mask: bool `[B, T]`, True for real positions; the Keras mask of the inputs by default.

    Returns:
        `[B, T, d_model]`.

    Example:
    >>> layer = SSRU()
    >>> tuple(layer(keras.ops.ones((1, 3, 8))).shape)
    (1, 3, 8)
    """

    __call__ = call_with_implicit_masks

    @shows_arguments(LinearLayer.__init__)
    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.layer_index: int | None = None  # index in a `DecodeState`; a stack sets it

    def build(self, input_shape: Any) -> None:
        width = input_shape[-1]
        self._add_projection("input", width, width, width, use_bias=False)
        self.forget_bias = self.add_weight(
            shape=(width,),
            initializer=self.bias_initializer,
            regularizer=self.bias_regularizer,
            autocast=False,
            name="forget_bias",
        )

    def init_cache(self, batch_size: Any, length: Any, queries: int = 1) -> dict[str, Any]:
        """Returns the cells before the first position, one for each query."""
        return {"cell": ops.zeros((batch_size, queries, self.forget_bias.shape[0]), "float32")}

    def attend(
        self,
        inputs: Any,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
        state: DecodeState | None = None,
    ) -> tuple[Any, None]:
        """Returns the output; its arguments are those of `SelfAttention.attend`.

        With a state, the inputs are alternatives (beams) at one position, and the cells of the
        state are replaced.
        """
        projected = ops.cast(self._project("input", inputs, use_bias=False), "float32")
        candidate, forget = ops.split(projected, 2, axis=-1)
        forget = ops.sigmoid(forget + self.forget_bias)
        kept = (1.0 - forget) * candidate
        if attention_mask is not None:  # [B, 1, T]: a masked position changes no cell
            is_real = ops.swapaxes(attention_mask, 1, 2)
            forget, kept = ops.where(is_real, forget, 1.0), ops.where(is_real, kept, 0.0)
        if state is None:
            cell = linear_recurrence(forget, kept)
        else:
            index = state.index(self)
            cell = forget * state.layers[index]["cell"] + kept
            state.layers[index] = {"cell": cell}
        return ops.cast(ops.relu(cell), inputs.dtype), None

    def call(self, inputs: Any, *, mask: Any = None) -> Any:
        return self.attend(inputs, combine_masks(None, mask))[0]


def linear_recurrence(decay: Any, values: Any) -> Any:
    """Returns c_t = decay_t ∘ c_(t-1) + values_t for `[B, T, d]`, where c before the first is 0.

    Each round doubles the number of earlier positions that a position knows about (Hillis and
    Steele, 1986).
    """
    length = ops.shape(values)[1]
    positions = ops.expand_dims(ops.arange(length), -1)

    def double(known: Any, decay: Any, values: Any) -> tuple[Any, Any, Any]:
        def earlier(x: Any) -> Any:
            return ops.where(positions >= known, ops.roll(x, known, axis=1), 0.0)

        return known * 2, decay * earlier(decay), values + decay * earlier(values)

    if isinstance(length, int):
        known = 1
        while known < length:
            known, decay, values = double(known, decay, values)
        return values
    # XLA computes gradients only of loops that end. 2^20 positions do not fit into memory.
    _, _, values = ops.while_loop(
        lambda known, *_: known < length, double, (1, decay, values), maximum_iterations=20
    )
    return values
