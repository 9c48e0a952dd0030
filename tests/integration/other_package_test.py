"""A package of somebody else adds an export format, which works like ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_transformer import plugins
from keras_transformer.errors import InputError
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES, ROOT

# What an installer writes for a package with one module and one entry point.
MODULE = """
from keras_transformer.export.saved_model.exporter import SavedModelExporter

class Noted(SavedModelExporter):
    def describe(self, translator, folder, sentences, options):
        (folder / "note.txt").write_text(f"compared on {len(sentences)} sentences")
        return super().describe(translator, folder, sentences, options)

EXPORTER = Noted()
"""
PROGRAM = """
import sys
import keras_transformer as kt
from keras_transformer.export import export, formats

run, sentence = sys.argv[1:]
assert "noted" in formats()
path = export(run, "out", [sentence], format="noted").path
assert (path / "note.txt").read_text() == "compared on 1 sentences"
assert {"README.md", "manifest.json"} <= {file.name for file in path.iterdir()}
assert kt.load(path)(sentence) == kt.load(run)(sentence)
"""


def test_an_installed_package_adds_an_export_format(
    run_directory: RunDirectory, tmp_path: Path
) -> None:
    (tmp_path / "noted.py").write_text(MODULE)
    facts = tmp_path / "noted-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: noted\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(
        "[keras_transformer.exporters]\nnoted = noted:EXPORTER\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, run_directory.path, PHRASES[0]],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_an_unknown_or_broken_extension_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="'pigeon' among the exporters. Installed: .*litert"):
        plugins.find("exporters", "pigeon")
    point = plugins.entry_points("loaders")["server"]
    found = {"server": point, "broken": Broken()}
    monkeypatch.setattr(plugins, "entry_points", lambda group: found)
    assert [name for name, _ in plugins.all_of("loaders")] == ["server"]


class Broken:
    value = "nowhere:LOADER"

    def load(self) -> None:
        raise ImportError("nowhere")
