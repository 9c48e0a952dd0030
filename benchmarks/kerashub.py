#!/usr/bin/env python3
r"""Trains and decodes one model in this package and in KerasHub, through their public APIs.

Example:
    benchmarks/kerashub.py --data_dir=build/data --rounds=5 \
        --engine_python=keras=kerashub-env/bin/python,kerashub=kerashub-env/bin/python

Both models have the same weights, and the settings that KerasHub's layers have: post-norm, biases
in the attention, ε = 1e-5, and dropout of the attention weights too. Both train with
`model.compile` and `model.fit`, with the same batches, all of one shape, the same Adam, and
`LabelSmoothedCrossEntropy`.

An engine is keras:float32 or kerashub:float32, with `xla` for `jit_compile=True`; Keras does not
use XLA on a CPU by default. keras:float32 is `Transformer` with the search of `kt.Translator`.
kerashub:float32 is made of TransformerEncoder, TransformerDecoder, ReversibleEmbedding and
SinePositionEncoding, with caches, GreedySampler and BeamSampler. Each runs in a separate process.
In each round every engine has a turn while the others wait:

* first_fit: a new model, `fit` on one batch, with tracing and compiling;
* fit: `fit` on --steps batches;
* greedy, beam_N: decode --sentences sentences, --rows in a batch, to --tokens tokens.

Prints one JSON object. `largest_difference` compares the logits of all engines, before and after
training. `same_outputs` is the share of sentences with the same tokens as those of the first
engine. `ratios` are medians over the rounds of the ratio of speeds within a round: above 1, we are
faster. If `quiet` is false, other processes used the cores. Then do not rely on single figures; the
member `cpu_time` of a ratio suffers less.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import command
import numpy as np
from absl import flags
from command import say
from measuring import (
    Turns,
    best_ratios,
    describe_machine,
    is_quiet,
    ratio,
    spread,
    take_turns,
)
from models import LEARNING_RATE, SEED, sizes_of, special_ids, vocabulary_settings
from protocol import EngineChild
from variants import Variant, chosen, define_engines, grouped, python_of, started

from keras_transformer.config import Config, ModelConfig
from keras_transformer.errors import InputError
from keras_transformer.presets import preset

FLAGS = flags.FLAGS
flags.DEFINE_string("data_dir", None, "prepared data, with a joint vocabulary", required=True)
flags.DEFINE_list("sizes", ["tiny", "small"], "presets of the models")
flags.DEFINE_integer("batch_tokens", 4096, "target positions of a batch", lower_bound=1)
flags.DEFINE_float("dropout", 0.1, "dropout of both models", lower_bound=0.0, upper_bound=0.9)
flags.DEFINE_integer("rounds", 5, "rounds; every engine has a turn in each", lower_bound=1)
flags.DEFINE_integer("steps", 10, "training steps of a turn", lower_bound=1)
command.define_numbers("beams", [1, 4], "hypotheses of a sentence; 1 is greedy search")
flags.DEFINE_integer("rows", 32, "sentences of a batch that is decoded", lower_bound=1)
flags.DEFINE_integer("sentences", 64, "sentences decoded in a turn", lower_bound=1)
flags.DEFINE_integer("tokens", 30, "tokens of every output", lower_bound=1)
flags.DEFINE_integer("threads", 2, "threads of each engine", lower_bound=1)

KNOWN = {"keras": (["float32"], ["xla"]), "kerashub": (["float32"], ["xla"])}
DEFAULT = ["keras:float32", "kerashub:float32", "keras:float32:xla", "kerashub:float32:xla"]
LIKE_KERASHUB = {"model.attention_bias": True, "model.layer_norm_epsilon": 1e-5}


def model_config(size: str, tokenizer: Any) -> Config:
    """Returns the configuration of a model that KerasHub's layers can be, too."""
    rates = ("embedding_dropout", "attention_dropout", "residual_dropout")
    dropout = {f"model.{name}": FLAGS.dropout for name in rates}
    return preset(size).updated({**vocabulary_settings(tokenizer), **LIKE_KERASHUB, **dropout})


