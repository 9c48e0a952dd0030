"""Text in, n-best translations out: tokenizer, model and search in one graph."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from keras_transformer.config import DecodingConfig
from keras_transformer.decoding.beam import SearchResult, beam_search
from keras_transformer.layers.attention import KeyValue
from keras_transformer.model import Transformer
from keras_transformer.text.tokenizer import Tokenizer

_TEXT = [tf.TensorSpec([None], tf.string, name="text")]


# A cache grows by so many positions at a time: each step reads, reorders and writes all of it,
# and most translations end long before the longest that is allowed.
_CACHE_BLOCK = 16


def _with_room(cache: list[KeyValue], position: tf.Tensor) -> list[KeyValue]:
    """Returns the cache, longer by a block where `position` lies behind its end."""

    def longer() -> list[KeyValue]:
        padding = [[0, 0], [0, 0], [0, _CACHE_BLOCK], [0, 0]]
        return tf.nest.map_structure(lambda part: tf.pad(part, padding), cache)

    length = tf.shape(cache[0]["key"])[2]
    return tf.cond(position < length, lambda: cache, longer)


class Translator(tf.Module):
    """A Transformer that translates text, as functions that a SavedModel carries whole.

    No text fails: what is too long is cut, and what is empty gives an empty
    translation with the score 0. Each sentence of a batch gets what it gets
    alone, since its length limits are made of its own length.

    Args:
        transformer: a built model.
        tokenizer: of the vocabulary that the model was trained with.
        config: how to search.
    """

    def __init__(self, transformer: Transformer, tokenizer: Tokenizer, config: DecodingConfig):
        super().__init__(name="translator")
        self.transformer = transformer
        self.tokenizer = tokenizer
        self.config = config
        # A learned position beyond the last one does not exist.
        model = transformer.config
        self._max_positions = model.max_positions if model.positions == "learned" else None

    @tf.function(input_signature=_TEXT, autograph=False, jit_compile=False)
    def translate(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Translates `text`, UTF-8 strings `[B]`.

        Returns:
            `translations`, string `[B, K]`, best first, and their `scores`,
            float32 `[B, K]`; K is `config.n_best`. A place that no hypothesis
            fills has an empty text and the score -1e9.
        """
        result = self.search(text)
        batch, count, length = tf.unstack(tf.shape(result.ids))
        # --> [batch * count, length]
        ids = tf.reshape(result.ids, [batch * count, length])
        texts = self.tokenizer.detokenize(ids, tf.reshape(result.lengths, [batch * count]))
        translations = tf.reshape(texts, [batch, self.config.n_best])
        return {"translations": translations, "scores": result.scores}

    @tf.function(input_signature=_TEXT, autograph=False, jit_compile=False)
    def search(self, text: tf.Tensor) -> SearchResult:
        """Returns the target ids of the translations of `text`, string `[B]`."""
        source_ids, lengths = self._source(text)
        # Nothing but the end token: nothing to translate, and no step is spent on it.
        max_lengths = tf.where(lengths > 1, lengths + self.config.max_extra_tokens, 0)
        if self._max_positions is not None:
            max_lengths = tf.minimum(max_lengths, self._max_positions)
        memory = self.transformer.project_memory(
            self.transformer.encode(source_ids, training=False)
        )

        def step(
            ids: tf.Tensor, position: tf.Tensor, cache: Any
        ) -> tuple[tf.Tensor, Any, tf.Tensor]:
            decoded = self.transformer.decode(
                tf.expand_dims(ids, 1),
                memory,
                _with_room(cache, position),
                position,
                training=False,
            )
            # --> [batch * beam, vocab]
            return tf.squeeze(decoded.logits, 1), decoded.cache, decoded.attention[-1]["cross"]

        rows = tf.shape(text)[0] * self.config.beam_size
        return beam_search(
            step,
            # Through a placeholder, or the first length would be taken for the only one.
            self.transformer.init_cache(
                rows, tf.compat.v1.placeholder_with_default(_CACHE_BLOCK, [])
            ),
            max_lengths,
            self.config,
            start_id=self.tokenizer.start_id,
            end_id=self.tokenizer.end_id,
            pad_id=self.tokenizer.pad_id,
        )

    @tf.function(input_signature=_TEXT, autograph=False, jit_compile=False)
    def lengths(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Counts source tokens, the end token included, of `text`, string `[B]`.

        Returns:
            `tokens`, int32 `[B]`, of the whole text, and `used`, int32 `[B]`,
            those that are translated: fewer where the text is cut.
        """
        tokens = tf.cast(self.tokenizer.tokenize_source(text).row_lengths(), tf.int32)
        return {"tokens": tokens, "used": tf.minimum(tokens, self._max_source_tokens)}

    @property
    def _max_source_tokens(self) -> int:
        return min(self.config.max_source_tokens, self._max_positions or 2**31 - 1)

    def _source(self, text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns ids int32 `[B, S]`, padded, and lengths int32 `[B]`, of the cut source."""
        limit = self._max_source_tokens
        tokens = self.tokenizer.tokenize_source(text)
        lengths = tf.cast(tokens.row_lengths(), tf.int32)
        ids = tokens[:, :limit].to_tensor(self.tokenizer.pad_id)
        # A cut source ends with the end token too: the model has seen no other.
        is_last = tf.range(tf.shape(ids)[1]) == limit - 1
        ids = tf.where(is_last & tf.expand_dims(lengths > limit, 1), self.tokenizer.end_id, ids)
        return ids, tf.minimum(lengths, limit)
