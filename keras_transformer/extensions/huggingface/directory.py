"""The files of a MarianMT directory: weights, configurations, vocabulary and tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from keras_transformer.config import DecodingConfig
from keras_transformer.errors import InputError, needs_extra
from keras_transformer.extensions.converters.huggingface import EXTRA_TOKENS_FIELD, POSITIONS_FIELD
from keras_transformer.extensions.converters.pieces import table_pieces
from keras_transformer.extensions.huggingface.tensors import (
    ACTIVATIONS,
    has_usual_positions,
    to_tensors,
)
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.vocabulary import Vocabulary

with needs_extra("huggingface", "the format huggingface"):
    import safetensors.numpy

WEIGHTS = "model.safetensors"
# Sinusoids are computed when a model is loaded. MarianMT fails at positions beyond this number.
_POSITIONS = 1024
_USUAL_LENGTH = 25  # tokens of a translation
# Search options that `generate` lacks, and their values that change nothing.
_UNSUPPORTED_SEARCH = {
    "banned": "",
    "sample": False,
}

CARD_ABOUT = """\
This directory was made with keras_transformer. It is a MarianMT model for the library
`transformers`."""
CARD_USE = """\
```python
from transformers import MarianMTModel, MarianTokenizer

tokenizer = MarianTokenizer.from_pretrained("PATH")  # this directory, or USER/NAME on the Hub
model = MarianMTModel.from_pretrained("PATH")
inputs = tokenizer(["A sentence to translate."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**inputs), skip_special_tokens=True))
```

`generation_config.json` has the options of the search."""


def check_search(decoding: DecodingConfig) -> None:
    """Raises an error if `generate` cannot search like this package."""
    unknown = "allow" if decoding.unknown == "replace" else decoding.unknown
    for name, neutral in {**_UNSUPPORTED_SEARCH, "unknown": unknown}.items():
        value = getattr(decoding, name)
        if value != neutral:
            raise InputError(
                f"decoding.{name} is {value!r}, but the generation configuration of Hugging Face "
                f"cannot express it. Set decoding.{name}={neutral} for this export."
            )


def hf_length_penalty(decoding: DecodingConfig) -> float:
    """Returns the exponent of `generate`, which divides log P by length^exponent.

    For GNMT's formula, ((5 + length) / 6)^α, it is the exponent that favors longer translations as
    much at the usual length.
    """
    if decoding.length_penalty_formula == "power":
        return decoding.length_penalty
    # The derivatives of both logarithms are equal: α / (5 + length) and exponent / length.
    return round(decoding.length_penalty * _USUAL_LENGTH / (5 + _USUAL_LENGTH), 3)


def write_directory(
    path: Path,
    translator: TranslationModule,
    transformer: Transformer,
    languages: tuple[str, str] | None,
) -> None:
    """Writes everything that `transformers` reads. `transformer` has the form of `to_marian`."""
    vocabulary = translator.tokenizer.vocabulary
    _write_vocabulary(path, vocabulary)
    longest = max(translator.max_source_tokens, translator.max_output_tokens + 1, _POSITIONS)
    # Only this package reads it.
    extra_tokens = {EXTRA_TOKENS_FIELD: translator.config.max_extra_tokens}
    model_config = _model_config(transformer, vocabulary, longest)
    _write_json(path / "config.json", {**model_config, **extra_tokens})
    _write_json(path / "generation_config.json", _generation_config(translator))
    _write_json(path / "tokenizer_config.json", _tokenizer_config(translator, languages))
    # `save_file` would write a file that only its owner can read.
    tensors = to_tensors(transformer, longest)
    (path / WEIGHTS).write_bytes(safetensors.numpy.save(tensors, metadata={"format": "pt"}))


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_vocabulary(path: Path, vocabulary: Vocabulary) -> None:
    """Writes the ids by piece, and the SentencePiece models."""
    (path / "source.spm").write_bytes(vocabulary.source_model)
    (path / "target.spm").write_bytes(vocabulary.target_model)
    source, target = table_pieces(vocabulary)
    files = {"vocab.json": source} | ({} if vocabulary.joint else {"target_vocab.json": target})
    for name, pieces in files.items():
        _write_json(path / name, {piece: i for i, piece in enumerate(pieces)})


def _model_config(
    transformer: Transformer, vocabulary: Vocabulary, num_positions: int
) -> dict[str, Any]:
    config = transformer.config
    encoder, decoder = config.encoder_sizes, config.decoder_sizes
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": config.source_vocab_size,
        "decoder_vocab_size": config.target_vocab_size,
        "share_encoder_decoder_embeddings": config.tie_embeddings == "all",
        "tie_word_embeddings": config.tie_embeddings != "none",
        "d_model": config.d_model,
        "encoder_layers": encoder.num_layers,
        "encoder_attention_heads": encoder.num_heads,
        "encoder_ffn_dim": encoder.d_ff,
        "decoder_layers": decoder.num_layers,
        "decoder_attention_heads": decoder.num_heads,
        "decoder_ffn_dim": decoder.d_ff,
        "activation_function": ACTIVATIONS[config.activation],
        "scale_embedding": config.other_toolkits.scale_embeddings,
        "static_position_embeddings": True,
        "max_position_embeddings": num_positions,
        # `transformers` ignores this; the converter of this package needs it.
        POSITIONS_FIELD: "huggingface" if has_usual_positions(config) else "marian",
        "dropout": config.residual_dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "pad_token_id": vocabulary.pad_id,
        "bos_token_id": vocabulary.start_id,
        "eos_token_id": vocabulary.end_id,
        "decoder_start_token_id": vocabulary.start_id,
        "forced_eos_token_id": None,
        "dtype": "float32",
    }


def _generation_config(translator: TranslationModule) -> dict[str, Any]:
    decoding, vocabulary = translator.config, translator.tokenizer.vocabulary
    never = [vocabulary.pad_id, vocabulary.start_id]
    if decoding.unknown == "forbid":
        never.append(vocabulary.unknown_id)
    return {
        "num_beams": decoding.beam_size,
        "length_penalty": hf_length_penalty(decoding),
        "early_stopping": decoding.early_stopping is True,
        "max_length": translator.max_output_tokens + 1,  # the start token counts, too
        "min_length": decoding.min_length,
        "repetition_penalty": decoding.repetition_penalty,
        "no_repeat_ngram_size": decoding.no_repeat_ngram,
        "suppress_tokens": sorted(never),
        "pad_token_id": vocabulary.pad_id,
        "bos_token_id": vocabulary.start_id,
        "eos_token_id": vocabulary.end_id,
        "decoder_start_token_id": vocabulary.start_id,
    }


def _tokenizer_config(
    translator: TranslationModule, languages: tuple[str, str] | None
) -> dict[str, Any]:
    vocabulary = translator.tokenizer.vocabulary
    _, pieces = vocabulary.pieces()
    source_lang, target_lang = languages or (None, None)
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": source_lang,
        "target_lang": target_lang,
        "pad_token": pieces[vocabulary.pad_id],
        "unk_token": pieces[vocabulary.unknown_id],
        "eos_token": pieces[vocabulary.end_id],
        "model_max_length": translator.max_source_tokens,
        "separate_vocabs": not vocabulary.joint,
        # The name of a special token inside a text is text.
        "split_special_tokens": True,
        "clean_up_tokenization_spaces": False,
    }
