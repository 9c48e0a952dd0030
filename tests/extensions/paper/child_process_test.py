"""A function in a separate process: its result, its errors, and signals."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keras_transformer.errors import InputError
from keras_transformer.extensions.paper import child_process
from tests.messages import mentions

ROOT = Path(__file__).resolve().parents[3]


def described(number: int) -> dict[str, object]:
    logging.getLogger("keras_transformer.room").info("said %d", number)
    return {"number": number, "process": os.getpid(), "tensorflow": "tensorflow" in sys.modules}


def mistaken() -> None:
    raise InputError("x is 3, not 4")


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def defective() -> None:
    raise ValueError("a defect")


def wait_to_be_told(folder: str) -> None:
    """On any signal, writes its last output and ends."""
    (Path(folder) / "started").write_text(str(os.getpid()))
    try:
        time.sleep(600)
    finally:
        time.sleep(0.3)
        (Path(folder) / "ended").touch()


def test_result_and_output(capfd: pytest.CaptureFixture[str]) -> None:
    logging.getLogger("keras_transformer").setLevel(logging.INFO)
    try:
        found = child_process.call(described, 3)
    finally:
        logging.getLogger("keras_transformer").setLevel(logging.NOTSET)
    assert found["number"] == 3 and found["process"] != os.getpid()
    assert not found["tensorflow"]
    assert capfd.readouterr().err == "said 3\n"


def test_input_errors_pass_through_unchanged(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="^x is 3, not 4$"):
        child_process.call(mistaken)
    assert capfd.readouterr().err == ""


def test_a_kill_and_a_defect() -> None:
    with pytest.raises(InputError, match=mentions("signal 9", "memory")):
        child_process.call(killed)
    with pytest.raises(RuntimeError, match="exit code 1"):
        child_process.call(defective)


PROGRAM = """
import sys
from keras_transformer.extensions.paper import child_process
from tests.extensions.paper.child_process_test import wait_to_be_told
if __name__ == "__main__":
    try:
        child_process.call(wait_to_be_told, sys.argv[1])
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.parametrize("how", ["terminal", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_a_signal_to_the_parent_stops_the_child_after_a_checkpoint(
    tmp_path: Path, how: str
) -> None:
    (tmp_path / "main.py").write_text(PROGRAM)
    parent = subprocess.Popen(
        [sys.executable, tmp_path / "main.py", tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    started = tmp_path / "started"
    while not (started.exists() and started.read_text()):
        assert parent.poll() is None
        time.sleep(0.02)
    if how == "terminal":
        os.killpg(parent.pid, signal.SIGINT)
    else:
        parent.send_signal(getattr(signal, how))
    _, said = parent.communicate(timeout=60)
    if how == "SIGKILL":  # then no process waits for it
        while Path(f"/proc/{started.read_text()}").exists():
            time.sleep(0.02)
    assert parent.returncode == (-signal.SIGKILL if how == "SIGKILL" else 130)
    assert "Traceback" not in said
    assert (tmp_path / "ended").exists() == (how != "SIGKILL")
