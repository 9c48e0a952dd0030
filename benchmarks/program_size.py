#!/usr/bin/env python3
r"""Counts the instructions and operations of a training step, without running it on a GPU.

Examples:
    benchmarks/program_size.py --preset=base --precision=bfloat16
    benchmarks/program_size.py --preset=tiny --data_dir=build/data --compile
    benchmarks/program_size.py --preset=base --compile --noexecutor --num_replicas=2

These counts predict the cost of a training step on a GPU. XLA's time to compile grows with the
number of HLO instructions, and every batch shape is compiled. Without XLA, a GPU waits for each
operation of the graph executor. The batch has --rows full sentences of --row_tokens tokens on both
sides, and the vocabulary has --vocab_size pieces.

Prints one JSON object:

* `hlo`: instructions of the forward and backward pass of one replica before XLA optimizes them,
  in total and by opcode. With --compile also `compile_seconds` on this CPU.
* `graph_executor`: operations that one step runs without XLA, in total and by kind.
* `outside_xla`: with --compile, the operations that one step runs outside of XLA's programs.
  Both counts are of all --num_replicas together.
* `programs`: with --data_dir, the number of batch shapes for --batch_tokens.
"""

from __future__ import annotations

import collections
import json
import os
import re
import time
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import command
import numpy as np
from absl import flags
from command import say
from measuring import describe_machine
from models import SEED

from keras_transformer.config import Config
from keras_transformer.presets import preset

FLAGS = flags.FLAGS
flags.DEFINE_enum("preset", "tiny", ["tiny", "small", "base", "big"], "sizes of the model")
flags.DEFINE_enum(
    "precision", "bfloat16", ["float32", "bfloat16", "float16"], "precision of products"
)
flags.DEFINE_integer("layers", None, "layers of each stack; default: the preset's", lower_bound=1)
flags.DEFINE_integer("rows", 16, "sentence pairs of the batch", lower_bound=1)
flags.DEFINE_integer("row_tokens", 16, "tokens of each sentence", lower_bound=2)
flags.DEFINE_integer("num_replicas", 1, "replicas that share the batch", lower_bound=1)
flags.DEFINE_integer("vocab_size", 16_000, "pieces of the joint vocabulary", lower_bound=8)
flags.DEFINE_integer("batch_tokens", 25_000, "target positions of a batch, for the shapes")
flags.DEFINE_string("data_dir", None, "prepared data, to count its batch shapes")
flags.DEFINE_bool("compile", False, "also compile the program with XLA for this CPU")
flags.DEFINE_bool("executor", True, "also run a step without XLA")

