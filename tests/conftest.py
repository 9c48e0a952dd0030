"""What tests share: real corpora, two logical CPU devices, a quiet TensorFlow."""

import contextlib
import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # before anything loads TensorFlow
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Folder of the real corpora; tests that need it are skipped where it is missing."""
    path = ROOT / os.environ.get("KERAS_TRANSFORMER_TEST_DATA", "../shared/data")
    if not path.is_dir():
        pytest.skip(f"no corpora at {path}; KERAS_TRANSFORMER_TEST_DATA names their folder")
    return path


def _split_cpu() -> None:
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    with contextlib.suppress(RuntimeError):  # a test module ran an op at import: two_cpus tells
        tf.config.set_logical_device_configuration(cpu, two)


def pytest_collection_finish() -> None:
    """Splits the CPU while TensorFlow still allows it: before the first test runs an op."""
    if "tensorflow" in sys.modules and os.environ.get("KERAS_BACKEND") in (None, "tensorflow"):
        _split_cpu()


@pytest.fixture(scope="session")
def two_cpus() -> list[str]:
    """Names of two logical CPU devices, for `tf.distribute.MirroredStrategy`."""
    import tensorflow as tf

    if len(tf.config.list_logical_devices("CPU")) < 2:  # also the first use of TensorFlow
        pytest.fail("TensorFlow ran before the CPU was split; import it at the top of the test")
    return ["CPU:0", "CPU:1"]
