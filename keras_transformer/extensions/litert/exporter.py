"""LiteRT: `model.tflite`, one file that translates without Python and TensorFlow.

`LiteRTSignatures` describes its signatures. `translate_ids` uses only LiteRT's own operations.
`translate` also contains the tokenizer, as two operations of tensorflow-text, if these segment text
like SentencePiece does. The search is the same as in the SavedModel, with a cache, but
for one sentence at a time.
"""

from __future__ import annotations

import shutil
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
from keras_transformer.export import (
    Engine,
    Exporter,
    ExportOptions,
    Hypotheses,
    VersionFacts,
)
from keras_transformer.export.probes import escaped, probe_texts
from keras_transformer.inference.translation_module import TranslationModule

with needs_extra("litert", "the format litert"):
    from ai_edge_litert import interpreter as litert

    from keras_transformer.extensions.litert import passes
    from keras_transformer.extensions.litert.archive import LiteRTMetadata, append_archive
    from keras_transformer.extensions.litert.blocks import Int8Shortlist
    from keras_transformer.extensions.litert.engine import LiteRTModel, LiteRTResult
    from keras_transformer.extensions.litert.quantization import multiply_int8_rows, quantize
    from keras_transformer.extensions.litert.signatures import LiteRTSignatures, best_batch_size
    from keras_transformer.extensions.litert.tokenizer import text_problem

FILE = "model.tflite"
TEXT_OPS = {"TFText>FastSentencepieceTokenize", "TFText>FastSentencepieceDetokenize"}
_WITHOUT_TEXT = (
    "The model has only the signature translate_ids, not translate, because LiteRT's tokenizer "
    "would find other tokens: {}. Tokenize with the .model file of the export."
)
_ABOUT = f"`{FILE}` contains the model, the beam search and the vocabulary for LiteRT."
_USE_ON_PHONES = "    python example.py <input.txt"
_USE_ON_CPUS = "    keras-transformer translate --model_dir=. <input.txt"
_SIGNATURES = (
    "\n\nSignatures: {}. Tokenize with {} in this directory for signatures with ids. `translate` "
    "takes text, and needs two SentencePiece operations of tensorflow-text in the runtime."
)
_EXAMPLE = Path(__file__).with_name("example.py")


class LiteRTEngine(Engine):
    """A model file. Both runtimes and all signatures must give the same results.

    Only LiteRT's `Interpreter` can run `translate_batch`, whose shapes are not constant.
    """

    def __init__(self, file: Path):
        self._model = LiteRTModel(file)
        is_batch = self._model.batch_size > 1
        self._compiled = None if is_batch else LiteRTModel(file, low_memory=True)
        has_text = self._model.metadata.has_text
        self._translate_text = load_text_signature(file) if has_text else None

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        limit = self._model.metadata.max_source_tokens
        rows = map(self._model.source_ids, texts)
        return [ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]] for ids in rows]

    def translate(self, texts: Sequence[str]) -> list[Hypotheses]:
        results, size = [], self._model.batch_size
        with progress_bar(len(texts), "sentences", "comparing") as bar:
            for start in range(0, len(texts), size):  # the texts of a batch have any lengths
                batch = texts[start : start + size]
                found = self._model.translate_batch(list(map(self._model.source_ids, batch)))
                for text, result in zip(batch, found, strict=True):
                    self._check(text, result)
                    results.append(Hypotheses(result.ids, result.lengths, result.scores))
                    bar.update()
        return results

    def _check(self, text: str, result: LiteRTResult) -> None:
        """Raises `InputError` unless the other runtime and `translate` find the same."""
        model, best = self._model, self._model.texts(result)[0]
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


class LiteRTExporter(Exporter):
    """Writes a LiteRT model. In float32, it must find the tokens of the run.

    Args:
        for_cpu: write a model for servers on CPUs: `translate_batch`, by default in int8. Other
            models are for phones.
    """

    options = frozenset({"shortlist"})

    def __init__(self, *, for_cpu: bool):
        self._for_cpu = for_cpu
        weights = {"float32": 0.0, "float16": 0.1, "int8": 0.3, "int4": 0.5}
        self.weights = {"int8": 0.3, **weights} if for_cpu else weights
        if not for_cpu:
            self.options |= {"text_signature"}

    def prepare(self, translator: TranslationModule, options: ExportOptions) -> TranslationModule:
        for name, value, needed, reason in (
            ("sample", True, "false", "draws random outputs, which LiteRT cannot reproduce"),
            ("unknown", "replace", "allow", "is replace, which LiteRT does not support"),
        ):
            if getattr(translator.config, name) == value:
                raise InputError(f"decoding.{name} {reason}. Use --set=decoding.{name}={needed}.")
        shortlist = options.shortlist
        if shortlist is not None and self.weights_of(options) in ("int8", "int4"):
            shortlist = Int8Shortlist(shortlist.frequent, shortlist.translations)
        return translator.with_options(shortlist=shortlist)

    def write(self, translator: TranslationModule, folder: Path, options: ExportOptions) -> None:
        write_file(
            folder / FILE,
            translator,
            self.weights_of(options),
            with_text=self._needs_text(options) and _text_problem(translator) is None,
            for_cpu=self._for_cpu,
        )

    def _needs_text(self, options: ExportOptions) -> bool:
        """Whether the model should also have the signature `translate`."""
        return not self._for_cpu and options.extra.get("text_signature", True)

    def open(self, folder: Path) -> LiteRTEngine:
        return LiteRTEngine(folder / FILE)

    def describe(
        self,
        translator: TranslationModule,
        folder: Path,
        sentences: Sequence[str],
        options: ExportOptions,
    ) -> VersionFacts:
        translator.tokenizer.save(folder)  # for programs that do not read the archive
        signatures = passes.describe_signatures(passes.read((folder / FILE).read_bytes()))
        names, files = (
            ", ".join(f"`{name}`" for name in found)
            for found in (signatures, translator.tokenizer.vocabulary.models())
        )
        use, warning = _USE_ON_CPUS, None
        if not self._for_cpu:
            shutil.copyfile(_EXAMPLE, folder / "example.py")
            use = _USE_ON_PHONES
            if self._needs_text(options) and "translate" not in signatures:
                warning = _WITHOUT_TEXT.format(_text_problem(translator))
        use += _SIGNATURES.format(names, files) + (f"\n\n{warning}" if warning else "")
        tags = ("transformer", "litert")
        return VersionFacts(_ABOUT, use, tags, signatures=signatures, warning=warning)


def _text_problem(translator: TranslationModule) -> str | None:
    vocabulary = translator.tokenizer.vocabulary
    return text_problem(vocabulary, probe_texts(vocabulary, ()))


EXPORTER = LiteRTExporter(for_cpu=False)
CPU_EXPORTER = LiteRTExporter(for_cpu=True)


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