_MOST_KINDS = 25
# An instruction of HLO's text: a name, a type or a tuple of types, and the opcode.
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?\S+ = (?:\(.*?\)|\S+) ([a-z][\w-]*)\(", re.MULTILINE)


def count_instructions(hlo: str) -> collections.Counter[str]:
    """Returns the number of instructions of an HLO text by opcode."""
    return collections.Counter(_INSTRUCTION.findall(hlo))


def most_common(counts: collections.Counter[str]) -> dict[str, int]:
    """Returns the largest counts, and the sum of the others."""
    found = dict(counts.most_common(_MOST_KINDS))
    rest = counts.total() - sum(found.values())
    return {**found, **({"others": rest} if rest else {})}


def make_trainer(config: Config, jit_compile: bool) -> Any:
    """Returns the trainer of a new model with random weights, as on GPUs if compiled."""
    import keras  # late: TensorFlow takes seconds

    from keras_transformer.models.transformer import Transformer
    from keras_transformer.training import step
    from keras_transformer.training.devices import choose_platform
    from keras_transformer.training.trainer import Trainer

    config = config.replace(training__mixed_precision=FLAGS.precision)
    platform = choose_platform(config.training, num_shapes=1, device="cpu")
    keras.utils.set_random_seed(SEED)
    with mock.patch.object(step, "uses_gpus", lambda _: jit_compile), platform.strategy.scope():
        transformer = Transformer(config.model, dtype=platform.policy())
        return Trainer(transformer, config.training, jit_compile)


def make_batch() -> tuple[dict[str, Any], Any]:
    """Returns random sentences that fill the batch, and their labels."""
    import tensorflow as tf

    random = np.random.default_rng(SEED)
    source, target, labels = (
        tf.constant(random.integers(4, FLAGS.vocab_size, (FLAGS.rows, FLAGS.row_tokens)), tf.int32)
        for _ in range(3)
    )
    return {"source_ids": source, "target_ids": target}, labels


def distributed_batch(strategy: Any) -> tuple[Any, Any]:
    """Returns a batch for all replicas, and its specification with unknown sizes."""
    import tensorflow as tf

    def with_unknown_sizes(ids: Any) -> Any:
        return tf.ensure_shape(ids, [None, None])

    def own_rows(_: Any) -> Any:
        rows = tf.data.Dataset.from_tensors(make_batch()).repeat()
        return rows.map(lambda *batch: tf.nest.map_structure(with_unknown_sizes, batch))

    iterator = iter(strategy.distribute_datasets_from_function(own_rows))
    return next(iterator), iterator.element_spec


def measure_hlo(config: Config) -> dict[str, Any]:
    """Counts the instructions of the program that XLA compiles for each replica."""
    import tensorflow as tf

    say("Lowering the step to HLO.")
    differentiate = make_trainer(config, jit_compile=True).training_step.differentiate
    begun = time.perf_counter()
    seed, scale = tf.constant([1, 2], tf.int64), tf.constant(1.0)
    ir = differentiate.experimental_get_compiler_ir(*make_batch(), seed, scale)
    counts = count_instructions(ir(stage="hlo"))
    result: dict[str, Any] = {
        "instructions": counts.total(),
        "lowering_seconds": round(time.perf_counter() - begun, 1),
        "by_opcode": most_common(counts),
    }
    if FLAGS.compile:
        say("Compiling it for this CPU.")
        begun = time.perf_counter()
        counts = count_instructions(ir(stage="optimized_hlo"))
        result["optimized_instructions"] = counts.total()
        result["compile_seconds"] = round(time.perf_counter() - begun, 1)
    return result


def measure_executor(config: Config, jit_compile: bool) -> dict[str, Any]:
    """Counts the operations that the graph executor runs, from TensorFlow's profiler.

    Args:
        config: the model and its training.
        jit_compile: if True, counts the operations outside of XLA's programs.
    """
    import tensorflow as tf
    from engines import graphs

    say(f"Running the step {'with XLA' if jit_compile else 'with the graph executor'}.")
    trainer = make_trainer(config, jit_compile)
    # Unknown sizes, as in a dataset: operations that compute shapes count, too.
    batch, spec = distributed_batch(trainer.distribute_strategy)
    step = tf.function(trainer.training_step.__call__, input_signature=[spec])
    step(batch)
    operations = graphs.profiled_operations(lambda: float(step(batch)["loss"]))
    kinds = collections.Counter(kind for _, kind, _ in operations)
    return {"operations": kinds.total(), "by_kind": most_common(kinds)}


def count_programs(data_dir: str) -> dict[str, Any]:
    """Counts the batch shapes of prepared data, each of which XLA compiles."""
    from keras_transformer.data.batches import CorpusBatches
    from keras_transformer.data.token_store import TokenStore
    from keras_transformer.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(data_dir)
    store = TokenStore(Path(data_dir) / "train")
    batches = CorpusBatches(store, FLAGS.batch_tokens, SEED, tokenizer.pad_id, tokenizer.start_id)
    return {
        "programs": len(batches.shapes),
        "padding_share": round(batches.padding_share, 4),
    }


def main() -> int:
    """Prints the counts."""
    ids = {"model.source_vocab_size": FLAGS.vocab_size, "model.target_vocab_size": FLAGS.vocab_size}
    config = preset(FLAGS.preset).updated(ids)
    if FLAGS.layers:
        stacks = ("model.num_encoder_layers", "model.num_decoder_layers")
        config = config.updated(dict.fromkeys(stacks, FLAGS.layers))
    if FLAGS.num_replicas > 1:
        from keras_transformer.training.devices import use_logical_cpus  # late, as above

        use_logical_cpus(FLAGS.num_replicas)
    names = (
        *("preset", "layers", "precision", "rows", "row_tokens", "num_replicas", "vocab_size"),
        "batch_tokens",
    )
    result = {
        "machine": describe_machine(),
        "settings": {name: getattr(FLAGS, name) for name in names},
        "hlo": measure_hlo(config),
        **({"graph_executor": measure_executor(config, False)} if FLAGS.executor else {}),
        **({"outside_xla": measure_executor(config, True)} if FLAGS.compile else {}),
        **(count_programs(FLAGS.data_dir) if FLAGS.data_dir else {}),
    }
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    command.run(main)
