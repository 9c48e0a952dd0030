"""The programs of XLA. tests/cli/translate_test.py loads TensorFlow in a hostile environment."""

import os
from pathlib import Path

import pytest

from keras_transformer import tf_import


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
