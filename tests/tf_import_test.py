"""TensorFlow loads quietly, whatever the user has set for other programs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keras_transformer import tf_import

START = """
import os, tempfile
from keras_transformer.runs import machine
tempfile._candidate_tempdir_list = lambda: ["/nowhere"]  # a read-only container
machine._cpu_quota = lambda: 0.5
"""
COMMAND = "from keras_transformer.tf_import import load_tensorflow; load_tensorflow()"
LIBRARY = "import keras_transformer as kt; kt.layers"
REST = """
import keras, tensorflow
print(os.environ["TF_NUM_INTRAOP_THREADS"], os.environ["TF_NUM_INTEROP_THREADS"])
print(keras.backend.backend(), keras.config.floatx(), tensorflow.keras.__version__[0])
"""


def outputs(load, environment):
    """Returns what a fresh process writes that loads TensorFlow."""
    command = [sys.executable, "-c", f"{START}{load}{REST}"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    return ended.stdout, ended.stderr


@pytest.mark.long  # every change: test_lines_of_a_terminal_are_translated… in tests/cli
def test_tensorflow_loads_quietly_and_ignores_settings_of_other_programs(tmp_path):
    (tmp_path / "keras.json").write_text('{"backend": "jax", "floatx": "float64"}')
    foreign = {"KERAS_BACKEND": "jax", "KERAS_HOME": str(tmp_path), "TF_USE_LEGACY_KERAS": "1"}
    environment = {**os.environ, **foreign, "TF_CPP_MIN_LOG_LEVEL": "0"}
    for name in ("TF_XLA_FLAGS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        environment.pop(name, None)
    assert outputs(COMMAND, environment) == ("1 2\ntensorflow float32 3\n", "")


@pytest.mark.long
def test_the_library_sets_only_what_the_user_has_not(tmp_path):
    (tmp_path / "keras.json").write_text('{"floatx": "float64"}')
    environment = {**os.environ, "KERAS_HOME": str(tmp_path), "TF_NUM_INTEROP_THREADS": "7"}
    environment["KERAS_BACKEND"] = "tensorflow"
    for name in ("TF_CPP_MIN_LOG_LEVEL", "TF_XLA_FLAGS", "TF_NUM_INTRAOP_THREADS"):
        environment.pop(name, None)
    assert outputs(LIBRARY, environment) == ("1 7\ntensorflow float64 3\n", "")


@pytest.mark.parametrize("visible", ["0", ""])
def test_machines_with_gpus_keep_the_programs_of_xla(tmp_path, monkeypatch, visible):
    monkeypatch.setattr(tf_import, "_DRIVER", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setenv("TF_XLA_FLAGS", "")
    (tmp_path / "version").write_text("NVRM version: 580\nGCC version: 12\n")
    tf_import._keep_programs_of_xla("2.21")
    flag = os.environ["TF_XLA_FLAGS"]
    assert flag.startswith("--tf_xla_persistent_cache_directory=") == bool(visible)
    assert not visible or Path(flag.partition("=")[2]).is_dir()


REPORT = """
import atexit, sys
atexit.register(lambda: print("loaded", {"tensorflow", "keras"} & {*sys.modules}))
"""
PROGRAMS = {
    "client": "from keras_transformer.extensions.serving import client\n"
    "client.Client('localhost:1', 'x').close()",
    "report": "import keras_transformer.extensions.pages.report",
    "prepare": "from pathlib import Path; from keras_transformer.cli import main\n"
    "Path('a.tsv').write_text(''.join(f'a {i}\\tb {i}\\n' for i in range(9)))\n"
    "flags = '--tsv=a.tsv --output_dir=data --vocab_size=40 --valid_pairs=2'.split()\n"
    "main.run('prepare', ['prepare', *flags])",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_these_programs_do_not_load_tensorflow(tmp_path, name):
    program = REPORT + PROGRAMS[name]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0 and ended.stdout.endswith("loaded set()\n"), ended.stderr
