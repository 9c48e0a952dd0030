"""The notebook in docs/: its stored outputs are complete and current, and all cells run."""

from __future__ import annotations

import base64
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from jupyter_client.channels import HBChannel
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode

from tests.conftest import ROOT
from tests.docs_test import commands, help_of

# The sections of the paper about the model: all except 2 (background), 6.3 and 7.
SECTIONS = """
1 Introduction
3 Model Architecture
3.1 Encoder and Decoder Stacks
3.2 Attention
3.2.1 Scaled Dot-Product Attention
3.2.2 Multi-Head Attention
3.2.3 Applications of Attention in our Model
3.3 Position-wise Feed-Forward Networks
3.4 Embeddings and Softmax
3.5 Positional Encoding
4 Why Self-Attention
5 Training
5.1 Training Data and Batching
5.2 Hardware and Schedule
5.3 Optimizer
5.4 Regularization
6 Results
6.1 Machine Translation
6.2 Model Variations
""".strip().splitlines()


def load_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "execute_notebook", ROOT / "docs" / "execute_notebook.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


execute_notebook = load_module()


@pytest.fixture
def stored() -> NotebookNode:
    return nbformat.read(execute_notebook.NOTEBOOK, as_version=4)


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def text_of(cell: NotebookNode) -> str:
    """Returns the printed output of a cell and its last value."""
    texts = [output.text for output in cell.outputs if output.get("name") == "stdout"]
    texts += [output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "".join(text for text in texts if not text.startswith("<Figure"))


def test_outputs_are_of_these_sources_in_their_order(stored: NotebookNode) -> None:
    nbformat.validate(stored)
    cells = code_cells(stored)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert stored.metadata["executed_sources"] == execute_notebook.sources_hash(stored), (
        "the sources have changed since they were executed: run docs/execute_notebook.py"
    )
    cells[-1].source += "\nprint(1)"
    assert stored.metadata["executed_sources"] != execute_notebook.sources_hash(stored)


def test_the_stored_notebook_is_small_and_names_no_machine(stored: NotebookNode) -> None:
    assert execute_notebook.NOTEBOOK.stat().st_size < 400_000
    assert stored.metadata.keys() == {"kernelspec", "language_info", "executed_sources"}
    assert stored.metadata["kernelspec"].keys() == {"display_name", "language", "name"}
    assert stored.metadata["language_info"] == {"name": "python"}
    for cell in stored.cells:
        assert cell.metadata.keys() <= {"tags"}, cell.id
    for cell in code_cells(stored):
        kinds = {(output.output_type, output.get("name")) for output in cell.outputs}
        assert kinds <= {("stream", "stdout"), ("display_data", None)}, cell.id
        assert not re.search(r"(^|[\s'\"(])(/\w|[A-Z]:\\)", text_of(cell)), cell.id


def test_sections_are_the_papers_and_all_files_that_are_named_exist(stored: NotebookNode) -> None:
    text = "\n".join(cell.source for cell in stored.cells if cell.cell_type == "markdown")
    headings = re.findall(r"^#+ (\d.*)$", text, re.MULTILINE)
    assert headings == SECTIONS
    links = re.findall(r"\]\((?!https:)([^)]+)\)", text)
    assert len(links) > 10
    for link in links:
        assert (execute_notebook.NOTEBOOK.parent / link).exists(), link
    for command, flags in commands(text):
        assert all(f"--{flag}" in help_of(command) for flag in flags), command


def test_the_stored_run_is_complete_and_has_plots(stored: NotebookNode) -> None:
    cells = {cell.id: cell for cell in code_cells(stored)}
    images = [
        base64.b64decode(output.data["image/png"])
        for cell in cells.values()
        for output in cell.outputs
        if "image/png" in output.get("data", {})
    ]
    plots = sum(cell.source.count("plt.show()") for cell in cells.values())
    assert len(images) == plots >= 8
    assert all(image.startswith(b"\x89PNG") for image in images)

    found = re.search(r"else \((\d+), (\d+)\)", cells["setup"].source)
    assert found
    steps, sentences = found.groups()
    assert re.findall(r"step +(\d+):", text_of(cells["train"]))[-1] == steps
    score = re.search(r"exact matches ([\d.]+)% of (\d+) sentences", text_of(cells["bleu-score"]))
    assert score and score[2] == sentences
    assert float(score[1]) > 90, "the phrasebook's quickstart asks for as much"


@pytest.mark.long
def test_all_cells_run_in_a_fresh_kernel_and_print_what_is_stored(stored: NotebookNode) -> None:
    executed = execute_notebook.execute(stored, {"NOTEBOOK_SMALL": "1"})
    for before, now in zip(code_cells(stored), code_cells(executed), strict=True):
        assert "Traceback" not in str([output for output in now.outputs if "data" not in output])
        assert not [output for output in now.outputs if output.output_type == "error"], now.id
        # Losses and translations differ after so few steps.
        if "trained" not in now.metadata.get("tags", []):
            assert text_of(now) == text_of(before), (
                f"cell {now.id} prints something else than before: run docs/execute_notebook.py"
            )


def written(path: Path, *sources: str) -> bytes:
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path.read_bytes()


def test_the_command_saves_only_runs_without_errors_and_warnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "notebook.ipynb"
    monkeypatch.setattr(execute_notebook, "NOTEBOOK", path)
    for source, reason in (
        ("1 / 0", "ZeroDivisionError"),
        ("import sys; print('mind', file=sys.stderr)", "wrote to standard error: mind"),
    ):
        content = written(path, source)
        with pytest.raises(SystemExit, match=f"(?s)is not changed: .*{reason}"):
            execute_notebook.main([""])
        assert path.read_bytes() == content

    written(path, "x = 6", "print(x * 7)")
    execute_notebook.main([""])
    saved = nbformat.read(path, as_version=4)
    assert [text_of(cell) for cell in saved.cells] == ["", "42\n"]
    assert saved.metadata["executed_sources"] == execute_notebook.sources_hash(saved)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert "2 cells" in capsys.readouterr().out


def test_nothing_waits_for_the_heartbeat_of_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(channel: HBChannel) -> None:
        raise AssertionError("its thread can wait for ever for a kernel that has ended")

    monkeypatch.setattr(HBChannel, "start", start)
    cells = [nbformat.v4.new_code_cell("print(42)")]
    executed = execute_notebook.execute(nbformat.v4.new_notebook(cells=cells))
    assert text_of(executed.cells[0]) == "42\n"


def test_a_dead_kernel_is_reported() -> None:
    cells = [nbformat.v4.new_code_cell("import os; os._exit(1)")]
    with pytest.raises(DeadKernelError):
        execute_notebook.execute(nbformat.v4.new_notebook(cells=cells))


def test_only_documented_names_are_imported(stored: NotebookNode) -> None:
    documented = {"keras_transformer", "keras_transformer.layers", *documented_modules()}
    sources = "\n".join(cell.source for cell in code_cells(stored))
    imported = re.findall(r"^(?:from|import) (keras_transformer[\w.]*)", sources, re.MULTILINE)
    # Quiet loading of TensorFlow, an example corpus, and the figures of the paper's Table 3.
    modules = ("tf_import", "extensions.corpora", "extensions.paper.presets")
    others = {f"keras_transformer.{module}" for module in modules}
    assert set(imported) <= documented | others
    assert len(imported) == 5


def documented_modules() -> set[str]:
    pages = (ROOT / "docs" / "api").glob("*.md")
    return {name for page in pages for name in re.findall(r"automodule:: (\S+)", page.read_text())}
