"""CTranslate2: an engine that translates on CPUs and GPUs without TensorFlow.

A version contains the files that `ctranslate2.Translator` reads (`model.bin`, `config.json`, the
vocabularies), the SentencePiece models (`joint.model`, or `source.model` and `target.model`), and
`manifest.json`. CTranslate2 does not notice every damaged file, but
`inference.manifest.check_manifest` does.

The engine takes and returns pieces, without end tokens. Make them from ids, as in
`model.id_to_piece(model.encode(text))`. Pieces encoded directly leave unknown characters unchanged,
and such a character sequence could equal a special piece.

The engine searches itself, and its options are given when it translates. Even with
`length_penalty=0` and `min_decoding_length=0` it differs from the search of this package:

* It does not exclude the pad and start pieces, which a trained model considers very improbable.
  `suppress_sequences=[["<pad>"], ["<s>"]]` excludes them before the softmax, so log-probabilities
  change slightly.
* An empty source (only the end token) gets a translation.

A shortlist becomes `vmap.txt`, which `translate_batch` uses with `use_vmap=True`. CTranslate2 lets
each sentence use the candidates of the whole batch, so its results depend on the batch. A
`target_prefix` must not be combined with it: version 4.8 looks the prefix up in the candidates of
an earlier batch, so it fails or begins with another token.

`kt.load` opens a version with a beam of 4 and log P / length^0.6, which its options change.

Its `length_penalty` is the exponent for `decoding.length_penalty_formula=power`, log P / length^α,
and its default is 1. It does not have the formula of GNMT.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.errors import InputError, needs_extra, require
from keras_transformer.export import Exporter, ExportOptions
from keras_transformer.inference import manifest
from keras_transformer.runs.checkpoints import Arrays
from keras_transformer.runs.machine import available_cores
from keras_transformer.text.vocabulary import Vocabulary

with needs_extra("ctranslate2", "the format ctranslate2"):
    from ctranslate2.specs import common_spec, transformer_spec

    from keras_transformer.extensions.ctranslate2.engine import CTranslate2Engine

if TYPE_CHECKING:  # imported late: a model is opened without TensorFlow
    from keras_transformer.decoding.shortlist import Shortlist
    from keras_transformer.inference.translation_module import TranslationModule
    from keras_transformer.models.transformer import Transformer

_ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "gelu": common_spec.Activation.GELU,
    "silu": common_spec.Activation.SWISH,
}
# CTranslate2 fails at positions beyond its table. By default it accepts 1,024 source tokens and
# returns at most 256.
_POSITIONS = 2048


class CTranslate2Exporter(Exporter):
    """Writes what `ctranslate2.Translator` reads, and compares log-probabilities."""

    kind = "a CTranslate2 model"
    needs_tensorflow = False
    options = frozenset({"shortlist"})
    has_card = False
    # int8_float32 and int8_float16 also fix the type of all other arrays. With plain int8 the
    # device chooses it.
    weights = {
        "float32": 0.0,
        **dict.fromkeys(("int8", "int8_float32", "int8_float16"), 0.3),
        **dict.fromkeys(("int16", "float16", "bfloat16"), 0.1),
    }
    comparison = "log_probs"
    has_search = False
    ensembles = False

    def prepare(self, translator: TranslationModule, options: ExportOptions) -> TranslationModule:
        config: Any = translator.transformer.config
        fixed = {"attention_window": None, "decoder_self_attention": "attention"}
        for name, supported in {**fixed, "value_dim": config.key_dim}.items():
            value = getattr(config, name)
            message = f"model.{name} is {value}, but CTranslate2 supports only {supported} here."
            require(value == supported, message)
        require(
            options.shortlist is None or translator.tokenizer.vocabulary.languages is None,
            "Translations of this model begin with a language, which CTranslate2 confuses with "
            "others if it has a shortlist. Export without a shortlist, or for another format.",
        )
        return translator

    def write(self, translator: TranslationModule, folder: Path, options: ExportOptions) -> None:
        vocabulary = translator.tokenizer.vocabulary
        vocabulary.save(folder)
        save_model(translator, self.weights_of(options), folder)
        if options.shortlist is not None:
            save_shortlist(options.shortlist, vocabulary, folder)

    def open(self, folder: Path, threads: int | None = None) -> CTranslate2Engine:
        cores = available_cores() if threads is None else threads
        engine = self.engine(folder, inter_threads=cores, intra_threads=1)
        longest = manifest.read(folder).get("max_source_tokens")
        engine.max_source_tokens = longest or engine.max_source_tokens
        return engine

    def engine(self, folder: Path, **options: Any) -> CTranslate2Engine:
        return CTranslate2Engine(folder, **options)


EXPORTER = CTranslate2Exporter()


def save_model(translator: TranslationModule, weights: str, path: Path) -> None:
    """Writes the files of a CTranslate2 model, without SentencePiece models."""
    transformer: Any = translator.transformer
    vocabulary = translator.tokenizer.vocabulary
    longest = max(translator.max_source_tokens, translator.max_output_tokens)
    # CTranslate2 needs PyTorch to convert to bfloat16.
    dtype = "bfloat16" if weights == "bfloat16" else "float32"
    spec = _make_spec(transformer, max(longest, _POSITIONS), dtype)
    source, target = vocabulary.pieces()
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.unk_token = target[vocabulary.unknown_id]
    spec.config.eos_token = target[vocabulary.end_id]
    spec.config.bos_token = spec.config.decoder_start_token = target[vocabulary.start_id]
    spec.config.add_source_eos = not transformer.config.other_toolkits.mask_source_end
    spec.validate()
    spec.optimize(quantization=None if weights == "float32" else weights)
    spec.save(str(path))


def save_shortlist(shortlist: Shortlist, vocabulary: Vocabulary, path: Path) -> None:
    r"""Writes `vmap.txt`: a line for each source token, and one for all sentences.

    A line has the token, a tab, and the candidates with spaces between them.
    """
    source, target = vocabulary.pieces()
    for piece in {*source, *target}:
        if piece != piece.strip() or len(piece.split()) != 1:
            raise InputError(
                f"The vocabulary has the token {piece!r}, but vmap.txt separates tokens by spaces. "
                "Export without a shortlist."
            )
    frequent = shortlist.frequent.numpy().tolist()
    lines = ["\t" + " ".join(target[i] for i in frequent)]
    for piece, row in zip(source, shortlist.translations.numpy().tolist(), strict=True):
        found = [target[i] for i in dict.fromkeys(row) if i not in frequent]
        if found:
            lines.append(f"{piece}\t{' '.join(found)}")
    (path / "vmap.txt").write_text("\n".join([*lines, ""]), encoding="utf-8")


def _make_spec(transformer: Transformer, num_positions: int, dtype: Any) -> Any:
    """Returns the model as a `ctranslate2.specs.TransformerSpec` without vocabularies."""
    import keras

    config, other = transformer.config, transformer.config.other_toolkits
    weights = {
        path: np.array(variable.numpy(), dtype)  # a copy, because quantization changes it
        for path, variable in transformer.weights_by_path().items()
    }
    encoder, decoder = (
        spec_class(
            sizes.num_layers,
            sizes.num_heads,
            # The constructor gives a final norm only to pre-norm stacks, but the engine accepts one
            # in any stack. The real value of pre_norm is set below.
            pre_norm=config.has_final_norm,
            activation=_ACTIVATIONS[config.activation],
            layernorm_embedding=other.embedding_norm,
            head_dim=sizes.key_dim,
        )
        for spec_class, sizes in (
            (transformer_spec.TransformerEncoderSpec, config.encoder_sizes),
            (transformer_spec.TransformerDecoderSpec, config.decoder_sizes),
        )
    )
    _fill_stack(encoder, weights, "encoder")
    _fill_stack(decoder, weights, "decoder")

    (source_embedding,) = encoder.embeddings
    source_embedding.weight = weights[f"{transformer.source_embedding.name}/embeddings"]
    decoder.embeddings.weight = weights[f"{transformer.target_embedding.name}/embeddings"]
    indices = keras.ops.arange(num_positions)
    for stack, side, positions, first in (
        # CTranslate2 gets the language of the target from its caller, and not in the source.
        (encoder, "source", transformer.source_positions, int(other.forced_language)),
        (decoder, "target", transformer.target_positions, 0),
    ):
        table = keras.ops.convert_to_numpy(positions(first + indices))
        stack.position_encodings.encodings = table.astype(dtype)
        stack.scale_embeddings = other.scale_embeddings
        stack.pre_norm = config.norm_position == "pre"
        if other.embedding_norm:
            _fill_norm(stack.layernorm_embedding, weights, f"{side}_norm")

    decoder.projection.weight = decoder.embeddings.weight
    if config.tie_embeddings == "none":
        decoder.projection.weight = weights["output_projection/kernel"].T
    if other.output_bias:
        decoder.projection.bias = weights["output_projection/bias"]
    spec = transformer_spec.TransformerSpec(encoder, decoder)
    spec.config.layer_norm_epsilon = other.layer_norm_epsilon
    return spec


def _fill_stack(spec: Any, weights: Arrays, path: str) -> None:
    for index, layer in enumerate(spec.layer):
        prefix = f"{path}/layer_{index}"
        own, ffn = layer.self_attention, layer.ffn
        _fill_sublayer(own, own.linear, weights, f"{prefix}/self_attention", "qkv output")
        if path == "decoder":
            cross = layer.attention
            names = "query key_value output"
            _fill_sublayer(cross, cross.linear, weights, f"{prefix}/cross_attention", names)
        linear = (ffn.linear_0, ffn.linear_1)
        _fill_sublayer(ffn, linear, weights, f"{prefix}/feed_forward", "inner outer")
    if f"{path}/norm/gamma" in weights:
        _fill_norm(spec.layer_norm, weights, f"{path}/norm")


def _fill_sublayer(
    spec: Any, linear: Sequence[Any], weights: Arrays, path: str, names: str
) -> None:
    _fill_norm(spec.layer_norm, weights, f"{path}_norm")
    for projection, name in zip(linear, names.split(), strict=True):
        projection.weight = weights[f"{path}/{name}_kernel"].T  # --> [outputs, inputs]
        if f"{path}/{name}_bias" in weights:
            projection.bias = weights[f"{path}/{name}_bias"]


def _fill_norm(spec: Any, weights: Arrays, path: str) -> None:
    spec.gamma, spec.beta = weights[f"{path}/gamma"], weights[f"{path}/beta"]
