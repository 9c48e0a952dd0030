"""The quota of a container limits the cores that a process may use."""

import math
import os
from pathlib import Path

import pytest

from keras_transformer.runs import machine

V1 = ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")


@pytest.mark.parametrize(
    ("group", "files", "quota", "cores"),
    [
        ("0::/", {"cpu.max": "150000 100000"}, 1.5, 2),  # docker run --cpus=1.5
        ("0::/", {"cpu.max": "max 100000"}, math.inf, 8),
        ("0::/a/b", {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 100000"}, 3, 3),
        ("4:cpu,cpuacct:/", dict(zip(V1, ("50000", "100000"), strict=True)), 0.5, 1),
        ("4:cpu,cpuacct:/", dict(zip(V1, ("-1", "100000"), strict=True)), math.inf, 8),
        ("0::/not/visible/here", {"cpu.max": "100000 100000"}, 1, 1),
        ("1:name=systemd:/", {}, math.inf, 8),
    ],
)
def test_a_quota_limits_the_cores(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    group: str,
    files: dict[str, str],
    quota: float,
    cores: int,
) -> None:
    for name, text in {"groups": group, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert machine._cpu_quota(tmp_path / "groups", tmp_path) == quota
    monkeypatch.setattr(machine, "_cpu_quota", lambda: quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert machine.available_cores() == cores
