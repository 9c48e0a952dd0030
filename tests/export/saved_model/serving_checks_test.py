"""SavedModels that TF Serving cannot run safely are refused."""

import ast
import importlib.util
import re
from pathlib import Path

import keras
import pytest
import tensorflow as tf
import tensorflow_text
from tensorflow.core.framework import attr_value_pb2, graph_pb2, node_def_pb2

from keras_transformer.export.saved_model import serving_checks
from tests.messages import mentions

FLOATS = tf.TensorSpec([None, 3], tf.float32, name="x")


def save(path, function, *specs):
    module = tf.Module()
    module.call = tf.function(function, input_signature=specs or (FLOATS,))
    tf.saved_model.save(module, str(path), signatures=module.call)
    return path


def steps(x, maximum):
    """A loop that ends only at its maximum."""
    return tf.while_loop(
        lambda x: tf.reduce_sum(x) < 10.0, lambda x: (x + 1.0,), (x,), maximum_iterations=maximum
    )[0]


def nested(x, outer, inner):
    return tf.while_loop(
        lambda x: tf.reduce_sum(x) < 10.0,
        lambda x: (steps(x, inner),),
        (x,),
        maximum_iterations=outer,
    )[0]


def test_a_valid_model_is_accepted(tmp_path):
    def call(text, ids):
        text = tensorflow_text.normalize_utf8(text)
        rows = tf.cast(tf.strings.length(text) + tf.size(ids), tf.float32)
        x = tf.stack([rows] * 3, axis=1)
        return {"text": text, "sums": tf.cond(tf.size(x) > 3, lambda: nested(x, 3, 4), lambda: x)}

    serving_checks.check(
        save(
            tmp_path,
            call,
            tf.TensorSpec([None], tf.string, name="text"),
            tf.TensorSpec([None, None], tf.int32, name="ids"),
        )
    )


def _unlinked(x):
    """Adds an op that only TensorFlow for Python registers."""
    return x.graph.create_op(
        "CustomAggregator",
        [x],
        [tf.float32, tf.float32, tf.float32, tf.int64],
        attrs={"id": attr_value_pb2.AttrValue(s=b"id")},
    ).outputs[0]


def _assert(x):
    tf.debugging.assert_positive(x)
    return x


def _print(x):
    tf.print(x)
    return x


INT, FLOAT = tf.int32, tf.float32
REFUSED = {
    "a function compiled by XLA": (tf.function(lambda x: x + 1, jit_compile=True), ("XLA",)),
    "an op of XLA": (
        lambda x: keras.ops.slice_update(x, [0, 0], x[:1]), ("XlaDynamicUpdateSlice",)
    ),
    "a Python function": (
        lambda x: tf.ensure_shape(tf.numpy_function(lambda x: x, [x], FLOAT), x.shape),
        ("PyFunc", "Python"),
    ),
    "an eager Python function": (
        lambda x: tf.ensure_shape(tf.py_function(lambda x: x, [x], FLOAT), x.shape),
        ("EagerPyFunc", "Python"),
    ),
    "an assertion": (_assert, ("Assert", "batch")),
    "a check of numbers": (
        lambda x: tf.debugging.check_numerics(x, "x"), ("CheckNumerics", "function")
    ),
    "a file read": (
        lambda x: x + tf.cast(tf.strings.length(tf.io.read_file("/etc/hostname")), x.dtype),
        ("ReadFile", "saved_model_cli scan"),
    ),
    "a line printed": (_print, ("PrintV2", "saved_model_cli scan")),
    "an op that is not linked": (_unlinked, ("CustomAggregator", "TF Serving")),
}  # fmt: skip


@pytest.mark.parametrize("forbidden", REFUSED)
def test_forbidden_ops_are_refused(tmp_path, forbidden):
    function, facts = REFUSED[forbidden]
    save(tmp_path, lambda x: tf.identity(function(x)))
    with pytest.raises(RuntimeError, match=mentions(*facts)):
        serving_checks.check(tmp_path)


