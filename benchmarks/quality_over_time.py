#!/usr/bin/env python3
r"""BLEU against training time: a run of this package, and PyTorch's model of the same size.

Example:
    bin/recipe.py --recipe=tatoeba_en_de --corpus_dir=tatoeba \
        --work_dir=build/tatoeba_en_de --seeds=1
    benchmarks/quality_over_time.py --data_dir=build/tatoeba_en_de/data \
        --run=build/tatoeba_en_de/seed-1/run --torch_python=torch-env/bin/python \
        --work_dir=build/quality --plot=quality.svg

PyTorch's model is trained as the run was, on the same prepared data: the same size, tied weights,
pre-norm, dropout of embeddings and residuals, label smoothing, Adam, learning rates, number of
steps and target positions of a step, precision and seed. It is `nn.Transformer` with biases, on
batches sorted by length and padded to the longest; the run had its own batches. After that the
weights of every checkpoint translate the validation set (PyTorch's in a `Transformer` of this
package, which computes the same), beam 4, α 0.6. The run keeps all its checkpoints, and no BLEU
is measured while it is trained, for that would count.

Both may be trained at once, on half of the cores each (`taskset`): then what else the machine
does slows both. While the run is being trained, PyTorch's training is begun, and the command says
what is missing when that has ended. The same command continues where it was stopped. Prints one
JSON object: for each the curve of step, minutes and BLEU (minutes of ours hold compiling and
validation losses; of PyTorch's it is told how many threads it had by then), tokens a second, and
the minutes to reach each BLEU that both reach. Both are trained on the CPU.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import command
import numpy as np
from absl import flags
from steppers.cost import Sizes
from steppers.sorted_batches import sorted_batches

from keras_transformer.config import Config
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.inference import loading, translate
from keras_transformer.inference.translator import Translator
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.results import read_results, write_results
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.training.data import data_fingerprint
from keras_transformer.training.devices import choose_platform

FLAGS = flags.FLAGS
Curve = list[dict[str, Any]]  # by checkpoint: step, minutes, tokens_per_second and bleu
Weights = Callable[[int], Mapping[str, np.ndarray]]


# What PyTorch's trainer takes from the run. All else has to be as the trainer has it.
_MODEL = {field.name for field in dataclasses.fields(Sizes)} | {"residual_dropout"}
_TRAINING = {
    "batch_tokens", "learning_rate", "warmup_steps", "checkpoint_steps", "max_steps",
    "label_smoothing", "seed",
}  # fmt: skip
# And what changes no step of the run, or is seen to here.
_ASIDE = {
    "source_vocab_size", "max_positions", "mixed_precision", "jit_compile", "log_steps",
    "keep_checkpoints", "keep_best", "deterministic",
}  # fmt: skip


def check(run: RunDirectory) -> None:
    """Checks that PyTorch's trainer can do what the run does.

    Raises:
        InputError: where it cannot.
    """
    model, training = run.config.model, run.config.training
    theirs = Config().updated({"model.norm_position": "pre", "training.schedule": "linear"})
    dropout = {"embedding_dropout": model.residual_dropout}
    for name, ours, expected in (
        ("model", model, dataclasses.replace(theirs.model, **dropout)),
        ("training", training, theirs.training),
    ):
        for field in sorted(vars(ours).keys() - _MODEL - _TRAINING - _ASIDE):
            value, wanted = getattr(ours, field), getattr(expected, field)
            if value != wanted:
                raise InputError(
                    f"{run.path} has {name}.{field} = {value!r}; expected {wanted!r}, as "
                    "PyTorch's trainer has it"
                )
    needed = -(-training.max_steps // training.checkpoint_steps)
    if training.keep_checkpoints < needed:
        raise InputError(
            f"{run.path} keeps {training.keep_checkpoints} checkpoints; expected all {needed}"
        )


def curve_of_ours(run: RunDirectory) -> Curve:
    """Returns the steps and costs of a run's checkpoints.

    Raises:
        InputError: where it has not been trained to the end.
    """
    checkpoints, last = run.checkpoints(), run.config.training.max_steps
    if not checkpoints or checkpoints[-1].step < last:
        there = checkpoints[-1].step if checkpoints else 0
        raise InputError(f"{run.path} is at step {there}; expected a run trained to step {last}")
    return [
        {"step": each.step, **_cost(run.read_metrics(each), "training_seconds")}
        for each in checkpoints
    ]


def train_theirs(
    directory: Path,
    store: TokenStore,
    run: RunDirectory,
    precision: str,
    *,
    torch_python: str,
    threads: int,
) -> Curve:
    """Trains PyTorch's model as a run was, in a process of its own; returns as `curve_of_ours`."""
    model, training, ids = run.config.model, run.config.training, run.tokenizer()
    told = {
        "run": str(run.path.resolve()),
        "corpus": run.data_fingerprint,
        "sizes": {field.name: getattr(model, field.name) for field in dataclasses.fields(Sizes)},
        "dropout": model.residual_dropout,
        "pad_id": ids.pad_id,
        "precision": precision,
        **{name: getattr(training, name) for name in sorted(_TRAINING)},
    }
    settings, batches = directory / "settings.json", directory / "batches.npz"
    if settings.exists():
        known = json.loads(settings.read_text())
        for name, value in told.items():
            if known.get(name) != value:
                raise InputError(
                    f"{directory} holds a training with {name} = {known.get(name)!r}, {run.path} "
                    f"has {value!r}; expected another --work_dir"
                )
    else:
        directory.mkdir(parents=True, exist_ok=True)
        write_results(settings, told)
    if not batches.exists():
        pairs = len(store.source_lengths)
        arrays = sorted_batches(
            store, training.batch_tokens, ids.pad_id, ids.start_id, training.seed, pairs
        )
        np.savez(directory / "partial.npz", **arrays)
        os.replace(directory / "partial.npz", batches)
    told |= {"batches": str(batches), "directory": str(directory), "threads": threads}
    command = [torch_python, "-m", "trainers.torch_trainer", json.dumps(told)]
    try:
        subprocess.run(command, cwd=Path(__file__).resolve().parent, check=True)
    except OSError as error:
        raise InputError(f"{torch_python} cannot be run ({error}); expected a Python") from error
    except subprocess.CalledProcessError as error:  # it has told why
        raise InputError(
            f"PyTorch's training ended with {error.returncode}; the same command continues it"
        ) from error
    lines = (directory / "progress.jsonl").read_text().splitlines()
    by_step = {row["step"]: row for row in map(json.loads, lines)}
    return [
        {"step": step, **_cost(row, "seconds"), "threads": row["threads"]}
        for step, row in sorted(by_step.items())
    ]


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


