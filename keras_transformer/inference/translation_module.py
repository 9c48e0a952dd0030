"""`TranslationModule`: tokenizer, model and search in one graph, from text to translations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import keras
import tensorflow as tf

from keras_transformer import decoding
from keras_transformer.config import DecodingConfig
from keras_transformer.decoding import (
    SearchInputs,
    SearchResult,
    SpecialIds,
    SymbolIds,
    TokenConstraint,
    sampling,
)
from keras_transformer.decoding.cached_decoder import CachedDecoder
from keras_transformer.decoding.interface import rows_per_sentence
from keras_transformer.decoding.search_loop import map_tensors
from keras_transformer.decoding.shortlist import Shortlist
from keras_transformer.errors import InputError, require
from keras_transformer.inference import output_limit
from keras_transformer.inference.quality import QualityModel, assess
from keras_transformer.models.encoder_decoder import EncoderDecoder, Memory
from keras_transformer.text.symbols import TAG_SYMBOLS
from keras_transformer.text.tokenizer import Tokenizer, truncate_text

_TEXT = [tf.TensorSpec([None], tf.string, name="text")]
_PREFIX = [*_TEXT, tf.TensorSpec([None], tf.string, name="prefix")]

# Returns the only target tokens that the translations of source ids, int32 [B, S], may have: int32
# [B, any]. `decoding.shortlist.Shortlist` is such a function.
Candidates = Callable[[tf.Tensor], tf.Tensor]


class TranslationModule(tf.Module):
    """Translates text, with functions that a SavedModel can contain.

    No text fails: longer texts are truncated, and an empty text has an empty translation with the
    score 0. Results do not depend on the rest of the batch, because length limits are computed per
    sentence.

    Several models with the same vocabulary are an ensemble: the log-probabilities of each next
    token are averaged. Sources of more than `max_train_source_length` tokens cause a warning.

    If ids begin with languages (see `Vocabulary`), each translation begins with the first source
    token, whose log-probability is 0.

    If the vocabulary has the symbols of `text/symbols.py`, each translation has the symbols of its
    source exactly as often. Its maximum length has room for them.

    With a `quality`, the details of translations have a number for their quality.

    Keep a reference to the `TranslationModule`: its `tf.function`s do not.

    Attributes:
        max_source_tokens: maximum length of a source, including the end token. Longer sources are
            truncated.
        max_output_tokens: maximum length of a translation, including the end token.
    """

    def __init__(
        self,
        transformers: EncoderDecoder | Sequence[EncoderDecoder],
        tokenizer: Tokenizer,
        config: DecodingConfig,
        shortlist: Candidates | None = None,
        max_train_source_length: int | None = None,
        quality: QualityModel | None = None,
    ):
        super().__init__(name="translator")
        backend = keras.backend.backend()
        if backend != "tensorflow":
            raise InputError(
                f"Keras uses the backend {backend}, but the search needs TensorFlow. Save the "
                "model with `model.save`, and load it in a process with KERAS_BACKEND=tensorflow."
            )
        if isinstance(transformers, EncoderDecoder):
            transformers = [transformers]
        self.transformers = list(transformers)
        self.tokenizer = tokenizer
        self.config = config
        self.shortlist = shortlist
        self.max_train_source_length = max_train_source_length
        self.quality = quality
        self._check_fit()
        can_replace = all(model.can_return_attention for model in self.transformers)
        if config.unknown == "replace" and not can_replace:
            raise InputError(
                "decoding.unknown is replace, but this architecture has no attention to the "
                "source. Choose allow instead."
            )
        # Learned positions limit the length.
        positions = [transformer.max_positions for transformer in self.transformers]
        most = min(limit or 2**31 - 1 for limit in positions)
        self.max_source_tokens = min(config.max_source_tokens, most)
        # The limit of outputs that does not depend on their source.
        self._output_limit = min(config.max_length or most, most)
        longest = max(output_limit(config, self.max_source_tokens), config.min_length)
        self.max_output_tokens = min(longest, self._output_limit)
        self._symbols, self._source_symbols = None, list[int]()
        if tokenizer.symbol_ids is not None:
            self._source_symbols, target_symbols = tokenizer.symbol_ids
            self._symbols = SymbolIds(target_symbols, num_pairs=len(TAG_SYMBOLS))
            # A source may consist of symbols.
            self.max_output_tokens = max(self.max_output_tokens, self.max_source_tokens)
        phrases = [phrase for phrase in config.banned.split("|") if phrase.strip()]
        self._banned = tuple(tokenizer.phrase_ids(phrase) for phrase in phrases)

    def _check_fit(self) -> None:
        """Raises `InputError` for models and shortlists of other vocabularies."""
        source, target = self.tokenizer.source_vocab_size, self.tokenizer.target_vocab_size
        for number, transformer in enumerate(self.transformers, start=1):
            sizes = transformer.config.source_vocab_size, transformer.config.target_vocab_size
            if sizes != (source, target):
                raise InputError(
                    f"Model {number} has vocabularies of {sizes[0]:,} and {sizes[1]:,} tokens, but "
                    f"the tokenizer has {source:,} and {target:,}. Use the tokenizer of its "
                    "training data."
                )
        require(bool(self.transformers), "A TranslationModule needs at least one model.")
        if isinstance(self.shortlist, Shortlist):
            rows, least, most = self.shortlist.limits()
            require(
                rows == source and least >= 0 and most < target,
                f"The shortlist has candidates for {rows:,} source tokens, with ids from {least:,} "
                f"to {most:,}, but the tokenizer has {source:,} and {target:,} tokens. Learn the "
                "shortlist with the vocabulary of the model.",
            )

    def with_options(
        self,
        config: DecodingConfig | None = None,
        shortlist: Candidates | None = None,
        quality: QualityModel | None = None,
    ) -> TranslationModule:
        """Returns a translator of the same models with other options, and a shortlist or none."""
        config, longest = config or self.config, self.max_train_source_length
        models, ids, quality = self.transformers, self.tokenizer, quality or self.quality
        return TranslationModule(models, ids, config, shortlist, longest, quality)

    def with_languages(self, source: str | None, target: str | None) -> TranslationModule:
        """Returns a translator of the same models with other default languages, if any is given."""
        if source is None and target is None:
            return self
        vocabulary = self.tokenizer.vocabulary.with_languages(source, target)
        changed = self.with_options(shortlist=self.shortlist)
        changed.tokenizer = Tokenizer(*vocabulary.models().values())
        return changed

    @tf.function(input_signature=_TEXT, autograph=False, jit_compile=False)
    def translate(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Translates UTF-8 strings `[B]`.

        Returns `translations`, string `[B, K]`, best first, and their `scores`, float32 `[B, K]`; K
        is `config.n_best`. Unused entries have an empty text and the score -1e9.
        """
        source_ids, *_ = self.source_ids(text)
        result = self.shared_translate_ids(source_ids, self.max_lengths(source_ids))
        return {"translations": self.texts(result, text), "scores": result.scores}

    @tf.function(input_signature=_TEXT, autograph=False, jit_compile=False)
    def translate_to_ids(self, text: tf.Tensor) -> SearchResult:
        """Translates UTF-8 strings `[B]`, and returns the ids of the translations."""
        source_ids, *_ = self.source_ids(text)
        return self.shared_translate_ids(source_ids, self.max_lengths(source_ids))

    @tf.function(autograph=False, jit_compile=False)
    def shared_translate_ids(self, source_ids: tf.Tensor, max_lengths: tf.Tensor) -> SearchResult:
        """Calls `translate_ids` in a graph that all functions share, also those of an export."""
        return self.translate_ids(source_ids, SearchInputs(max_lengths))

    @tf.function(input_signature=_PREFIX, autograph=False, jit_compile=False)
    def translate_verbose(self, text: tf.Tensor, prefix: tf.Tensor) -> dict[str, tf.Tensor]:
        """Translates `text`, UTF-8 strings `[B]`, and returns all details of the translations.

        They begin with `prefix`, UTF-8 strings `[B]`, which may be empty. The K translations of
        a text are sorted, best first.

        - `translations` string `[B, K]`
        - `scores` float32 `[B, K]`
        - `log_probs` float32 `[B, K]`: without penalties
        - `finished` bool `[B, K]`: whether the end token was generated
        - `lengths` int32 `[B, K]`: including the end token
        - `ids` int32, `tokens` string (the pieces), `token_log_probs` float32, all `[B, K, L]`
        - `attention` float32 `[B, K, L, S]`: of the guided head, or the mean of the last layer
        - `alignments` int32 `[B, K, L]`: position of the source token with the most attention
        - `source_tokens` string `[B, S]`
        - if there is a `quality`, `quality` float32 `[B, K]`, and `status` int32 `[B]`: the bits of
          `Status` about the best translation
        """
        prefix_ids = self.tokenizer.tokenize_target(prefix)[:, :-1].to_tensor(-1)
        source_ids, *_ = self.source_ids(text)
        result = self.translate_ids(
            source_ids,
            SearchInputs(self.max_lengths(source_ids), prefix_ids),
            ("token_log_probs", "alignment", "attention"),
        )
        return {
            "translations": self.texts(result, text),
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
            **self.assess(result, source_ids),
        }

    @tf.function(autograph=False)
    def encode(self, source_ids: tf.Tensor) -> list[Memory]:
        """Encodes source ids, int32 `[B, S]`, with each model, and projects them for its decoder.

        The signatures of an export share this function, so an export contains it only once.
        """
        return [
            transformer.project_memory(transformer.encode(source_ids, training=False))
            for transformer in self.transformers
        ]

    @tf.function(autograph=False)
    def read_targets(
        self, read_ids: tf.Tensor, memories: Sequence[Memory], attention: bool
    ) -> list[tuple[tf.Tensor, list[dict[str, tf.Tensor]] | None]]:
        """Decodes given targets, int32 `[B, T]` from the start id on, with each model.

        The signatures `score` and `attention` share this function, so an export contains it only
        once. Returns for each model the features `[B, T, d_model]`, and the weights of every layer
        if requested.
        """
        results = []
        for transformer, memory in zip(self.transformers, memories, strict=True):
            features, weights = transformer.decode(
                read_ids, memory, return_attention_scores=attention, training=False
            )
            results.append((features, weights if attention else None))
        return results

    def assess(self, result: SearchResult, source_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `quality` and `status` of detailed results, or nothing without a quality."""
        if self.quality is None:
            return {}
        quality, problems = assess(self.quality, self.tokenizer, result, source_ids)
        return {"quality": quality, "status": problems[:, 0]}

    def texts(self, result: SearchResult, source: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the texts of a search result, string `[B, K]`.

        With `decoding.unknown=replace`, words of `source`, string `[B]`, replace unknown tokens.
        """
        batch, count, length = tf.unstack(tf.shape(result.ids))
        ids = tf.reshape(result.ids, [batch * count, length])  # --> [batch * count, length]
        lengths = tf.reshape(result.lengths, [batch * count])
        texts = self.tokenizer.detokenize(ids, lengths)
        if self.config.unknown == "replace" and source is not None:
            source, _ = truncate_text(source, self.config.max_source_bytes)
            words = self.tokenizer.source_texts(source)  # --> [batch, source]
            aligned = tf.clip_by_value(result.alignment, 0, tf.shape(words)[1] - 1)
            words = tf.reshape(tf.gather(words, aligned, batch_dims=1), [batch * count, length])
            texts = self.tokenizer.replace_unknown(texts, ids, lengths, words)
        return tf.reshape(texts, [batch, self.config.n_best])

    def translate_ids(
        self,
        source_ids: tf.Tensor,
        inputs: SearchInputs,
        outputs: Collection[str] = (),
        *,
        constraint: TokenConstraint | None = None,
        memories: Sequence[Memory] | None = None,
        make_decoder: Callable[..., CachedDecoder] = CachedDecoder,
    ) -> SearchResult:
        """Searches for the translations of ids int32 `[B, S]`, in a graph or eagerly.

        Each row ends with the end token, and is padded. `inputs` has no source mask and no sample
        offsets, and its `max_lengths` are at most `max_output_tokens`. With a `length_limit`, all
        steps have the same shapes. `memories` are the result of `encode`, if it is already known.
        """
        memories = self.encode(source_ids) if memories is None else memories
        mask = memories[0].mask
        if self.config.sample:
            inputs = inputs._replace(sample_offsets=sampling.offsets(source_ids, mask))
        if self.tokenizer.has_languages:
            inputs = inputs._replace(first=source_ids[:, 0])
        beam = rows_per_sentence(self.config)
        candidates = None if self.shortlist is None else self.shortlist(source_ids)
        if candidates is not None and inputs.first is not None:
            candidates = tf.concat([candidates, source_ids[:, :1]], axis=1)
        if candidates is not None and inputs.prefix is not None:
            is_token = (inputs.prefix >= 0) & (inputs.prefix < self.tokenizer.target_vocab_size)
            prefix = tf.where(is_token, inputs.prefix, candidates[:, :1])
            candidates = tf.concat([candidates, prefix], axis=1)
        if self._symbols is not None:
            inputs = inputs._replace(symbol_counts=self._symbol_counts(source_ids))
            if candidates is not None:
                needed = [self.tokenizer.end_id, *self._symbols.tokens]
                needed = tf.tile([needed], [tf.shape(candidates)[0], 1])
                candidates = tf.concat([candidates, needed], axis=1)
        decoder = make_decoder(self.transformers, memories, beam, inputs.length_limit, candidates)
        if self.config.unknown == "replace":
            outputs = (*outputs, "alignment")
        ids = self.tokenizer
        unknown_id = ids.unknown_id if self.config.unknown == "forbid" else None
        result = decoding.search(
            decoder,
            inputs._replace(source_mask=mask),
            self.config,
            SpecialIds(ids.start_id, ids.end_id, ids.pad_id, unknown_id, self._symbols),
            outputs,
            banned=self._banned,
            constraint=constraint,
            max_steps=self.max_output_tokens,
        )
        return align_chosen_tokens(result, self.transformers)

    @property
    def transformer(self) -> EncoderDecoder:
        """The first model. It is the only one unless the translator is an ensemble."""
        return self.transformers[0]

    def max_lengths(self, source_ids: tf.Tensor, requested: tf.Tensor | int = 0) -> tf.Tensor:
        """Returns the maximum length of each translation, int32 `[B]`, for padded ids `[B, S]`.

        The `requested` lengths, int32 `[B]`, can lower it; 0 does not. All limits leave room for
        the symbols of the source.
        """
        lengths = tf.reduce_sum(tf.cast(source_ids != self.tokenizer.pad_id, tf.int32), axis=1)
        longest = tf.maximum(output_limit(self.config, lengths, tf.minimum), self.config.min_length)
        longest = tf.minimum(longest, self._output_limit)
        longest = tf.where(requested > 0, tf.minimum(longest, requested), longest)
        if self._symbols is not None:
            needed = tf.reduce_sum(self._symbol_counts(source_ids), axis=1) + 1
            longest = tf.maximum(longest, needed)
        # A source with only the end token needs no step.
        return tf.where(lengths > 1, longest, 0)

    def _symbol_counts(self, source_ids: tf.Tensor) -> tf.Tensor:
        """Returns how often each symbol occurs in ids int32 `[B, S]`, int32 `[B, symbols]`."""
        is_symbol = tf.expand_dims(source_ids, -1) == self._source_symbols
        return tf.reduce_sum(tf.cast(is_symbol, tf.int32), axis=1)

    @tf.function(input_signature=_TEXT, autograph=False, jit_compile=False)
    def lengths(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Counts the source tokens of `text`, string `[B]`, including the end token.

        Returns int32 `[B]`: `tokens` of the whole text, `used` for the part that is translated, and
        `unknown` for those that are not in the vocabulary.
        """

        def counts(text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            tokens = self.tokenizer.tokenize_source(text)
            unknown = tf.cast(tokens == self.tokenizer.unknown_id, tf.int32)
            return tf.cast(tokens.row_lengths(), tf.int32), tf.reduce_sum(unknown, axis=1)

        used_text, is_cut = truncate_text(text, self.config.max_source_bytes)
        tokens, unknown = counts(used_text)
        rows = tf.where(is_cut)  # only truncated texts have other counts
        whole_tokens, whole_unknown = counts(tf.gather_nd(text, rows))
        return {
            "tokens": tf.tensor_scatter_nd_update(tokens, rows, whole_tokens),
            "used": tf.minimum(tokens, self.max_source_tokens),
            "unknown": tf.tensor_scatter_nd_update(unknown, rows, whole_unknown),
        }

    def source_ids(
        self, text: tf.Tensor, max_tokens: int | None = None
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns padded ids int32 `[B, S]`, lengths int32 `[B]`, and which rows were truncated."""
        limit = min(self.max_source_tokens, max_tokens or self.max_source_tokens)
        text, is_cut = truncate_text(text, self.config.max_source_bytes)
        tokens = self.tokenizer.tokenize_source(text)
        lengths = tf.cast(tokens.row_lengths(), tf.int32)
        ids = tokens[:, :limit].to_tensor(self.tokenizer.pad_id)
        ids = with_end(ids, lengths, limit, self.tokenizer.end_id)
        return ids, tf.minimum(lengths, limit), is_cut | (lengths > limit)


def with_end(ids: tf.Tensor, lengths: tf.Tensor, limit: int, end_id: int) -> tf.Tensor:
    """Truncates padded ids `[B, S]`, which still end with the end token, like all in training."""
    ids = ids[:, :limit]
    is_last = tf.range(tf.shape(ids)[1]) == limit - 1
    return tf.where(is_last & tf.expand_dims(lengths > limit, 1), end_id, ids)


def compiled_translation(
    translator: TranslationModule,
) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
    """Returns `translator.translate` with a search that XLA compiles. It cannot be exported.

    Sources and outputs are padded to multiples of 8 and 16 tokens. The first batch of each shape
    takes seconds to compile. After that, single sentences are faster on a CPU.
    """

    @tf.function(input_signature=_TEXT, autograph=False)
    def prepare(text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        source_ids, *_ = translator.source_ids(text)
        padding = tf.math.floormod(-tf.shape(source_ids)[1], 8)
        pad_id = translator.tokenizer.pad_id
        source_ids = tf.pad(source_ids, [[0, 0], [0, padding]], constant_values=pad_id)
        return source_ids, translator.max_lengths(source_ids)

    translate_ids = tf.function(translator.translate_ids, autograph=False, jit_compile=True)

    def translate(text: tf.Tensor) -> dict[str, tf.Tensor]:
        source_ids, max_lengths = prepare(text)
        longest = int(tf.reduce_max(tf.concat([max_lengths, [1]], axis=0)))
        inputs = SearchInputs(max_lengths, length_limit=-(-longest // 16) * 16)
        result = translate_ids(source_ids, inputs)
        return {"translations": translator.texts(result, text), "scores": result.scores}

    return translate


def align_chosen_tokens(
    result: SearchResult, transformers: Sequence[EncoderDecoder]
) -> SearchResult:
    """Returns alignments of the chosen tokens, for models that align the tokens that they read.

    A token is read one step after it is chosen. No step reads the last one, so it has the alignment
    of the one before.
    """
    if any(model.config.guided_alignment != "read" for model in transformers):
        return result
    is_last = tf.range(tf.shape(result.ids)[2]) >= tf.expand_dims(result.lengths, -1) - 1

    def of_next_step(values: tf.Tensor) -> tf.Tensor:
        later = tf.concat([values[:, :, 1:], values[:, :, -1:]], axis=2)
        return tf.where(is_last if values.shape.rank == 3 else is_last[..., None], values, later)

    alignment, attention = map_tensors(of_next_step, (result.alignment, result.attention))
    return result._replace(alignment=alignment, attention=attention)
