"""CTranslate2: the weights for that engine, which translates on CPUs and GPUs without TensorFlow.

A version holds what `ctranslate2.Translator` reads (`model.bin`, `config.json`,
the vocabularies) and beside it the SentencePiece models, `joint.model`, or
`source.model` and `target.model`. The engine takes and gives pieces, without end
tokens. Take them from ids, `model.id_to_piece(model.encode(text))`: pieces asked for
directly leave unknown characters as they are, which might spell a special piece.

The search is CTranslate2's, and is told how to search where it translates. What
differs from this package's even with `length_penalty=0` and `min_decoding_length=0`:

* It does not exclude the pad and start pieces, to which a trained model gives next
  to no probability. `suppress_sequences=[["<pad>"], ["<s>"]]` does, before the
  softmax: log-probabilities then no longer count what these two would have had.
* It translates nothing (the end token alone) into something.

Its `length_penalty` divides log P by a power of the length itself, not of
(5 + length) / 6, and is 1 unless given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import sentencepiece
import tensorflow as tf

from keras_transformer.config import ModelConfig
from keras_transformer.errors import InputError
from keras_transformer.export import Exported
from keras_transformer.inference.loading import load_translator
from keras_transformer.inference.scoring import Scorer
from keras_transformer.inference.translate import batches
from keras_transformer.inference.translator import Translator
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.atomic import write_version
from keras_transformer.runs.checkpoints import Arrays
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.vocabulary import Vocabulary

try:
    import ctranslate2
    from ctranslate2.specs import common_spec, transformer_spec
except ModuleNotFoundError as error:
    raise InputError(
        f"the format ctranslate2 needs the package {error.name}, which is not installed; expected "
        "pip install -e '.[ctranslate2]' before"
    ) from error

# What weights can be stored as. int8_float32 and int8_float16 say of what type everything
# is that is not int8; plain int8 leaves it to the device.
QUANTIZATIONS = ("none", "int8", "int8_float32", "int8_float16", "int16", "float16", "bfloat16")

_ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "gelu": common_spec.Activation.GELU,
    "silu": common_spec.Activation.SWISH,
}
# CTranslate2 fails on positions beyond the table it is given. By default it takes 1,024 source
# tokens and gives 256.
_POSITIONS = 2048
_TOLERANCE = 1e-3  # of a translation's log-probability, which sums many roundings


def export(
    run: str | Path | RunDirectory,
    output_dir: Path,
    sentences: Sequence[str],
    settings: Mapping[str, Any] | None = None,
    quantization: str = "none",
) -> Exported:
    """Writes the next version under `output_dir`; the arguments are `export.export`'s.

    It gets its number only when it has been read back, and when it agrees with the
    run on how probable the run's own translations of `sentences` are. One that is
    quantized may differ: by how much is for the caller to judge.

    Raises:
        InputError: for a model that CTranslate2 cannot express, any settings, an unknown
            quantization, or an export that disagrees with the run.
    """
    if quantization not in QUANTIZATIONS:
        raise InputError(
            f"quantization is {quantization!r}; expected one of {', '.join(QUANTIZATIONS)}"
        )
    if settings:
        raise InputError(
            f"{' and '.join(settings)} cannot be stored in a CTranslate2 model, whose search is "
            "told where it translates; expected no settings of decoding"
        )
    translator = load_translator(run)
    if len(translator.transformers) > 1:
        raise InputError(
            f"{run} are several models, and a CTranslate2 model is one; expected a single run"
        )
    transformer = translator.transformer
    assert isinstance(transformer, Transformer)  # of a run that bin/train.py trained
    _check_expressible(transformer.config)
    vocabulary = translator.tokenizer.vocabulary

    def write(path: Path) -> float:
        vocabulary.save(path)
        _save(translator, vocabulary, quantization, path)
        # Types that this machine computes in: others would be converted, with a warning.
        compute_type = "int8_float32" if quantization.startswith("int8") else "float32"
        exported = ctranslate2.Translator(str(path), device="cpu", compute_type=compute_type)
        limit = _TOLERANCE if quantization == "none" else np.inf
        return _largest_difference(translator, vocabulary, exported, sentences, limit)

    path, difference = write_version(output_dir, write)
    return Exported(path, len(sentences), [], difference)


def _check_expressible(config: ModelConfig) -> None:
    if config.attention_window is not None:
        raise InputError(
            f"model.attention_window is {config.attention_window}, which CTranslate2 cannot "
            "express; expected none"
        )
    if config.value_dim != config.key_dim:
        raise InputError(
            f"model.value_dim is {config.value_dim}, which CTranslate2 cannot express; expected "
            f"model.key_dim ({config.key_dim})"
        )


def _save(translator: Translator, vocabulary: Vocabulary, quantization: str, path: Path) -> None:
    decoding = translator.config
    longest = decoding.max_source_tokens + max(decoding.max_extra_tokens, decoding.min_length)
    # CTranslate2 itself makes bfloat16 only where PyTorch is installed.
    dtype = tf.bfloat16.as_numpy_dtype if quantization == "bfloat16" else np.float32
    spec = _make_spec(translator.transformer, max(longest, _POSITIONS), dtype)
    source, target = _pieces(vocabulary)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    spec.config.unk_token = target[vocabulary.unknown_id]
    spec.config.bos_token = target[vocabulary.start_id]
    spec.config.eos_token = target[vocabulary.end_id]
    spec.config.decoder_start_token = target[vocabulary.start_id]
    spec.config.add_source_eos = True
    spec.validate()
    spec.optimize(quantization=None if quantization == "none" else quantization)
    spec.save(str(path))


def _pieces(vocabulary: Vocabulary) -> tuple[list[str], list[str]]:
    """The pieces of source and target by id; the special ones have the target's names in both."""
    models = [
        sentencepiece.SentencePieceProcessor(model_proto=model)
        for model in (vocabulary.source_model, vocabulary.target_model)
    ]
    source, target = ([m.id_to_piece(i) for i in range(m.get_piece_size())] for m in models)
    for i in (vocabulary.pad_id, vocabulary.unknown_id, vocabulary.start_id, vocabulary.end_id):
        source[i] = target[i]
    return source, target


