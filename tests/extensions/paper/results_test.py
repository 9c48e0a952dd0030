"""results.json: any bytes are read or give an error, and writing is atomic."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keras_transformer.errors import InputError
from keras_transformer.extensions.paper import results
from keras_transformer.extensions.paper.results import (
    read_results,
    run_metadata,
    write_lines,
    write_results,
)
from tests.messages import tells


@given(
    st.binary(max_size=20)
    | st.dictionaries(st.text(max_size=3), st.floats() | st.lists(st.text(max_size=3))).map(
        lambda found: json.dumps(found).encode()
    )
    | st.just(b"[" * 100_000)
)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_bytes_are_an_object_or_an_input_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "results.json"
    path.write_bytes(data)
    try:
        found = read_results(path)
    except InputError as error:
        assert tells(str(error), path, "JSON")
        return
    assert isinstance(found, dict)


def test_written_atomically_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    assert read_results(path) == {}
    write_results(path, {"bleu": 30.5, "name": "für"})
    with pytest.raises(OSError):
        write_results(path / "below", {"bleu": 1})
    assert read_results(path) == {"bleu": 30.5, "name": "für"}


def test_lines_end_only_at_lf(tmp_path: Path) -> None:
    write_lines(tmp_path / "folder" / "lines", ["a\u2028b", "", "ü"])
    assert (tmp_path / "folder" / "lines").read_bytes() == "a\u2028b\n\nü\n".encode()


def test_run_metadata_name_versions_and_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version
    distributions = importlib.metadata.packages_distributions()
    monkeypatch.setattr(
        importlib.metadata,
        "packages_distributions",
        lambda: {**distributions, "tensorflow": ["tensorflow-cpu"]},
    )
    monkeypatch.setattr(
        importlib.metadata,
        "version",
        lambda name: "2.99.0" if name == "tensorflow-cpu" else version(name),
    )
    found = run_metadata()
    assert found["versions"]["tensorflow"] == "2.99.0" and found["machine"]["processor"]
    assert found["command"] and len(found["date"]) == 10


def test_a_package_in_another_repository_or_without_git_has_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message=theirs"], check=True)
    installed = (
        tmp_path / "site-packages" / "keras_transformer" / "extensions" / "paper" / "results.py"
    )
    installed.parent.mkdir(parents=True)
    monkeypatch.setattr(results, "__file__", str(installed))
    assert results.code_commit() is None
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path))  # without git
    assert results.code_commit() is None
