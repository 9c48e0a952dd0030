#!/usr/bin/env python3
"""Executes docs/attention_is_all_you_need.ipynb in a fresh kernel and saves it with its outputs.

Example:
    docs/execute_notebook.py

Run it after a change of the code cells, or of what they print. It takes some minutes. The machine
should be idle, because the notebook shows how long training took. If a cell fails or warns, the
file is not changed.
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
    """A client that does not check the heartbeat of a kernel. nbclient watches its process.

    In jupyter_client 8.10, the heartbeat thread can wait forever for a kernel that has ended. Then
    the execution never returns, although all cells have run.
    """

    def start_channels(self, *args: Any, **kwargs: Any) -> None:
        super().start_channels(*args, **{**kwargs, "hb": False})


class _KernelManager(AsyncKernelManager):
    client_factory = _ClientWithoutHeartbeat


def execute(notebook: NotebookNode, environment: Mapping[str, str] | None = None) -> NotebookNode:
    """Executes a copy of a notebook in a fresh kernel and a temporary folder, and returns it.

    Args:
        notebook: the notebook. Its outputs are ignored.
        environment: environment variables of the kernel, in addition to the current ones.

    Raises:
        CellExecutionError: for a cell that fails.
    """
    executed = copy.deepcopy(notebook)
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            executed,
            timeout=1800,  # seconds per cell
            kernel_name="python3",
            kernel_manager_class=_KernelManager,
            resources={"metadata": {"path": folder}},
            record_timing=False,
            coalesce_streams=True,
        )
        client.execute(env={**os.environ, "IPYTHONDIR": folder, **(environment or {})})
    return executed


def sources_hash(notebook: NotebookNode) -> str:
    """Returns the SHA-256 of the sources of all code cells, in hexadecimal."""
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256(json.dumps(sources).encode()).hexdigest()


def strip(notebook: NotebookNode) -> None:
    """Removes the metadata of the machine, and adds the hash of the executed sources.

    Raises:
        ValueError: if a cell wrote to standard error. A warning must be fixed, not saved.
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
        raise app.UsageError(f"The argument is {argv[1]!r}, but this command takes no arguments.")
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
