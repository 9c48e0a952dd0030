"""LiteRT: `model.tflite`, one file that translates without Python and TensorFlow.

`LiteRTSignatures` describes its signatures. `translate_ids` uses only LiteRT's own operations.
`translate` also contains the tokenizer, as two operations of tensorflow-text, if these segment text
like SentencePiece does. The search is the same as in the SavedModel, with a cache, but
for one sentence at a time.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from ai_edge_litert import interpreter as litert
from tensorflow_text.core.pybinds import tflite_registrar

from keras_transformer.console import progress_bar
from keras_transformer.decoding.shortlist import Shortlist
from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics
from keras_transformer.export import Exporter, ExportOptions, ExportResult
from keras_transformer.export.comparison import (
    MAX_SHORTLIST_LOSS,
    Comparison,
    Hypotheses,
    change_of,
    check_loss,
    check_references,
    check_ties,
    check_tokens,
    compare_sentence,
    text_name,
)
from keras_transformer.export.manifest import Provenance, write_manifest
from keras_transformer.export.probes import escaped, probe_texts
from keras_transformer.extensions.litert import passes
from keras_transformer.extensions.litert.archive import LiteRTMetadata, append_archive
from keras_transformer.extensions.litert.engine import LiteRTModel, LiteRTResult
from keras_transformer.extensions.litert.quantization import (
    QUANTIZATIONS,
    multiply_int8_rows,
    quantize,
)
from keras_transformer.extensions.litert.signatures import LiteRTSignatures, best_batch_size
from keras_transformer.extensions.litert.tokenizer import text_problem
from keras_transformer.inference.batching import batches
from keras_transformer.inference.loading import load_translator, max_train_source_length
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.runs.atomic import write_version
from keras_transformer.runs.run_directory import RunDirectory

MAX_BLEU_LOSS = {"float16": 0.1, "int8": 0.3, "int4": 0.5}  # default limits

TEXT_OPS = {"TFText>FastSentencepieceTokenize", "TFText>FastSentencepieceDetokenize"}
_WITHOUT_TEXT = (
    "The model has only the signature translate_ids, not translate, because LiteRT's tokenizer "
    "would find other tokens: {}. Tokenize with the .model file of the export."
)
_CARD = """\
# A translation model for LiteRT

`model.tflite` contains the model, the beam search and the vocabulary. It was made with
keras_transformer. `manifest.json` has every setting and hash. {use}

Signatures: {signatures}. Weights: {precision}.

## Limits

- One text is one sentence. Texts of more than {max_source_tokens:,} tokens (including the end
  token) are truncated.
