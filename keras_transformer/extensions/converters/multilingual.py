"""All models of Hugging Face transformers; here, M2M-100, NLLB and mBART-50.

A directory of these models of many languages contains `config.json`, `model.safetensors` or
`pytorch_model.bin`, `sentencepiece.bpe.model`, for M2M-100 `vocab.json`, and files of the tokenizer
that name the languages. transformers reads `[source language] X </s>`, and forces the target
language as the first token of a translation. Here, this token is the first one of the source, too:
see `model.forced_language`.

The ids are those of fairseq: `<s> <pad> </s> <unk>`, the other pieces of SentencePiece, the
languages, and `<mask>`. Then the embeddings have rows without a token.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_transformer.config import Config
from keras_transformer.errors import InputError, check_names
from keras_transformer.extensions.converters import ConvertOptions, huggingface, source
from keras_transformer.extensions.converters.pieces import (
    PieceOrder,
    order_pieces,
    read_sentencepiece,
)
from keras_transformer.runs.checkpoints import Arrays, reading
from keras_transformer.text.model_proto import ModelProto

_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # in the order of their ids
_FIRST_POSITION = 2  # fairseq counts positions from the number after the id of the pad token
_MAX_PADDING = 128  # with more rows without a token, the vocabulary is of another model
# __de__ of M2M-100, deu_Latn of NLLB, and de_DE of mBART-50.
_LANGUAGE = re.compile(r"__(\w+)__|([a-z]{2,3}_[A-Z][A-Za-z]{1,3})")
# transformers has these languages in its code, and some versions write them to no file.
_M2M_100 = (
    "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu "
    "ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr "
    "ms my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk "
    "ur uz vi wo xh yi yo zh zu"
).split()
_START = {"decoder_start_token_id": (2,)}  # </s>; mBART-25 begins with the language
_COMMON: dict[str, tuple[Any, ...]] = {
    "quantization_config": (None,),
    "normalize_before": (True,),
    "add_final_layer_norm": (True,),
    **_START,
}
# The values that can be converted, by the type of the model. The first ones are the defaults.
_SUPPORTED: dict[str, dict[str, tuple[Any, ...]]] = {
    "m2m_100": {
        **_COMMON,
        "activation_function": ("relu", *huggingface.ACTIVATIONS),
        "scale_embedding": (True, False),
        "normalize_embedding": (False,),
        "static_position_embeddings": (True,),
    },
    "mbart": {
        **_COMMON,
        "activation_function": ("gelu", *huggingface.ACTIVATIONS),
        "scale_embedding": (False, True),
        "normalize_embedding": (True,),
        "static_position_embeddings": (False,),
    },
}


def read(path: Path, options: ConvertOptions) -> source.ConvertedModel:
    """Reads a model of Hugging Face transformers."""
    file = path / "config.json"
    config = source.read_json(file)
    types = {"model_type": ("marian", *_SUPPORTED)}
    source.check_supported({"model_type": None, **config}, types, file)
    if config["model_type"] in _SUPPORTED:
        return _read_multilingual(path, config, options)
    if options.source_language or options.target_language:
        raise InputError(
            f"{file} has the model_type marian, so the model has no source_language and "
            "target_language. Leave these options out."
        )
    return huggingface.read(path, config, options)


def _read_multilingual(
    path: Path, config: Mapping[str, Any], options: ConvertOptions
) -> source.ConvertedModel:
    """Reads a model of many languages."""
    file = path / "config.json"
    supported = _SUPPORTED[config["model_type"]]
    source.check_supported(config, supported, file)
    config = {**{name: values[0] for name, values in supported.items()}, **config}
    with reading(file, "a configuration of a model of many languages"):
        run = Config().updated(_settings(config))
    file, generation = huggingface.read_generation(path, config)
    source.check_supported(generation, _START, file)
    generation.pop("forced_bos_token_id", None)  # the language, which each text has here
    tokens = _read_tokens(path, config)
    languages = _chosen_languages(options, tokens, path)
    found = source.SourceWeights(source.read_state(path), str(path))
    order = tokens.order_pieces(found.num_rows(*huggingface.MATRICES))
    vocabulary = order.vocabulary.with_languages(*languages)
    never = {vocabulary.pad_id, vocabulary.start_id}
    run = huggingface.read_search(run, file, generation, config, vocabulary.unknown_id, never)
    return source.make_model(run, _read_weights(found, run, order), vocabulary)


def _chosen_languages(options: ConvertOptions, tokens: _Tokens, path: Path) -> tuple[str, str]:
    """Returns the codes of the default languages."""
    known = [name[2:-2] for name in tokens.languages.values()]
    if not known:
        raise InputError(
            f"{path} has no vocab.json, as in M2M-100, and no language in its tokenizer.json, "
            "tokenizer_config.json, special_tokens_map.json and added_tokens.json. "
            "Copy all files of the tokenizer."
        )
    source_language, target_language = options.source_language, options.target_language
    if source_language is None or target_language is None:
        raise InputError(
            f"{path} has a model of many languages. Give the source_language and the "
            f"target_language, two of {', '.join(known)}."
        )
    check_names([source_language, target_language], known, f"a language of {path}")
    return source_language, target_language


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the model, named like `model.d_model`."""
    is_learned = not config["static_position_embeddings"]
    tied = source.flag(config, "tie_word_embeddings", True)
    return {
        **source.COMMON_SETTINGS,
        **source.fairseq_sizes(config, "ffn_dim"),
        "model.d_model": source.size(config, "d_model"),
        "model.activation": huggingface.ACTIVATIONS[config["activation_function"]],
        "model.scale_embeddings": config["scale_embedding"],
        "model.positions": "learned" if is_learned else "sinusoidal",
        "model.max_positions": config["max_position_embeddings"],
        "model.first_position": 0 if is_learned else _FIRST_POSITION,
        "model.embedding_norm": config["normalize_embedding"],
        "model.norm_position": "pre",
        "model.layer_norm_epsilon": 1e-5,
        "model.tie_embeddings": "all" if tied else "none",
        "model.forced_language": True,
    }


