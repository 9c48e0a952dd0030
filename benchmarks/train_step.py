#!/usr/bin/env python3
r"""Times training steps of this package, next to PyTorch.

Examples:
    benchmarks/train_step.py --data_dir=build/data --preset=small --batch_tokens=4096 \
        --engine_python=torch=torch-env/bin/python
    benchmarks/train_step.py --device=gpu --shapes=1 --data_dir=build/data --preset=base \
        --batch_tokens=25000 --steps=20 --profile --engine_python=torch=torch-env/bin/python
    benchmarks/train_step.py --device=gpu --shapes=1 --data_dir=build/data --preset=base \
        --batch_tokens=25000 --rounds=1 --steps=200 \
        --engines=keras:float32:xla,keras:bfloat16:xla,keras:float16:xla

The last example shows whether all precisions reach the same `last_loss`.

An engine is ENGINE:PRECISION[:OPTION...]. Each runs in a separate process, with the same corpus,
model sizes, batch tokens and constant learning rate:

* keras:float32, keras:bfloat16 or keras:float16, with `xla`, or with a number of replicas that
  share the CPU and the global batch, as in keras:bfloat16:2;
* torch:float32 or torch:bfloat16, with `compile`, or with `paper_dropout`: dropout only of
  embeddings and residuals, as in the paper's presets. By default `nn.Transformer` also drops
  attention weights and ReLUs.

Each engine makes its batches in the way that suits it best. This package uses a few shapes;
PyTorch sorts by length and pads to the longest sentence. With --shapes=N, all engines get the same
batches, those of the N most frequent shapes of this package, and keep them on the device. In each
round every engine takes --steps steps while the others wait.

With --device=gpu, all engines share the first GPU. XLA takes many seconds for each shape, so choose
--shapes. --profile adds the kernels of a step, its copies to and from the host, and the time in
which the GPU is busy. --start_seconds leaves out an engine that does not get ready, such as
torch.compile.

Prints one JSON object. For each engine: real target tokens per second (end ids included), FLOP
per second (matrix products of real tokens; backward is twice forward; causal attention is half)
and their share of the fastest matrix product of the same precision in the same run, the share of
time spent waiting for input, and memory. `ratios` are medians over the rounds of the ratio within
a round. If `quiet` is false, other processes used the cores: do not rely on the ratios. PyTorch's
threads wait for the slowest of them, and TensorFlow's do not.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import command
import numpy as np
import numpy.typing as npt
from absl import flags
from measuring import (
    Turn,
    Turns,
    best_ratios,
    describe_machine,
    is_quiet,
    ratio,
    spread,
    take_turns,
)
from models import (
    LEARNING_RATE,
    SEED,
    sizes_of,
    special_ids,
    training_settings,
    vocabulary_settings,
)
from protocol import EngineChild
from sentence_batches import sorted_training_batches
from variants import Variant, chosen, define_engines, grouped, python_of, started

from keras_transformer.config import Config
from keras_transformer.presets import preset

if TYPE_CHECKING:
    from keras_transformer.data.batches import Batches

FLAGS = flags.FLAGS
flags.DEFINE_enum("preset", "tiny", ["tiny", "small", "base", "big"], "sizes of the model")
flags.DEFINE_integer("batch_tokens", 4096, "target positions of a batch", lower_bound=1)
flags.DEFINE_string("data_dir", None, "prepared data", required=True)
flags.DEFINE_integer("rounds", 5, "rounds; every engine has a turn in each", lower_bound=1)
flags.DEFINE_integer("steps", 5, "steps of a turn", lower_bound=1)
flags.DEFINE_integer("threads", 2, "threads of each engine", lower_bound=1)
flags.DEFINE_integer("shapes", 0, "most frequent batch shapes to use; 0 for all", lower_bound=0)
flags.DEFINE_bool("profile", False, "also profile steps on a GPU")

KNOWN = {
    "keras": (["float32", "bfloat16", "float16"], ["xla", "number"]),
    "torch": (["float32", "bfloat16"], ["compile", "paper_dropout"]),
}


_EPOCHS = 8  # in which steps of the most frequent shapes are looked for


def frequent_steps(batches: Batches, num_shapes: int, num_steps: int) -> list[int]:
    """Returns the first steps whose batches have one of the most frequent shapes.

    Args:
        batches: the batches.
        num_shapes: number of shapes.
        num_steps: the most steps.
    """
    shapes = {}
    for step in range(_EPOCHS * batches.steps_per_epoch):
        inputs, labels = batches.batch(step)
        shapes[step] = (*inputs["source_ids"].shape, labels.shape[1])
    most = dict(collections.Counter(shapes.values()).most_common(num_shapes))
    return [step for step, shape in shapes.items() if shape in most][:num_steps]


def arrays_of(batches: Batches, steps: Sequence[int]) -> dict[str, npt.NDArray[Any]]:
    """Returns the batches of some steps in the form of `sorted_training_batches`."""
    arrays = {}
    for i, step in enumerate(steps):
        inputs, labels = batches.batch(step)
        arrays |= {f"source_{i}": inputs["source_ids"], f"target_{i}": inputs["target_ids"]}
        arrays[f"labels_{i}"] = labels
    return arrays


def torch_settings(variant: Variant, config: Config, batches: Path) -> dict[str, Any]:
    """Returns the settings of `torch_engine.train`."""
    return {
        "sizes": dataclasses.asdict(sizes_of(config.model)),
        "batches": str(batches),
        "pad_id": config.model.pad_id,
        "device": "cuda" if FLAGS.device == "gpu" else "cpu",
        "precision": variant.precision,
        "compile": "compile" in variant.options,
        "dynamic": FLAGS.shapes != 1,
        "paper_dropout": "paper_dropout" in variant.options,
        "dropout": config.model.residual_dropout,
        "label_smoothing": config.training.label_smoothing,
        "learning_rate": LEARNING_RATE,
        "threads": FLAGS.threads,
        "seed": SEED,
    }


def compare(variants: Sequence[Variant]) -> dict[str, Any]:
    """Measures the engines, and returns the results."""
    from keras_transformer.data.batches import Batches  # loads TensorFlow
    from keras_transformer.data.token_store import TokenStore
    from keras_transformer.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(FLAGS.data_dir)
    config = preset(FLAGS.preset).updated(vocabulary_settings(tokenizer))
    num_steps = FLAGS.rounds * FLAGS.steps
    with tempfile.TemporaryDirectory() as folder:
        batches = Path(folder) / "batches.npz"
        store = TokenStore(Path(FLAGS.data_dir) / "train")
        ids, only_steps, arrays = special_ids(tokenizer), None, {}
        if FLAGS.shapes:
            ours = Batches([store], FLAGS.batch_tokens, SEED, tokenizer.vocabulary)
            only_steps = frequent_steps(ours, FLAGS.shapes, num_steps)
            arrays = arrays_of(ours, only_steps)
        elif any(variant.engine == "torch" for variant in variants):
            arrays = sorted_training_batches(store, FLAGS.batch_tokens, ids, SEED, num_steps)
        np.savez(batches, **arrays)

        def start(variant: Variant) -> EngineChild:
            if variant.engine == "keras":
                settings = training_settings(
                    variant, FLAGS.preset, FLAGS.data_dir, FLAGS.batch_tokens, num_steps,
                    device=FLAGS.device, only_steps=only_steps,
                )  # fmt: skip
            else:
                settings = torch_settings(variant, config, batches)
            environment = variant.environment(FLAGS.threads, FLAGS.threads, FLAGS.device)
            return EngineChild(
                variant.name, variant.engine, "train", settings, python_of(variant), environment,
                FLAGS.start_seconds,
            )  # fmt: skip

        with started(variants, start) as (children, left_out):
            variants = [variant for variant in variants if variant.name in children]
            own = next((variant.name for variant in variants if variant.is_ours), None)
            ceilings: dict[str, float] = {}

            def take_turn(name: str) -> Turn:
                turn = children[name].ask("train", steps=FLAGS.steps)
                if name == own:  # once in each round: the machine's speed changes
                    for precision, flop in children[name].ask("ceilings").items():
                        ceilings[precision] = max(flop, ceilings.get(precision, 0.0))
                return turn

            calls = {name: lambda _, name=name: take_turn(name) for name in children}
            turns = take_turns(calls, FLAGS.rounds, "target tokens/s")
            profiles = {
                variant.name: children[variant.name].ask("profile", steps=FLAGS.steps)
                for variant in variants
                if FLAGS.profile
            }
            engines = {
                v.name: report(turns[v.name], children[v.name], ceilings.get(v.precision))
                for v in variants
            }
    return {
        "vocab_size": tokenizer.target_vocab_size,
        "quiet": is_quiet(turns),
        "product_ceiling_gflop_per_second": {n: round(f / 1e9, 1) for n, f in ceilings.items()},
        "engines": engines,
        "ratios": ratios(variants, turns),
        "left_out": left_out,
        **({"profile_of_a_step": profiles} if profiles else {}),
    }


def report(turns: Sequence[Turn], child: EngineChild, ceiling: float | None) -> dict[str, Any]:
    """Returns the results of one engine."""

    def all_of(name: str) -> list[float]:
        return [turn[name] for turn in turns]

    facts = {
        name: value if not isinstance(value, float) else round(value, 3)
        for name, value in child.facts.items()
    }
    facts["seconds_to_first_step"] = round(facts.pop("first_ended") - child.started, 1)
    if not turns:
        return facts
    flop_per_second = statistics.median(all_of("flop_per_second"))
    if "device_memory_mb" in turns[-1]:
        # Later turns come after the large products that measure the ceiling.
        facts["device_memory_mb"] = round(turns[0]["device_memory_mb"])
    return {
        "tokens_per_second": spread(all_of("per_second"), 0),
        "gflop_per_second": round(flop_per_second / 1e9, 1),
        "share_of_ceiling": round(flop_per_second / ceiling, 3) if ceiling else None,
        "real_share_of_positions": round(statistics.mean(all_of("real_share_of_positions")), 3),
        "input_wait_share": round(statistics.mean(all_of("input_wait_share")), 5),
        "cores": spread(all_of("cores"), 2),
        "other_cores": spread(all_of("other_cores"), 2),
        "peak_memory_mb": round(max(all_of("peak_memory_mb"))),
        "last_loss": round(turns[-1]["loss"], 3),
        **facts,
    }


def ratios(variants: Sequence[Variant], turns: Turns) -> dict[str, Any]:
    """Compares our best with the peer's best, and each option with the same engine without it."""
    result = best_ratios(turns, *grouped(variants))
    for variant in variants:
        for option in variant.options:
            plain = variant.name.removesuffix(f":{option}")
            if turns.get(plain) and turns[variant.name] and plain != variant.name:
                result[f"{variant.name} over {plain}"] = ratio(turns, variant.name, plain)
    for comparison in result.values():
        one, other = (
            max(turn["peak_memory_mb"] for turn in turns[comparison[key]]) for key in ("of", "over")
        )
        comparison["peak_memory"] = round(one / other, 3)
    return result


ON_GPU = (
    *("keras:bfloat16:xla", "keras:bfloat16"),
    *("torch:bfloat16:paper_dropout", "torch:bfloat16:paper_dropout:compile"),
)

define_engines(
    KNOWN,
    [
        *("keras:bfloat16", "keras:bfloat16:2", "keras:float32", "keras:float32:xla"),
        *("torch:bfloat16", "torch:bfloat16:paper_dropout", "torch:float32"),
    ],
)


def main() -> int:
    """Prints the measurements."""
    variants = chosen(KNOWN)
    if FLAGS.device == "gpu" and FLAGS["engines"].using_default_value:
        variants = [Variant.parse(name, KNOWN) for name in ON_GPU]
    result = compare(variants)
    names = ("preset", "batch_tokens", "rounds", "steps", "threads", "device", "shapes")
    settings = {name: getattr(FLAGS, name) for name in names}
    print(json.dumps({"machine": describe_machine(FLAGS.device), "settings": settings, **result}))
    return 0


if __name__ == "__main__":
    command.run(main)