def score(
    curve: Curve, translator: Translator, weights: Weights, store: TokenStore, bleu_file: Path
) -> None:
    """Adds BLEU on the validation set to every point.

    Args:
        curve: the points.
        translator: of the model that the weights are of.
        weights: of a step, by path.
        store: the validation set.
        bleu_file: keeps what has been scored.
    """
    known = read_results(bleu_file)
    model = loading.Model("validation", 1, translator.translate, translator.lengths, translator)
    for point in curve:
        name = str(point["step"])
        if name not in known:
            translator.transformer.assign_weights(weights(point["step"]))
            scored = translate.evaluate(model, store.source_text(), store.target_text())
            known[name] = round(scored.scores.bleu, 2)
            print(f"{bleu_file.stem}, step {name}: BLEU {known[name]}", file=sys.stderr, flush=True)
            write_results(bleu_file, known)
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


def compare(
    run: RunDirectory, data_dir: Path, work_dir: Path, *, torch_python: str, threads: int
) -> dict[str, Any]:
    """Trains PyTorch's, scores both, and returns what is printed.

    Raises:
        InputError: for a run that PyTorch's cannot be compared with, or that is not yet trained to
            the end, and for a `work_dir` of another run.
    """
    check(run)
    if data_fingerprint(data_dir) != run.data_fingerprint:
        raise InputError(f"{run.path} was trained on other data than {data_dir}; expected its own")
    train, valid = (TokenStore(data_dir / split) for split in ("train", "valid"))
    config = run.config
    precision = choose_platform(config.training, num_shapes=1, device="cpu").precision
    if precision not in ("float32", "bfloat16"):
        raise InputError(f"{run.path} is of {precision}; expected float32 or bfloat16")
    theirs = train_theirs(
        work_dir / "pytorch", train, run, precision, torch_python=torch_python, threads=threads
    )
    curves = {"ours": curve_of_ours(run), "PyTorch": theirs}

    checkpoints = {each.step: each for each in run.checkpoints()}
    score(
        curves["ours"], loading.load_translator(run),
        lambda step: run.read_weights(checkpoints[step]), valid, work_dir / "ours.json",
    )  # fmt: skip
    transformer = Transformer(
        dataclasses.replace(config.model, attention_bias=True, layer_norm_epsilon=1e-5)
    )
    transformer.build()

    def torch_weights(step: int) -> dict[str, np.ndarray]:
        with np.load(work_dir / "pytorch" / f"step-{step}.npz") as state:
            return of_torch(dict(state), config)

    translator = Translator(transformer, run.tokenizer(), config.decoding)
    score(curves["PyTorch"], translator, torch_weights, valid, work_dir / "pytorch.json")
    best = min(max(point["bleu"] for point in curve) for curve in curves.values())
    levels = [bleu for bleu in range(5, 100, 5) if bleu <= best] + [round(best - 0.005, 2)]
    return {
        "model": dataclasses.asdict(config.model),
        "training": dataclasses.asdict(config.training),
        "precision": precision,
        "curves": curves,
        "minutes_to_bleu": {
            bleu: {name: first_minutes(curve, bleu) for name, curve in curves.items()}
            for bleu in levels
        },
    }


def main() -> int:
    """Prints the measurements."""
    try:
        measured = compare(
            RunDirectory(FLAGS.run),
            Path(FLAGS.data_dir),
            Path(FLAGS.work_dir).resolve(),
            torch_python=os.path.abspath(
                FLAGS.torch_python
            ),  # a link stays one: a venv's Python is
            threads=FLAGS.threads or len(os.sched_getaffinity(0)),
        )
    except KeyboardInterrupt:
        print("stopped; the same command continues", file=sys.stderr)
        return 130
    if FLAGS.plot:
        draw(measured["curves"], FLAGS.plot)
    print(json.dumps(measured))
    return 0


if __name__ == "__main__":
    # Only here: other benchmarks have flags of these names, and tests import several of them.
    flags.DEFINE_string("data_dir", None, "prepared data that the run is trained on", required=True)
    flags.DEFINE_string("run", None, "run directory of ours", required=True)
    flags.DEFINE_string("work_dir", None, "directory for all that is made", required=True)
    flags.DEFINE_string("torch_python", None, "a Python with PyTorch", required=True)
    flags.DEFINE_integer("threads", None, "PyTorch's; by default the cores it may run on")
    flags.DEFINE_string("plot", None, "SVG file to draw")
    command.run(main)