- A translation has at most {max_output_tokens:,} tokens.
- {text}
"""
_USE = "`example.py` translates standard\ninput."
_USE_ON_CPU = "keras-transformer translate and\nkeras-transformer serve run it on all cores."
_ONLY_IDS = "Tokenize with {} in this directory."
_WITH_TEXT = "`translate` needs two SentencePiece operations of tensorflow-text in the runtime."
_EXAMPLE = Path(__file__).with_name("example.py")


def export(
    run: str | Path | RunDirectory,
    output_dir: Path,
    sentences: Sequence[str],
    settings: Mapping[str, Any] | None,
    options: ExportOptions,
) -> ExportResult:
    """Writes the next version under `output_dir`.

    The version appears only after ai-edge-litert has translated all sentences. In float32, the
    export and the run must produce the same tokens. With rounded weights, the export may lose at
    most `max_bleu_loss` BLEU.
    """
    return _export(run, output_dir, sentences, settings, options, for_cpu=False)


def export_for_cpu(
    run: str | Path | RunDirectory,
    output_dir: Path,
    sentences: Sequence[str],
    settings: Mapping[str, Any] | None,
    options: ExportOptions,
) -> ExportResult:
    """Writes the next version for servers on CPUs: `translate_batch`, by default in int8.

    The comparison and the errors are those of `export`.
    """
    quantization = options.quantization or "int8"
    options = dataclasses.replace(options, quantization=quantization)
    return _export(run, output_dir, sentences, settings, options, for_cpu=True)


def _export(
    run: str | Path | RunDirectory,
    output_dir: Path,
    sentences: Sequence[str],
    settings: Mapping[str, Any] | None,
    options: ExportOptions,
    *,
    for_cpu: bool,
) -> ExportResult:
    quantization, references = options.quantization or "none", options.references
    if quantization not in QUANTIZATIONS:
        raise InputError(
            f"quantization is {quantization!r}, but must be one of {', '.join(QUANTIZATIONS)}."
        )
    is_exact = quantization == "none"
    shortlist = options.shortlist
    change = change_of(None if is_exact else f"quantization is {quantization}", shortlist)
    check_references(sentences, references, change)
    if change is None and options.max_bleu_loss is not None:
        raise InputError(
            "max_bleu_loss is a bound for rounded weights, but quantization is none. "
            "Leave the bound out."
        )
    full = load_translator(run, settings)
    translator = full
    if shortlist is not None:
        # The weights of a dynamic product are not rounded by `quantize`.
        in_int8 = quantization in ("int8", "int4")
        translator = full.with_shortlist(
            Shortlist(shortlist.frequent, shortlist.translations, int8_rows=in_int8)
        )
    if translator.config.sample:
        raise InputError(
            "decoding.sample draws random outputs, which LiteRT cannot reproduce. "
            "Use --set=decoding.sample=false."
        )
    if translator.config.replace_unknown:
        raise InputError(
            "decoding.replace_unknown is true, which LiteRT does not support. "
            "Use --set=decoding.replace_unknown=false."
        )
    bound = options.max_bleu_loss
    if bound is None and change is not None:
        limits = (MAX_BLEU_LOSS.get(quantization, 0.0), MAX_SHORTLIST_LOSS if shortlist else 0.0)
        bound = max(limits)
    provenance = Provenance.of(run, translator, "float32" if is_exact else quantization)
    vocabulary = translator.tokenizer.vocabulary
    probes = probe_texts(vocabulary, sentences)
    warning = None
    with_text = options.text_signature and not for_cpu
    if with_text and (problem := text_problem(vocabulary, probes.tokenized)) is not None:
        with_text, warning = False, _WITHOUT_TEXT.format(problem)

    def write(path: Path) -> tuple[Comparison, metrics.Scores | None]:
        path.mkdir()
        file = path / "model.tflite"
        longest = max_train_source_length(run)
        model = write_file(file, translator, quantization, longest, with_text, for_cpu)
        _compare_tokens(translator, LiteRTModel(file), probes.tokenized)
        own = _search_with_run(translator, [*sentences, *probes.translated])
        comparison = _compare(own, file, sentences, probes.translated, is_exact)
        scores = None
        if references is not None:
            scores = metrics.evaluate(
                comparison.translations, references, tokenize=options.tokenize
            )
            if bound is not None:
                own = own if shortlist is None else _search_with_run(full, sentences)
                best = (found.tokens()[0] for found in own[: len(sentences)])
                exact = [vocabulary.target_text(ids) for ids in best]
                exact_scores = metrics.evaluate(exact, references, tokenize=options.tokenize)
                check_loss(scores, exact_scores, change, bound)
        translator.tokenizer.save(path)
        if not for_cpu:
            shutil.copyfile(_EXAMPLE, path / "example.py")
        names = " and ".join(f"`{name}`" for name in vocabulary.models())
        card = _CARD.format(
            signatures=", ".join(f"`{name}`" for name in passes.ops_by_signature(model)),
            precision=provenance.precision,
            max_source_tokens=provenance.max_source_tokens,
            max_output_tokens=provenance.max_output_tokens,
            use=_USE_ON_CPU if for_cpu else _USE,
            text=warning or (_WITH_TEXT if with_text else _ONLY_IDS.format(names)),
        )
        (path / "README.md").write_text(card, encoding="utf-8")
        write_manifest(path, provenance, passes.describe_signatures(model), warning)
        return comparison, scores

    path, (comparison, scores) = write_version(output_dir, write)
    return ExportResult(path, len(sentences), comparison.ties, scores=scores, warning=warning)


def write_file(
    file: Path,
    translator: TranslationModule,
    quantization: str,
    max_train_source_length: int | None = None,
    with_text: bool = False,
    for_cpu: bool = False,
) -> Any:
    """Writes `model.tflite` with its archive, and returns the model (see `convert`)."""
    model = convert(translator, quantization, with_text=with_text, for_cpu=for_cpu)
    file.write_bytes(passes.write(model))
    rows = translator.search_config.rows_per_sentence
    metadata = LiteRTMetadata(
        n_best=translator.config.n_best,
        batch_size=best_batch_size(rows) if for_cpu else 1,
        max_source_tokens=translator.max_source_tokens,
        max_source_bytes=translator.config.max_source_bytes,
        max_output_tokens=translator.max_output_tokens,
        max_train_source_length=max_train_source_length,
        has_text=with_text,
    )
    append_archive(file, metadata, translator.tokenizer.vocabulary)
    return model


def convert(
    translator: TranslationModule,
    quantization: str,
    *,
    with_text: bool = False,
    for_cpu: bool = False,
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
    quantize(model, quantization)
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


def _search_with_run(translator: TranslationModule, sentences: Sequence[str]) -> list[Hypotheses]:
    results: dict[int, Hypotheses] = {}
    for batch in batches(sentences):
        result = translator.search(tf.constant([sentences[i] for i in batch]))
        results.update(zip(batch, Hypotheses.of(result), strict=True))
    return [results[index] for index in range(len(sentences))]


def _compare_tokens(
    translator: TranslationModule, model: LiteRTModel, texts: Sequence[str]
) -> None:
    """Raises `InputError` if the vocabulary of the file gives a text other tokens than the run."""
    limit = translator.max_source_tokens
    found = [model.source_ids(text) for text in texts]
    used = [ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]] for ids in found]
    check_tokens(translator, texts, used)


def _compare(
    own: Sequence[Hypotheses],
    file: Path,
    sentences: Sequence[str],
    probes: Sequence[str],
    is_exact: bool,
) -> Comparison:
    """Translates sentences and probes with the export, and compares them with the run if exact.

    The signatures must agree, and so must both runtimes, `Interpreter` and `CompiledModel`. Only
    the former can run `translate_batch`, whose shapes are not constant.
    """
    model = LiteRTModel(file)
    compiled = None if model.batch_size > 1 else LiteRTModel(file, low_memory=True)
    translate = load_text_signature(file) if model.metadata.has_text else None
    ties, translations = [], []
    texts = [*sentences, *probes]
    with progress_bar(len(texts), "sentences", "comparing") as bar:
        triples = zip(own, texts, _results(model, texts), strict=True)
        for number, (ours, sentence, found) in enumerate(triples, start=1):
            name = text_name(sentence, number, len(sentences))
            theirs = Hypotheses(found.ids, found.lengths, found.scores)
            best = model.texts(found)[0]
            if compiled is not None:
                other = compiled.translate_ids(model.source_ids(sentence))
                _check_equal(model, found, other, name)
            translations.append(best)
            if is_exact:
                tie = compare_sentence(ours, theirs, name, sentence)
                ties += [tie] if tie else []
            text = translate(model.truncate(sentence))[0][0] if translate else best
            if text != best:
                raise InputError(
                    f"For {name} the signature translate finds {escaped(text)}, but translate_ids "
                    f"finds {escaped(best)}. Nothing was exported."
                )
            bar.update()
    check_ties(ties, len(texts))
    return Comparison(ties, translations[: len(sentences)])


def _results(model: LiteRTModel, texts: Sequence[str]) -> Iterator[LiteRTResult]:
    """Yields the result of each text. The texts of a batch have any lengths."""
    for start in range(0, len(texts), model.batch_size):
        batch = texts[start : start + model.batch_size]
        yield from model.translate_batch([model.source_ids(text) for text in batch])


def _check_equal(
    model: LiteRTModel, found: LiteRTResult, compiled: LiteRTResult, text_name: str
) -> None:
    """Raises `InputError` unless the results of both runtimes for the named text are equal."""
    fields = ((getattr(found, name), getattr(compiled, name)) for name in found._fields)
    if not all(np.array_equal(a, b) for a, b in fields):
        best, other = (model.texts(each)[0] for each in (found, compiled))
        raise InputError(
            f"For {text_name}, LiteRT's CompiledModel finds {escaped(other)} "
            f"({compiled.scores[0]:.5f}), but its Interpreter finds {escaped(best)} "
            f"({found.scores[0]:.5f}). Nothing was exported."
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
        texts = [each.decode("utf-8", "replace") for each in outputs["translations"][0]]
        return texts, outputs["scores"][0]

    return translate


class LiteRTExporter(Exporter):
    """The format `litert`."""

    options = frozenset({"quantization", "max_bleu_loss", "shortlist", "text_signature"})

    def export(
        self,
        run: str | Path | RunDirectory,
        output_dir: Path,
        sentences: Sequence[str],
        settings: Mapping[str, Any] | None,
        options: ExportOptions,
    ) -> ExportResult:
        return export(run, output_dir, sentences, settings, options)


class CPUExporter(Exporter):
    """The format `cpu`."""

    options = frozenset({"quantization", "max_bleu_loss", "shortlist"})
    weights = {"int8": 0.3}

    def export(
        self,
        run: str | Path | RunDirectory,
        output_dir: Path,
        sentences: Sequence[str],
        settings: Mapping[str, Any] | None,
        options: ExportOptions,
    ) -> ExportResult:
        return export_for_cpu(run, output_dir, sentences, settings, options)


EXPORTER = LiteRTExporter()
CPU_EXPORTER = CPUExporter()