def test_messages_name_the_node_and_its_function(tmp_path):
    save(tmp_path, lambda x: tf.debugging.check_numerics(x, "x", name="here"))
    with pytest.raises(RuntimeError, match=r"\bhere\b.*\b__inference_\S+.*\bCheckNumerics\b"):
        serving_checks.check(tmp_path)
    node = node_def_pb2.NodeDef(name="there", op="Assert")
    with pytest.raises(RuntimeError, match=mentions("there", "Assert")):
        serving_checks.check_ops(graph_pb2.GraphDef(node=[node]))


def test_dangerous_ops_are_those_of_saved_model_cli():
    # Read instead of imported, because the module defines command-line flags.
    spec = importlib.util.find_spec("tensorflow.python.tools.saved_model_cli")
    assert spec is not None and spec.origin is not None
    (theirs,) = re.findall(r"^_OP_DENYLIST = set\((.+)\)", Path(spec.origin).read_text(), re.M)
    assert set(ast.literal_eval(theirs)) == serving_checks.DANGEROUS_OPS


UNBOUNDED = {
    "no maximum": lambda x: steps(x, None),
    "none inside": lambda x: nested(x, 3, None),
    "none outside": lambda x: nested(x, None, 3),
    "a maximum from the input": lambda x: steps(x, tf.size(x)),
    "another in each iteration": lambda x: tf.while_loop(
        lambda n, x: True,
        lambda n, x: (n + 1, steps(x, n)),
        (tf.constant(1), x),
        maximum_iterations=3,
    )[1],
}


@pytest.mark.parametrize("name", UNBOUNDED)
def test_unbounded_loops_are_refused(tmp_path, name):
    save(tmp_path, UNBOUNDED[name])
    with pytest.raises(RuntimeError, match=r"\S*while\b.*\bStatelessWhile\b.*\bloop\b"):
        serving_checks.check(tmp_path)


def test_loops_of_tensorflow_1_are_refused():
    old = graph_pb2.GraphDef(node=[node_def_pb2.NodeDef(name="loop", op="LoopCond")])
    with pytest.raises(RuntimeError, match=mentions("loop", "LoopCond")):
        serving_checks.check_loops(old)


# Shape and type of the input, the function, and the facts of the message.
SHAPES = {
    "a batch of one size": ([2, 3], FLOAT, lambda x: x, ("serving_default", "x", "(2, 3)", "rows")),
    "a scalar": ([], FLOAT, lambda x: [x], ("x", "()")),
    "any shape": (None, FLOAT, lambda x: x, ("x", "<unknown>")),
    "floats of any width": (
        [None, None], FLOAT, lambda x: tf.reduce_sum(x, 1), ("x", "(None, None)", "constants")
    ),
    "ids of any depth": (
        [None, 2, None], INT, lambda x: tf.reduce_sum(x, 2), ("x", "(None, 2, None)", "constants")
    ),
    "one number for all": ([None, 3], FLOAT, tf.reduce_sum, ("output_0", "()")),
    "one row for all": ([None, 3], FLOAT, lambda x: x[0] + [[1.0]], ("output_0", "(1, 3)")),
    "outputs of any width": (
        [None, None], INT, lambda x: x, ("output_0", "(None, None)", "constants")
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_that_cannot_be_batched_are_refused(tmp_path, name):
    shape, dtype, function, facts = SHAPES[name]
    save(tmp_path, lambda x: tf.identity(function(x)), tf.TensorSpec(shape, dtype, name="x"))
    with pytest.raises(RuntimeError, match=mentions(*facts)):
        serving_checks.check(tmp_path)


def test_the_list_of_served_ops():
    ops = serving_checks.served_ops()
    assert len(ops) > 1500
    assert {"MatMul", "StatelessWhile", "SentencepieceTokenizeOp", "SentencepieceOp"} <= ops
    assert all(name and "#" not in name and " " not in name for name in ops)
    assert not {"XlaDynamicUpdateSlice", "CustomAggregator", "_Arg"} & ops
