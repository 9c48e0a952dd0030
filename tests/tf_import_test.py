"""How a program loads TensorFlow, in separate processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from keras_transformer import tf_import


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


def test_the_settings_of_keras_for_other_work_have_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"floatx": "float16", "backend": "torch", "image_data_format": "channels_first"}
    (tmp_path / ".keras").mkdir()
    (tmp_path / ".keras" / "keras.json").write_text(json.dumps({**settings, "epsilon": 0.1}))
    for name, value in {
        "HOME": str(tmp_path),
        "KERAS_MAX_EPOCHS": "1",
        "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "cpp",
        "TF2_BEHAVIOR": "0",
        "TF_USE_LEGACY_KERAS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("KERAS_HOME", raising=False)
    ended = run_python(
        "from keras_transformer.tf_import import load_tensorflow\n"
        "load_tensorflow()\n"
        "import keras, tensorflow as tf\n"
        "config = keras.config\n"
        "print(config.floatx(), config.backend(), config.image_data_format(), config.epsilon())\n"
        "print(config.max_epochs(), tf.executing_eagerly(), tf.keras.Model is keras.Model)\n"
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "float32 tensorflow channels_last 1e-07\nNone True True\n"


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("XLA_FLAGS", "rubbish", 'file "rubbish"'),
        ("XLA_FLAGS", "--xla_cpu_rubbish=1", "--xla_cpu_rubbish"),
        ("XLA_FLAGS", "--xla_gpu_autotune_level=x", "value x for flag xla_gpu_autotune_level"),
        ("TF_XLA_FLAGS", "--rubbish", "--rubbish"),
        ("TF_XLA_FLAGS", "--tf_xla_auto_jit=0", None),
    ],
)
def test_flags_that_would_end_tensorflow_are_an_error(
    name: str, value: str, reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    ended = run_python("from keras_transformer import tf_import\ntf_import.load_tensorflow()\n")
    assert ended.stdout == ""
    if reason is None:
        assert (ended.returncode, ended.stderr) == (0, "")
    else:
        sentence = ended.stderr.splitlines()[-1]
        assert ended.returncode == 1 and "errors.InputError: TensorFlow does not accept" in sentence
        assert f"{name}={value}" in sentence and reason in sentence


CARD = "NVIDIA H100 80GB HBM3"


def test_cards_are_read_from_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    nothing = str(tmp_path / "nothing")
    assert tf_import.nvidia_gpus(tmp_path, nothing) == ""
    (tmp_path / "version").write_text("NVRM version: 580.159.04\nGCC version: 13\n")
    assert tf_import.nvidia_gpus(tmp_path, nothing) == ""
    for number in range(2):
        (tmp_path / f"gpus/{number}").mkdir(parents=True)
        text = f"Model: \t\t {CARD}\nIRQ:   \t\t {number}\n"
        (tmp_path / f"gpus/{number}/information").write_text(text)
    assert tf_import.nvidia_gpus(tmp_path, nothing) == f"{CARD}\nNVRM version: 580.159.04"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert tf_import.nvidia_gpus(tmp_path, nothing) == ""


def test_cards_without_a_description_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\necho '{CARD}, 580'\necho '{CARD}, 580'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert tf_import.nvidia_gpus(tmp_path, str(tmp_path)) == ""
    (tmp_path / "nvidia0").touch()
    assert tf_import.nvidia_gpus(tmp_path, str(tmp_path)) == f"{CARD}, 580"
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert tf_import.nvidia_gpus(tmp_path, str(tmp_path)) == ""


def load_with_card(more: str = "") -> subprocess.CompletedProcess[str]:
    """Loads TensorFlow as if there was a card, compiles a program, and prints the settings."""
    return run_python(
        "from keras_transformer import tf_import\n"
        f"tf_import.nvidia_gpus = lambda: '{CARD}'\n{more}"
        "tf_import.load_tensorflow()\n"
        "import os\n"
        "import tensorflow as tf\n"
        "tf.function(lambda x: x + 1, jit_compile=True)(tf.constant(1))\n"
        "print(os.environ['XLA_FLAGS'])\n"
        "print(*tf_import.xla_problems)\n"
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of XLA's programs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.delenv("TF_XLA_FLAGS", raising=False)
    monkeypatch.setattr(tf_import, "xla_problems", [])
    return tmp_path / "keras_transformer" / "xla"


def test_xla_keeps_programs_for_gpus_on_disk(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_force_compilation_parallelism=3")
    ended = load_with_card()
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.split() == [
        "--xla_gpu_enable_llvm_module_compilation_parallelism=true",
        "--xla_gpu_force_compilation_parallelism=3",
    ]
    [folder] = cache.iterdir()
    assert folder.name.startswith("tensorflow-") and len(list(folder.iterdir())) == 1


def test_flags_that_a_later_tensorflow_drops_are_left_out(cache: Path) -> None:
    ended = load_with_card("tf_import._THREADS_FLAG = 'xla_gpu_dropped'\n")
    assert (ended.returncode, ended.stderr) == (0, "")
    flags, problems = ended.stdout.splitlines()
    assert flags == "--xla_gpu_enable_llvm_module_compilation_parallelism=true"
    assert problems.startswith("TensorFlow does not accept --xla_gpu_dropped (Unknown flag")
    assert len(list(cache.glob("*/*"))) == 1


def accept_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds flags without a trial in a copy of the process."""
    monkeypatch.setattr(tf_import, "_rejection", lambda *_: None)


