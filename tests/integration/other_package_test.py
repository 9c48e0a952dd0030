"""The package of docs/api/export.md, which somebody else installs, adds a format like ours."""

import importlib.metadata
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import keras_transformer as kt
from keras_transformer import plugins
from keras_transformer.errors import InputError
from keras_transformer.export import ExportOptions, export
from keras_transformer.inference.loading import load_model
from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import refuses
from tests.conftest import PHRASES, ROOT
from tests.driver import Driver


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Writes what an installer writes for the package: its modules and its entry points."""
    page = (ROOT / "docs" / "api" / "export.md").read_text("utf-8")
    (tmp_path / "my_package").mkdir()
    for part in page.split("```python\n# ")[1:]:
        name, text = part.split("```")[0].split("\n", 1)
        (tmp_path / name).write_text(text)
    project = tomllib.loads(page.split("```toml\n")[1].split("```")[0])["project"]
    points = project["entry-points"].items()
    facts = tmp_path / "my_package-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    text = "".join(
        f"[{group}]\n{name} = {value}\n" for group, named in points for name, value in named.items()
    )
    (facts / "entry_points.txt").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    plugins.entry_points.cache_clear()
    yield
    plugins.entry_points.cache_clear()


@pytest.mark.usefixtures("installed")
def test_an_installed_package_adds_an_export_format(
    own_run: RunDirectory, driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunDirectory, "max_train_source_length", 7)
    assert "--[no]compress" in driver.run(tmp_path, "export", ["--help"], "").out
    options, folder = ExportOptions.of(compress=True), tmp_path / "out"
    result = export(own_run, folder, PHRASES, options, format="numpy")
    path = result.path
    with zipfile.ZipFile(path / "weights.npz") as archive:
        assert archive.infolist()[0].compress_type == zipfile.ZIP_DEFLATED
    assert {"README.md", "manifest.json", "weights.npz"} <= {file.name for file in path.iterdir()}
    loaded = load_model(path.parent, {"decoding.beam_size": 2})
    assert loaded.module.config.beam_size == 2 and loaded.max_train_source_length == 7
    assert kt.load(path)(PHRASES) == result.translations
    refuses(lambda: load_model(path, jit_compile=True), (), path, "NumPy model", "jit_compile=True")


def test_an_unknown_or_broken_extension_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="'pigeon' among the exporters. Installed: .*litert"):
        plugins.find("exporters", "pigeon")
    broken = importlib.metadata.EntryPoint("broken", "nowhere:LOADER", "keras_transformer.loaders")
    points = {"server": plugins.entry_points("loaders")["server"], "broken": broken}
    monkeypatch.setattr(plugins, "entry_points", lambda group: points)
    assert [name for name, _ in plugins.all_of("loaders")] == ["server"]
