"""FSMT of Hugging Face's transformers: fairseq's models of WMT19, such as facebook/wmt19-en-de.

Files of the directory:

    config.json                                 sizes
    generation_config.json                      the search; old models have it in config.json
    model.safetensors or pytorch_model.bin      weights, named as in fairseq after `model.`
    vocab-src.json, vocab-tgt.json              the id of each token

Texts are tokenized outside of the model, by Moses and BPE: `FSMTTokenizer` of transformers does it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.config import Config
from keras_transformer.errors import InputError, needs_extra
from keras_transformer.extensions.converters import ConvertOptions
from keras_transformer.extensions.converters.converted import (
    ConvertedModel,
    SourceWeights,
    make_model,
)
from keras_transformer.extensions.converters.fairseq import embeddings, stack_table
from keras_transformer.extensions.converters.files import order_tokens, read_json
from keras_transformer.extensions.converters.generation import read_search
from keras_transformer.extensions.converters.torch_files import read_torch_file
from keras_transformer.runs.checkpoints import reading

_OUTPUT, _TARGET = "decoder.output_projection.weight", "decoder.embed_tokens.weight"
_START_ROW = 2  # the end token also begins a target
# Options of the search, and the values that transformers uses for an old config.json without them.
_DEFAULTS = {
    "decoder_start_token_id": 2,
    "eos_token_id": 2,
    "forced_eos_token_id": 2,
    "length_penalty": 1.0,
    "max_length": 200,
    "num_beams": 5,
    "pad_token_id": 1,
}


def read(path: Path, options: ConvertOptions) -> ConvertedModel:
    """Reads an FSMT model."""
    del options
    if not path.is_dir():
        raise InputError(f"{path} is not a directory. Give the directory with config.json.")
    file = path / "config.json"
    fsmt = {**_DEFAULTS, **read_json(file)}
    if fsmt.get("model_type") != "fsmt" or fsmt.get("activation_function", "relu") != "relu":
        raise InputError(
            f"{path} has the model_type {fsmt.get('model_type')!r} and the activation_function "
            f"{fsmt.get('activation_function')!r}. Only fsmt with relu can be converted."
        )
    state = {name.removeprefix("model."): array for name, array in _read_weights(path).items()}
    source = SourceWeights(state, str(path))
    source.ignore("encoder.embed_positions.weight", "decoder.embed_positions.weight")
    if _TARGET not in state:
        raise InputError(f"{path} lacks the weight {_TARGET}. It is damaged.")
    is_tied = _OUTPUT not in state or np.array_equal(state[_OUTPUT], state[_TARGET])
    with reading(file, "a configuration of FSMT"):
        settings = _settings(fsmt, "target" if is_tied else "none")
    order = order_tokens(
        [_tokens(path / f"vocab-{side}.json") for side in ("src", "tgt")],
        None,
        joint=False,
        pad_piece="<pad>",
        start_row=_START_ROW,
    )
    settings |= read_search(path, fsmt, order.vocabulary.unknown_id)
    weights = source.read(stack_table(settings), transpose=True)
    weights |= embeddings(source, settings, order)
    source.check_all_used()
    return make_model(Config().updated(settings), weights, order.vocabulary)


def _settings(fsmt: Mapping[str, Any], tying: str) -> dict[str, Any]:
    """Returns the settings of the model, named like `model.d_model`."""
    return {
        "model.d_model": fsmt["d_model"],
        "model.num_encoder_layers": fsmt["encoder_layers"],
        "model.num_decoder_layers": fsmt["decoder_layers"],
        "model.num_heads": fsmt["encoder_attention_heads"],
        "model.decoder_num_heads": fsmt["decoder_attention_heads"],
        "model.d_ff": fsmt["encoder_ffn_dim"],
        "model.decoder_d_ff": fsmt["decoder_ffn_dim"],
        "model.layer_norm_epsilon": 1e-5,
        "model.final_norm": False,
        "model.embedding_norm": False,
        "model.scale_embeddings": fsmt["scale_embedding"],
        "model.tie_embeddings": tying,
        "model.attention_bias": True,
        "model.output_bias": True,
        "model.sinusoid_layout": "halves",
        "model.sinusoid_frequencies": "tensor2tensor",
        "model.first_position": 2,
    }


def _read_weights(path: Path) -> Mapping[str, np.ndarray]:
    file = path / "model.safetensors"
    if file.is_file():
        with needs_extra("huggingface", "reading .safetensors files"):
            import safetensors.numpy
        with reading(file, "weights"):
            arrays: dict[str, np.ndarray] = safetensors.numpy.load_file(file)
            return arrays
    file = path / "pytorch_model.bin"
    if not file.is_file():
        raise InputError(f"{path} must contain model.safetensors or pytorch_model.bin.")
    state = read_torch_file(file)
    if not isinstance(state, dict):
        raise InputError(f"{file} does not contain weights.")
    return state


def _tokens(file: Path) -> list[str]:
    """Returns the tokens of a vocabulary in the order of their ids."""
    with reading(file, "a vocabulary"):
        ids = {str(token): int(i) for token, i in read_json(file).items()}
        tokens = sorted(ids, key=lambda token: ids[token])
        if [ids[token] for token in tokens] != list(range(len(tokens))):
            raise ValueError("its ids are not 0, 1, 2 and so on")
    return tokens
