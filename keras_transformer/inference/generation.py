"""The search of a Keras model without a tokenizer, from token ids to token ids."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Unpack

import keras
import tensorflow as tf

from keras_transformer.config import DecodingConfig
from keras_transformer.decoding import SearchInputs, SearchResult
from keras_transformer.errors import check_names, require
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.models.encoder_decoder import EncoderDecoder

if TYPE_CHECKING:
    from keras_transformer.config.options import SearchOptions


def generate(
    model: EncoderDecoder, source_ids: Any, **decoding: Unpack[SearchOptions]
) -> SearchResult:
    """Searches for the best outputs of a model, such as one that Keras has trained.

    `model.generate(source_ids)` is the same. The first call with new options traces a graph, and
    the model keeps the graphs of its four newest choices.

    Args:
        model: a `Transformer`.
        source_ids: int `[B, S]`: each row ends with the end token, and is padded on the right.
        **decoding: fields of `DecodingConfig`, such as `beam_size`, `n_best` or `max_length`.

    Returns:
        A `SearchResult`, best first: `ids` int32 `[B, n_best, L]` without the start id, `scores`
        float32 `[B, n_best]`, `lengths` int32 `[B, n_best]`, and others.

    Example:
    >>> import keras_transformer as kt
    >>> model = kt.Transformer.from_preset("tiny", vocab_size=50, num_decoder_layers=1)
    >>> kt.generate(model, [[17, 9, 3], [8, 3, 0]], n_best=2, max_length=5).scores.shape
    TensorShape([2, 2])
    """
    require(isinstance(model, EncoderDecoder), f"{model!r:.60} is not a Transformer.")
    check_names(decoding, [*DecodingConfig.declarations()], "an option of the search")
    config = DecodingConfig().replace(**decoding)
    ids = keras.ops.convert_to_tensor(source_ids, "int32")
    longest = min(config.max_source_tokens, model.max_positions or config.max_source_tokens)
    require(
        len(ids.shape) == 2 and ids.shape[1] <= longest,
        f"source_ids have the shape {tuple(ids.shape)}. Give [batch, length], with at most "
        f"{longest:,} ids (max_source_tokens, and the positions of the model).",
    )
    if "_search_of" not in vars(model):  # `setattr` would make Keras track it
        model.__dict__["_search_of"] = functools.lru_cache(4)(functools.partial(_search_of, model))
    return model._search_of(config)(ids)


def _search_of(model: EncoderDecoder, config: DecodingConfig) -> Callable[[Any], SearchResult]:
    """Returns the search with these options, a function of int32 `[B, S]`."""
    require(not config.banned, "banned has texts, but a model has no tokenizer. Use a Translator.")
    fields = model.config.as_dict()
    begins_with_language = fields.get("forced_language", False)
    ids: Any = SimpleNamespace(**fields, symbol_ids=None, has_languages=begins_with_language)
    module = TranslationModule(model, ids, config)

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)], autograph=False)
    def search(source_ids: tf.Tensor) -> SearchResult:
        return module.translate_ids(source_ids, SearchInputs(module.max_lengths(source_ids)))

    return search
