"""What a GPU does in a step: kernels, copies between it and the host, and the time it is busy."""

from __future__ import annotations

import collections
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from protocol import Answer

_MOST_KINDS = 15
_NAME_LENGTH = 60
_HOST_COPIES = ("HtoD", "DtoH", "H2D", "D2H")


class DeviceEvent(NamedTuple):
    """A kernel or a copy.

    Attributes:
        name: name of the kernel, or the kind of the copy.
        start_us: when it began, in microseconds.
        duration_us: how long it took.
        details: size of a copy, or "".

    Example:
        >>> DeviceEvent("MemcpyH2D", 1.0, 2.0, "size:4").duration_us
        2.0
    """

    name: str
    start_us: float
    duration_us: float
    details: str = ""


def summary(events: Iterable[DeviceEvent], steps: int) -> Answer:
    """Returns what the device did in one of several equal steps.

    Args:
        events: all events of the steps.
        steps: number of steps.

    Returns:
        `kernels`, `host_copies`, `busy_ms` (streams that run at the same time count once),
        `kernel_ms` of the kinds of kernels that take most time, and the `copies` by kind and size.

    Example:
        >>> found = summary([DeviceEvent("add", 0, 500), DeviceEvent("MemcpyD2H", 400, 200)], 1)
        >>> found["kernels"], found["host_copies"], found["busy_ms"]
        (1.0, 1.0, 0.6)
    """
    events = sorted(events, key=lambda event: event.start_us)
    kernels = [event for event in events if not event.name.lower().startswith("mem")]
    copies = [event for event in events if event.name.lower().startswith("memcpy")]
    busy, end = 0.0, float("-inf")
    for event in events:
        event_end = event.start_us + event.duration_us
        busy += max(event_end - max(event.start_us, end), 0.0)
        end = max(end, event_end)
    milliseconds: collections.Counter[str] = collections.Counter()
    counts: collections.Counter[str] = collections.Counter()
    for event in kernels:
        kind = _kind(event.name)
        milliseconds[kind] += event.duration_us / 1000 / steps
        counts[kind] += 1
    sizes = collections.Counter(f"{event.name} {event.details}".strip() for event in copies)
    to_or_from_host = [event for event in copies if any(w in event.name for w in _HOST_COPIES)]
    return {
        "kernels": round(len(kernels) / steps, 1),
        "host_copies": round(len(to_or_from_host) / steps, 1),
        "busy_ms": round(busy / 1000 / steps, 3),
        "span_ms": round((end - events[0].start_us) / 1000 / steps, 3) if events else 0.0,
        "kernel_ms": {
            kind: [round(value, 3), round(counts[kind] / steps, 1)]
            for kind, value in milliseconds.most_common(_MOST_KINDS)
        },
        "copies": {kind: round(n / steps, 1) for kind, n in sizes.most_common(_MOST_KINDS)},
    }


def _kind(name: str) -> str:
    """Returns the name of a kernel without the number that XLA adds, and without arguments."""
    name = name.removeprefix("void ").partition("(")[0]
    head, _, number = name.rpartition("_")
    return (head if number.isdecimal() else name)[:_NAME_LENGTH]


def tensorflow_profile(take_step: Callable[[], Any], steps: int) -> Answer:
    """Profiles a few steps with TensorFlow's profiler.

    Args:
        take_step: takes a step and waits for its end.
        steps: number of steps.
    """
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    # Tracing the host would slow it down.
    options = tf.profiler.experimental.ProfilerOptions(
        host_tracer_level=0, python_tracer_level=0, device_tracer_level=1
    )
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder, options)
        for _ in range(steps):
            take_step()
        tf.profiler.experimental.stop()
        [file] = Path(folder).glob("plugins/profile/*/*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(file.read_bytes())
    return summary(xplane_events(space), steps)


def xplane_events(space: Any) -> list[DeviceEvent]:
    """Returns the events of the GPU's streams in an `XSpace`."""
    events = []
    for plane in space.planes:
        if not plane.name.startswith("/device:GPU"):
            continue
        stats = {number: stat.name for number, stat in plane.stat_metadata.items()}
        for line in plane.lines:
            if not line.name.startswith("Stream"):
                continue  # derived from the streams
            for event in line.events:
                start_us = line.timestamp_ns / 1e3 + event.offset_ps / 1e6
                name = plane.event_metadata[event.metadata_id].name
                details = next(
                    (
                        stat.str_value or stats.get(stat.ref_value, "")
                        for stat in event.stats
                        if stats.get(stat.metadata_id) == "memcpy_details"
                    ),
                    "",
                )
                events.append(DeviceEvent(name, start_us, event.duration_ps / 1e6, details))
    return events


def torch_events(profile: Any) -> Sequence[DeviceEvent]:
    """Returns the events of the GPU in a `torch.profiler.profile`."""
    from torch.autograd import DeviceType

    return [
        DeviceEvent(event.name, event.time_range.start, event.time_range.elapsed_us())
        for event in profile.events()
        if event.device_type == DeviceType.CUDA
    ]
