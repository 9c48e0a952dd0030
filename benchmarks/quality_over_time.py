#!/usr/bin/env python3
r"""BLEU against training time: this package's model, and PyTorch's of the same size.

Example:
    benchmarks/quality_over_time.py --data_dir=build/tatoeba/data --preset=small --steps=3000 \
        --torch_python=torch-env/bin/python --work_dir=build/quality --plot=quality.svg

Trains both to the end on the same prepared data, one after the other: pre-norm Transformers of the
same size, weights tied, dropout of embeddings and residuals, label smoothing, Adam, a learning rate
that rises for --warmup_steps and falls to 0 at --steps, no drawn segmentations. PyTorch's is
`nn.Transformer` with biases, on batches sorted by length and padded to the longest; ours takes
its own batches. After that the weights of every --checkpoint_steps translate the validation set
(PyTorch's in a `Transformer` of this package, which computes the same), beam 4, α 0.6.

The same command continues where it was stopped. Prints one JSON object: for each the curve of step,
minutes and BLEU (minutes of ours hold compiling and validation losses), tokens a
second, and the minutes to reach each BLEU that both reach. `other_cores` says what other processes
took meanwhile: where it is not near 0, times are worth nothing.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags
from steppers.cost import Sizes
from steppers.protocol import CoreUse
from steppers.sorted_batches import sorted_batches

from keras_transformer import experiment, inference, loading
from keras_transformer.config import Config
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.model import Transformer
from keras_transformer.presets import preset
from keras_transformer.run_directory import RunDirectory
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.translator import Translator

FLAGS = flags.FLAGS
flags.DEFINE_string("data_dir", None, "prepared data", required=True)
flags.DEFINE_string("work_dir", None, "directory for all that is made", required=True)
flags.DEFINE_string("torch_python", None, "a Python with PyTorch", required=True)
flags.DEFINE_string("preset", "small", "sizes of the model, dropout, label smoothing")
flags.DEFINE_integer("steps", 3000, "steps of each", lower_bound=1)
flags.DEFINE_integer("checkpoint_steps", 250, "steps between points of the curve", lower_bound=1)
flags.DEFINE_integer("batch_tokens", 4096, "target positions of a batch", lower_bound=1)
flags.DEFINE_float("learning_rate", 0.002, "peak")
flags.DEFINE_integer("warmup_steps", 800, "steps until the peak", lower_bound=1)
flags.DEFINE_enum("precision", "float32", ["float32", "bfloat16"], "of both")
flags.DEFINE_integer("threads", 2, "PyTorch's threads; ours takes all cores", lower_bound=1)
flags.DEFINE_string("plot", None, "SVG file to draw")

SEED = 1
Curve = list[dict[str, float]]


def settings() -> dict[str, Any]:
    """Returns what both have in common, as settings of this package."""
    return {
        "model.norm_position": "pre",
        "training.max_steps": FLAGS.steps,
        "training.batch_tokens": FLAGS.batch_tokens,
        "training.schedule": "linear",
        "training.learning_rate": FLAGS.learning_rate,
        "training.warmup_steps": FLAGS.warmup_steps,
        "training.mixed_precision": FLAGS.precision,
        "training.checkpoint_steps": FLAGS.checkpoint_steps,
        "training.keep_checkpoints": -(-FLAGS.steps // FLAGS.checkpoint_steps),
        "training.seed": SEED,
    }


def train_ours(directory: Path) -> Curve:
    """Trains a run, and returns the steps and minutes of its checkpoints."""
    trained = experiment.train(FLAGS.data_dir, directory, FLAGS.preset, settings())
    if trained.interrupted:
        raise KeyboardInterrupt
    run = RunDirectory(directory)
    return [
        {"step": each.step, **_cost(run.read_metrics(each), "training_seconds")}
        for each in run.checkpoints()
    ]


def train_theirs(directory: Path, config: Config, tokenizer: Tokenizer) -> Curve:
    """Trains PyTorch's model in a process of its own; returns as `train_ours`."""
    directory.mkdir(parents=True, exist_ok=True)
    batches = directory / "batches.npz"
    if not batches.exists():
        store = TokenStore(Path(FLAGS.data_dir) / "train")
        special = (tokenizer.pad_id, tokenizer.start_id)
        arrays = sorted_batches(
            store, FLAGS.batch_tokens, *special, SEED, len(store.source_lengths)
        )
        np.savez(directory / "partial.npz", **arrays)
        os.replace(directory / "partial.npz", batches)
    sizes = [field.name for field in dataclasses.fields(Sizes)]
    told = {
        "sizes": {name: getattr(config.model, name) for name in sizes},
        "dropout": config.model.residual_dropout,
        "label_smoothing": config.training.label_smoothing,
        "pad_id": tokenizer.pad_id,
        "batches": str(batches),
        "directory": str(directory),
        "max_steps": FLAGS.steps,
        **{name: getattr(FLAGS, name) for name in (
            "learning_rate", "warmup_steps", "checkpoint_steps", "precision", "threads"
        )},
        "seed": SEED,
    }  # fmt: skip
    command = [FLAGS.torch_python, "-m", "trainers.torch_trainer", json.dumps(told)]
    subprocess.run(command, cwd=Path(__file__).resolve().parent, check=True)
    lines = (directory / "progress.jsonl").read_text().splitlines()
    by_step = {row["step"]: row for row in map(json.loads, lines)}
    return [{"step": step, **_cost(row, "seconds")} for step, row in sorted(by_step.items())]


