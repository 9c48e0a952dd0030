"""CTranslate2: a random model of the same shape, or an export in the format ctranslate2."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
from cost import Sizes
from ctranslate2.specs import transformer_spec
from protocol import Started, UnavailableError
from sentence_batches import Ids, without_padding

from engines import tasks

_VERSIONS = {"ctranslate2": ctranslate2.__version__}


def _options(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of `ctranslate2.Translator`."""
    device = "cuda" if settings.get("device") == "gpu" else "cpu"
    precision = settings["precision"]
    if precision not in ctranslate2.get_supported_compute_types(device):
        raise UnavailableError(f"CTranslate2 has no fast {precision} on this {device}.")
    return {
        "device": device,
        "compute_type": precision,  # weights are converted as they are read
        "inter_threads": settings["at_once"],
        "intra_threads": settings["threads"],
    }


def decode_ids(settings: dict[str, Any]) -> Started:
    """Makes a random model that decodes ids.

    Args:
        settings: `precision`, `device` (cpu by default), `threads`, `at_once`, `beam_size`,
            `length_penalty`, `sizes`, `special_ids`, `seed`, the number of `steps`, and the
            settings of `tasks.decode_ids`.
    """
    special = settings["special_ids"]
    spec = _random_spec(Sizes(**settings["sizes"]), special, settings["seed"])
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        translator = ctranslate2.Translator(folder, **_options(settings))

    def prepare(ids: Ids) -> list[list[str]]:
        return [list(map(str, row)) for row in without_padding(ids, special["pad"])]

    def decode(sources: list[list[str]]) -> Sequence[int]:
        results = translator.translate_batch(sources, **_exactly(settings))
        return [len(result.hypotheses[0]) for result in results]

    facts, commands = tasks.decode_ids(settings, prepare, decode)
    return {**facts, "versions": _VERSIONS}, commands


def _exactly(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a beam search whose outputs have exactly `steps` tokens."""
    return {
        "beam_size": settings["beam_size"],
        "length_penalty": settings["length_penalty"],
        "min_decoding_length": settings["steps"],
        "max_decoding_length": settings["steps"],
    }


def _random_spec(
    sizes: Sizes, special: dict[str, int], seed: int
) -> transformer_spec.TransformerSpec:
    """Returns the paper's post-norm Transformer with tied embeddings; its pieces are numbers."""
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
    # Converters write this table. Without it CTranslate2 computes sines at every step.
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


def decode_text(settings: dict[str, Any]) -> Started:
    """Loads an export that decodes text.

    Args:
        settings: `precision`, `device`, `threads`, `at_once`, `beam_size`, `length_penalty`, the
            directory `export`, `use_shortlist`, `max_extra_tokens`, and the settings of
            `tasks.decode_text`.
    """
    # Without the exporter, which imports TensorFlow.
    from keras_transformer.extensions.ctranslate2.engine import CTranslate2Engine

    names = ("beam_size", "length_penalty", "max_extra_tokens")
    changes = {f"decoding.{name}": settings[name] for name in names}
    engine = CTranslate2Engine(Path(settings["export"]), **_options(settings))
    engine = engine.with_settings(changes)
    engine.use_shortlist = settings["use_shortlist"]
    facts, commands = tasks.decode_text(settings, tasks.first_translations(engine))
    return {**facts, "versions": _VERSIONS}, commands
