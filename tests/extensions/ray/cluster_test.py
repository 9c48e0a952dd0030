"""Runs the tests of `on_a_cluster.py` in a namespace whose network is only the loopback device."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.messages import tells

TESTS = Path(__file__).with_name("on_a_cluster.py")
# The processes of the cluster end with the first process of their namespace.
ISOLATED = "unshare --map-root-user --net --pid --fork --kill-child --mount --mount-proc".split()


def test_an_address_without_a_cluster_is_refused(driver, tmp_path):
    pytest.importorskip("ray")
    (tmp_path / "c.tsv").write_text("a\tb\n")
    for address in ("127.0.0.1:1", "nonsense"):
        flags = f"--tsv=c.tsv --output_dir=out --ray={address}".split()
        ended = driver.run(tmp_path, "prepare", flags, "")
        assert ended.code == 1 and tells(ended.err, "error:", address, "ray start")
        assert ended.err.count("\n") == 1


def test_commands_on_a_real_cluster(cpu_version, tmp_path, request):
    pytest.importorskip("ray")
    if subprocess.run([*ISOLATED, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this user may not create namespaces: unshare fails")
    long = ["--long"] * request.config.getoption("--long")
    options = ["-p", "no:cacheprovider", "-o", "python_files=*.py", f"--basetemp={tmp_path}/tests"]
    ended = subprocess.run(
        [*ISOLATED, "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
        + [sys.executable, "-m", "pytest", "-q", *options, *long, TESTS],
        env={**os.environ, "EXPORT": str(cpu_version), "BEGAN": str(tmp_path / "began")},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
