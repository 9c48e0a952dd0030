"""Text in, n-best translations out: tokenizer, model and search in one graph."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from keras_transformer import decoding
from keras_transformer.config import DecodingConfig
from keras_transformer.decoding import (
    RequestedOutputs,
    SearchConfig,
    SearchInputs,
    SearchResult,
    SpecialIds,
    TokenConstraint,
)
from keras_transformer.decoding.cached_decoder import CachedDecoder
from keras_transformer.errors import InputError
from keras_transformer.models.encoder_decoder import EncoderDecoder, Memory
from keras_transformer.text.tokenizer import Tokenizer, cut

_TEXT = [tf.TensorSpec([None], tf.string, name="text")]
_PREFIX = [*_TEXT, tf.TensorSpec([None], tf.string, name="prefix")]


class Translator(tf.Module):
    """A model that translates text, as functions that a SavedModel carries whole.

    No text fails: what is too long is cut, and what is empty gives an empty
    translation with the score 0. Each sentence of a batch gets what it gets
    alone, since its length limits are made of its own length.

    Whoever calls its functions has to hold the translator, too: a `tf.function` does not.

    Args:
        transformers: built models of one vocabulary; of several, an ensemble, the
            log-probabilities of each next token are averaged.
        tokenizer: of the vocabulary that the models were trained with.
        config: how to search.

    Raises:
        InputError: for no models, or those of other vocabularies.
    """

    def __init__(
        self,
        transformers: EncoderDecoder | Sequence[EncoderDecoder],
        tokenizer: Tokenizer,
        config: DecodingConfig,
    ):
        super().__init__(name="translator")
        if isinstance(transformers, EncoderDecoder):
            transformers = [transformers]
        self.transformers = list(transformers)
        self.tokenizer = tokenizer
        self.config = config
        _check_vocabularies(self.transformers, tokenizer)
        # A learned position beyond the last one does not exist.
        positions = [transformer.max_positions for transformer in self.transformers]
        self._max_positions = min((p for p in positions if p is not None), default=None)
        phrases = [phrase for phrase in config.banned.split("|") if phrase.strip()]
        self._search_config = SearchConfig(
            config,
            banned=tuple(tokenizer.phrase_ids(phrase) for phrase in phrases),
            max_steps=self.max_output_tokens,
        )

    @tf.function(input_signature=_TEXT, autograph=False, jit_compile=False)
    def translate(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Translates `text`, UTF-8 strings `[B]`.

        Returns:
            `translations`, string `[B, K]`, best first, and their `scores`,
            float32 `[B, K]`; K is `config.n_best`. A place that no hypothesis
            fills has an empty text and the score -1e9.
        """
        result = self.search(text)
        return {"translations": self.texts(result), "scores": result.scores}

    @tf.function(input_signature=_TEXT, autograph=False, jit_compile=False)
    def search(self, text: tf.Tensor) -> SearchResult:
        """Returns the target ids of the translations of `text`, string `[B]`."""
        source_ids, lengths = self.source_ids(text)
        return self.search_fn(source_ids, self.max_lengths(lengths), sample_offsets(text))

    @tf.function(autograph=False, jit_compile=False)
    def search_fn(
        self, source_ids: tf.Tensor, max_lengths: tf.Tensor, offsets: tf.Tensor
    ) -> SearchResult:
        """Calls `search_ids`, as one function that the signatures of an export share."""
        return self.search_ids(source_ids, SearchInputs(max_lengths, sample_offsets=offsets))

    @tf.function(input_signature=_PREFIX, autograph=False, jit_compile=False)
    def translate_verbose(self, text: tf.Tensor, prefix: tf.Tensor) -> dict[str, tf.Tensor]:
        """Translates as `translate`, and returns all that is known of each translation.

        Args:
            text: UTF-8 strings `[B]`.
            prefix: UTF-8 strings `[B]`, the text that each translation begins with; may be empty.

        Returns:
            `translations` and `scores` as `translate`; `log_probs` float32 `[B, K]`, before
            the penalties; `finished` bool `[B, K]`; `lengths` int32 `[B, K]`, the end token
            counted; `ids` int32, `tokens` string (the pieces) and `token_log_probs` float32,
            all `[B, K, L]`; `attention` float32 `[B, K, L, S]`, that of the last layer, the
            mean over its heads, on `source_tokens` string `[B, S]`; `alignments` int32
            `[B, K, L]`, the source token that got most of it.
        """
        prefix_ids = self.tokenizer.tokenize_target(prefix)[:, :-1].to_tensor(-1)
        source_ids, lengths = self.source_ids(text)
        result = self.search_ids(
            source_ids,
            SearchInputs(
                self.max_lengths(lengths), prefix_ids, sample_offsets=sample_offsets(text)
            ),
            RequestedOutputs(token_log_probs=True, alignment=True, attention=True),
        )
        return {
            "translations": self.texts(result),
            "scores": result.scores,
            "log_probs": result.log_probs,
            "finished": result.finished,
            "lengths": result.lengths,
            "ids": result.ids,
            "tokens": self.tokenizer.target_pieces(result.ids),
            "token_log_probs": result.token_log_probs,
            "attention": result.attention,
            "alignments": result.alignment,
            "source_tokens": self.tokenizer.source_pieces(source_ids),
        }

    @tf.function(autograph=False)
    def encode(self, source_ids: tf.Tensor) -> list[Memory]:
        """Returns what each model makes of int32 `[B, S]`, projected for its decoder.

        A function that is in an export once, where all that translate, score and embed share it.
        """
        return [
            each.project_memory(each.encode(source_ids, training=False))
            for each in self.transformers
        ]

    @tf.function(autograph=False)
    def read_targets(
        self, read_ids: tf.Tensor, memories: Sequence[Memory], attention: bool
    ) -> list[tuple[tf.Tensor, list[dict[str, tf.Tensor]] | None]]:
        """Returns the features of given targets, and the attention, for each model.

        An export contains this function once: its scores and its attention share it.

        Args:
            read_ids: int32 `[B, T]`, which begin with the start id.
            memories: the encoded sources, as `encode` returns them.
            attention: whether the weights of every layer are returned.

        Returns:
            For each model: the features `[B, T, d_model]`, and the attention, or None if it is
            not requested.
        """
        results = []
        for transformer, memory in zip(self.transformers, memories, strict=True):
            decoded = transformer.decode(
                read_ids, memory, return_attention_scores=attention, training=False
            )
            results.append((decoded.features, decoded.attention if attention else None))
        return results

    def texts(self, result: SearchResult) -> tf.Tensor:
        """Returns the texts, string `[B, K]`, of what was found."""
        batch, count, length = tf.unstack(tf.shape(result.ids))
        # --> [batch * count, length]
        ids = tf.reshape(result.ids, [batch * count, length])
        texts = self.tokenizer.detokenize(ids, tf.reshape(result.lengths, [batch * count]))
        return tf.reshape(texts, [batch, self.config.n_best])

    def search_ids(
        self,
        source_ids: tf.Tensor,
        inputs: SearchInputs,
        outputs: RequestedOutputs = RequestedOutputs(),  # noqa: B008  immutable
        *,
        constraint: TokenConstraint | None = None,
        memories: Sequence[Memory] | None = None,
    ) -> SearchResult:
        """Searches for the translations of ids, in a graph or eagerly.

        Args:
            source_ids: int32 `[B, S]`, each row ending with the end token, padded.
            inputs: tensors of the sentences; the source mask is filled in. `max_lengths` may be
                at most `max_output_tokens`. With a `length_limit`, no shape changes from step
                to step.
            outputs: optional fields of the result.
            constraint: a rule that all translations obey.
            memories: what `encode` returns for the ids, if it is known already.
        """
        memories = self.encode(source_ids) if memories is None else memories
        config = dataclasses.replace(
            self._search_config,
            constraint=constraint,
            batch_compaction=inputs.length_limit is None,
        )
        decoder = CachedDecoder(
            self.transformers, memories, config.rows_per_sentence, inputs.length_limit
        )
        inputs = inputs._replace(source_mask=decoder.source_mask)
        ids = self.tokenizer
        special_ids = SpecialIds(ids.start_id, ids.end_id, ids.pad_id)
        return decoding.search(decoder, inputs, config, special_ids, outputs)

    @property
    def transformer(self) -> EncoderDecoder:
        """The only model, or the first."""
        return self.transformers[0]

    @property
    def max_source_tokens(self) -> int:
        """The most tokens of a source, the end token included; what is beyond is cut."""
        return min(self.config.max_source_tokens, self._max_positions or 2**31 - 1)

    @property
    def max_output_tokens(self) -> int:
        """The most tokens of any translation, the end token included."""
        longest = max(self.max_source_tokens + self.config.max_extra_tokens, self.config.min_length)
        return min(longest, *self._output_limits)

    @property
    def _output_limits(self) -> list[int]:
        limits = (self.config.max_length, self._max_positions)
        return [2**31 - 1, *(limit for limit in limits if limit is not None)]

    def max_lengths(self, lengths: tf.Tensor) -> tf.Tensor:
        """Returns int32 `[B]`: the most tokens of a translation, by those of the source."""
        longest = tf.maximum(lengths + self.config.max_extra_tokens, self.config.min_length)
        longest = tf.minimum(longest, min(self._output_limits))
        # Nothing but the end token: nothing to translate, and no step is spent on it.
        return tf.where(lengths > 1, longest, 0)

    @tf.function(input_signature=_TEXT, autograph=False, jit_compile=False)
    def lengths(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Counts source tokens, the end token included, of `text`, string `[B]`.

        Returns:
            `tokens`, int32 `[B]`, of the whole text, and `used`, int32 `[B]`,
            those that are translated: fewer where the text is cut.
        """
        whole = tf.cast(self.tokenizer.tokenize_source(text).row_lengths(), tf.int32)
        text, _ = cut(text, self.config.max_source_bytes)
        used = tf.cast(self.tokenizer.tokenize_source(text).row_lengths(), tf.int32)
        return {"tokens": whole, "used": tf.minimum(used, self.max_source_tokens)}

    def source_ids(self, text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns ids int32 `[B, S]`, padded, and lengths int32 `[B]`, of the cut source."""
        source_ids, lengths, _ = self.cut_source_ids(text)
        return source_ids, lengths

    def cut_source_ids(
        self, text: tf.Tensor, max_tokens: int | None = None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns what `source_ids` does, and bool `[B]`, True for texts that were cut.

        Args:
            text: string `[B]`.
            max_tokens: where they are cut, if before `max_source_tokens`.
        """
        limit = min(self.max_source_tokens, max_tokens or self.max_source_tokens)
        text, is_cut = cut(text, self.config.max_source_bytes)
        tokens = self.tokenizer.tokenize_source(text)
        lengths = tf.cast(tokens.row_lengths(), tf.int32)
        ids = tokens[:, :limit].to_tensor(self.tokenizer.pad_id)
        # A cut source ends with the end token too: the model has seen no other.
        is_last = tf.range(tf.shape(ids)[1]) == limit - 1
        ids = tf.where(is_last & tf.expand_dims(lengths > limit, 1), self.tokenizer.end_id, ids)
        return ids, tf.minimum(lengths, limit), is_cut | (lengths > limit)


class CompiledTranslator:
    """A translator whose search is compiled by XLA, for what is translated right here.

    Its shapes are fixed: sources and outputs are padded to multiples of some tokens, and the
    first batch of a shape takes seconds to compile. Sentence by sentence on a CPU it
    is then faster than the graph; it cannot be exported.

    Args:
        translator: whose model and configuration are used.
    """

    def __init__(self, translator: Translator):
        self._translator = translator
        self._prepare = tf.function(self._prepared, input_signature=_TEXT, autograph=False)
        self._search = tf.function(self._search_ids, autograph=False, jit_compile=True)

    def translate(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """As `Translator.translate`; eager only."""
        source_ids, max_lengths, offsets = self._prepare(text)
        longest = int(tf.reduce_max(tf.concat([max_lengths, [1]], axis=0)))
        result = self._search(source_ids, max_lengths, offsets, -(-longest // 16) * 16)
        return {"translations": self._translator.texts(result), "scores": result.scores}

    def _prepared(self, text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        source_ids, lengths = self._translator.source_ids(text)
        padding = tf.math.floormod(-tf.shape(source_ids)[1], 8)
        pad_id = self._translator.tokenizer.pad_id
        source_ids = tf.pad(source_ids, [[0, 0], [0, padding]], constant_values=pad_id)
        return source_ids, self._translator.max_lengths(lengths), sample_offsets(text)

    def _search_ids(
        self, source_ids: tf.Tensor, max_lengths: tf.Tensor, offsets: tf.Tensor, limit: int
    ) -> SearchResult:
        inputs = SearchInputs(max_lengths, sample_offsets=offsets, length_limit=limit)
        return self._translator.search_ids(source_ids, inputs)


def _check_vocabularies(transformers: Sequence[EncoderDecoder], tokenizer: Tokenizer) -> None:
    if not transformers:
        raise InputError("there is no model to translate with; expected one or more")
    own = (tokenizer.source_vocab_size, tokenizer.target_vocab_size)
    for number, transformer in enumerate(transformers, start=1):
        config = transformer.config
        sizes = (config.source_vocab_size, config.target_vocab_size)
        if sizes != own:
            raise InputError(
                f"model {number} has vocabularies of {sizes[0]:,} and {sizes[1]:,} tokens; "
                f"expected those of the tokenizer, {own[0]:,} and {own[1]:,}"
            )


def sample_offsets(text: tf.Tensor) -> tf.Tensor:
    """Returns a number from 0 to 1 for each text, string `[B]`, as float32 `[B]`: a hash of it."""
    return tf.cast(tf.strings.to_hash_bucket_fast(text, 2**20), tf.float32) / 2**20