def write_batches(path: Path, tokenizer: Any, count: int) -> tuple[int, int, int]:
    """Writes training batches that all have the most frequent shape.

    Args:
        path: the file.
        tokenizer: the tokenizer of the data.
        count: the most batches.

    Returns:
        The shape (rows, source length, target length).
    """
    from keras_transformer.data.batches import CorpusBatches  # late: loads TensorFlow
    from keras_transformer.data.token_store import TokenStore

    store = TokenStore(Path(FLAGS.data_dir) / "train")
    batches = CorpusBatches(store, FLAGS.batch_tokens, SEED, tokenizer.pad_id, tokenizer.start_id)
    steps = [batches.batch(step) for step in range(min(batches.steps_per_epoch, 8 * count))]
    shapes = [(*inputs["source_ids"].shape, labels.shape[1]) for inputs, labels in steps]
    shape, _ = Counter(shapes).most_common(1)[0]
    same = [step for step, each in zip(steps, shapes, strict=True) if each == shape][:count]
    np.savez(
        path,
        source_ids=np.stack([inputs["source_ids"] for inputs, _ in same]),
        target_ids=np.stack([inputs["target_ids"] for inputs, _ in same]),
        labels=np.stack([labels for _, labels in same]),
    )
    return shape


def settings_of(variant: Variant, config: Config, batches: Path) -> dict[str, Any]:
    """Returns the settings of an engine's `side_by_side`."""
    model = config.model
    return {
        "batches": str(batches),
        "compile": "xla" in variant.options,
        "learning_rate": LEARNING_RATE,
        "label_smoothing": config.training.label_smoothing,
        "pad_id": model.pad_id,
        "seed": SEED,
        "steps": FLAGS.tokens,
        "data_dir": FLAGS.data_dir,
        "model": dataclasses.asdict(model),
        "sizes": dataclasses.asdict(sizes_of(model)),
        "dropout": FLAGS.dropout,
        "special_ids": special_ids(model),
    }


def compare(variants: Sequence[Variant]) -> dict[str, Any]:
    """Measures all sizes, and returns the results."""
    if not any(variant.is_ours for variant in variants):
        raise InputError("The weights come from our model. Add keras:float32 to --engines.")

    from keras_transformer.text.tokenizer import Tokenizer  # late: loads TensorFlow

    tokenizer = Tokenizer.load(FLAGS.data_dir)
    configs = {size: model_config(size, tokenizer) for size in FLAGS.sizes}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        shape = write_batches(folder / "batches.npz", tokenizer, FLAGS.rounds * FLAGS.steps)
        result: dict[str, Any] = {"vocab_size": tokenizer.target_vocab_size, "batch": shape}
        for size, config in configs.items():
            say(f"Size {size}.")

            def start(variant: Variant, config: Config = config) -> EngineChild:
                settings = settings_of(variant, config, folder / "batches.npz")
                environment = variant.environment(FLAGS.threads, FLAGS.threads)
                python, task = python_of(variant), "side_by_side"
                return EngineChild(
                    variant.name, variant.engine, task, settings, python, environment
                )

            with started(variants, start) as (children, left_out):
                comparison = Comparison(children, folder, config.model)
                sizes = result.setdefault("sizes", {})
                sizes[size] = {**comparison.results(variants), "left_out": left_out}
    return result