def _cost(row: dict[str, float], seconds: str) -> dict[str, float]:
    return {"minutes": row[seconds] / 60, "tokens_per_second": row["tokens"] / row[seconds]}


def of_torch(state: dict[str, np.ndarray], config: Config) -> dict[str, np.ndarray]:
    """Returns the weights of `torch_stepper.Translator` under the paths of `Transformer`."""
    weights = {"embedding/embeddings": state["embedding.weight"]}

    def copy(path: str, name: str) -> None:
        weights[f"{path}_kernel"] = state[f"{name}weight"].T
        weights[f"{path}_bias"] = state[f"{name}bias"]

    def norm(path: str, name: str) -> None:
        weights[f"{path}/gamma"] = state[f"transformer.{name}.weight"]
        weights[f"{path}/beta"] = state[f"transformer.{name}.bias"]

    layers = {
        "encoder": config.model.num_encoder_layers,
        "decoder": config.model.num_decoder_layers,
    }
    for stack, count in layers.items():
        norm(f"{stack}/norm", f"{stack}.norm")
        for i in range(count):
            here, there = f"{stack}/layer_{i}", f"transformer.{stack}.layers.{i}"
            copy(f"{here}/self_attention/qkv", f"{there}.self_attn.in_proj_")
            copy(f"{here}/self_attention/output", f"{there}.self_attn.out_proj.")
            sublayers = ["self_attention", "feed_forward"]
            if stack == "decoder":
                sublayers.insert(1, "cross_attention")
                cross = f"{there}.multihead_attn"
                kernel, bias = state[f"{cross}.in_proj_weight"].T, state[f"{cross}.in_proj_bias"]
                d = config.model.d_model
                for name, part in (("query", slice(d)), ("key_value", slice(d, None))):
                    weights[f"{here}/cross_attention/{name}_kernel"] = kernel[:, part]
                    weights[f"{here}/cross_attention/{name}_bias"] = bias[part]
                copy(f"{here}/cross_attention/output", f"{cross}.out_proj.")
            copy(f"{here}/feed_forward/inner", f"{there}.linear1.")
            copy(f"{here}/feed_forward/outer", f"{there}.linear2.")
            for number, sublayer in enumerate(sublayers, start=1):
                norm(f"{here}/{sublayer}_norm", f"{stack}.layers.{i}.norm{number}")
    return weights


