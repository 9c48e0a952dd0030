"""Exports a run as a SavedModel that takes text and returns translations.

TF Serving can run it, and so can any program with TensorFlow and tensorflow-text. `Signatures`
defines its signatures. Weights and computation are float32 or bfloat16, or matrix products are
int8 and all else float32. Scores are float32.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.errors import InputError
from keras_transformer.export import Engine, Exporter, ExportOptions, ExportResult, VersionFacts
from keras_transformer.export.saved_model.engine import IsolatedSavedModel, SavedModelEngine

if TYPE_CHECKING:
    from keras_transformer.inference.translation_module import TranslationModule

_COMPARED_ROWS = 16  # sentences for which all signatures must give the same scores


class SavedModelExporter(Exporter):
    """Exports SavedModels. A subclass adds signatures for a task other than translation.

    The version appears only after three checks. TF Serving can run the graph. In another process,
    the export gives the same translations as the run with the same weights. The export answers all
    its warm-up requests.

    Attributes:
        request: the body of an example request, for the model card.
        usage: a paragraph about further signatures, for the model card.
    """

    options = frozenset({"quality", "shortlist"})
    weights = {"float32": 0.0, "bfloat16": 0.1, "int8": 0.3}
    rounds_run = True
    kind = "a SavedModel"
    request: Mapping[str, Any] = {"inputs": {"text": ["A sentence to translate."]}}
    usage = ""

    def extra_signatures(
        self, translator: TranslationModule
    ) -> tuple[Any, dict[str, Callable[..., Any]]]:
        """Returns further `tf.function`s by name, and the object that keeps their variables."""
        return None, {}

    def prepare(self, translator: TranslationModule, options: ExportOptions) -> TranslationModule:
        tying = translator.transformer.config.tie_embeddings
        if options.shortlist is not None and options.weights == "int8" and tying == "none":
            raise InputError(
                "A shortlist with int8 weights needs tied embeddings, but model.tie_embeddings is "
                "none. Use other weights, or export without a shortlist."
            )
        return translator.with_options(shortlist=ids) if (ids := options.shortlist) else translator

    def write(self, translator: TranslationModule, folder: Path, options: ExportOptions) -> None:
        # Imported here, because to open a version does not need Keras.
        from keras_transformer.export.saved_model import serving_checks
        from keras_transformer.export.saved_model.signatures import Signatures

        _owner, extra = self.extra_signatures(translator)  # kept until the variables are saved
        served = Signatures(translator, extra)
        module = tf.Module(name="translator")
        # These functions are only for programs that load the model in Python, because the shapes
        # of their outputs vary.
        module.translate_verbose = translator.translate_verbose
        if translator.quality is not None:
            other = _with_other_search(translator)  # kept until it is saved
            module.retry = other.translate_verbose
        module.positions = served.positions
        module.tokenizer = translator.tokenizer
        # Only the variables are saved, not the layers, so that the file contains no Keras objects.
        module.weights = [
            variable.value
            for transformer in translator.transformers
            for variable in transformer.weights
        ]
        if translator.shortlist is not None:
            module.shortlist = translator.shortlist
        # 0 means unknown.
        longest = translator.max_train_source_length or 0
        module.max_train_source_length = tf.Variable(longest, trainable=False)
        # Gradients are not needed, and the gradient of SiLU refers to nodes that `prune` removes.
        saving = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
        try:
            tf.saved_model.save(module, str(folder), signatures=served.by_name(), options=saving)
        except (OSError, tf.errors.OpError) as error:  # TensorFlow raises its own file errors
            reason = str(error).strip().splitlines()[-1]
            raise InputError(f"{folder.parent} cannot be written: {reason}.") from error
        prune(folder)
        serving_checks.check(folder)

    def open(self, folder: Path) -> SavedModelEngine:
        return SavedModelEngine(folder)

    def open_for_comparison(self, folder: Path) -> SavedModelEngine:
        return IsolatedSavedModel(folder)

    def compare(
        self,
        translator: TranslationModule,
        engine: Engine,
        sentences: Sequence[str],
        probes: Sequence[str],
        options: ExportOptions,
    ) -> ExportResult:
        from keras_transformer.export.saved_model.deployment import write_warmup_requests

        result = super().compare(translator, engine, sentences, probes, options)
        assert isinstance(engine, SavedModelEngine)
        self.compare_signatures(translator, engine, list(sentences[:_COMPARED_ROWS]))
        write_warmup_requests(engine, sentences, translator.config.length_penalty)
        return result

    def compare_signatures(
        self, translator: TranslationModule, engine: SavedModelEngine, texts: list[str]
    ) -> None:
        """Raises `InputError` unless all signatures that translate give the scores of the run."""
        count, length_penalty = len(texts), translator.config.length_penalty
        (tokens,) = engine.call([("tokenize", {"text": texts})])
        defaults = {"max_length": [0] * count, "length_penalty": [length_penalty] * count}
        inputs: dict[str, dict[str, Any]] = {
            "serving_default": {"text": texts},
            "translate": {"text": texts, "prefix": [""] * count, **defaults},
            "translate_ids": {name: array.tolist() for name, array in tokens.items()},
        }
        expected = translator.translate_to_ids(tf.constant(texts)).scores.numpy()
        outputs = dict(zip(inputs, engine.call([*inputs.items()]), strict=True))
        for name, found in outputs.items():
            check_scores(name, found["scores"], expected)
        if translator.quality is not None:
            own = translator.translate_verbose(texts, [""] * count)
            found = outputs["translate"]
            # Of hypotheses with equal scores, the search may return one of another length.
            is_same = found["lengths"] == own["lengths"].numpy()
            quality = own["quality"].numpy()[is_same]
            check_scores("translate", found["quality"][is_same], quality, "quality")

    def describe(
        self, translator: TranslationModule, folder: Path, options: ExportOptions
    ) -> VersionFacts:
        from keras_transformer.export.saved_model import deployment
        from keras_transformer.inference import int8

        deployment.write_settings(folder)
        warning = int8.REQUIREMENT if self.weights_of(options) == "int8" else None
        return deployment.version_facts(folder, self.request, self.usage, warning)


EXPORTER = SavedModelExporter()


def _with_other_search(translator: TranslationModule) -> TranslationModule:
    """Returns a translator with a larger beam and without repeated n-grams."""
    config = translator.config
    longest = min(config.no_repeat_ngram or 3, 3)
    config = dataclasses.replace(config, no_repeat_ngram=longest, beam_size=2 * config.beam_size)
    return translator.with_options(config, translator.shortlist)


def check_scores(
    signature: str, found: np.ndarray, expected: np.ndarray, name: str = "scores"
) -> None:
    """Raises `InputError` if the scores of a signature differ by more than rounding."""
    from keras_transformer.export.comparison import TIE

    if not np.all(np.abs(found - expected) < TIE):  # True for NaN, too
        raise InputError(
            f"The {name} of the export's signature {signature} differ from those of the run's "
            "search. Nothing was exported."
        )


def prune(path: Path) -> None:
    """Removes repeated constants from the SavedModel at `path`, in place.

    TensorFlow writes each constant once per use. Without the copies, the graph has a third fewer
    nodes and loads faster.
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
