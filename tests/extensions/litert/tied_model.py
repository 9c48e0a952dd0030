"""A small LiteRT model, for the passes that change converted models."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter

from keras_transformer.extensions.litert import passes

TABLE = np.random.default_rng(0).normal(size=(300, 32)).astype(np.float32)
ROWS = tf.TensorSpec([3], tf.int32, name="rows")


class TiedModel(tf.Module):
    """Tied embeddings: a lookup in a loop, then a product."""

    def __init__(self) -> None:
        super().__init__()
        self.table = tf.Variable(TABLE)

    def call(self, rows: tf.Tensor) -> dict[str, tf.Tensor]:
        _, x = tf.while_loop(
            lambda i, x: i < 4,
            lambda i, x: (i + 1, 0.5 * x + tf.gather(self.table, (rows + i) % 300)),
            (0, tf.zeros([3, 32])),
        )
        return {"logits": tf.matmul(x, self.table, transpose_b=True)}


def convert(folder: Path) -> bytes:
    """Returns a LiteRT model with two signatures that use the same weights."""
    module = TiedModel()
    one = tf.function(module.call, input_signature=[ROWS], autograph=False)
    two = tf.function(
        lambda rows: {"sizes": tf.abs(module.call(rows)["logits"])},
        input_signature=[ROWS], autograph=False,
    )  # fmt: skip
    tf.saved_model.save(module, str(folder), signatures={"one": one, "two": two})
    return tf.lite.TFLiteConverter.from_saved_model(str(folder)).convert()


def run(model: Any, folder: Path, signature: str = "one") -> np.ndarray:
    path = folder / "model.tflite"
    path.write_bytes(passes.write(model))
    outputs = Interpreter(str(path)).get_signature_runner(signature)(rows=np.int32([5, 0, 299]))
    [array] = outputs.values()
    return array


def expected() -> np.ndarray:
    x = np.zeros((3, 32), np.float32)
    for i in range(4):
        x = 0.5 * x + TABLE[(np.array([5, 0, 299]) + i) % 300]
    return x @ TABLE.T


def names(model: Any) -> set[str]:
    return {passes.op_name(model, op) for graph in model.subgraphs for op in graph.operators}


def prepared(content: bytes) -> Any:
    model = passes.read(content)
    passes.look_up_embeddings(model)
    passes.share(model)
    return model


def loop_bodies(model: Any) -> list[int]:
    return [
        operator.builtinOptions.bodySubgraphIndex
        for graph in model.subgraphs
        for operator in graph.operators
        if passes.op_name(model, operator) == "WHILE"
    ]
