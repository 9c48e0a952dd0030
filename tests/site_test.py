"""The documentation: it builds without warnings, and the tutorials' commands and code run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.M | re.S)
# docs/python.md is in tests/integration/wheel_test.py.
PAGES = ["tutorials/own_translator", "tutorials/classifier", "kerashub"]


@pytest.mark.long
def test_site_builds_without_warnings(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", "docs", ".", tmp_path],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    for page in ("index", "docs/index", "docs/getting_started", "docs/api/layers", "RESULTS"):
        assert (tmp_path / f"{page}.html").is_file(), page
    layers = (tmp_path / "docs/api/layers.html").read_text(encoding="utf-8")
    assert "Call arguments" in layers and "scaled_dot_product_attention" in layers


def code_of(page: str, language: str) -> str:
    """The code blocks of a page in one language."""
    blocks = BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))
    return "".join(code for other, code in blocks if other == language)


def script(page: str) -> str:
    """A page's commands, then its Python code in one process; models and test sets are small."""
    commands = re.sub(r"--max_steps=\d+", "--max_steps=20", code_of(page, "sh"))
    layers = "--set=model.num_encoder_layers=1 --set=model.num_decoder_layers=1"
    commands = commands.replace("--preset=tiny", f"--preset=tiny {layers}")
    if "keras-transformer evaluate" in commands:
        shorten = "for file in text/test.* text/valid.*; do sed -i '9,$d' $file; done\n"
        commands = re.sub(r"(phrasebook --output_dir=text\n)", rf"\1{shorten}", commands)
    lines = ["set -eu", commands]
    if python := code_of(page, "python"):
        lines.append(f"python - <<'END_OF_PYTHON'\n{python}END_OF_PYTHON\n")
    return "\n".join(lines)


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_commands_and_code_of_a_page_run(page: str, tmp_path: Path) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    main = "import sys; from keras_transformer.cli.main import main; sys.exit(main())"
    for name, arguments in (("python", ""), ("keras-transformer", f"-c '{main}'")):
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        (commands / name).chmod(0o755)
    path = f"{commands}:{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "-c", script(f"docs/{page}.md")],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
