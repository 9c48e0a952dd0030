"""SavedModel: text in, translations out, for TF Serving and for any program with TensorFlow.

`serving_default` takes `text` string `[B]` and returns `translations` string
`[B, K]` and `scores` float32 `[B, K]`, best first. `lengths` returns the source
tokens of each text and how many of them are translated. Weights and products are float32, or
bfloat16 where that is asked for; scores are float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from keras_transformer.decoding import NOTHING
from keras_transformer.errors import InputError
from keras_transformer.export import Exported, publish
from keras_transformer.inference import batches, load_translator, trained_tokens
from keras_transformer.run_directory import RunDirectory
from keras_transformer.translator import Translator

_TIE = 1e-4  # scores as close as this may change places from one machine to another


def export(
    run: str | RunDirectory,
    output_dir: Path,
    sentences: Sequence[str],
    settings: Mapping[str, Any] | None = None,
    precision: str = "float32",
) -> Exported:
    """Writes the next version under `output_dir`; the arguments are `export.export`'s.

    It gets its number only when it has been read back and found to translate as the
    run does in the same precision.
    """
    translator = load_translator(run, settings, precision=precision)

    def write(path: Path) -> list[str]:
        _save(translator, trained_tokens(run), path)
        check_ops(path)
        return list(_differences(translator, tf.saved_model.load(str(path)), sentences))

    path, ties = publish(output_dir, write)
    return Exported(path, len(sentences), ties)


def _save(translator: Translator, longest: int | None, path: Path) -> None:
    module = tf.Module(name="translator")
    module.translate = translator.translate
    module.lengths = translator.lengths
    # No signatures yet: functions, for whoever loads the model in Python.
    module.search = translator.search
    module.translate_in_detail = translator.translate_in_detail
    module.tokenizer = translator.tokenizer
    # The variables alone, not the layers: nothing of Keras is left in what is saved.
    module.weights = [
        variable.value for each in translator.transformers for variable in each.weights
    ]
    # 0 where it is not known.
    module.trained_tokens = tf.Variable(longest or 0, trainable=False, name="trained_tokens")
    signatures = {"serving_default": module.translate, "lengths": module.lengths}
    try:
        tf.saved_model.save(module, str(path), signatures=signatures)
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


def _differences(translator: Translator, exported: Any, sentences: Sequence[str]) -> Iterator[str]:
    """Yields the sentences whose tokens differ by a tie.

    Raises:
        InputError: for the first sentence that differs by more.
    """
    for batch in batches(sentences):
        text = tf.constant([sentences[i] for i in batch])
        ours, theirs = (
            [part.numpy() for part in (result.ids, result.lengths, result.scores)]
            for result in (translator.search(text), exported.search(text))
        )
        for row, index in enumerate(batch):
            tokens, scores = _hypotheses(ours, row), ours[2][row]
            other_tokens, other_scores = _hypotheses(theirs, row), theirs[2][row]
            if sentences[index].strip() and scores[0] <= NOTHING / 2:
                raise InputError(
                    f"the run finds no translation of sentence {index + 1} "
                    f"({sentences[index][:60]!r}); expected a model whose weights are finite "
                    "numbers, so nothing was exported"
                )
            # Written so that a score that is no number fails.
            same = np.abs(scores - other_scores) < _TIE
            if not np.all(same):
                place = int(np.argmin(same))
                raise InputError(
                    f"the export translates sentence {index + 1} ({sentences[index][:60]!r}) "
                    f"with the score {other_scores[place]:.5f}, the run with {scores[place]:.5f}; "
                    "expected the same translations, so nothing was exported"
                )
            if tokens != other_tokens:
                yield f"sentence {index + 1}: {sentences[index][:60]!r}, score {scores[0]:.5f}"


def _hypotheses(result: list[Any], row: int) -> list[list[int]]:
    ids, lengths, _ = result
    pairs = zip(ids[row], lengths[row], strict=True)
    return [hypothesis[:length].tolist() for hypothesis, length in pairs]
