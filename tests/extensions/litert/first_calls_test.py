"""The first calls of new interpreters and of `CompiledModel`, in which XNNPACK moves its memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from keras_transformer.extensions.litert import exporter as export
from keras_transformer.extensions.litert import passes
from keras_transformer.inference import loading
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import ROOT, random_shortlist
from tests.export.model_variants import SEARCH_OPTIONS, make_run
from tests.extensions.litert.tied_model import loop_bodies

# Runs in a new process, in which TensorFlow has not left free memory of all sizes. Prints how many
# calls differ from those of LiteRT's own kernels.
PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from keras_transformer.extensions.litert.engine import _compiled

path, signature, runtime = sys.argv[1:]
rng = np.random.default_rng(5)
is_batch = signature == "translate_batch"

def new(**options):
    interpreter = Interpreter(path, num_threads=1, **options)
    return interpreter.get_signature_runner(signature)

def first_call(call):
    if runtime == "CompiledModel":
        return _compiled(Path(path))(**call)
    return new()(**call)

def sources(count, width):
    padded = np.zeros((count, width if is_batch else 40), np.int32)
    padded[:, :width] = rng.integers(4, 40, (count, width))
    return {
        "ids": padded,
        "lengths": rng.integers(1, width + 1, count).astype(np.int32),
        "max_length": np.zeros(count, np.int32),
        "length_penalty": np.full(count, np.nan, np.float32),
    }

own_kernels = new(experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
wrong = 0
for _ in range(20):
    for rows, width in (1, 6), (3, 5), (3, 12), (7, 9), (10, 16), (4, 30):
        call = sources(rows if is_batch else 1, width)
        difference = first_call(call)["scores"] - own_kernels(**call)["scores"]
        wrong += not np.abs(difference).max() < 1e-3  # NaN is wrong, too
print(wrong)
"""


SHAPE_INPUTS = {  # the inputs of LiteRT's operations that give the shape of the output
    "RESHAPE": slice(1, None),
    "BROADCAST_TO": slice(1, None),
    "FILL": slice(1),
    "PAD": slice(1, None),
    "PADV2": slice(1, 2),
    "RANGE": slice(None),
    "SCATTER_ND": slice(2, None),
    "SLICE": slice(1, None),
    "STRIDED_SLICE": slice(1, None),
    "TILE": slice(1, None),
    "TOPK_V2": slice(1, None),
}


@pytest.fixture(scope="module")
def models(run_directory: RunDirectory) -> dict[str, Any]:
    translator = loading.load_translator(run_directory)
    return {
        signature: export.convert(translator, "float32", for_cpu=signature == "translate_batch")
        for signature in ("translate_batch", "translate_ids")
    }


@pytest.mark.parametrize(
    ("signature", "runtime"),
    [
        ("translate_batch", "Interpreter"),
        ("translate_ids", "Interpreter"),
        ("translate_ids", "CompiledModel"),
    ],
)
def test_new_runtimes_give_the_scores_of_other_kernels(
    models: dict[str, Any], tmp_path: Path, signature: str, runtime: str
) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(passes.write(models[signature]))
    command = [sys.executable, "-c", PROGRAM, str(path), signature, runtime]
    result = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert result.stdout == "0\n"


@pytest.mark.parametrize("signature", ["translate_batch", "translate_ids"])
def test_all_loops_are_prepared_twice(models: dict[str, Any], signature: str) -> None:
    model = models[signature]
    whiles = loops = 0
    for graph in model.subgraphs:
        ops = [passes.op_name(model, each) for each in graph.operators]
        assert "IF" not in ops
        whiles += ops.count("WHILE")
        for place, each in enumerate(graph.operators):
            if ops[place - 1 : place + 1] == ["WHILE", "WHILE"]:
                before = graph.operators[place - 1]
                body = each.builtinOptions.bodySubgraphIndex
                assert before.builtinOptions.bodySubgraphIndex == body
                assert before.inputs.tolist() == each.inputs.tolist()
                loops += 1
    assert whiles == 2 * loops
    assert loops == {"translate_batch": 3, "translate_ids": 2}[signature]


@pytest.mark.parametrize(
    ("kind", "for_cpu"),
    [
        ("shortlist", True), ("shortlist", False), ("window", True), ("window", False),
        ("options", True), ("converted", False), ("separate", True),
    ],
)  # fmt: skip
def test_shapes_are_known_before_products_run(tmp_path: Path, kind: str, for_cpu: bool) -> None:
    """Otherwise, LiteRT prepares the rest of a body only in the loop that runs it."""
    changes = {"model__attention_window": 5} if kind == "window" else {}
    kind_of_run = kind if kind in ("converted", "separate") else "paper"
    run = make_run(tmp_path / "run", kind_of_run, **changes)
    translator = loading.load_translator(run, SEARCH_OPTIONS if kind == "options" else {})
    if kind == "window":  # a search of the same translator has traced its encoder, with blocks
        translator.encode.get_concrete_function(tf.TensorSpec([None, None], tf.int32))
    if kind == "shortlist":
        translator = translator.with_options(shortlist=random_shortlist(run, 4))
    check_shapes(export.convert(translator, "float32", for_cpu=for_cpu))


@pytest.mark.parametrize("signature", ["translate_batch", "translate_ids"])
def test_shapes_of_plain_models_are_known(models: dict[str, Any], signature: str) -> None:
    check_shapes(models[signature])


def check_shapes(model: Any) -> None:
    products = 0
    for index, graph in enumerate(model.subgraphs):
        ops = [passes.op_name(model, operator) for operator in graph.operators]
        if "FULLY_CONNECTED" in ops:
            products += 1
            assert index in loop_bodies(model)
            assert unplanned(model, graph) == [], index
    assert products == 2


def unplanned(model: Any, graph: Any) -> list[str]:
    """Returns the operations whose output shapes LiteRT does not know while it prepares them."""
    early = {i for i, t in enumerate(graph.tensors) if model.buffers[t.buffer].data is not None}
    found = []
    for operator in graph.operators:
        name = passes.op_name(model, operator)
        inputs = [int(each) for each in operator.inputs if each >= 0]
        shape_inputs = inputs[SHAPE_INPUTS[name]] if name in SHAPE_INPUTS else []
        if not early.issuperset(shape_inputs) or name == "WHERE":
            found.append(name)
        if name == "TOPK_V2" and -1 in passes.shape_of(graph.tensors[inputs[0]]):
            found.append(name)
        is_early = name in ("STRIDED_SLICE", "RANGE", "CONCATENATION") and early.issuperset(inputs)
        if name == "SHAPE" or is_early:
            early.update(int(each) for each in operator.outputs)
    return found
