"""`sweep` is killed in the middle of a row, resumed, and run again when it is finished."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_transformer.data.token_store import TokenStore
from keras_transformer.inference import loading, scoring, translate
from keras_transformer.runs.run_directory import RunDirectory
from tests.extensions.paper.tables_test import cells, prepared

ROOT = Path(__file__).resolve().parents[2]
MAX_STEPS = 60
COMMAND = (
    "--table3", "--preset_base=tiny", "--data_dir=data", "--work_dir=work", "--rows=B_dk16",
    f"--max_steps={MAX_STEPS}", "--checkpoint_steps=10", "--batch_tokens=128", "--seed=3",
    "--mixed_precision=float32", "--jit_compile=false", "--set=model.num_encoder_layers=1",
    "--set=model.num_decoder_layers=1", "--set=model.d_model=16", "--set=model.d_ff=32",
    "--warmup_steps=20", "--set=training.log_steps=1", "--set=decoding.beam_size=2",
    "--set=decoding.max_extra_tokens=5",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep")
    prepared(folder)
    return folder


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "bin" / "sweep.py"), *arguments],
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return out, err


@pytest.mark.long
def test_a_killed_row_is_resumed_and_finished_rows_are_kept(folder: Path) -> None:
    process = start(folder, *COMMAND)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith(f"step 12 of {MAX_STEPS}"):
            break
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)  # the child process of the row ends too
    run = RunDirectory(folder / "work" / "base" / "run")
    steps = [checkpoint.step for checkpoint in run.checkpoints()]
    assert steps and steps[-1] < MAX_STEPS and steps[-1] % 10 == 0

    out, err = finish(start(folder, *COMMAND))
    assert "row 1 of 2: base (the base)" in err
    assert f"resuming at step {steps[-1]}, up to step {MAX_STEPS}" in err
    assert "row 2 of 2: B_dk16 (d_k × 1/4)" in err
    assert "cuda" not in err.lower()
    *table, last = out.splitlines()
    results = json.loads(last)
    assert results["finished"] and list(results["rows"]) == ["base", "B_dk16"]
    check_row(folder, "B_dk16", results["rows"]["B_dk16"])
    # 3 attentions of 4 heads, whose queries and keys have 3 dimensions fewer, with 16 inputs.
    base, other = (row["parameters"] for row in results["rows"].values())
    assert base - other == 3 * 4 * 2 * 3 * 16
    shown, base = cells("\n".join(table))["base"], results["rows"]["base"]
    assert shown["PPL"] == f"{base['perplexity']:.2f}" and shown["BLEU"] == f"{base['bleu']:.1f}"
    assert "\n".join(table[:-1]) + "\n" == (folder / "work" / "table.md").read_text()

    again, err = finish(start(folder, *COMMAND))
    assert json.loads(again.splitlines()[-1]) == results and err == ""


def check_row(folder: Path, name: str, row: dict[str, Any]) -> None:
    """Counts the weights and computes the scores again from the files of the run."""
    run = RunDirectory(folder / "work" / name / "run")
    assert (run.config.model.key_dim, run.config.model.value_dim) == (1, 4)
    [*_, newest] = run.checkpoints()
    assert newest.step == row["steps"] == MAX_STEPS
    with zipfile.ZipFile(newest.path / "weights.npz") as weights:
        arrays = [np.load(weights.open(file)) for file in weights.namelist()]
    assert row["parameters"] == sum(array.size for array in arrays)
    store = TokenStore(folder / "data" / "valid")
    sources, targets = store.source_text(), store.target_text()
    scorer = scoring.load_scorer(run.path)
    perplexity = scoring.perplexity(scoring.score_pairs(scorer, sources, targets))
    assert row["perplexity"] == pytest.approx(perplexity, rel=1e-6)
    scored = translate.evaluate(loading.load_model(run.path), sources, targets)
    assert row["bleu"] == scored.scores.bleu
    assert row["signature"] == scored.scores.signature
    translations = (folder / "work" / name / "translations").read_text().splitlines()
    assert translations == scored.hypotheses
