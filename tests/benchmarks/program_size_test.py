"""Counts of a known HLO text, and the whole command."""

from __future__ import annotations

import json
import subprocess
import sys

import program_size
import pytest

from tests.conftest import ROOT

HLO = """HloModule a_program, entry_computation_layout={(f32[2]{0})->f32[2]{0}}

add_one.3 {
  Arg_0.4 = f32[2]{0} parameter(0)
  constant.5 = f32[] constant(1)
  broadcast.6 = f32[2]{0} broadcast(constant.5), dimensions={}
  ROOT add.7 = f32[2]{0} add(Arg_0.4, broadcast.6)
}

ENTRY main.9 {
  arg0.1 = f32[2]{0} parameter(0)
  pair.2 = (f32[2]{0}, /*index=1*/s32[]) custom-call(arg0.1), custom_call_target="f(x)"
  ROOT call.8 = f32[2]{0} call(arg0.1), to_apply=add_one.3
}
"""


def test_instructions_are_counted_by_opcode() -> None:
    assert program_size.count_instructions(HLO) == {
        "parameter": 2, "constant": 1, "broadcast": 1, "add": 1, "custom-call": 1, "call": 1,
    }  # fmt: skip


def test_rare_opcodes_are_summed() -> None:
    counts = program_size.collections.Counter({f"kind{i}": 30 - i for i in range(30)})
    found = program_size.most_common(counts)
    assert found["others"] == 1 + 2 + 3 + 4 + 5 and sum(found.values()) == counts.total()


@pytest.mark.long
def test_the_command_counts_a_training_step() -> None:
    command = (sys.executable, str(ROOT / "benchmarks" / "program_size.py"))
    flags = (
        "--preset=tiny",
        "--layers=1",
        "--rows=2",
        "--row_tokens=4",
        "--vocab_size=50",
        "--compile",
    )
    done = subprocess.run([*command, *flags], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    # Each of 11 projections is a product, with two more for its gradients; there are 26 weights.
    assert found["hlo"]["by_opcode"]["dot"] > 33
    assert found["graph_executor"]["by_kind"]["ResourceApplyAdam"] == 26
    # The update of the weights is one of XLA's programs.
    assert found["outside_xla"]["operations"] < 30
