#!/usr/bin/env python3
r"""Computes how training scales with GPUs, from a measured step and the speed of their links.

Examples:
    benchmarks/gpu_scaling.py --preset=base --step_ms=26.5
    benchmarks/gpu_scaling.py --preset=big --step_ms=59.7 --links=NVLink=400,PCIe_4=20

This is arithmetic, not a measurement. Each GPU has a batch of the size that was measured, and sums
the gradients of all weights, in float32 and in one buffer, with the other GPUs. A ring of N GPUs
sends 2 (N - 1) / N times the buffer over each link. The sum begins after the backward pass, because
forward and backward pass are one program of XLA, so its time is added to the step. If it could
overlap with the backward pass, it would cost nothing up to two thirds of a step.

Prints one JSON object: the bytes of the buffer, and for each link and number of GPUs the
milliseconds of all collectives of a step, the efficiency (tokens per second and GPU, as a share of
those of one GPU), and the efficiency with overlap.
"""

from __future__ import annotations

import json
from typing import Any

import command
from absl import flags

from keras_transformer.presets import preset

FLAGS = flags.FLAGS
flags.DEFINE_enum("preset", "base", ["tiny", "small", "base", "big"], "sizes of the model")
flags.DEFINE_integer("vocab_size", 37_000, "pieces of the joint vocabulary", lower_bound=8)
flags.DEFINE_float("step_ms", None, "measured milliseconds of a step on one GPU", required=True)
command.define_numbers("gpus", [2, 4, 8], "numbers of GPUs")
flags.DEFINE_list(
    "links", ["NVLink=400", "PCIe_5=40", "PCIe_4=20"],
    "links, each with the GB/s of a ring over it in each direction",
)  # fmt: skip
flags.DEFINE_integer("collectives", 3, "collectives of a step, as program_size.py counts them")
flags.DEFINE_float("latency_us", 30.0, "microseconds of a collective of a few bytes", lower_bound=0)
flags.register_validator(
    "links",
    lambda links: all(_is_link(link) for link in links),
    "expected names with GB/s, as in NVLink=400",
)

_BYTES = 4  # float32
_BACKWARD_SHARE = 2 / 3  # of the time of a step


def _is_link(link: str) -> bool:
    name, _, speed = link.partition("=")
    return bool(name) and speed.isdecimal() and int(speed) > 0


def simulate(gradient_bytes: int, step_ms: float, gpus: int, gb_per_s: float) -> dict[str, float]:
    """Returns the time of the collectives, and the efficiency.

    Args:
        gradient_bytes: bytes that are summed over the GPUs.
        step_ms: milliseconds of a step on one GPU.
        gpus: number of GPUs, at least 2.
        gb_per_s: speed of a link in each direction.

    Example:
        >>> simulate(200_000_000, step_ms=26.5, gpus=2, gb_per_s=20)
        {'sum_ms': 10.09, 'efficiency': 0.724, 'efficiency_with_overlap': 0.997}
    """
    latency_ms = FLAGS.collectives * FLAGS.latency_us / 1000
    transfer_ms = 2 * (gpus - 1) / gpus * gradient_bytes / gb_per_s / 1e6
    exposed_ms = max(transfer_ms - _BACKWARD_SHARE * step_ms, 0.0)
    return {
        "sum_ms": round(transfer_ms + latency_ms, 2),
        "efficiency": round(step_ms / (step_ms + transfer_ms + latency_ms), 3),
        "efficiency_with_overlap": round(step_ms / (step_ms + exposed_ms + latency_ms), 3),
    }


def main() -> int:
    """Prints the computed figures."""
    config = preset(FLAGS.preset).replace(
        model__source_vocab_size=FLAGS.vocab_size, model__target_vocab_size=FLAGS.vocab_size
    )
    gradient_bytes = _BYTES * config.model.num_parameters()
    links: dict[str, Any] = {}
    for link in FLAGS.links:
        name, _, speed = link.partition("=")
        links[name] = {
            gpus: simulate(gradient_bytes, FLAGS.step_ms, int(gpus), float(speed))
            for gpus in FLAGS.gpus
        }
    names = ("preset", "vocab_size", "step_ms", "links", "collectives", "latency_us")
    settings = {name: getattr(FLAGS, name) for name in names}
    print(json.dumps({"settings": settings, "gradient_bytes": gradient_bytes, "links": links}))
    return 0


if __name__ == "__main__":
    command.run(main)
