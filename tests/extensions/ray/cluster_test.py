"""Runs the tests of `on_a_cluster.py` in a namespace whose network is only the loopback device."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.messages import tells

pytest.importorskip("ray")
TESTS = Path(__file__).with_name("on_a_cluster.py")
# The processes of the cluster end with the first process of their namespace.
ISOLATED = "unshare --map-root-user --net --pid --fork --kill-child --mount --mount-proc".split()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense", "127.0.0.1:OTHER"])
def test_an_address_without_a_cluster_is_refused_within_seconds(tmp_path, address):
    (tmp_path / "c.tsv").write_text("a\tb\n")
    seconds = {"RAY_gcs_rpc_server_connect_timeout_s": "1", "RAY_py_gcs_connect_timeout_s": "1"}
    with socket.create_server(("", 0)) as other_service:
        address = address.replace("OTHER", str(other_service.getsockname()[1]))
        train = "train --data_dir=. --run_dir=b"  # also with a TF_CONFIG of somebody else
        command = train if address == "nonsense" else "prepare --tsv=c.tsv --output_dir=out"
        flags = f"{command} --ray={address}".split()
        ended = subprocess.run(
            [sys.executable, "-m", "keras_transformer", *flags], cwd=tmp_path, timeout=50,
            env={**os.environ, **seconds, "TF_CONFIG": "{}"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    *log, message = ended.stderr.splitlines()  # Ray has a log if another service answers
    assert ended.returncode == 1 and tells(message, "error:", address, "ray start")
    assert not log or "rpc_client" in log[0]


def test_commands_on_a_real_cluster(cpu_version, tmp_path, request):
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