def score(curve: Curve, translator: Translator, weights: Any, bleu_file: Path) -> None:
    """Adds BLEU on the validation set to every point.

    Args:
        curve: the points.
        translator: of the model that the weights are of.
        weights: function of a point to the weights by path.
        bleu_file: keeps what has been scored.
    """
    known = json.loads(bleu_file.read_text()) if bleu_file.exists() else {}
    store = TokenStore(Path(FLAGS.data_dir) / "valid")
    model = loading.Model(
        "validation", 1, translator.translate, translator.lengths, translator
    )  # fmt: skip
    for point in curve:
        name = str(point["step"])
        if name not in known:
            translator.transformer.assign_weights(weights(point))
            scored = inference.evaluate(model, store.source_text(), store.target_text())
            known[name] = round(scored.scores.bleu, 2)
            print(f"{bleu_file.stem}, step {name}: BLEU {known[name]}", file=sys.stderr, flush=True)
            bleu_file.write_text(json.dumps(known))
        point["bleu"] = known[name]


def first_minutes(curve: Curve, bleu: float) -> float | None:
    """Returns when a curve reaches a BLEU, between points by a straight line."""
    before: dict[str, float] = {"minutes": 0.0, "bleu": 0.0}
    for point in curve:
        if point["bleu"] >= bleu:
            share = (bleu - before["bleu"]) / max(point["bleu"] - before["bleu"], 1e-9)
            return before["minutes"] + share * (point["minutes"] - before["minutes"])
        before = point
    return None


def draw(curves: dict[str, Curve], file: str) -> None:
    """Draws BLEU over minutes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    for (name, curve), colour in zip(curves.items(), ("tab:blue", "tab:orange"), strict=True):
        minutes, bleu = [point["minutes"] for point in curve], [point["bleu"] for point in curve]
        axes.plot(minutes, bleu, "o-", color=colour, markersize=3, linewidth=1.3, label=name)
    axes.set(xlabel="minutes of training", ylabel="BLEU on validation")
    axes.set_xlim(left=0)
    axes.legend(frameon=False, loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, format="svg", metadata={"Date": None})


def compare() -> dict[str, Any]:
    """Trains both, and returns what is printed."""
    work_dir, tokenizer = Path(FLAGS.work_dir), Tokenizer.load(FLAGS.data_dir)
    sizes = {"model.source_vocab_size": tokenizer.source_vocab_size,
             "model.target_vocab_size": tokenizer.target_vocab_size}  # fmt: skip
    config = preset(FLAGS.preset).updated({**settings(), **sizes})
    uses, curves = {}, {}
    for name in ("ours", "PyTorch"):
        use = CoreUse()
        directory = work_dir / name.lower()
        curves[name] = (
            train_ours(directory) if name == "ours" else train_theirs(directory, config, tokenizer)
        )
        # PyTorch's process is another one, so it counts among the others.
        uses[name] = use.read()
    run = RunDirectory(work_dir / "ours")
    ours = loading.load_translator(run)
    checkpoints = {each.step: each.path.name for each in run.checkpoints()}
    score(
        curves["ours"], ours, lambda point: run.named_weights(checkpoints[point["step"]]),
        work_dir / "ours.json",
    )  # fmt: skip
    theirs = dataclasses.replace(run.config.model, attention_bias=True, layer_norm_epsilon=1e-5)
    transformer = Transformer(theirs)
    transformer.build()

    def torch_weights(point: dict[str, float]) -> dict[str, np.ndarray]:
        with np.load(work_dir / "pytorch" / f"step-{point['step']}.npz") as state:
            return of_torch(dict(state), config)

    translator = Translator(transformer, run.tokenizer(), run.config.decoding)
    score(curves["PyTorch"], translator, torch_weights, work_dir / "pytorch.json")
    if FLAGS.plot:
        draw(curves, FLAGS.plot)
    best = min(max(point["bleu"] for point in curve) for curve in curves.values())
    levels = [bleu for bleu in range(5, 100, 5) if bleu <= best] + [round(best - 0.005, 2)]
    return {
        "preset": FLAGS.preset, **settings(), "threads": FLAGS.threads,
        "curves": curves,
        "minutes_to_bleu": {
            bleu: {name: first_minutes(curve, bleu) for name, curve in curves.items()}
            for bleu in levels
        },
        "cores_and_other_cores": uses,
    }  # fmt: skip


def main(argv: list[str]) -> int:
    """Prints the measurements."""
    del argv
    try:
        print(json.dumps(compare()))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    app.run(main)