def test_programs_are_shared_by_runs_with_other_numbers_of_cores(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept_flags(monkeypatch)

    def folder(xla_flags: str, gpus: str = CARD) -> str:
        monkeypatch.setenv("XLA_FLAGS", xla_flags)
        monkeypatch.setenv("TF_XLA_FLAGS", "")
        tf_import._configure_xla(gpus)
        assert not tf_import.xla_problems
        return tf_import.program_cache()

    first = folder("")
    assert Path(first).parent == cache
    assert first == folder("--xla_gpu_force_compilation_parallelism=3")
    assert first != folder("--xla_gpu_autotune_level=0")
    assert first != folder("", "another card")


@pytest.mark.parametrize(
    "gpus, xla_flags, expected", [("", "", ""), ("a card", "flags.txt", "flags.txt")]
)
def test_flags_are_not_added_without_gpus_or_to_a_file(
    cache: Path, monkeypatch: pytest.MonkeyPatch, gpus: str, xla_flags: str, expected: str
) -> None:
    accept_flags(monkeypatch)
    monkeypatch.setenv("XLA_FLAGS", xla_flags)
    tf_import._configure_xla(gpus)
    assert os.environ["XLA_FLAGS"] == expected
    assert bool(tf_import.program_cache()) == bool(gpus)


@pytest.mark.parametrize("problem", ["a space", "not a folder", "no space left"])
def test_programs_are_not_kept_in_a_folder_that_cannot_be_used(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    accept_flags(monkeypatch)
    expected = "1.0 GB of free space"
    if problem == "a space":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "with a space"))
        expected = "contains a space"
    elif problem == "not a folder":
        cache.parent.touch()
        expected = str(cache.parent)
    else:
        usage = type("Usage", (), {"free": 1_000_000_000})
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    tf_import._configure_xla(CARD)
    assert tf_import.program_cache() == ""
    [found] = tf_import.xla_problems
    assert found.startswith("XLA cannot keep its programs") and expected in found


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Read less bytes than requested [Op:__inference_f_7]", "Delete it"),
        ("Serialized cache key does not match. [Op:__inference_f_7]", "Delete it"),
        ("Failed to parse serialized CpuAotCompilationResult.", "Delete it"),
        ("Cannot parse /programs/xla_compile_cache__1__2__GPU.pb", "Delete it"),
        ("/programs is not a directory [Op:__inference_f_7]", "cannot be used"),
        ("/programs/1.pb.tmp; No space left on device", "is full"),
        ('Graph execution error:\n\n  File "/programs/x.py"\n\nOOM', None),
        ("OOM when allocating tensor", None),
        ("End of sequence", None),
    ],
)
def test_errors_of_the_folder_of_programs_name_it(
    monkeypatch: pytest.MonkeyPatch, message: str, expected: str | None
) -> None:
    monkeypatch.setenv("TF_XLA_FLAGS", "")
    assert tf_import.program_cache_error(message) is None
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_persistent_cache_directory=/programs --other")
    error = tf_import.program_cache_error(message)
    assert (error is None) == (expected is None)
    if expected is not None:
        assert "/programs, in which XLA keeps its programs" in str(error) and expected in str(error)
        assert "[Op:" not in str(error)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Read less bytes than requested [Op:__inference_f_7]", "Read less bytes than requested"),
        ("OOM when allocating.\nHint: ...", "OOM when allocating"),
        (
            "Graph execution error:\n\nDetected at node A defined at (most recent call last):\n"
            '  File "x.py", line 8, in g\n\nOut of memory\n\t [[{{node A}}]] [Op:__inference_g]',
            "Out of memory",
        ),
        (
            "Graph execution error:\n\n2 root error(s) found.\n  (0) RESOURCE_EXHAUSTED:  OOM\n"
            "\t [[{{node A}}]]\n  (1) CANCELLED:  Function was cancelled\n0 successful operations.",
            "RESOURCE_EXHAUSTED: OOM",
        ),
        ("", ""),
    ],
)
def test_the_reason_of_an_error_of_tensorflow_is_found(message: str, reason: str) -> None:
    assert tf_import.op_error_reason(message) == reason
