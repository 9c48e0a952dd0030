"""The decoder (paper, section 3.1, right half of figure 1)."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from keras_transformer.layers.attention import KeyValue
from keras_transformer.layers.residual import ResidualLayer, ResidualStack


@keras.saving.register_keras_serializable(package="keras_transformer")
class DecoderLayer(ResidualLayer):
    """Causal self-attention, attention to the memory, then a feed-forward network.

    Args: those of `ResidualLayer`.

    Call arguments:
        inputs: `[B, T, d_model]`.
        memory: the encoder's output `[B, S, d_model]`; not needed with
            `memory_cache`.
        memory_mask: bool `[B, S]`, True for real source tokens.
        memory_cache: `project_memory(memory)`, where it is used many times.
        cache: keys and values of the tokens so far, from `init_cache`.
        position: int scalar, of all inputs, alternatives of each other; only with a cache,
            which grows without it.
        attention_mask: bool `[B, T, L]`, which places of the cache each input may see, as
            `SelfAttention`'s; only with a cache.
        return_attention_scores: also return the attention weights.
        training: whether dropout is on.

    Returns:
        `[B, T, d_model]`; with a cache a tuple of it and the new cache; with
        `return_attention_scores` a dict of the weights `self` `[B, H, T, T or L]`
        and `cross` `[B, H, T, S]` comes last.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.self_attention = self._make_self_attention(causal=True)
        self.self_attention_dropout = self._make_dropout("self_attention_dropout")
        self.self_attention_norm = self._make_norm("self_attention_norm")
        self.cross_attention = self._make_cross_attention()
        self.cross_attention_dropout = self._make_dropout("cross_attention_dropout")
        self.cross_attention_norm = self._make_norm("cross_attention_norm")
        self.feed_forward = self._make_feed_forward()
        self.feed_forward_dropout = self._make_dropout("feed_forward_dropout")
        self.feed_forward_norm = self._make_norm("feed_forward_norm")

    def build(self, inputs_shape: Any, memory_shape: Any = None) -> None:
        self.cross_attention.build(inputs_shape, memory_shape or inputs_shape)
        for layer in (
            self.self_attention,
            self.self_attention_dropout,
            self.self_attention_norm,
            self.cross_attention_dropout,
            self.cross_attention_norm,
            self.feed_forward,
            self.feed_forward_dropout,
            self.feed_forward_norm,
        ):
            layer.build(inputs_shape)

    def call(
        self,
        inputs: Any,
        memory: Any = None,
        memory_mask: Any = None,
        memory_cache: KeyValue | None = None,
        cache: KeyValue | None = None,
        position: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        mask = None if memory_mask is None else ops.expand_dims(memory_mask, 1)
        new_cache, weights = None, {}

        def attend_to_self(x: Any) -> Any:
            nonlocal new_cache
            output = self.self_attention(
                x,
                attention_mask=attention_mask,
                cache=cache,
                position=position,
                return_attention_scores=return_attention_scores,
                training=training,
            )
            output, *more = output if isinstance(output, tuple) else (output,)
            if return_attention_scores:
                weights["self"] = more.pop()
            if cache is not None:
                new_cache = more.pop()
            return output

        def attend_to_memory(x: Any) -> Any:
            output, weights["cross"] = self.cross_attention(
                x,
                memory,
                attention_mask=mask,
                cache=memory_cache,
                return_attention_scores=True,
                training=training,
            )
            return output

        x = self._residual(
            inputs, attend_to_self, self.self_attention_norm, self.self_attention_dropout, training
        )
        x = self._residual(
            x, attend_to_memory, self.cross_attention_norm, self.cross_attention_dropout, training
        )
        x = self._residual(
            x,
            lambda x: self.feed_forward(x, training=training),
            self.feed_forward_norm,
            self.feed_forward_dropout,
            training,
        )
        outputs = [x]
        if cache is not None:
            outputs.append(new_cache)
        if return_attention_scores:
            outputs.append(weights)
        return tuple(outputs) if len(outputs) > 1 else x

    def compute_output_shape(self, inputs_shape: Any, memory_shape: Any = None) -> Any:
        return tuple(inputs_shape)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        return keras.Operation.compute_output_spec(self, *args, **kwargs)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Decoder(ResidualStack):
    """A stack of `DecoderLayer`s.

    Args:
        layers: the layers, first to last.

    Call arguments: as `DecoderLayer`'s; `memory_cache` and `cache` are lists,
        one entry a layer, from `project_memory` and `init_cache`.

    Returns:
        As `DecoderLayer`, with a list of caches and a list of weights.
    """

    def build(self, inputs_shape: Any, memory_shape: Any = None) -> None:
        for layer in self.layers:
            layer.build(inputs_shape, memory_shape)
        if self.norm is not None:
            self.norm.build(inputs_shape)

    def init_cache(self, batch_size: Any, length: Any) -> list[KeyValue]:
        """Returns empty caches for `batch_size` sentences, of `length` places (steps × T)."""
        return [layer.self_attention.init_cache(batch_size, length) for layer in self.layers]

    def project_memory(self, memory: Any) -> list[KeyValue]:
        """Returns every layer's keys and values of `memory` `[B, S, d_model]`."""
        return [layer.cross_attention.project(memory) for layer in self.layers]

    def call(
        self,
        inputs: Any,
        memory: Any = None,
        memory_mask: Any = None,
        memory_cache: list[KeyValue] | None = None,
        cache: list[KeyValue] | None = None,
        position: Any = None,
        attention_mask: Any = None,
        return_attention_scores: bool = False,
        training: bool | None = None,
    ) -> Any:
        x, new_cache, all_weights = inputs, [], []
        for i, layer in enumerate(self.layers):
            outputs = layer(
                x,
                memory,
                memory_mask=memory_mask,
                memory_cache=None if memory_cache is None else memory_cache[i],
                cache=None if cache is None else cache[i],
                position=position,
                attention_mask=attention_mask,
                return_attention_scores=return_attention_scores,
                training=training,
            )
            x, *more = outputs if isinstance(outputs, tuple) else (outputs,)
            if return_attention_scores:
                all_weights.append(more.pop())
            if cache is not None:
                new_cache.append(more.pop())
        if self.norm is not None:
            x = self.norm(x, training=training)
        outputs = [x]
        if cache is not None:
            outputs.append(new_cache)
        if return_attention_scores:
            outputs.append(all_weights)
        return tuple(outputs) if len(outputs) > 1 else x

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        return keras.Operation.compute_output_spec(self, *args, **kwargs)
