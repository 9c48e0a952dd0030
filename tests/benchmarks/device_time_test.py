"""Summaries of the events of a GPU, from both profilers."""

from __future__ import annotations

import pytest
from engines import device_time
from engines.device_time import DeviceEvent

COPY = "kind:pinned size:4 dest:0 async:1"


def test_streams_at_the_same_time_count_once() -> None:
    events = [
        DeviceEvent("fusion_12", 1000, 500),
        DeviceEvent("fusion_3", 1200, 100),
        DeviceEvent("MemcpyD2H", 1400, 200, COPY),
        DeviceEvent("void gemm<float>(float*)", 3000, 1000),
        DeviceEvent("Memset", 4100, 100),
        DeviceEvent("MemcpyD2D", 5000, 100),
    ]
    found = device_time.summary(reversed(events), steps=2)
    assert (found["kernels"], found["host_copies"]) == (1.5, 0.5)
    assert found["busy_ms"] == pytest.approx((600 + 1000 + 100 + 100) / 2000)
    assert found["span_ms"] == pytest.approx(4100 / 2000)
    assert found["kernel_ms"] == {"gemm<float>": [0.5, 0.5], "fusion": [0.3, 1.0]}
    assert found["copies"] == {f"MemcpyD2H {COPY}": 0.5, "MemcpyD2D": 0.5}


def test_no_events_are_no_error() -> None:
    found = device_time.summary([], 3)
    assert (found["kernels"], found["busy_ms"], found["span_ms"]) == (0.0, 0.0, 0.0)


def test_only_streams_of_gpus_count() -> None:
    xplane_pb2 = pytest.importorskip("tensorflow.tsl.profiler.protobuf.xplane_pb2")
    space = xplane_pb2.XSpace()
    for plane_name, line_name in [
        ("/host:CPU", "Stream #1"), ("/device:GPU:0", "XLA Ops"), ("/device:GPU:0", "Stream #2"),
    ]:  # fmt: skip
        plane = space.planes.add(name=plane_name)
        plane.event_metadata[1].name = f"MemcpyH2D {line_name}"
        plane.stat_metadata[1].name = "memcpy_details"
        line = plane.lines.add(name=line_name, timestamp_ns=7000)
        event = line.events.add(metadata_id=1, offset_ps=1_000_000, duration_ps=2_000_000)
        event.stats.add(metadata_id=1, str_value=COPY)
    [found] = device_time.xplane_events(space)
    assert found == DeviceEvent("MemcpyH2D Stream #2", 8.0, 2.0, COPY)
