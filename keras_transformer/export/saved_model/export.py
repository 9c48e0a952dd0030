"""Exports a run as a SavedModel that takes text and returns translations.

TF Serving can run it, and so can any program with TensorFlow and tensorflow-text. `Signatures`
defines its signatures. Weights and computation are float32 or bfloat16, or matrix products are
int8 and all else float32. Scores are float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics
from keras_transformer.export import ExportOptions, ExportResult, ExtraSignatures
from keras_transformer.export.comparison import (
    MAX_SHORTLIST_LOSS,
    Comparison,
    change_of,
    check_loss,
    check_references,
    compare,
)
from keras_transformer.export.manifest import Provenance
from keras_transformer.export.model_card import ModelCardData, model_name
from keras_transformer.export.probes import probe_texts
from keras_transformer.export.saved_model import serving_checks
from keras_transformer.export.saved_model.deployment import (
    write_base_files,
    write_version_files,
)
from keras_transformer.export.saved_model.signatures import Signatures
from keras_transformer.inference import int8
from keras_transformer.inference.loading import (
    load_model,
    load_translator,
    max_train_source_length,
)
from keras_transformer.inference.translate import translate_lines
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.runs.atomic import write_version
from keras_transformer.runs.run_directory import RunDirectory

MAX_BLEU_LOSS = {"bfloat16": 0.1, "int8": 0.3}  # default limits


def export(
    run: str | Path | RunDirectory,
    output_dir: Path,
    sentences: Sequence[str],
    settings: Mapping[str, Any] | None,
    options: ExportOptions,
) -> ExportResult:
    """Exports a run as the next version under `output_dir`.

    The version appears only after three checks. TF Serving can run the graph. In another process,
    the export gives the same translations as the run in the same precision. The export answers all
    its warm-up requests.

    Args:
        run: a run, or any other value that `load_translator` accepts.
        output_dir: directory that contains all versions.
        sentences: source sentences. Both the run and the export translate them.
        settings: values that replace `decoding.` fields of the run's configuration.
        options: further options.

    Example:
    >>> exported = export("build/run", Path("build/new"), ["a dog"], None, ExportOptions())
    >>> exported.path
    PosixPath('build/new/1')
    """
    precision, references, shortlist = options.precision, options.references, options.shortlist
    max_bleu_loss = options.max_bleu_loss
    if max_bleu_loss is None:
        limits = (MAX_BLEU_LOSS.get(precision, 0.0), MAX_SHORTLIST_LOSS if shortlist else 0.0)
        max_bleu_loss = max(limits)
    translator = load_translator(run, settings, precision=precision)
    if shortlist is not None:
        untied = translator.transformer.config.tie_embeddings == "none"
        if precision == "int8" and untied:
            raise InputError(
                "A shortlist with precision int8 needs tied embeddings, but model.tie_embeddings "
                "is none. Use another precision, or export without a shortlist."
            )
        translator = translator.with_shortlist(shortlist)
    extra = options.extra_signatures and options.extra_signatures(translator)
    if extra is not None and shortlist is not None:
        raise InputError("A shortlist is only for translation. Export the parser without one.")
    rounding = None if precision == "float32" else f"precision is {precision}"
    change = change_of(rounding, shortlist)
    check_references(sentences, references, change, options.tokenize)
    provenance = Provenance.of(run, translator, precision)
    warning = int8.REQUIREMENT if precision == "int8" else None

    def write(path: Path) -> tuple[Comparison, metrics.Scores | None]:
        _save(translator, max_train_source_length(run), path, extra)
        serving_checks.check(path)
        probes = probe_texts(translator.tokenizer.vocabulary, sentences)
        comparison = compare(translator, path, sentences, extra, probes)
        card, scores = options.card or ModelCardData(), None
        if references is not None:
            scores = metrics.evaluate(
                comparison.translations, references, tokenize=options.tokenize
            )
            if change is not None:
                model = load_model(run.path if isinstance(run, RunDirectory) else run, settings)
                exact = [best.text for best, *_ in translate_lines(model, sentences)]
                exact_scores = metrics.evaluate(exact, references, tokenize=options.tokenize)
                check_loss(scores, exact_scores, change, max_bleu_loss)
        if extra is not None:
            scores = None  # BLEU is only meaningful for translations
            card = dataclasses.replace(card, task=extra.card)
        card = dataclasses.replace(card, scores=scores)
        write_version_files(path, model_name(output_dir), provenance, sentences, card, warning)
        write_base_files(output_dir)
        return comparison, scores

    path, (comparison, scores) = write_version(output_dir, write)
    return ExportResult(path, len(sentences), comparison.ties, scores=scores, warning=warning)


def _save(
    translator: TranslationModule,
    max_source_length: int | None,
    path: Path,
    extra: ExtraSignatures | None = None,
) -> None:
    served = Signatures(translator, None if extra is None else extra.functions)
    module = tf.Module(name="translator")
    # These functions are only for programs that load the model in Python, because the shapes of
    # their outputs vary.
    module.search = translator.search
    module.translate_verbose = translator.translate_verbose
    module.positions = served.attention_signature.positions
    module.tokenizer = translator.tokenizer
    # Only the variables are saved, not the layers, so that the file contains no Keras objects.
    module.weights = [
        variable.value for each in translator.transformers for variable in each.weights
    ]
    if translator.shortlist is not None:
        module.shortlist = translator.shortlist
    # 0 means unknown.
    module.max_train_source_length = tf.Variable(max_source_length or 0, trainable=False)
    # Gradients are not needed, and the gradient of SiLU refers to nodes that `prune` removes.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    try:
        tf.saved_model.save(module, str(path), signatures=served.by_name(), options=options)
    except (OSError, tf.errors.OpError) as error:  # TensorFlow raises its own file errors
        reason = str(error).strip().splitlines()[-1]
        raise InputError(f"{path.parent} cannot be written: {reason}.") from error
    prune(path)


def prune(path: Path) -> None:
    """Removes repeated constants from the SavedModel at `path`, in place.

    TensorFlow writes each constant once per use. Without the copies, the graph has a third fewer
    nodes and loads faster.

    Example:
    >>> prune(Path("build/export/1"))
    >>> Path("build/export/1/fingerprint.pb").exists()
    False
    """
    file = path / "saved_model.pb"
    saved_model = saved_model_pb2.SavedModel.FromString(file.read_bytes())
    for meta_graph in saved_model.meta_graphs:
        for function in meta_graph.graph_def.library.function:
            _merge_constants(function)
    file.write_bytes(saved_model.SerializeToString(deterministic=True))
    # The fingerprint describes the old graph. Loaders do not need it, and the manifest has hashes.
    (path / "fingerprint.pb").unlink(missing_ok=True)


def _merge_constants(function: Any) -> None:
    """Keeps the first of several equal constants, and replaces all uses of the others by it."""
    first: dict[bytes, str] = {}
    same: dict[str, str] = {}
    for node in function.node_def:
        if node.op == "Const" and not node.input and not node.device:
            value = node.attr["value"].SerializeToString(deterministic=True)
            same[node.name] = first.setdefault(value, node.name)

    def renamed(tensor: str) -> str:  # `node:output:0`, or the control input `^node`
        name = tensor.removeprefix("^").partition(":")[0]
        return tensor.replace(name, same.get(name, name), 1)

    kept = [node for node in function.node_def if same.get(node.name, node.name) == node.name]
    for node in kept:
        node.input[:] = map(renamed, node.input)
    for name, tensor in function.ret.items():
        function.ret[name] = renamed(tensor)
    del function.node_def[:]
    function.node_def.extend(kept)
