"""CTranslate2: of a random model of the same shape, or of what `export/ctranslate2.py` wrote."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.specs import transformer_spec
from steppers.cost import Sizes
from steppers.protocol import serve

from decoders import batches, protocol


def start(settings: dict[str, Any]) -> protocol.Started:
    """Makes the model and warms it up.

    Args:
        settings: `precision`, `threads`, `at_once`, `beam_size`, `length_penalty`; of a trained
            model the `export`'s directory and `max_extra_tokens`; of a random one `sizes`,
            `special_ids`, `seed` and the number of `steps`; and `protocol`'s.
    """
    facts, commands = _of_text(settings) if "export" in settings else _of_ids(settings)
    return {**facts, "versions": {"ctranslate2": ctranslate2.__version__}}, commands


def _open(path: str, settings: dict[str, Any]) -> ctranslate2.Translator:
    return ctranslate2.Translator(
        path,
        device="cpu",
        compute_type=settings["precision"],  # weights are converted as they are read
        inter_threads=settings["at_once"],
        intra_threads=settings["threads"],
    )


def _of_ids(settings: dict[str, Any]) -> protocol.Started:
    special = settings["special_ids"]
    spec = _random_spec(Sizes(**settings["sizes"]), special, settings["seed"])
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        translator = _open(folder, settings)

    def prepare(ids: batches.Ids) -> list[list[str]]:
        return [list(map(str, row)) for row in batches.without_padding(ids, special["pad"])]

    def decode(sources: list[list[str]]) -> Sequence[int]:
        results = translator.translate_batch(
            sources,
            beam_size=settings["beam_size"],
            length_penalty=settings["length_penalty"],
            min_decoding_length=settings["steps"],
            max_decoding_length=settings["steps"],
        )
        return [len(result.hypotheses[0]) for result in results]

    return protocol.decode_ids(settings, prepare, decode)


def _random_spec(
    sizes: Sizes, special: dict[str, int], seed: int
) -> transformer_spec.TransformerSpec:
    """Returns a post-norm Transformer of the paper, embeddings tied, whose pieces are numbers."""
    rng = np.random.default_rng(seed)

    def fill(linear: Any, inputs: int, outputs: int, bias: bool = False) -> None:
        limit = np.sqrt(6 / (inputs + outputs))
        linear.weight = rng.uniform(-limit, limit, (outputs, inputs)).astype(np.float32)
        if bias:
            linear.bias = np.zeros(outputs, np.float32)

    d, heads = sizes.d_model, sizes.num_heads
    keys, values = heads * sizes.key_dim, heads * sizes.value_dim
    layers = (sizes.num_encoder_layers, sizes.num_decoder_layers)
    spec = transformer_spec.TransformerSpec.from_config(layers, heads, pre_norm=False)
    for layer in [*spec.encoder.layer, *spec.decoder.layer]:
        fill(layer.self_attention.linear[0], d, 2 * keys + values)
        fill(layer.self_attention.linear[1], values, d)
        fill(layer.ffn.linear_0, d, sizes.d_ff, bias=True)
        fill(layer.ffn.linear_1, sizes.d_ff, d, bias=True)
        sublayers = [layer.self_attention, layer.ffn]
        if hasattr(layer, "attention"):
            fill(layer.attention.linear[0], d, keys)
            fill(layer.attention.linear[1], d, keys + values)
            fill(layer.attention.linear[2], values, d)
            sublayers.append(layer.attention)
        for sublayer in sublayers:
            sublayer.layer_norm.gamma = np.ones(d, np.float32)
            sublayer.layer_norm.beta = np.zeros(d, np.float32)
    # As converters write it: without a table CTranslate2 computes sines at every step.
    positions = _sinusoids(d)
    spec.encoder.position_encodings.encodings = positions
    spec.decoder.position_encodings.encodings = positions
    vocab_size = sizes.target_vocab_size
    embeddings = rng.normal(0, d**-0.5, (vocab_size, d)).astype(np.float32)
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = embeddings
    spec.decoder.projection.weight = embeddings
    pieces = list(map(str, range(vocab_size)))
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    spec.config.unk_token = pieces[special["unknown"]]
    spec.config.bos_token = spec.config.decoder_start_token = pieces[special["start"]]
    spec.config.eos_token = pieces[special["end"]]
    spec.validate()
    spec.optimize()
    return spec


def _sinusoids(d_model: int, length: int = 512) -> Any:
    """Returns sinusoidal positions float32 `[length, d_model]`, all sines first."""
    frequencies = 10_000.0 ** (-np.arange(0, d_model, 2) / d_model)
    angles = np.arange(length)[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def _of_text(settings: dict[str, Any]) -> protocol.Started:
    import sentencepiece  # of all, only this needs it

    folder = Path(settings["export"])
    translator = _open(str(folder), settings)
    source, target = (
        sentencepiece.SentencePieceProcessor(model_file=str(_first(folder, name, "joint.model")))
        for name in ("source.model", "target.model")
    )

    def translate(lines: list[str]) -> list[str]:
        sources = source.encode(lines, out_type=str)
        longest = max(map(len, sources)) + 1  # with the end token
        results = translator.translate_batch(
            sources,
            beam_size=settings["beam_size"],
            length_penalty=settings["length_penalty"],
            max_decoding_length=longest + settings["max_extra_tokens"],
            max_input_length=0,
        )
        return [target.decode(result.hypotheses[0]) for result in results]

    return protocol.decode_text(settings, translate)


def _first(folder: Path, *names: str) -> Path:
    return next(folder / name for name in names if (folder / name).is_file())


if __name__ == "__main__":
    serve(start)
