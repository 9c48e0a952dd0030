"""Token embeddings, which are also the pre-softmax linear transformation (paper, section 3.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.layers import fast_paths
from keras_transformer.layers.base import Product, integer_ids, shows_arguments
from keras_transformer.layers.dropout import Dropout
from keras_transformer.layers.positions import LearnedPositions, SinusoidalPositions
from keras_transformer.layers.projections import ProjectingLayer


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenEmbedding(ProjectingLayer):
    """Looks up tokens in a matrix E `[V, d_model]` and multiplies with its transpose for logits.

    Args:
        vocab_size: number of tokens, V.
        d_model: width.
        scale: multiply embeddings by √d_model (section 3.4).
        mask_zero: attach a mask to the output, in which the id 0 is padding.
        embeddings_initializer: the default has a standard deviation of 1/√d_model.
        embeddings_regularizer: a loss that depends on E.

    Call arguments:
        ids: any integer dtype `[...]`, or integers in a float dtype, which a `keras.Input` without
            a dtype has.

    Returns:
        Embeddings `[..., d_model]` in float32: the positions are added before rounding.

    Example:
    >>> embedding = TokenEmbedding(vocab_size=10, d_model=4)
    >>> vectors = embedding(keras.ops.array([[1, 2, 3]]))
    >>> tuple(vectors.shape), tuple(embedding.logits(vectors).shape)
    ((1, 3, 4), (1, 3, 10))
    """

    embeddings: Any

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        scale: bool = True,
        mask_zero: bool = False,
        embeddings_initializer: Any = None,
        embeddings_regularizer: Any = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.autocast = False  # float ids must not be rounded to bfloat16
        self.vocab_size = vocab_size
        self.d_model = d_model
        self.scale = scale
        self.mask_zero = mask_zero
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self._scale: Any = None  # float32 [V], which int8 rows are divided by

    def build(self, input_shape: Any) -> None:
        self._add_matrix(
            "embeddings",
            (self.vocab_size, self.d_model),
            # Embeddings scaled by √d_model have variance 1, and so do about the logits.
            self.embeddings_initializer
            or keras.initializers.RandomNormal(stddev=self.d_model**-0.5),
            self.embeddings_regularizer,
            autocast=False,  # casting the whole table for a few rows would be slow
        )

    def call(self, ids: Any) -> Any:
        ids = integer_ids(ids)
        # LiteRT looks up int8 rows with a scale each only if the ids have one dimension.
        rows = self.rows(ops.reshape(ids, (-1,)))
        rows = rows * self.d_model**0.5 if self.scale else rows
        return ops.reshape(rows, (*fast_paths.shape_for_reshape(ids), self.d_model))

    def rows(self, ids: Any) -> Any:
        """Returns the rows of E of some ids `[N]`, float32 `[N, d_model]`."""
        rows = ops.cast(ops.take(self.embeddings, ids, axis=0), "float32")
        if self._scale is not None:
            rows = rows / ops.take(self._scale, ids)[:, None]
        return rows

    def logits(self, inputs: Any) -> Any:
        """Returns `inputs Eᵀ`: `[..., d_model]` to `[..., V]`, in the dtype of `inputs`."""
        if self._products:
            return fast_paths.multiply_rows(self._products["embeddings"], inputs)
        kernel = ops.transpose(ops.cast(self.embeddings, inputs.dtype))
        return fast_paths.multiply_rows(lambda rows: ops.matmul(rows, kernel), inputs)

    def replace_products(self, make_product: Callable[[Any], Product]) -> None:
        """Replaces the product for logits. The table of the lookup becomes int8."""
        self._check_matrices()
        table, shape = ops.cast(self.embeddings, "float32"), self.embeddings.shape
        self._products["embeddings"] = make_product(ops.convert_to_numpy(ops.transpose(table)))
        values, scale = keras.quantizers.AbsMaxQuantizer()(table, axis=1)
        # No public method changes the weights of a built layer. Keras's own `quantize` does this.
        self._tracker.unlock()
        self._untrack_variable(self.embeddings)
        arguments = {"initializer": "zeros", "trainable": False, "autocast": False}
        self.embeddings = self.add_weight(shape, dtype="int8", name="embeddings", **arguments)
        self._scale = self.add_weight(
            shape[:1], dtype="float32", name="embeddings_scale", **arguments
        )
        self._tracker.lock()
        self.embeddings.assign(values)
        self._scale.assign(ops.squeeze(scale, 1))

    def compute_mask(self, ids: Any, previous_mask: Any = None) -> Any:
        return ops.not_equal(ids, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape: Any) -> Any:
        return (*input_shape, self.d_model)


@keras.saving.register_keras_serializable(package="keras_transformer")
class TokenAndPositionEmbedding(TokenEmbedding):
    """Adds the positions to the embeddings of tokens, and applies dropout (paper, figure 1).

    The Keras mask of the tokens stays with the output, also in subclassed models and behind
    `keras.layers.Concatenate`.

    Args:
        vocab_size, d_model and others: see `TokenEmbedding`.
        max_positions: number of learned positions. By default positions are sinusoids.
        dropout: dropout of the sum (section 5.4).

    Call arguments:
        ids: any integer dtype `[..., T]`.
        training: whether dropout is on.

    Returns:
        `[..., T, d_model]` in the compute dtype.

    Example:
    >>> embedding = TokenAndPositionEmbedding(vocab_size=10, d_model=4, mask_zero=True)
    >>> tuple(embedding(keras.ops.array([[1, 2, 0]])).shape)
    (1, 3, 4)
    """

    @shows_arguments(TokenEmbedding.__init__)
    def __init__(
        self, *args: Any, max_positions: int | None = None, dropout: float = 0.0, **kwargs: Any
    ):
        super().__init__(*args, **kwargs)
        self.max_positions = max_positions
        self.dropout = dropout
        options: dict[str, Any] = {"name": "positions", "dtype": self.dtype_policy}
        self.positions: Any = (
            SinusoidalPositions(self.d_model, **options)
            if max_positions is None
            else LearnedPositions(max_positions, self.d_model, **options)
        )
        self.embedding_dropout = Dropout(dropout, name="dropout", dtype=self.dtype_policy)

    def build(self, input_shape: Any) -> None:
        super().build(input_shape)
        self.positions.build((None,))
        self.embedding_dropout.build(input_shape)

    def call(self, ids: Any, training: bool | None = None) -> Any:
        embedded = super().call(ids) + self.positions(ops.arange(ops.shape(ids)[-1]))
        # The sum is computed in float32 and rounded once.
        embedded = ops.cast(embedded, self.compute_dtype)
        return self.embedding_dropout(embedded, training=training)
