#!/usr/bin/env python3
r"""Times training steps in several ways side by side: this package's, and PyTorch's.

Example:
    benchmarks/train_step.py --data_dir=build/data --preset=small --batch_tokens=4096 \
        --torch_python=torch-env/bin/python

A way is FRAMEWORK:PRECISION[:OPTION...] and has a process of its own, on the same
corpus with the same sizes, batch tokens and constant learning rate:

* keras:float32 or keras:bfloat16, with `xla`, or a number of replicas that share
  the CPU and the global batch, as in keras:bfloat16:2;
* torch:float32 or torch:bfloat16, with `compile`, or `paper_dropout` for none but
  that of embeddings and residuals, which is all that the paper's presets have here
  (`nn.Transformer` by itself also drops attention weights and ReLUs).

Each way batches the sentences as it is best for it: this package by its few
shapes, PyTorch sorted by length and padded to the longest. In each round every
way takes --steps steps while the others wait, in another order each time.

Prints one JSON object: for each way the real target tokens a second (end ids
counted) and FLOP a second (products of real tokens, backward twice the forward,
causal attention half), the latter's share of the best product of the same
precision in the same run, input wait, memory and more; and ratios of ways, each
the median over rounds of the ratio within a round. `quiet` says whether other
processes left the cores alone: where they did not, ratios are worth nothing, for
PyTorch's threads wait for the slowest of them and TensorFlow's do not.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import command
import numpy as np
from absl import flags
from decoders.comparison import quiet
from steppers.cost import Sizes
from steppers.process import Stepper, Way
from steppers.sorted_batches import sorted_batches

from keras_transformer.config import Config, ModelConfig
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.presets import preset
from keras_transformer.text.tokenizer import Tokenizer

FLAGS = flags.FLAGS
flags.DEFINE_enum("preset", "tiny", ["tiny", "small", "base", "big"], "sizes of the model")
flags.DEFINE_integer("batch_tokens", 4096, "target positions of a batch", lower_bound=1)
flags.DEFINE_string("data_dir", None, "prepared data", required=True)
flags.DEFINE_list(
    "ways",
    ["keras:bfloat16", "keras:bfloat16:2", "keras:float32", "keras:float32:xla"],
    "what to compare; see above",
)
flags.DEFINE_string(
    "torch_python", None, "a Python with PyTorch; adds torch:bfloat16 and torch:float32"
)
flags.DEFINE_integer(
    "rounds", 5, "rounds, in each of which every way takes its turn", lower_bound=1
)
flags.DEFINE_integer("steps", 5, "steps of a turn", lower_bound=1)
flags.DEFINE_integer("threads", 2, "threads of each way", lower_bound=1)

LEARNING_RATE = 3e-4  # constant, so that the loss shows within a few steps whether a way learns
SEED = 1


def configuration(tokenizer: Tokenizer, way: Way | None = None) -> dict[str, Any]:
    """Returns what differs from the preset."""
    settings: dict[str, Any] = {
        "model.source_vocab_size": tokenizer.source_vocab_size,
        "model.target_vocab_size": tokenizer.target_vocab_size,
        "model.pad_id": tokenizer.pad_id,
        "model.unknown_id": tokenizer.unknown_id,
        "model.start_id": tokenizer.start_id,
        "model.end_id": tokenizer.end_id,
        "training.batch_tokens": FLAGS.batch_tokens,
        "training.schedule": "constant",
        "training.warmup_steps": 0,
        "training.learning_rate": LEARNING_RATE,
        "training.seed": SEED,
    }
    if way is not None:
        settings["training.mixed_precision"] = way.precision
        settings["training.jit_compile"] = str("xla" in way.options).lower()
    return settings


def settings_of(way: Way, tokenizer: Tokenizer, config: Config, batches: Path) -> dict[str, Any]:
    """Returns what the way's stepper is told."""
    common = {"threads": FLAGS.threads, "seed": SEED}
    if way.framework == "keras":
        return {
            **common,
            "preset": FLAGS.preset,
            "configuration": configuration(tokenizer, way),
            "data_dir": FLAGS.data_dir,
            "replicas": way.replicas,
            "num_steps": FLAGS.rounds * FLAGS.steps,
        }
    return {
        **common,
        "sizes": _sizes(config.model),
        "batches": str(batches),
        "pad_id": tokenizer.pad_id,
        "precision": way.precision,
        "compile": "compile" in way.options,
        "paper_dropout": "paper_dropout" in way.options,
        "dropout": config.model.residual_dropout,
        "label_smoothing": config.training.label_smoothing,
        "learning_rate": LEARNING_RATE,
    }


def _sizes(model: ModelConfig) -> dict[str, int]:
    return {field.name: getattr(model, field.name) for field in dataclasses.fields(Sizes)}


def take_rounds(steppers: Sequence[Stepper]) -> dict[str, float]:
    """Lets all take their turns, and returns the best products seen meanwhile, FLOP/s."""
    measuring = next((s for s in steppers if s.way.framework == "keras"), None)
    ceilings: dict[str, float] = {}
    for number in range(FLAGS.rounds):
        _say(f"round {number + 1} of {FLAGS.rounds}")
        first = number % len(steppers)
        for stepper in [*steppers[first:], *steppers[:first]]:
            stepper.take_turn(FLAGS.steps)
        if measuring is not None:
            for precision, flop in measuring.ask("ceilings").items():
                ceilings[precision] = max(flop, ceilings.get(precision, 0.0))
    return ceilings


