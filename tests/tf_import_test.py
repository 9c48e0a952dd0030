"""How a program loads TensorFlow, in separate processes."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


def test_loading_is_quiet_and_freezes_the_objects_of_libraries() -> None:
    ended = run_python(
        "import gc\n"
        "from keras_transformer.tf_import import load_tensorflow\n"
        "load_tensorflow()\n"
        "libraries = gc.get_freeze_count()\n"
        "assert gc.isenabled() and libraries > 100_000, libraries\n"
        "mine = [[] for _ in range(100_000)]\n"
        "load_tensorflow()\n"  # objects that exist by then may be garbage
        "assert gc.isenabled() and gc.get_freeze_count() <= libraries, gc.get_freeze_count()\n"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_unused_packages_are_not_loaded_but_can_be_imported_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")  # a setting of the user for other programs
    ended = run_python(
        "import sys\n"
        "from keras_transformer.tf_import import load_tensorflow\n"
        "load_tensorflow()\n"
        "import keras\n"
        "assert keras.backend.backend() == 'tensorflow'\n"
        "assert not {'jax', 'matplotlib', 'pandas'} & set(sys.modules)\n"
        "import matplotlib\n"
        "load_tensorflow()\n"
        "assert sys.modules['matplotlib'] is matplotlib\n"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_messages_are_shown_if_loading_fails() -> None:
    ended = run_python(
        "import gc, os, sys\n"
        "class Failing:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'tensorflow':\n"
        "            os.write(2, b'said by native code\\n')\n"
        "            raise ImportError('broken')\n"
        "sys.meta_path.insert(0, Failing())\n"
        "from keras_transformer.tf_import import load_tensorflow\n"
        "try:\n"
        "    load_tensorflow()\n"
        "finally:\n"
        "    assert gc.isenabled()\n"
    )
    assert ended.returncode == 1
    assert "said by native code" in ended.stderr
    assert ended.stderr.splitlines()[-1] == "ImportError: broken"
