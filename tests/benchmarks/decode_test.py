"""The whole command with an engine that starts quickly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PHRASES, ROOT

COMMAND = (sys.executable, str(ROOT / "benchmarks" / "decode.py"))


def test_compiled_models_do_not_translate_text(tmp_path: Path) -> None:
    flags = ("--model_dir=run", "--source=a", "--reference=b", "--engines=litert:int8:compiled")
    done = subprocess.run([*COMMAND, *flags], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "litert:int8:compiled" in done.stderr.splitlines()[-1]


def test_decode_compares_random_models(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    (tmp_path / "text").write_text("\n".join(PHRASES * 4) + "\n", encoding="utf-8")
    flags = (
        "--source=text", "--text=text", "--vocab_size=60", "--sizes=tiny", "--rounds=2",
        "--steps=3", "--batches=1,4", "--sentences=2,8", "--set=model.num_encoder_layers=1",
        "--engines=ctranslate2:float32,ctranslate2:int8:1,litert:int8:cores",
    )  # fmt: skip
    done = subprocess.run([*COMMAND, *flags], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["set"] == {"model.num_encoder_layers": "1"}
    found = result["sizes"]["tiny"]
    assert found["left_out"] == {}
    for rows in (1, 4):
        engines = found[f"batch {rows}"]["engines"]
        assert engines.keys() == {"ctranslate2:float32", "ctranslate2:int8:1", "litert:int8:cores"}
        assert engines["ctranslate2:float32"]["sentences_per_second"]["min"] > 0
    assert found["latency"]["best over best ctranslate2"]["over"].endswith("batch 1")
    assert found["latency"]["best over best ctranslate2"]["cpu_time"]["min"] > 0
    assert found["throughput"]["best over best ctranslate2"]["over"].endswith("batch 4")