def report(stepper: Stepper, ceilings: dict[str, float]) -> dict[str, Any]:
    """Returns what is printed of a way."""
    turns, facts = stepper.turns, stepper.facts
    total = {name: sum(turn[name] for turn in turns) for name in turns[0]}
    flop_rate = statistics.median(turn["flop"] / turn["seconds"] for turn in turns)
    ceiling = ceilings.get(stepper.way.precision)
    return {
        "tokens_per_second": _spread(stepper.rates(), 0),
        "gflop_per_second": round(flop_rate / 1e9, 1),
        "share_of_ceiling": round(flop_rate / ceiling, 3) if ceiling else None,
        "real_share_of_positions": round(total["target_tokens"] / total["positions"], 3),
        "input_wait_share": round(total["input_wait_seconds"] / total["seconds"], 5),
        "cores": _spread([turn["cores"] for turn in turns], 2),
        "other_cores": _spread([turn["other_cores"] for turn in turns], 2),
        "peak_memory_mb": round(stepper.peak_memory_mb()),
        "first_step_seconds": round(facts["first_step_seconds"], 2),
        "new_shape_seconds": facts["new_shape_seconds"] and round(facts["new_shape_seconds"], 2),
        "shapes": facts["shapes"],
        "first_loss": round(facts["first_loss"], 3),
        "last_loss": round(turns[-1]["loss"], 3),
        "versions": facts["versions"],
    }


def ratios(steppers: Sequence[Stepper]) -> dict[str, Any]:
    """Returns the comparisons that the ways allow."""
    by_name = {stepper.way.name: stepper for stepper in steppers}
    pairs = {}
    own, peer = (
        max(
            (stepper for stepper in steppers if stepper.way.framework == framework),
            key=lambda stepper: statistics.median(stepper.rates()),
            default=None,
        )
        for framework in ("keras", "torch")
    )
    if own and peer:
        pairs["best_over_best_peer"] = (own, peer)
    for name, stepper in by_name.items():
        for option in stepper.way.options:
            plain = by_name.get(name.removesuffix(f":{option}"))
            if plain is not None and plain is not stepper:
                pairs[f"{name} over {plain.way.name}"] = (stepper, plain)
    result = {}
    for title, (one, other) in pairs.items():
        rates = zip(one.rates(), other.rates(), strict=True)
        result[title] = {
            "ways": [one.way.name, other.way.name],
            "tokens_per_second": _spread([a / b for a, b in rates], 3),
            "peak_memory": round(one.peak_memory_mb() / other.peak_memory_mb(), 3),
        }
    return result


def _spread(values: Sequence[float], digits: int) -> dict[str, float]:
    named = {"median": statistics.median(values), "min": min(values), "max": max(values)}
    return {name: round(value, digits or None) for name, value in named.items()}


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _named_ways() -> list[Way]:
    names = list(FLAGS.ways)
    if FLAGS.torch_python:
        names += [name for name in ("torch:bfloat16", "torch:float32") if name not in names]
    return [Way.parse(name) for name in names]


def _are_ways(names: Sequence[str]) -> bool:
    try:
        return bool([Way.parse(name) for name in names])
    except ValueError:
        return False


flags.register_validator("ways", _are_ways, "expected names like keras:bfloat16:2")


def compare(ways: Sequence[Way]) -> dict[str, Any]:
    """Measures, and returns what is printed.

    Raises:
        InputError: where there is no prepared data, or no Python for a way.
    """
    if any(way.framework == "torch" for way in ways) and not FLAGS.torch_python:
        raise InputError("--ways names torch; expected --torch_python, an interpreter that has it")
    tokenizer = Tokenizer.load(FLAGS.data_dir)
    config = preset(FLAGS.preset).updated(configuration(tokenizer))
    steppers: list[Stepper] = []
    with tempfile.TemporaryDirectory() as folder:
        batches = Path(folder) / "batches.npz"
        if FLAGS.torch_python:
            store = TokenStore(Path(FLAGS.data_dir) / "train")
            special = (tokenizer.pad_id, tokenizer.start_id)
            count = FLAGS.rounds * FLAGS.steps
            np.savez(batches, **sorted_batches(store, FLAGS.batch_tokens, *special, SEED, count))
        try:
            for way in ways:
                _say(f"{way.name}: starting")
                python = FLAGS.torch_python if way.framework == "torch" else sys.executable
                settings = settings_of(way, tokenizer, config, batches)
                steppers.append(Stepper(way, python, settings))
            ceilings = take_rounds(steppers)
        finally:
            for stepper in steppers:
                stepper.close()
    return {
        "preset": FLAGS.preset,
        "vocab_size": tokenizer.target_vocab_size,
        "batch_tokens": FLAGS.batch_tokens,
        "rounds": FLAGS.rounds,
        "steps": FLAGS.steps,
        "threads": FLAGS.threads,
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "quiet": quiet({stepper.way.name: stepper.turns for stepper in steppers}),
        "product_ceiling_gflop_per_second": {n: round(f / 1e9, 1) for n, f in ceilings.items()},
        "ways": {stepper.way.name: report(stepper, ceilings) for stepper in steppers},
        "ratios": ratios(steppers),
    }


def main() -> int:
    """Prints the measurements."""
    print(json.dumps(compare(_named_ways())))
    return 0


if __name__ == "__main__":
    command.run(main)
