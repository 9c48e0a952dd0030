#!/usr/bin/env python3
"""Executes docs/attention_is_all_you_need.ipynb in a fresh kernel and saves it with its outputs.

Example:
    docs/execute_notebook.py

To be run after its sources have been changed, or what they print, on a machine that is
otherwise idle, since the notebook says how long training took: some minutes. If a cell
fails or warns, the file stays as it was.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
from absl import app
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

NOTEBOOK = Path(__file__).parent / "attention_is_all_you_need.ipynb"


class _ClientWithoutHeartbeat(AsyncKernelClient):
    """Does not ask a kernel whether it lives: nbclient sees that from its process.

    In jupyter_client 8.10, the thread that asks can wait for a kernel that has ended, and who stops
    the thread waits for it: then all cells have run, and the execution never returns.
    """

    def start_channels(self, *args: Any, **kwargs: Any) -> None:
        super().start_channels(*args, **{**kwargs, "hb": False})


class _KernelManager(AsyncKernelManager):
    client_factory = _ClientWithoutHeartbeat


def execute(notebook: NotebookNode, environment: Mapping[str, str] | None = None) -> NotebookNode:
    """Returns a copy with the outputs of a fresh kernel, which runs in a folder of its own.

    Args:
        notebook: its outputs do not matter.
        environment: variables of the kernel, beside those of this process.

    Raises:
        CellExecutionError: for a cell that fails.
    """
    executed = copy.deepcopy(notebook)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            executed,
            timeout=1800,  # seconds a cell
            kernel_name="python3",
            kernel_manager_class=_KernelManager,
            resources={"metadata": {"path": folder}},
            record_timing=False,
            coalesce_streams=True,
        )
        client.execute(env={**os.environ, "IPYTHONDIR": folder, **(environment or {})})
    return executed


def sources_hash(notebook: NotebookNode) -> str:
    """Returns the SHA-256 of the code cells' sources, in hex."""
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()


def strip(notebook: NotebookNode) -> None:
    """Takes away what tells of a machine, and adds which sources were executed.

    Raises:
        ValueError: for a cell that wrote to standard error: a warning is to be looked at, and
            not to be saved.
    """
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                raise ValueError(f"cell {cell.id} wrote to standard error: {output.text}")
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
            "executed_sources": sources_hash(notebook),
        }
    )
    for cell in notebook.cells:
        tags = cell.metadata.get("tags")
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})


def main(argv: Sequence[str]) -> None:
    """Executes, strips and saves the notebook."""
    if len(argv) > 1:
        raise app.UsageError(f"{argv[1]!r} was not expected: this command takes no arguments.")
    try:
        executed = execute(nbformat.read(NOTEBOOK, as_version=4))
        strip(executed)
    except (CellExecutionError, ValueError) as error:
        sys.exit(f"error: {NOTEBOOK} is not changed: {error}")
    nbformat.validate(executed)
    partial = NOTEBOOK.with_name(f".{NOTEBOOK.name}.partial-{os.getpid()}")
    try:
        nbformat.write(executed, partial)
        partial.replace(NOTEBOOK)
    finally:
        partial.unlink(missing_ok=True)
    print(f"{NOTEBOOK}: {len(executed.cells)} cells, {NOTEBOOK.stat().st_size:,} bytes")


if __name__ == "__main__":
    app.run(main)