def _make_spec(transformer: Transformer, num_positions: int, dtype: Any) -> Any:
    """Returns the model as a `ctranslate2.specs.TransformerSpec`, its vocabularies not yet in it.

    Args:
        transformer: a built model that CTranslate2 can express.
        num_positions: length of the tables of positions.
        dtype: of the arrays.
    """
    config = transformer.config
    weights = {
        path: np.array(variable.numpy(), dtype)  # a copy: quantization writes over it
        for path, variable in transformer.weights_by_path().items()
    }
    arguments = {
        "num_heads": config.num_heads,
        "head_dim": config.key_dim,
        "pre_norm": config.norm_position == "pre",
        "activation": _ACTIVATIONS[config.activation],
    }
    encoder = transformer_spec.TransformerEncoderSpec(config.num_encoder_layers, **arguments)
    decoder = transformer_spec.TransformerDecoderSpec(config.num_decoder_layers, **arguments)
    _fill_stack(encoder, weights, "encoder")
    _fill_stack(decoder, weights, "decoder")

    (source_embedding,) = encoder.embeddings
    source_embedding.weight = weights[f"{transformer.source_embedding.name}/embeddings"]
    decoder.embeddings.weight = weights[f"{transformer.target_embedding.name}/embeddings"]
    places = keras.ops.arange(num_positions)
    for stack, positions in (
        (encoder, transformer.source_positions),
        (decoder, transformer.target_positions),
    ):
        table = keras.ops.convert_to_numpy(positions(places))
        stack.position_encodings.encodings = table.astype(dtype)
        stack.scale_embeddings = config.scale_embeddings

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
        place = f"{path}/layer_{index}"
        own, ffn = layer.self_attention, layer.ffn
        _fill_sublayer(own, own.linear, weights, f"{place}/self_attention", "qkv output")
        if path == "decoder":
            cross = layer.attention
            names = "query key_value output"
            _fill_sublayer(cross, cross.linear, weights, f"{place}/cross_attention", names)
        linear = (ffn.linear_0, ffn.linear_1)
        _fill_sublayer(ffn, linear, weights, f"{place}/feed_forward", "inner outer")
    if hasattr(spec, "layer_norm"):  # pre-norm
        _fill_norm(spec.layer_norm, weights, f"{path}/norm")


def _fill_sublayer(
    spec: Any, linear: Sequence[Any], weights: Arrays, place: str, names: str
) -> None:
    _fill_norm(spec.layer_norm, weights, f"{place}_norm")
    for each, name in zip(linear, names.split(), strict=True):
        # --> [outputs, inputs]
        each.weight = weights[f"{place}/{name}_kernel"].T
        if f"{place}/{name}_bias" in weights:
            each.bias = weights[f"{place}/{name}_bias"]


def _fill_norm(spec: Any, weights: Arrays, place: str) -> None:
    spec.gamma, spec.beta = weights[f"{place}/gamma"], weights[f"{place}/beta"]


def _largest_difference(
    translator: Translator,
    vocabulary: Vocabulary,
    exported: Any,
    sentences: Sequence[str],
    limit: float,
) -> float:
    """Returns the largest difference in log P, of the run's translations, by run and export.

    Raises:
        InputError: for one that is not below `limit`, or no number.
    """
    scorer = Scorer(translator)
    source_pieces, target_pieces = _pieces(vocabulary)
    largest = 0.0
    for batch in batches(sentences):
        text = tf.constant([sentences[i] for i in batch])
        sources, targets = _translations(translator, text)
        results = exported.score_batch(
            [[source_pieces[i] for i in ids] for ids in sources],
            [[target_pieces[i] for i in ids] for ids in targets],
            max_input_length=0,
        )
        ended = tf.ragged.constant([[*ids, vocabulary.end_id] for ids in targets], tf.int32)
        scores = scorer.score_ids(text, ended.to_tensor(), tf.cast(ended.row_lengths(), tf.int32))
        for index, own, result in zip(batch, scores["log_probs"].numpy(), results, strict=True):
            difference = abs(np.sum(result.log_probs) - own)
            # Written so that a score that is no number fails.
            if not difference < limit:
                raise InputError(
                    f"the export gives the translation of sentence {index + 1} "
                    f"({sentences[index][:60]!r}) the log-probability "
                    f"{np.sum(result.log_probs):.5f}, the run {own:.5f}; expected the same, so "
                    "nothing was exported"
                )
            largest = max(largest, float(difference))
    return largest


def _translations(
    translator: Translator, text: tf.Tensor
) -> tuple[list[list[int]], list[list[int]]]:
    """Returns the ids of `text`, string `[B]`, and of its best translations, without end tokens."""
    tokens = translator.tokenizer.tokenize_source(text).to_list()
    used = translator.lengths(text)["used"].numpy()
    sources = [ids[: count - 1] for ids, count in zip(tokens, used, strict=True)]
    result = translator.search(text)
    ids, lengths = result.ids[:, 0].numpy(), result.lengths[:, 0].numpy()
    end_id = translator.tokenizer.end_id
    targets = [
        [i for i in row[:length].tolist() if i != end_id]
        for row, length in zip(ids, lengths, strict=True)
    ]
    return sources, targets
