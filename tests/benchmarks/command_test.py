"""How benchmarks start and fail."""

from __future__ import annotations

import ast
import sys

import command
import pytest
from absl import flags

from keras_transformer.errors import InputError
from tests.conftest import ROOT


@pytest.fixture(autouse=True)
def _flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process of its own: none of another benchmark that is imported here."""
    monkeypatch.setattr(command.app.flags, "FLAGS", flags.FlagValues())


def run(monkeypatch: pytest.MonkeyPatch, ends: object, *arguments: str) -> object:
    """Returns the exit code."""

    def main() -> int | None:
        if isinstance(ends, BaseException):
            raise ends
        assert ends is None or isinstance(ends, int)
        return ends

    monkeypatch.setattr(sys, "argv", ["benchmark", *arguments])
    with pytest.raises(SystemExit) as exit:
        command.run(main)
    return exit.value.code


def test_exit_codes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert [run(monkeypatch, ends) for ends in (None, 0, 3)] == [0, 0, 3]
    assert capsys.readouterr().err == ""
    assert run(monkeypatch, InputError("a.txt is not there; expected it")) == 1
    assert capsys.readouterr().err == "error: a.txt is not there; expected it\n"
    assert run(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == "stopped by Ctrl-C before the end\n"


def test_what_is_no_flag_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, AssertionError("not to be called"), "base") == 1
    assert capsys.readouterr().err.startswith("error: nothing takes 'base'; expected --name=value")


def test_every_benchmark_starts_so() -> None:
    """But prepare.py, which passes on what is no flag of its own."""
    started = set()
    for path in (ROOT / "benchmarks").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("command.run", "app.run"):
                started.add((path.stem, ast.unparse(node)))
    others = {(name, call) for name, call in started if call != "command.run(main)"}
    assert others == {("prepare", "app.run(main)"), ("command", "app.run(guarded)")}
    assert len(started - others) > 10
