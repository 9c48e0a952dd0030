"""SavedModel: text in, translations out, for TF Serving and for any program with TensorFlow.

The signatures are those of `signatures.Signatures`. Weights and products are float32, or
bfloat16 where that is asked for; scores are float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.errors import InputError
from keras_transformer.export import Exported, publish
from keras_transformer.export.comparison import Comparison, compare
from keras_transformer.export.signatures import Signatures
from keras_transformer.inference import load_translator, trained_tokens
from keras_transformer.run_directory import RunDirectory
from keras_transformer.translator import Translator


def export(
    run: str | RunDirectory,
    output_dir: Path,
    sentences: Sequence[str],
    settings: Mapping[str, Any] | None = None,
    precision: str = "float32",
) -> Exported:
    """Writes the next version under `output_dir`; the arguments are `export.export`'s.

    It gets its number only when another process has read it and found it to translate as the
    run does in the same precision.
    """
    translator = load_translator(run, settings, precision=precision)

    def write(path: Path) -> Comparison:
        _save(translator, trained_tokens(run), path)
        check_ops(path)
        return compare(translator, path, sentences)

    path, comparison = publish(output_dir, write)
    return Exported(path, len(sentences), comparison.ties)


def _save(translator: Translator, longest: int | None, path: Path) -> None:
    served = Signatures(translator)
    module = tf.Module(name="translator")
    # Functions, for whoever loads the model in Python: their outputs have no fixed shape.
    module.lengths = translator.lengths
    module.search = translator.search
    module.translate_in_detail = translator.translate_in_detail
    module.tokenizer = translator.tokenizer
    # The variables alone, not the layers: nothing of Keras is left in what is saved.
    module.weights = [
        variable.value for each in translator.transformers for variable in each.weights
    ]
    # 0 where it is not known.
    module.trained_tokens = tf.Variable(longest or 0, trainable=False, name="trained_tokens")
    try:
        tf.saved_model.save(module, str(path), signatures=served.by_name())
    except (OSError, tf.errors.OpError) as error:  # TensorFlow writes through ops of its own
        reason = str(error).strip().splitlines()[-1]
        raise InputError(f"{path.parent} cannot be written ({reason}); expected room") from error


def check_ops(path: Path) -> None:
    """Refuses what TF Serving cannot run, having neither XLA nor Python, and assertions.

    A server merges requests into batches: one failed assertion would fail them all.

    Raises:
        RuntimeError: for a function that is compiled by XLA, an op of XLA's or Python's,
            or an assertion.
    """
    model = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    for graph in (meta_graph.graph_def for meta_graph in model.meta_graphs):
        functions = graph.library.function
        for attributes, name in (
            *((function.attr, function.signature.name) for function in functions),
            *((node.attr, node.name) for node in _nodes(graph)),
        ):
            if "_XlaMustCompile" in attributes and attributes["_XlaMustCompile"].b:
                raise RuntimeError(f"{name} is compiled by XLA, which TF Serving does not have")
        for node in _nodes(graph):
            if node.op.startswith("Xla") or "PyFunc" in node.op:
                raise RuntimeError(f"{node.name} is {node.op}, which TF Serving does not have")
            if node.op == "Assert":
                raise RuntimeError(f"{node.name} is an assertion, which fails a whole batch")


def _nodes(graph: Any) -> Iterator[Any]:
    yield from graph.node
    for function in graph.library.function:
        yield from function.node_def
