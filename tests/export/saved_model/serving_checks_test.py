"""What TF Serving could not run, or not as it should, is refused by name."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf
import tensorflow_text
from tensorflow.core.framework import attr_value_pb2, graph_pb2, node_def_pb2

from keras_transformer.config import ModelConfig
from keras_transformer.errors import InputError
from keras_transformer.export.saved_model import serving_checks
from keras_transformer.models.transformer import Transformer
from tests.messages import mentions

FLOATS = tf.TensorSpec([None, 3], tf.float32, name="x")


def save(path: Path, function: Callable[..., Any], *specs: tf.TensorSpec) -> Path:
    module = tf.Module()
    module.call = tf.function(function, input_signature=specs or (FLOATS,))
    tf.saved_model.save(module, str(path), signatures=module.call)
    return path


def steps(x: tf.Tensor, maximum: Any) -> tf.Tensor:
    """A loop that might never end but for its maximum."""
    return tf.while_loop(
        lambda x: tf.reduce_sum(x) < 10.0, lambda x: (x + 1.0,), (x,), maximum_iterations=maximum
    )[0]


def nested(x: tf.Tensor, outer: Any, inner: Any) -> tf.Tensor:
    return tf.while_loop(
        lambda x: tf.reduce_sum(x) < 10.0,
        lambda x: (steps(x, inner),),
        (x,),
        maximum_iterations=outer,
    )[0]


def test_restricted_self_attention_is_served(tmp_path: Path) -> None:
    """Cut into blocks at lengths unknown before: an encoder and, as in scoring, a whole target."""
    config = ModelConfig(
        source_vocab_size=11, target_vocab_size=11, num_encoder_layers=1, num_decoder_layers=1,
        d_model=8, d_ff=12, num_heads=2, attention_window=5,
    )  # fmt: skip
    model = Transformer(config)
    model.build()
    specs = [tf.TensorSpec([None, None], tf.int32, name) for name in ("source_ids", "target_ids")]
    module = tf.Module()
    module.model = model

    def score(source_ids: tf.Tensor, target_ids: tf.Tensor) -> dict[str, tf.Tensor]:
        logits = model({"source_ids": source_ids, "target_ids": target_ids})
        return {"scores": tf.reduce_sum(logits, axis=[1, 2])}

    module.score = tf.function(score, input_signature=specs, autograph=False)
    tf.saved_model.save(module, str(tmp_path), signatures=module.score)
    serving_checks.check(tmp_path)
    served = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    for source, target in ((3, 100), (100, 3)):
        ids = [tf.fill([2, length], 5) for length in (source, target)]
        scores = served(source_ids=ids[0], target_ids=ids[1])["scores"]
        tf.debugging.assert_near(scores, score(*ids)["scores"], atol=1e-3)


def test_what_is_served(tmp_path: Path) -> None:
    def call(text: tf.Tensor, ids: tf.Tensor) -> dict[str, tf.Tensor]:
        text = tensorflow_text.normalize_utf8(text)
        rows = tf.cast(tf.strings.length(text) + tf.size(ids), tf.float32)
        return {"text": text, "sums": nested(tf.stack([rows] * 3, axis=1), 3, 4)}

    serving_checks.check(
        save(
            tmp_path,
            call,
            tf.TensorSpec([None], tf.string, name="text"),
            tf.TensorSpec([None, None], tf.int32, name="ids"),
        )
    )


def _unlinked(x: tf.Tensor) -> tf.Tensor:
    """An op that TensorFlow for Python has registered, and that the server does not link."""
    return x.graph.create_op(
        "CustomAggregator",
        [x],
        [tf.float32, tf.float32, tf.float32, tf.int64],
        attrs={"id": attr_value_pb2.AttrValue(s=b"id")},
    ).outputs[0]


def _assert(x: tf.Tensor) -> tf.Tensor:
    tf.debugging.assert_positive(x)
    return x


def _print(x: tf.Tensor) -> tf.Tensor:
    tf.print(x)
    return x


REFUSED: dict[str, tuple[Callable[[tf.Tensor], tf.Tensor], str]] = {
    "a function compiled by XLA": (
        tf.function(lambda x: x + 1, jit_compile=True),
        mentions("XLA") + "(?=.*(function|node))",
    ),
    "an op of XLA's": (
        lambda x: keras.ops.slice_update(x, [0, 0], x[:1]),
        mentions("XlaDynamicUpdateSlice"),
    ),
    "a Python function": (
        lambda x: tf.ensure_shape(tf.numpy_function(lambda x: x, [x], tf.float32), x.shape),
        mentions("PyFunc", "Python"),
    ),
    "an eager Python function": (
        lambda x: tf.ensure_shape(tf.py_function(lambda x: x, [x], tf.float32), x.shape),
        mentions("EagerPyFunc", "Python"),
    ),
    "an assertion": (_assert, mentions("Assert", "batch")),
    "a check of numbers": (
        lambda x: tf.debugging.check_numerics(x, "x"),
        mentions("CheckNumerics", "function"),
    ),
    "a file read": (
        lambda x: x + tf.cast(tf.strings.length(tf.io.read_file("/etc/hostname")), x.dtype),
        mentions("ReadFile", "saved_model_cli scan"),
    ),
    "a line printed": (_print, mentions("PrintV2", "saved_model_cli scan")),
    "an op that is not linked": (
        _unlinked,
        mentions("CustomAggregator", "TF Serving"),
    ),
}


@pytest.mark.parametrize("forbidden", REFUSED)
def test_what_is_not_served(tmp_path: Path, forbidden: str) -> None:
    function, message = REFUSED[forbidden]
    save(tmp_path, lambda x: tf.identity(function(x)))
    with pytest.raises(RuntimeError, match=message):
        serving_checks.check(tmp_path)


def test_the_place_is_named_in_functions_and_outside(tmp_path: Path) -> None:
    save(tmp_path, lambda x: tf.debugging.check_numerics(x, "x", name="here"))
    with pytest.raises(RuntimeError, match=r"\bhere\b.*\b__inference_\S+.*\bCheckNumerics\b"):
        serving_checks.check(tmp_path)
    node = node_def_pb2.NodeDef(name="there", op="Assert")
    with pytest.raises(RuntimeError, match=mentions("there", "Assert")):
        serving_checks.check_failures(graph_pb2.GraphDef(node=[node]))


def test_dangerous_ops_are_those_of_the_scan() -> None:
    # Read, not imported: the module defines command-line flags of its own.
    spec = importlib.util.find_spec("tensorflow.python.tools.saved_model_cli")
    assert spec is not None and spec.origin is not None
    (theirs,) = re.findall(r"^_OP_DENYLIST = set\((.+)\)", Path(spec.origin).read_text(), re.M)
    assert set(ast.literal_eval(theirs)) == serving_checks.DANGEROUS_OPS


_called = tf.function(lambda x, maximum: steps(x, maximum), autograph=False)

BOUNDED: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "a constant of the function around": lambda x: nested(x, *[tf.constant(5)] * 2),
    "the smaller of a constant and another": lambda x: nested(x, *[tf.minimum(tf.size(x), 5)] * 2),
    "constants of two callers": lambda x: _called(x, tf.constant(3)) + _called(x, tf.constant(4)),
    "in a branch": lambda x: tf.cond(tf.size(x) > 3, lambda: nested(x, 3, 4), lambda: x),
}
UNBOUNDED: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "no maximum": lambda x: steps(x, None),
    "none inside": lambda x: nested(x, 3, None),
    "none outside": lambda x: nested(x, None, 3),
    "as the input wants": lambda x: steps(x, tf.size(x)),
    "as the input wants, inside": lambda x: nested(x, 3, tf.size(x)),
    "the larger of a constant and another": lambda x: steps(x, tf.maximum(tf.size(x), 5)),
    "another at every turn": lambda x: tf.while_loop(
        lambda n, x: True,
        lambda n, x: (n + 1, steps(x, n)),
        (tf.constant(1), x),
        maximum_iterations=3,
    )[1],
    "of one of two callers": lambda x: _called(x, tf.constant(3)) + _called(x, tf.size(x)),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_loops_with_a_constant_bound(tmp_path: Path, name: str) -> None:
    serving_checks.check(save(tmp_path, BOUNDED[name]))


@pytest.mark.parametrize("name", UNBOUNDED)
def test_loops_without_a_bound(tmp_path: Path, name: str) -> None:
    save(tmp_path, UNBOUNDED[name])
    with pytest.raises(RuntimeError, match=r"\S*while\b.*\bStatelessWhile\b.*\bloop\b"):
        serving_checks.check(tmp_path)


SPECS = [tf.TensorSpec([], tf.int32), tf.TensorSpec([], tf.int32), FLOATS]
GOOD = {
    "cond": lambda count, maximum, x: tf.logical_and(count < maximum, tf.reduce_sum(x) < 10.0),
    "body": lambda count, maximum, x: (count + 1, maximum, x + 1.0),
}
BROKEN: dict[str, dict[str, Callable[..., Any]]] = {
    "the maximum is not looked at": {"cond": lambda count, maximum, x: tf.reduce_sum(x) < 10.0},
    "the maximum is one of two conditions": {
        "cond": lambda count, maximum, x: tf.logical_or(count < maximum, tf.reduce_sum(x) < 10.0)
    },
    "the maximum grows": {"body": lambda count, maximum, x: (count + 1, maximum + 1, x)},
    "nothing counts": {"body": lambda count, maximum, x: (tf.identity(count), maximum, x)},
    "the count goes down": {"body": lambda count, maximum, x: (count + -1, maximum, x)},
}


def raw_loop(from_constant: bool = True, **functions: Callable[..., Any]) -> Any:
    """A graph with the op as no `tf.while_loop` would make it."""

    @tf.function(input_signature=[FLOATS])
    def call(x: tf.Tensor) -> tf.Tensor:
        made = {
            key: tf.function(function, input_signature=SPECS).get_concrete_function()
            for key, function in (GOOD | functions).items()
        }
        count = tf.constant(0) if from_constant else -tf.size(x)
        return tf.raw_ops.StatelessWhile(input=[count, tf.constant(5), x], **made)[2]

    return call.get_concrete_function().graph.as_graph_def()


def test_maxima_that_hold_and_that_do_not() -> None:
    serving_checks.check_loops(raw_loop())
    for broken in (raw_loop(from_constant=False), *(raw_loop(**each) for each in BROKEN.values())):
        with pytest.raises(RuntimeError, match=mentions("StatelessWhile", "loop", "number")):
            serving_checks.check_loops(broken)
    old = graph_pb2.GraphDef(node=[node_def_pb2.NodeDef(name="loop", op="LoopCond")])
    with pytest.raises(RuntimeError, match=mentions("loop", "LoopCond")):
        serving_checks.check_loops(old)


SHAPES: dict[str, tuple[tf.TensorSpec, Callable[[tf.Tensor], tf.Tensor], str]] = {
    "a batch of one size": (
        tf.TensorSpec([2, 3], tf.float32),
        lambda x: x,
        mentions("serving_default", "x", "(2, 3)", "rows"),
    ),
    "a scalar": (tf.TensorSpec([], tf.float32), lambda x: [x], mentions("x", "()")),
    "any shape": (
        tf.TensorSpec(None, tf.float32),
        lambda x: x,
        mentions("x", "<unknown>"),
    ),
    "floats of any width": (
        tf.TensorSpec([None, None], tf.float32),
        lambda x: tf.reduce_sum(x, 1),
        mentions("x", "(None, None)", "constants"),
    ),
    "ids of any depth": (
        tf.TensorSpec([None, 2, None], tf.int32),
        lambda x: tf.reduce_sum(x, 2),
        mentions("x", "(None, 2, None)", "constants"),
    ),
    "one number for all": (
        FLOATS,
        tf.reduce_sum,
        mentions("output_0", "()"),
    ),
    "one row for all": (FLOATS, lambda x: x[0] + [[1.0]], mentions("output_0", "(1, 3)")),
    "outputs of any width": (
        tf.TensorSpec([None, None], tf.int32),
        lambda x: x,
        mentions("output_0", "(None, None)", "constants"),
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_that_cannot_be_batched(tmp_path: Path, name: str) -> None:
    spec, function, message = SHAPES[name]
    named = tf.TensorSpec(spec.shape, spec.dtype, name="x")
    save(tmp_path, lambda x: tf.identity(function(x)), named)
    with pytest.raises(RuntimeError, match=message):
        serving_checks.check(tmp_path)


def test_no_saved_model(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=mentions("SavedModel", "saved_model.pb")):
        serving_checks.check(tmp_path)
    (tmp_path / "saved_model.pb").write_bytes(b"nothing like it")
    with pytest.raises(InputError, match=mentions("SavedModel", "saved_model.pb")):
        serving_checks.check(tmp_path)