def _read_weights(found: source.SourceWeights, config: Config, order: PieceOrder) -> Arrays:
    """Returns all weights by our paths."""
    bias = found.take(huggingface.BIAS) if huggingface.BIAS in found else None
    weights = huggingface.read_embeddings(found, config.model.tie_embeddings, order, bias)
    for stack, (side, _) in source.STACKS.items():
        name = f"model.{stack}.embed_positions.weight"
        if config.model.positions == "learned":
            # The first two vectors are not used. In the source, the language has the second one.
            rows = slice(1, -1) if stack == "encoder" else slice(2, None)
            weights[f"{side}_positions/embeddings"] = found.take(name)[rows]
        found.ignore(f"{name}s")  # sinusoids in old files, which transformers computes, too
    table = functools.partial(source.fairseq_table, prefix="model.")
    return weights | found.read_rest(table, config.model, transpose=True)


# The vocabulary.


@dataclasses.dataclass(frozen=True)
class _Tokens:
    """The tokens of a directory.

    `ids` has all tokens, `added` those that are not pieces of SentencePiece, and `languages` the
    names that the added languages get here.
    """

    file: Path
    model: bytes
    ids: dict[str, int]
    added: list[str]

    @property
    def languages(self) -> dict[str, str]:
        """The names of the languages here, such as ">>de<<", by their tokens."""
        found = {token: _LANGUAGE.fullmatch(token) for token in self.added}
        return {token: f">>{match[1] or match[2]}<<" for token, match in found.items() if match}

    def order_pieces(self, num_rows: int) -> PieceOrder:
        """Returns the vocabulary for embeddings with this number of rows."""
        size = len(self.ids)
        if sorted(self.ids.values()) != [*range(size)] or not 0 <= num_rows - size < _MAX_PADDING:
            raise InputError(
                f"{self.file} and the added tokens are {size:,} tokens with ids up to "
                f"{max(self.ids.values()):,}, and the embeddings have {num_rows:,} rows. Each id "
                "must have one token, and nearly each row. Give the vocabulary of this model."
            )
        languages = self.languages
        names = {languages.get(token, token): i for token, i in self.ids.items()}
        # The start token has the name <s> here. It has the vector of the end token.
        names["<bos>"] = names.pop("<s>")
        unused = {f"<unused {i}>": i for i in range(size, num_rows)}
        names |= unused
        return order_pieces(
            [self.model, self.model],
            names,
            names,
            pad_piece="<pad>",
            start_row=names["</s>"],
            symbols={*self.added} - languages.keys() - {"<mask>"},
            controls={*languages.values(), *unused, "<bos>", "<mask>"},
        )


def _read_tokens(path: Path, config: Mapping[str, Any]) -> _Tokens:
    """Reads the tokens of a directory and their ids."""
    file = path / "sentencepiece.bpe.model"
    model = read_sentencepiece(file)
    listed, added = _added_tokens(path)
    if (path / "vocab.json").is_file():
        file = path / "vocab.json"
        ids = source.read_ids(file)
        listed = listed or [f"__{code}__" for code in _M2M_100]
    else:
        # The first pieces are <unk>, <s> and </s>.
        pieces = [piece.piece for piece in ModelProto.FromString(model).pieces]
        ids = dict(zip(pieces, range(1, len(pieces) + 1), strict=True))
        ids |= dict(zip(_SPECIAL, range(len(_SPECIAL)), strict=True))
        listed.append("<mask>")
    if missing := {*_SPECIAL} - ids.keys():
        raise InputError(f"{file} lacks {min(missing)}. Give the vocabulary of this model.")
    added = {token: i for token, i in added.items() if token not in ids}
    new = [token for token in listed if token not in ids | added]
    free = itertools.filterfalse({*added.values()}.__contains__, itertools.count(len(ids)))
    added |= dict(zip(new, free, strict=False))
    ids |= added
    huggingface.check_special_ids(ids, config, file)
    return _Tokens(file, model, ids, list(added))


def _added_tokens(path: Path) -> tuple[list[str], dict[str, int]]:
    """Returns the languages in the order of their ids, and the added tokens with known ids."""
    listed: dict[str, None] = {}
    added: dict[str, int] = {}
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        file = path / name
        content = source.read_json(file) if file.is_file() else {}
        source.check_supported(content, {"legacy_behaviour": (False,)}, file)
        with reading(file, "the tokens of a tokenizer"):
            added |= {str(t["content"]): int(t["id"]) for t in content.get("added_tokens") or []}
            for field in ("additional_special_tokens", "extra_special_tokens"):
                tokens = [
                    t["content"] if isinstance(t, dict) else t for t in content.get(field) or []
                ]
                listed |= dict.fromkeys(t for t in tokens if _LANGUAGE.fullmatch(t))
    return [*listed], added | huggingface.added_tokens(path)
