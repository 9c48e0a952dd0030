"""CTranslate2: an engine that translates on CPUs and GPUs without TensorFlow.

A version contains the files that `ctranslate2.Translator` reads (`model.bin`, `config.json`, the
vocabularies), the SentencePiece models (`joint.model`, or `source.model` and `target.model`), and
`manifest.json`. CTranslate2 does not notice every damaged file, but
`inference.manifest.check_manifest` does.

The engine takes and returns pieces, without end tokens. Make them from ids, as in
`model.id_to_piece(model.encode(text))`. Pieces encoded directly leave unknown characters unchanged,
and such a character sequence could equal a special piece.

The search is CTranslate2's, and its options are given when it translates. Even with
`length_penalty=0` and `min_decoding_length=0` it differs from the search of this package:

* It does not exclude the pad and start pieces, which a trained model considers very improbable.
  `suppress_sequences=[["<pad>"], ["<s>"]]` excludes them before the softmax, so log-probabilities
  change slightly.
* An empty source (only the end token) gets a translation.

A shortlist becomes `vmap.txt`, which `translate_batch` uses with `use_vmap=True`. CTranslate2 lets
each sentence use the candidates of the whole batch, so its results depend on the batch.

Its `length_penalty` is the exponent for `decoding.length_penalty_formula=power`, log P / length^α,
and its default is 1. It does not have the formula of GNMT.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.decoding.shortlist import Shortlist
from keras_transformer.errors import InputError, needs_extra
from keras_transformer.export import Exporter, ExportOptions, ExportResult
from keras_transformer.export.comparison import check_tokens, text_name
from keras_transformer.export.manifest import Provenance, write_manifest
from keras_transformer.export.probes import probe_texts
from keras_transformer.inference.batching import batches
from keras_transformer.inference.loading import load_translator
from keras_transformer.inference.scoring import Scorer
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.atomic import write_version
from keras_transformer.runs.checkpoints import Arrays
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.vocabulary import Vocabulary

with needs_extra("ctranslate2", "the format ctranslate2"):
    import ctranslate2
    from ctranslate2.specs import common_spec, transformer_spec

# Types of stored weights. int8_float32 and int8_float16 also fix the type of all other arrays. With
# plain int8 the device chooses it.
QUANTIZATIONS = ("none", "int8", "int8_float32", "int8_float16", "int16", "float16", "bfloat16")

_ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "gelu": common_spec.Activation.GELU,
    "silu": common_spec.Activation.SWISH,
}
# CTranslate2 fails at positions beyond its table. By default it accepts 1,024 source tokens and
# returns at most 256.
_POSITIONS = 2048
_TOLERANCE = 1e-3  # for the log-probability of a translation, a sum of many rounded terms


def export(
    run: str | Path | RunDirectory,
    output_dir: Path,
    sentences: Sequence[str],
    settings: Mapping[str, Any] | None,
    options: ExportOptions,
) -> ExportResult:
    """Writes the next version under `output_dir`.

    The version gets its number only after CTranslate2 has read it, and if it gives the run's
    translations of `sentences` and of a few generated texts the same log-probabilities as the run.
    All generated texts must have the run's tokens. With quantization they may
    differ; the result reports by how much.
    """
    quantization = options.quantization or "none"
    translator = load_supported(run, settings, quantization)
    provenance = Provenance.of(run, translator, precision_name(quantization))
    if options.shortlist is not None:
        provenance = dataclasses.replace(provenance, shortlist=options.shortlist.describe())

    def write(path: Path) -> float:
        translator.tokenizer.vocabulary.save(path)
        save_model(translator, quantization, path)
        if options.shortlist is not None:
            save_shortlist(options.shortlist, translator.tokenizer.vocabulary, path)
        write_manifest(path, provenance, signatures={})
        _compare_tokens(translator, path, probe_texts(Vocabulary.load(path), sentences).tokenized)
        return compare(translator, quantization, path, sentences)

    path, difference = write_version(output_dir, write)
    return ExportResult(path, len(sentences), [], difference)


def precision_name(quantization: str) -> str:
    """Returns the type of the weights for the manifest."""
    return "float32" if quantization == "none" else quantization


def load_supported(
    run: str | Path | RunDirectory, settings: Mapping[str, Any] | None, quantization: str
) -> TranslationModule:
    """Loads a run whose model CTranslate2 can express."""
    if quantization not in QUANTIZATIONS:
        raise InputError(
            f"quantization is {quantization!r}, but must be one of {', '.join(QUANTIZATIONS)}."
        )
    if settings:
        raise InputError(
            f"A CTranslate2 model does not store {' and '.join(settings)}. Leave this out, and set "
            "the options of the search when you translate."
        )
    translator = load_translator(run)
    if len(translator.transformers) > 1:
        raise InputError(
            f"{run} is an ensemble, which CTranslate2 does not support. Export a single run."
        )
    transformer = translator.transformer
    assert isinstance(transformer, Transformer)
    config = transformer.config
    if config.attention_window is not None:
        raise InputError(
            f"model.attention_window is {config.attention_window}, but CTranslate2 supports only "
            "none."
        )
    if config.value_dim != config.key_dim:
        raise InputError(
            f"model.value_dim is {config.value_dim}, but CTranslate2 only supports the value of "
            f"model.key_dim, {config.key_dim}."
        )
    return translator


def compare(
    translator: TranslationModule, quantization: str, path: Path, sentences: Sequence[str]
) -> float:
    """Compares the log-probabilities of translations in an export with those in the run."""
    vocabulary = translator.tokenizer.vocabulary
    # Types that every machine supports. Others would be converted with a warning.
    compute_type = "int8_float32" if quantization.startswith("int8") else "float32"
    exported = ctranslate2.Translator(str(path), device="cpu", compute_type=compute_type)
    limit = _TOLERANCE if quantization == "none" else np.inf
    # Generated texts have no part in the reported difference, which measures quantization.
    texts = [*sentences, *probe_texts(vocabulary, sentences).translated]
    differences = _differences(translator, vocabulary, exported, texts)
    for number, (text, (found, own)) in enumerate(zip(texts, differences, strict=True), 1):
        if not abs(found - own) < limit:  # also fails for NaN
            name = text_name(text, number, len(sentences))
            raise InputError(
                f"The export gives the translation of {name} the log-probability "
                f"{found:.5f}, the run {own:.5f}. Nothing was exported."
            )
    return max(abs(found - own) for found, own in differences[: len(sentences)])


def save_model(translator: TranslationModule, quantization: str, path: Path) -> None:
    """Writes the files of a CTranslate2 model, without SentencePiece models."""
    decoding, vocabulary = translator.config, translator.tokenizer.vocabulary
    longest = decoding.max_source_tokens + max(decoding.max_extra_tokens, decoding.min_length)
    # CTranslate2 needs PyTorch to convert to bfloat16.
    dtype = tf.bfloat16.as_numpy_dtype if quantization == "bfloat16" else np.float32
    spec = _make_spec(translator.transformer, max(longest, _POSITIONS), dtype)
    source, target = vocabulary.pieces()
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.unk_token = target[vocabulary.unknown_id]
    spec.config.bos_token = target[vocabulary.start_id]
    spec.config.eos_token = target[vocabulary.end_id]
    spec.config.decoder_start_token = target[vocabulary.start_id]
    spec.config.add_source_eos = _has_source_end(translator)
    spec.validate()
    spec.optimize(quantization=None if quantization == "none" else quantization)
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
    config = transformer.config
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
            layernorm_embedding=config.embedding_norm,
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
    for stack, side, positions in (
        (encoder, "source", transformer.source_positions),
        (decoder, "target", transformer.target_positions),
    ):
        table = keras.ops.convert_to_numpy(positions(indices))
        stack.position_encodings.encodings = table.astype(dtype)
        stack.scale_embeddings = config.scale_embeddings
        stack.pre_norm = config.norm_position == "pre"
        if config.embedding_norm:
            _fill_norm(stack.layernorm_embedding, weights, f"{side}_norm")

    decoder.projection.weight = decoder.embeddings.weight
    if config.tie_embeddings == "none":
        decoder.projection.weight = weights["output_projection/kernel"].T
    if config.output_bias:
        decoder.projection.bias = weights["output_projection/bias"]
    spec = transformer_spec.TransformerSpec(encoder, decoder)
    spec.config.layer_norm_epsilon = config.layer_norm_epsilon
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


def _compare_tokens(translator: TranslationModule, path: Path, texts: Sequence[str]) -> None:
    """Raises `InputError` if the exported models give a text other tokens than the run.

    The pieces of these tokens must also be in the engine's vocabulary under the same ids.
    """
    vocabulary, limit = Vocabulary.load(path), translator.max_source_tokens
    pieces, _ = vocabulary.pieces()
    ids_of_pieces = {piece: i for i, piece in enumerate(pieces)}
    found = []
    for ids in vocabulary.encode_source([text.encode() for text in texts]):
        used = ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]]
        found.append([ids_of_pieces[pieces[i]] for i in used])
    check_tokens(translator, texts, found)


def _has_source_end(translator: TranslationModule) -> bool:
    assert isinstance(translator.transformer, Transformer)
    return not translator.transformer.config.mask_source_end


def _differences(
    translator: TranslationModule, vocabulary: Vocabulary, exported: Any, texts: Sequence[str]
) -> list[tuple[float, float]]:
    """Returns log P of the run's translation of each text, in the export and in the run."""
    scorer, end_id = Scorer(translator), vocabulary.end_id
    source_pieces, target_pieces = vocabulary.pieces()
    log_probs = [(0.0, 0.0)] * len(texts)
    for batch in batches(texts):
        text = tf.constant([texts[i] for i in batch])
        source_ids, source_lengths = translator.source_ids(text)
        result = translator.search(text)
        # The engine takes pieces without end tokens.
        sources = [
            [source_pieces[i] for i in ids[: length - 1]]
            for ids, length in zip(source_ids.numpy(), source_lengths.numpy(), strict=True)
        ]
        rows = zip(result.ids[:, 0].numpy(), result.lengths[:, 0].numpy(), strict=True)
        targets = [[i for i in ids[:length].tolist() if i != end_id] for ids, length in rows]
        results = exported.score_batch(
            sources, [[target_pieces[i] for i in ids] for ids in targets], max_input_length=0
        )
        ended = tf.ragged.constant([[*ids, end_id] for ids in targets], tf.int32)
        scores = scorer.score_ids(text, ended.to_tensor(), tf.cast(ended.row_lengths(), tf.int32))
        for index, source, own, found in zip(
            batch, sources, scores["log_probs"].numpy(), results, strict=True
        ):
            # Without any source token, the engine returns no log-probabilities.
            if source or _has_source_end(translator):
                log_probs[index] = float(np.sum(found.log_probs)), float(own)
    return log_probs


class CTranslate2Exporter(Exporter):
    """The format `ctranslate2`."""

    options = frozenset({"quantization", "shortlist"})
    export = staticmethod(export)


EXPORTER = CTranslate2Exporter()
