"""Converts a translator to a LiteRT model, and compares all of its runtimes and signatures."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow_text.core.pybinds import tflite_registrar

from keras_transformer.console import progress_bar
from keras_transformer.decoding.interface import rows_per_sentence
from keras_transformer.errors import InputError, needs_extra
from keras_transformer.export import Hypotheses
from keras_transformer.export.probes import escaped
from keras_transformer.extensions.litert.exporter import LiteRTEngine
from keras_transformer.inference.translation_module import TranslationModule

with needs_extra("litert", "the format litert"):
    from ai_edge_litert import interpreter as litert

    from keras_transformer.extensions.litert import passes
    from keras_transformer.extensions.litert.archive import LiteRTMetadata, append_archive
    from keras_transformer.extensions.litert.engine import LiteRTModel, LiteRTResult
    from keras_transformer.extensions.litert.quantization import multiply_int8_rows, quantize
    from keras_transformer.extensions.litert.signatures import LiteRTSignatures, best_batch_size

TEXT_OPS = {"TFText>FastSentencepieceTokenize", "TFText>FastSentencepieceDetokenize"}


def write_file(
    file: Path, translator: TranslationModule, weights: str, *, with_text: bool, for_cpu: bool
) -> None:
    """Writes the file: the model (see `convert`) with its archive."""
    model = convert(translator, weights, with_text=with_text, for_cpu=for_cpu)
    file.write_bytes(passes.write(model))
    rows = rows_per_sentence(translator.config)
    metadata = LiteRTMetadata(
        n_best=translator.config.n_best,
        batch_size=best_batch_size(rows) if for_cpu else 1,
        max_source_tokens=translator.max_source_tokens,
        max_source_bytes=translator.config.max_source_bytes,
        max_output_tokens=translator.max_output_tokens,
        max_train_source_length=translator.max_train_source_length,
        has_text=with_text,
    )
    append_archive(file, metadata, translator.tokenizer.vocabulary)


def convert(
    translator: TranslationModule, weights: str, *, with_text: bool = False, for_cpu: bool = False
) -> Any:
    """Converts a translator to a `schema.ModelT`, as `passes.write` accepts it."""
    signatures = LiteRTSignatures(translator, with_text=with_text, for_cpu=for_cpu)
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
        converter.allow_custom_ops = True  # `check_ops` names them
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
    check_ops(model)
    return model


def check_ops(model: Any) -> None:
    """Refuses a model with operations that LiteRT runtimes do not have."""
    for name, ops in passes.ops_by_signature(model).items():
        allowed = TEXT_OPS if name == "translate" else set()
        others = sorted(ops - passes.BUILTIN_OPS - allowed)
        if others:
            raise InputError(
                f"The signature {name} needs {', '.join(others)}, which LiteRT does not have. "
                "Nothing was exported."
            )


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


class ComparedEngine(LiteRTEngine):
    """A model file. Both runtimes and all signatures must give the same results.

    Only LiteRT's `Interpreter` can run `translate_batch`, whose shapes are not constant.
    """

    def __init__(self, file: Path):
        super().__init__(LiteRTModel(file))
        is_batch = self.model.batch_size > 1
        self._compiled = None if is_batch else LiteRTModel(file, low_memory=True)
        has_text = self.model.metadata.has_text
        self._translate_text = load_text_signature(file) if has_text else None

    def search(self, texts: Sequence[str]) -> list[Hypotheses]:
        with progress_bar(len(texts), "sentences", "comparing") as self._bar:
            return super().search(texts)

    def results(self, texts: Sequence[str]) -> list[LiteRTResult]:
        results = super().results(texts)
        for text, result in zip(texts, results, strict=True):
            self._check(text, result)
            self._bar.update()
        return results

    def _check(self, text: str, result: LiteRTResult) -> None:
        """Raises `InputError` unless the other runtime and `translate` find the same."""
        model, best = self.model, self.model.texts(result)[0]
        if self._compiled is not None:
            other = self._compiled.translate_ids(model.source_ids(text))
            pairs = ((getattr(result, name), getattr(other, name)) for name in result._fields)
            if not all(np.array_equal(a, b) for a, b in pairs):
                raise InputError(
                    f"For {escaped(text)}, LiteRT's CompiledModel finds "
                    f"{escaped(model.texts(other)[0])} ({other.scores[0]:.5f}), but its "
                    f"Interpreter finds {escaped(best)} ({result.scores[0]:.5f}). Nothing was "
                    "exported."
                )
        if self._translate_text is not None:
            found = self._translate_text(model.truncate(text))[0][0]
            if found != best:
                raise InputError(
                    f"For {escaped(text)}, the signature translate finds {escaped(found)}, but "
                    f"translate_ids finds {escaped(best)}. Nothing was exported. Leave translate "
                    "out (text_signature)."
                )
