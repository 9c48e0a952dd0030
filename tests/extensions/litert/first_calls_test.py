"""The first calls of new interpreters and of `CompiledModel`, in which XNNPACK moves its memory."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from keras_transformer.extensions.litert import convert as export
from keras_transformer.extensions.litert import passes
from keras_transformer.inference import loading
from tests.builders import weekly
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
for _ in range(4):
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


SIGNATURES = {"translate_batch": "cpu", "translate_ids": "litert"}  # the formats that have them


@pytest.mark.parametrize(
    ("signature", "runtime"),
    [
        ("translate_batch", "Interpreter"),
        ("translate_ids", "Interpreter"),
        ("translate_ids", "CompiledModel"),
    ],
)
def test_new_runtimes_give_the_scores_of_other_kernels(
    version_of: Callable[[str], Path], signature: str, runtime: str
) -> None:
    path = version_of(SIGNATURES[signature]) / "model.tflite"
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, path, signature, runtime],
        check=True, capture_output=True, text=True, timeout=120, cwd=ROOT,
    )  # fmt: skip
    assert result.stdout == "0\n"


@pytest.mark.parametrize("format", SIGNATURES.values())
def test_shapes_of_an_export_are_known_before_products_run(
    version_of: Callable[[str], Path], format: str
) -> None:
    """Otherwise, LiteRT prepares the rest of a body only in the loop that runs it."""
    check_shapes(passes.read((version_of(format) / "model.tflite").read_bytes()))


@pytest.mark.parametrize(
    ("model", "window", "search", "for_cpu"),
    [
        weekly("converted", 5, {}, False),
        weekly("paper", 5, {}, True),
        weekly("separate", None, SEARCH_OPTIONS, True),
    ],
)
def test_shapes_of_other_models_with_shortlists_are_known(
    tmp_path: Path, model: str, window: int | None, search: dict[str, Any], for_cpu: bool
) -> None:
    run = make_run(tmp_path / "run", model, model__attention_window=window)
    translator = loading.load_translator(run, search)
    if window:  # a search of the same translator has traced its encoder, with blocks
        translator.encode.get_concrete_function(tf.TensorSpec([None, None], tf.int32))
    translator = translator.with_options(shortlist=random_shortlist(run, 4))
    check_shapes(export.convert(translator, "float32", for_cpu=for_cpu))


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
        inputs = [int(index) for index in operator.inputs if index >= 0]
        shape_inputs = inputs[SHAPE_INPUTS[name]] if name in SHAPE_INPUTS else []
        if not early.issuperset(shape_inputs) or name == "WHERE":
            found.append(name)
        if name == "TOPK_V2" and -1 in passes.shape_of(graph.tensors[inputs[0]]):
            found.append(name)
        is_early = name in ("STRIDED_SLICE", "RANGE", "CONCATENATION") and early.issuperset(inputs)
        if name == "SHAPE" or is_early:
            early.update(int(index) for index in operator.outputs)
    return found
