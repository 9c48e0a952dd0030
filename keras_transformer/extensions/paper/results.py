"""Reads and writes files such as results.json, and describes how results were made."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.runs.atomic import write_text
from keras_transformer.runs.machine import available_cores, cpu_name


def read_results(path: Path) -> dict[str, Any]:
    """Returns the results of an earlier call, or {}."""
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is not a JSON object ({error}). Delete or repair it.") from None


def write_results(path: Path, results: Mapping[str, Any]) -> None:
    """Writes results as JSON, atomically."""
    write_text(path, json.dumps(results, indent=2) + "\n")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes lines, each with an LF, atomically. Creates the folder if necessary."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{line}\n" for line in lines))


def run_metadata() -> dict[str, Any]:
    """Returns the command, the commit, the date, the versions of libraries, and the machine."""
    return {
        "command": shlex.join(sys.argv),
        "commit": code_commit(),
        "date": time.strftime("%Y-%m-%d"),
        "versions": {
            name: _version(name.replace("-", "_"))
            for name in ("tensorflow", "keras", "tensorflow-text", "sacrebleu")
        },
        "machine": {"processor": cpu_name(), "cores": available_cores()},
    }


def mixed_origins(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns a warning if results come from several commits or processors, else "".

    Results of earlier calls are kept, so a table may compare old with new results.
    """
    origins = {
        name: (each["commit"], each["machine"]["processor"]) for name, each in results.items()
    }
    if len(set(origins.values())) < 2:
        return ""
    listed = "; ".join(f"{name}: {commit} on {on}" for name, (commit, on) in origins.items())
    return f"Results from different commits or processors: {listed}"


def _version(module: str) -> str:
    """Returns the version of the package of a module, such as tensorflow-cpu for tensorflow.

    The module is not imported, because this process must not hold the GPU that its children need.
    """
    distribution, *_ = importlib.metadata.packages_distributions()[module]
    return importlib.metadata.version(distribution)


def code_commit() -> str | None:
    """Returns the commit of this code, with a + if files differ from it; None outside a clone."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():  # a package may be in another repository
        return None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return git("rev-parse", "--short=10", "HEAD") + ("+" if git("status", "--short") else "")
    except (OSError, subprocess.CalledProcessError):
        return None