class Comparison:
    """Measures the engines with models of one size.

    Args:
        children: the processes of the engines.
        folder: for files that the processes share.
        config: configuration of the model.
    """

    def __init__(self, children: Mapping[str, EngineChild], folder: Path, config: ModelConfig):
        self._children = children
        self._folder = folder
        self._config = config

    def results(self, variants: Sequence[Variant]) -> dict[str, Any]:
        """Measures everything, and returns the results."""
        first = next(each.name for each in variants if each.is_ours and each.name in self._children)
        weights = self._folder / "weights.npz"
        self._children[first].ask("save", path=str(weights))
        difference = {"before_training": self._share(weights)}
        steps = FLAGS.steps
        turns = {
            "first_fit": self._turns("first fits/s", "first_fit", lambda number: {}),
            "fit": self._turns(
                "target tokens/s", "fit", lambda number: {"first": number * steps, "steps": steps}
            ),
        }
        self._children[first].ask("save", path=str(weights))
        _vary_outputs(weights, self._config)
        difference["after_training"] = self._share(weights)
        same_outputs, first_decode_seconds = {}, {}
        for beam in map(int, FLAGS.beams):
            title = "greedy" if beam == 1 else f"beam_{beam}"
            turns[title], first_decode_seconds[title] = self._decode(beam)
            same_outputs[title] = _same_outputs(turns[title])
        return {
            "processes": {name: child.facts for name, child in self._children.items()},
            "largest_difference": difference,
            "same_outputs": same_outputs,
            "first_decode_seconds": first_decode_seconds,
            "quiet": all(is_quiet(each) for each in turns.values()),
            **{name: summarize(variants, each) for name, each in turns.items()},
        }

    def _share(self, weights: Path) -> float:
        """Copies weights to all engines, and returns the largest difference of their logits."""
        say("Comparing the logits.")
        logits = []
        for number, child in enumerate(self._children.values()):
            path = self._folder / f"logits_{number}.npy"
            child.ask("load", path=str(weights))
            child.ask("logits", path=str(path))
            logits.append(np.load(path))
        if len({each.shape for each in logits}) > 1:
            raise RuntimeError(f"The logits have the shapes {[each.shape for each in logits]}.")
        return max(float(np.abs(each - logits[0]).max()) for each in logits)

    def _decode(self, beam: int) -> tuple[Turns, dict[str, float]]:
        """Returns the turns, and the seconds of the first batch, with tracing and compiling."""
        request = {"beam_size": beam, "rows": FLAGS.rows}
        count = -(-FLAGS.sentences // FLAGS.rows)
        seconds = {
            name: round(child.ask("decode", **request, first=0, count=1)["seconds"], 2)
            for name, child in self._children.items()
        }
        turns = self._turns(
            "sentences/s",
            "decode",
            lambda number: {**request, "first": number * count, "count": count},
        )
        return turns, seconds

    def _turns(self, unit: str, name: str, arguments: Callable[[int], dict[str, Any]]) -> Turns:
        """Asks every engine in each round for a command; the arguments depend on the round."""
        say(f"Measuring {name}.")
        calls = {
            engine: lambda number, child=child: child.ask(name, **arguments(number))
            for engine, child in self._children.items()
        }
        return take_turns(calls, FLAGS.rounds, unit)


def _vary_outputs(path: Path, config: ModelConfig) -> None:
    """Changes a file of weights, so that outputs vary and never contain special tokens.

    The output of a model with tied embeddings after few training steps repeats one token. With
    random signs of the last layer norm's factors, it does not. The embeddings of the special tokens
    become 0, and so do their logits, so that no search chooses them. Our search never generates
    padding, and may end an output with its last token. KerasHub's samplers may generate any token.
    """
    with np.load(path) as file:
        arrays = dict(file)
    arrays["embedding/embeddings"][list(special_ids(config).values())] = 0.0
    last = f"decoder/layer_{config.num_decoder_layers - 1}/feed_forward_norm/gamma"
    arrays[last] *= np.random.default_rng(SEED).choice([-1.0, 1.0], arrays[last].shape)
    np.savez(path, **arrays)  # type: ignore[arg-type]


def _same_outputs(turns: Turns) -> dict[str, float]:
    """Returns the share of sentences with the same tokens as those of the first engine."""
    tokens = {
        name: [ids for turn in many for ids in turn.pop("outputs")] for name, many in turns.items()
    }
    first, *_ = tokens.values()
    return {
        name: statistics.mean(float(a == b) for a, b in zip(first, ids, strict=True))
        for name, ids in tokens.items()
    }


def summarize(variants: Sequence[Variant], turns: Turns) -> dict[str, Any]:
    """Returns the results of all engines, and our ratios over KerasHub."""
    engines = {
        name: {
            "per_second": spread([turn["per_second"] for turn in many], 3),
            "seconds": spread([turn["seconds"] for turn in many], 3),
            "cpu_seconds": spread([turn["seconds"] * turn["cores"] for turn in many], 3),
            "other_cores": spread([turn["other_cores"] for turn in many], 2),
            "peak_memory_mb": round(max(turn["peak_memory_mb"] for turn in many)),
            **({"last_loss": round(many[-1]["loss"], 5)} if "loss" in many[-1] else {}),
        }
        for name, many in turns.items()
    }
    here = [variant for variant in variants if variant.name in turns]
    pairs = [
        (own.name, peer.name)
        for own in here
        for peer in here
        if own.is_ours and not peer.is_ours and own.options == peer.options
    ]
    return {
        "engines": engines,
        "ratios": {
            **{f"{own} over {peer}": ratio(turns, own, peer) for own, peer in pairs},
            **best_ratios(turns, *grouped(here)),
        },
    }


define_engines(KNOWN, DEFAULT)


def main() -> int:
    """Prints the measurements."""
    result = compare(chosen(KNOWN))
    names = (
        *("batch_tokens", "dropout", "rounds", "steps", "beams", "rows", "sentences"),
        *("tokens", "threads"),
    )
    settings = {name: getattr(FLAGS, name) for name in names}
    print(json.dumps({"machine": describe_machine(), "settings": settings, **result}))
    return 0


if __name__ == "__main__":
    command.run(main)
