"""The decoder (paper, section 3.1, right half of figure 1)."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.attention import CrossAttention, KeyValue, LayerOutput
from keras_transformer.layers.residual import ResidualLayer, ResidualStack


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(ResidualLayer):
    """Causal self-attention, attention to the memory, then a feed-forward network.

    Each of the three has Add & Norm.

    Args:
        num_heads: number of attention heads, h.
        key_dim: size of a head's queries and keys, d_k.
        d_ff: width of the feed-forward network's inner layer.
        value_dim: size of a head's values, d_v; `key_dim` by default.
        norm_position: "post" for LayerNorm(x + Dropout(Sublayer(x))), as in the paper, or "pre"
            for x + Dropout(Sublayer(LayerNorm(x))).
        layer_norm_epsilon: ε of the layer norms.
        activation: activation of the feed-forward network.
        attention_bias: add biases to the attention projections.
        attention_window: r of restricted self-attention (section 4), None for no limit.
        attention_dropout: dropout of the attention weights.
        activation_dropout: dropout of the inner layer of the feed-forward network.
        residual_dropout: dropout of the output of each sublayer (section 5.4).

    Call arguments:
        inputs: `[B, T, d_model]`.
        memory: the encoder's output `[B, S, d_model]`.
        memory_mask: bool `[B, S]`, True for real source tokens.
        return_attention_scores: also return the attention weights.
        training: whether dropout is on.

    Returns:
        `[B, T, d_model]`; with `return_attention_scores` a tuple of it and a dict of the weights
        `self` `[B, H, T, T]` and `cross` `[B, H, T, S]`.

    Raises:
        ValueError: for another `norm_position`, or a size below 1.

    Example:
    >>> layer = DecoderLayer(num_heads=2, key_dim=4, d_ff=16)
    >>> tuple(layer(keras.ops.ones((1, 3, 8)), keras.ops.ones((1, 5, 8))).shape)
    (1, 3, 8)
    """

    def _add_sublayers(self) -> None:
        self._add_self_attention(causal=True)
        self._add_cross_attention()
        self._add_feed_forward()

    def _add_cross_attention(self) -> None:
        self._add_sublayer(
            CrossAttention(
                self.num_heads,
                self.key_dim,
                self.value_dim,
                dropout=self.attention_dropout,
                use_bias=self.attention_bias,
                name="cross_attention",
                dtype=self.dtype_policy,
            )
        )

    def build(self, inputs_shape: Any, memory_shape: Any = None) -> None:
        # Created first, so that a seed gives the same initial weights as in earlier versions.
        self.cross_attention.build(inputs_shape, memory_shape or inputs_shape)
        self._build_sublayers(inputs_shape)

    def forward(
        self,
        inputs: Any,
        memory: KeyValue,
        memory_mask: Any = None,
        cache: KeyValue | None = None,
        position: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> LayerOutput:
        """Decodes a whole target, or one position of it with a cache.

        Args:
            inputs: `[B, T, d_model]`. With a cache, alternatives (beams) at one position.
            memory: the memory's keys and values, from `cross_attention.project`.
            memory_mask: bool `[B, S]`, True for real source tokens.
            cache, position, attention_mask: see `SelfAttention.forward`.
            return_attention_scores: compute all weights, even where blocks would avoid it.
            training: whether dropout is on.

        Returns:
            The output, the extended cache (None without one), and a dict of the weights `self`
            `[B, H, T, T or L]` (None if self-attention ran in blocks) and `cross` `[B, H, T, S]`.
        """
        # --> [B, 1, S], the same for all queries
        mask = None if memory_mask is None else ops.expand_dims(memory_mask, 1)
        attended = self.self_attention.forward(
            self._pre_norm("self_attention", inputs),
            attention_mask,
            cache,
            position,
            return_attention_scores,
            training,
        )
        x = self._add_and_norm("self_attention", inputs, attended.output, training)
        crossed = self.cross_attention.forward(
            self._pre_norm("cross_attention", x), memory, mask, training
        )
        x = self._add_and_norm("cross_attention", x, crossed.output, training)
        x = self._feed_forward(x, training)
        return LayerOutput(x, attended.cache, {"self": attended.weights, "cross": crossed.weights})

    def call(
        self,
        inputs: Any,
        memory: Any,
        memory_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        result = self.forward(
            inputs,
            self.cross_attention.project(memory),
            memory_mask,
            return_attention_scores=return_attention_scores,
            training=training,
        )
        return (result.output, result.weights) if return_attention_scores else result.output

    def compute_output_shape(self, inputs_shape: Any, memory_shape: Any = None) -> Any:
        return tuple(inputs_shape)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(ResidualStack):
    """A stack of `DecoderLayer`s.

    Args:
        layers: the layers, first to last.

    Call arguments:
        inputs: `[B, T, d_model]`, embedded tokens.
        memory: the encoder's output `[B, S, d_model]`.
        memory_mask: bool `[B, S]`, True for real source tokens.
        return_attention_scores: also return the attention weights.
        training: whether dropout is on.

    Returns:
        `[B, T, d_model]`; with `return_attention_scores` a tuple of it and a list of the weights
        of each layer, dicts of `self` `[B, H, T, T]` and `cross` `[B, H, T, S]`.

    Example:
    >>> decoder = Decoder([DecoderLayer(num_heads=2, key_dim=4, d_ff=16) for _ in range(2)])
    >>> tuple(decoder(keras.ops.ones((1, 3, 8)), keras.ops.ones((1, 5, 8))).shape)
    (1, 3, 8)
    """

    def build(self, inputs_shape: Any, memory_shape: Any = None) -> None:
        self._build_stack(inputs_shape, memory_shape)

    def init_cache(self, batch_size: Any, length: Any) -> list[KeyValue]:
        """Returns empty caches for `batch_size` sentences with `length` places (steps × T)."""
        return [layer.self_attention.init_cache(batch_size, length) for layer in self.layers]

    def project_memory(self, memory: Any) -> list[KeyValue]:
        """Returns the keys and values of `memory` `[B, S, d_model]` for each layer."""
        return [layer.cross_attention.project(memory) for layer in self.layers]

    def forward(
        self,
        inputs: Any,
        memory: list[KeyValue],
        memory_mask: Any = None,
        cache: list[KeyValue] | None = None,
        position: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> LayerOutput:
        """Decodes a whole target, or one position of it with a cache.

        Args:
            inputs: `[B, T, d_model]`. With a cache, alternatives (beams) at one position.
            memory: from `project_memory`.
            memory_mask: bool `[B, S]`, True for real source tokens.
            cache: from `init_cache` or from the step before.
            position, attention_mask: see `SelfAttention.forward`.
            return_attention_scores: compute all weights, even where blocks would avoid it.
            training: whether dropout is on.

        Returns:
            The output, the extended caches (None without one), and a list of the weights of each
            layer, dicts of `self` and `cross` as in `DecoderLayer.forward`.
        """
        x, caches, weights = inputs, [], []
        for i, layer in enumerate(self.layers):
            result = layer.forward(
                x,
                memory[i],
                memory_mask,
                None if cache is None else cache[i],
                position,
                attention_mask,
                return_attention_scores,
                training,
            )
            x = result.output
            caches.append(result.cache)
            weights.append(result.weights)
        x = self._final_norm(x, training)
        return LayerOutput(x, None if cache is None else caches, weights)

    def call(
        self,
        inputs: Any,
        memory: Any,
        memory_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        result = self.forward(
            inputs,
            self.project_memory(memory),
            memory_mask,
            return_attention_scores=return_attention_scores,
            training=training,
        )
        return (result.output, result.weights) if return_attention_scores else result.output

    def compute_output_shape(self, inputs_shape: Any, memory_shape: Any = None) -> Any:
        return tuple(inputs_shape)
