"""The subprocess protocol, with an engine that these tests write."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from protocol import BENCHMARKS, Child, EngineChild, UnavailableError
from variants import Variant, started

from keras_transformer.errors import InputError

ENGINE = """
import os
import sys

print("a library's print is not an answer")

def count(settings):
    total = settings["first"]

    def add(number):
        nonlocal total
        total += number
        return {"total": total}

    def fail():
        raise ValueError("something broke")

    def leave():
        print("left", file=sys.stderr, flush=True)
        os._exit(3)

    cores = sorted(os.sched_getaffinity(0))
    return {"cores": cores}, {"add": add, "fail": fail, "leave": leave}

def stall(settings):
    import time
    time.sleep(60)

def need(settings):
    import a_package_that_nobody_has
"""


@pytest.fixture
def start(tmp_path: Path) -> Any:
    """Starts a task of the engine."""
    engines = tmp_path / "engines"
    engines.mkdir()
    (engines / "__init__.py").touch()
    (engines / "fake_engine.py").write_text(ENGINE)
    paths = os.pathsep.join([str(tmp_path), str(BENCHMARKS), str(BENCHMARKS.parent)])

    def started(task: str = "count", limit_s: float = 60.0, **settings: Any) -> EngineChild:
        settings, environment = {"first": 1, **settings}, {"PYTHONPATH": paths}
        return EngineChild(
            "fake:1", "fake", task, settings, environment=environment, limit_s=limit_s
        )

    return started


def test_an_engine_that_is_too_slow_is_left_out(start: Any) -> None:
    slow, quick = (
        Variant.parse(f"x:{name}", {"x": (["slow", "quick"], [])}) for name in ("slow", "quick")
    )

    def start_one(variant: Variant) -> EngineChild:
        return start("stall", limit_s=0.5) if variant is slow else start()

    with started([slow, quick], start_one) as (children, left_out):
        assert children.keys() == {"x:quick"}
        assert left_out == {"x:slow": "fake:1 was not ready after 0.5 seconds."}


def test_an_interruption_ends_the_start_of_engines(start: Any) -> None:
    first, second = (Variant.parse(f"x:{name}", {"x": (["a", "b"], [])}) for name in ("a", "b"))

    def start_one(variant: Variant) -> EngineChild:
        if variant is second:
            raise KeyboardInterrupt
        return start()

    with started([first, second, first], start_one) as (children, left_out):
        assert children.keys() == {"x:a"} and left_out == {"x:b": "interrupted"}


def test_an_engine_answers_until_it_is_closed(start: Any) -> None:
    child = start(first=5)
    assert child.facts["ready_seconds"] > child.facts["import_seconds"] >= 0
    assert child.ask("add", number=2) == {"total": 7}
    assert child.ask("add", number=1) == {"total": 8}
    pid = child.pid
    assert child.close() == 0
    assert not Path(f"/proc/{pid}").exists()


def test_cores_follow_the_settings(start: Any) -> None:
    core = min(os.sched_getaffinity(0))
    with start(cores=[core]) as child:
        assert child.facts["cores"] == [core]


def test_errors_of_the_process_are_shown(start: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with (
        pytest.raises(RuntimeError, match="fake:1 ended with exit code 1.(.|\\n)*something broke"),
        start() as child,
    ):
        child.ask("fail")
    with pytest.raises(RuntimeError, match="exit code 3.\\n(.|\\n)*left"), start() as child:
        child.ask("leave")
    with pytest.raises(RuntimeError, match="no_such_task"):
        start("no_such_task")
    assert "something broke" in capfd.readouterr().err


def test_engines_without_their_package_are_skipped(start: Any) -> None:
    with pytest.raises(UnavailableError, match="has no package a_package_that_nobody_has"):
        start("need")
    variants = [Variant(f"fake:{task}", "fake", task, ()) for task in ("need", "count")]
    with started(variants, lambda variant: start(variant.precision)) as (children, left_out):
        assert children["fake:count"].ask("add", number=1) == {"total": 2}
    assert list(children) == ["fake:count"] and list(left_out) == ["fake:need"]
    with (
        pytest.raises(InputError, match="No engine can run"),
        started(variants[:1], lambda variant: start(variant.precision)),
    ):
        pass


def test_a_process_that_does_not_start_is_reported() -> None:
    command = [sys.executable, "-c", "print('port 12', flush=True); input(); input()"]
    server = Child("server", command, answers=False)
    assert server.wait_for(r"port (\d+)", 30)[1] == "12"
    server.close()
    broken = Child("server", [sys.executable, "-c", "raise SystemExit('no port')"], answers=False)
    with pytest.raises(RuntimeError, match="server did not start.\nno port"):
        broken.wait_for("port (.)", 30)
    assert broken.close() == 1
