"""How a program loads TensorFlow, in processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest


def told(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )


def test_libraries_are_no_garbage_to_look_for_and_nothing_is_said() -> None:
    ended = told(
        "import gc\n"
        "from keras_transformer.tf_import import load_tensorflow\n"
        "load_tensorflow()\n"
        "libraries = gc.get_freeze_count()\n"
        "assert gc.isenabled() and libraries > 100_000, libraries\n"
        "mine = [[] for _ in range(100_000)]\n"
        "load_tensorflow()\n"  # of a program that has it: what is there by now may be garbage
        "assert gc.isenabled() and gc.get_freeze_count() <= libraries, gc.get_freeze_count()\n"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_what_no_program_uses_is_left_for_those_who_import_it_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "jax")  # of a user who has other work, too
    ended = told(
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


def test_what_was_said_is_shown_where_loading_fails() -> None:
    ended = told(
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
