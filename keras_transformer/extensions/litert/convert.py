"""Converts a translator to a LiteRT model."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_text.core.pybinds import tflite_registrar

from keras_transformer.decoding.interface import rows_per_sentence
from keras_transformer.errors import needs_extra
from keras_transformer.inference.translation_module import TranslationModule

with needs_extra("litert", "the format litert"):
    from ai_edge_litert import interpreter as litert

    from keras_transformer.extensions.litert import passes
    from keras_transformer.extensions.litert.archive import LiteRTMetadata, append_archive
    from keras_transformer.extensions.litert.quantization import multiply_int8_rows, quantize
    from keras_transformer.extensions.litert.signatures import LiteRTSignatures, best_batch_size


def write_file(
    file: Path, translator: TranslationModule, weights: str, *, for_cpu: bool, **outputs: bool
) -> None:
    """Writes the file: the model (see `convert`) with its archive."""
    model = convert(translator, weights, for_cpu=for_cpu, **outputs)
    file.write_bytes(passes.write(model))
    rows = rows_per_sentence(translator.config)
    metadata = LiteRTMetadata(
        n_best=translator.config.n_best,
        batch_size=best_batch_size(rows) if for_cpu else 1,
        max_source_tokens=translator.max_source_tokens,
        max_source_bytes=translator.config.max_source_bytes,
        max_output_tokens=translator.max_output_tokens,
        max_train_source_length=translator.max_train_source_length,
        has_text=outputs.get("with_text", False),
        has_alignments=outputs.get("with_alignments", False),
        has_quality=translator.quality is not None,
    )
    append_archive(file, metadata, translator.tokenizer.vocabulary)


def convert(
    translator: TranslationModule, weights: str, *, for_cpu: bool = False, **outputs: bool
) -> Any:
    """Converts a translator to a `schema.ModelT`, as `passes.write` accepts it."""
    is_int8 = weights in ("int8", "int4")
    signatures = LiteRTSignatures(translator, for_cpu=for_cpu, is_int8=is_int8, **outputs)
    functions = signatures.by_name()
    module = tf.Module()
    module.weights = [
        variable.value for model in translator.transformers for variable in model.weights
    ]
    if translator.shortlist is not None:
        module.shortlist = translator.shortlist
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder, signatures=functions)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder, signature_keys=[*functions])
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        converter.allow_custom_ops = True  # tokenizers; LiteRT refuses all others when it runs them
        model = passes.read(converter.convert())
    passes.look_up_embeddings(model)
    passes.plan_top_k(model)
    passes.plan_shapes(model)
    passes.prepare_loops_twice(model, with_outputs=not for_cpu)
    passes.share(model)
    if not for_cpu:
        passes.put_first(model, b"translate_ids")
    quantize(model, weights)
    multiply_int8_rows(model)
    return model


def load_text_signature(file: Path) -> Callable[[bytes], tuple[list[str], np.ndarray]]:
    """Returns the signature `translate` of a file, as a function from a text to texts and scores.

    Its operations come from tensorflow-text, which loads TensorFlow.
    """
    interpreter = litert.InterpreterWithCustomOps(
        model_path=str(file), custom_op_registerers=tflite_registrar.SELECT_TFTEXT_OPS
    )
    run = interpreter.get_signature_runner("translate")

    def translate(text: bytes) -> tuple[list[str], np.ndarray]:
        outputs = run(
            text=np.array([text], object),
            max_length=np.zeros(1, np.int32),
            length_penalty=np.full(1, np.nan, np.float32),
        )
        texts = [text.decode("utf-8", "replace") for text in outputs["translations"][0]]
        return texts, outputs["scores"][0]

    return translate
