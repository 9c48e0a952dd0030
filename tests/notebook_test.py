"""The notebook in docs/: its stored outputs are complete and current, and all cells run."""

import base64
import re

import nbformat
import pytest
from nbformat import NotebookNode

from docs import execute_notebook


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


def test_all_sections_of_the_paper_about_the_model_and_its_training_are_there(
    stored: NotebookNode,
) -> None:
    text = "\n".join(cell.source for cell in stored.cells if cell.cell_type == "markdown")
    assert len(re.findall(r"^#+ \d.*$", text, re.MULTILINE)) == 19


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


@pytest.mark.long  # trains a model; other tests check the stored outputs
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
