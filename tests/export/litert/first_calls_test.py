"""The first calls of new interpreters, in which XNNPACK moves its memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keras_transformer.export.litert import export, flatbuffer
from keras_transformer.inference import loading
from keras_transformer.runs.run_directory import RunDirectory

# A process of its own, in which TensorFlow has not left free memory of all sizes. It prints how
# many calls differ from those of LiteRT's own kernels.
PROGRAM = """
import sys
import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType

rng = np.random.default_rng(5)

def new(**options):
    interpreter = Interpreter(sys.argv[1], num_threads=1, **options)
    return interpreter.get_signature_runner("translate_batch")

def sources(count, width):
    return {
        "ids": rng.integers(4, 40, (count, width)).astype(np.int32),
        "lengths": rng.integers(1, width + 1, count).astype(np.int32),
        "max_length": np.zeros(count, np.int32),
        "length_penalty": np.full(count, np.nan, np.float32),
    }

own_kernels = new(experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
wrong = 0
for _ in range(20):
    for sizes in (1, 6), (3, 5), (3, 12), (7, 9), (10, 16), (4, 30):
        call = sources(*sizes)
        difference = new()(**call)["scores"] - own_kernels(**call)["scores"]
        wrong += np.abs(difference).max() > 1e-3
print(wrong)
"""


@pytest.fixture(scope="module")
def models(run_directory: RunDirectory) -> dict[str, Any]:
    translator = loading.load_translator(run_directory)
    return {
        signature: export.convert(translator, "none", for_cpu=signature == "translate_batch")
        for signature in ("translate_batch", "translate_ids")
    }


def test_new_interpreters_give_the_scores_of_other_kernels(
    models: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(flatbuffer.write(models["translate_batch"]))
    command = [sys.executable, "-c", PROGRAM, str(path)]
    result = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert result.stdout == "0\n"


@pytest.mark.parametrize("signature", ["translate_batch", "translate_ids"])
def test_all_graphs_with_products_are_prepared_twice(
    models: dict[str, Any], signature: str
) -> None:
    model = models[signature]
    loops = 0
    for graph in model.subgraphs:
        ops = [flatbuffer.op_name(model, each) for each in graph.operators]
        assert "IF" not in ops
        for place, each in enumerate(graph.operators):
            if ops[place - 1 : place + 1] == ["WHILE", "WHILE"]:
                before = graph.operators[place - 1]
                body = each.builtinOptions.bodySubgraphIndex
                assert before.builtinOptions.bodySubgraphIndex == body
                assert before.inputs.tolist() == each.inputs.tolist()
                loops += 1
    assert loops == {"translate_batch": 3, "translate_ids": 2}[signature]
