"""FLOP formulas against a count over the TensorFlow graph of the model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.cost import Sizes
from benchmarks.cost import training_flop as benchmarks_training_flop
from keras_transformer.config import ModelConfig
from keras_transformer.extensions.paper.baselines.flop import training_flop
from tests.extensions.paper.baselines.tiny import MODELS, make, source_ids, target_ids


def multiplications(graph: Any) -> int:
    """Counts the multiplications of the products in a graph of known shapes, with all iterations of
    loops."""
    total = 0
    for op in needed(graph):
        if op.type in ("MatMul", "BatchMatMulV2", "Einsum"):
            assert op.type != "Einsum", "the FLOP of Einsum are not counted"
            transposed = op.get_attr("transpose_a" if op.type == "MatMul" else "adj_x")
            inner = op.inputs[0].shape.as_list()[-2 if transposed else -1]
            total += math.prod(op.outputs[0].shape.as_list()) * inner
        elif op.type == "Conv2D":
            height, width, channels, _ = op.inputs[1].shape.as_list()
            total += math.prod(op.outputs[0].shape.as_list()) * height * width * channels
        elif op.type == "Sum" and len(op.inputs[0].shape) >= 4:  # of vᵀ tanh(q + k)
            total += math.prod(op.inputs[0].shape.as_list())
        elif op.type in ("While", "StatelessWhile"):
            times = tf.get_static_value(op.inputs[1].op.inputs[0])  # the most iterations
            total += int(times) * multiplications(function(graph, op.get_attr("body")))
        elif op.type in ("PartitionedCall", "StatefulPartitionedCall"):
            total += multiplications(function(graph, op.get_attr("f")))
    return total


def needed(graph: Any) -> set[Any]:
    """The operations that the outputs depend on. Keras takes a step of a loop for its shapes."""
    found, todo = set(), [output.op for output in graph.outputs]
    while todo:
        op = todo.pop()
        if op not in found:
            found.add(op)
            todo += [tensor.op for tensor in op.inputs]
    return found


def function(graph: Any, attribute: Any) -> Any:
    return graph._get_function(attribute.name).graph


@pytest.mark.parametrize("name", MODELS)
def test_the_formula_is_a_count_over_the_graph(name: str) -> None:
    model, _ = make(name)
    rows, s, t = 2, 5, 4
    source, target = source_ids([s] * rows), target_ids([t] * rows)
    forward = tf.function(
        lambda source, target: model({"source_ids": source, "target_ids": target}),
        autograph=False,
    ).get_concrete_function(tf.constant(source), tf.constant(target))
    counted = multiplications(forward.graph)
    c: Any = model.config
    if isinstance(c, ModelConfig):  # the graph also computes products that are masked
        hidden = rows * (t * t - t * (t + 1) // 2)
        counted -= c.num_decoder_layers * c.num_heads * (c.key_dim + c.value_dim) * hidden
    flop = training_flop(c, np.full(rows, s), np.full(rows, t))
    assert flop == 3 * 2 * counted


def test_the_transformers_is_that_of_the_benchmarks() -> None:
    config = ModelConfig(d_model=64, d_ff=96, num_heads=4, key_dim=8, value_dim=20)
    sizes = Sizes(6, 6, 64, 96, 4, 8, 20, config.target_vocab_size)
    source, target = np.array([3, 17, 9]), np.array([5, 12, 30])
    assert training_flop(config, source, target) == benchmarks_training_flop(sizes, source, target)
