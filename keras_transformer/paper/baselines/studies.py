"""The comparisons: which models, on what, with which settings. All of their numbers stand here.

models     the paper's Table 2 in small: Transformer, convolutions, recurrence
positions  sinusoidal against learned positions, on sentences longer than any of training
attention  with and without the scale 1/√d_k, and additive, at d_k of 16 and 64
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics
from keras_transformer.paper.baselines.long_sentences import length_tests, prepare_short
from keras_transformer.paper.baselines.material import Material, Trial
from keras_transformer.paper.baselines.trials import check_same, run_trial
from keras_transformer.runs.results import read_results, write_results

# BLEU from German to English, by the notebooks of bentrevett/pytorch-seq2seq, as they are quoted.
# Its models have 9, 37 and 20 M parameters, its BLEU is torchtext's, its search greedy.
PUBLISHED = {"transformer": 36.5, "convolutional": 34.1, "gru": 28.1}

LONGEST = 18  # tokens of a side that the models of `positions` are trained on; the median is 17

# The same for every model. Programs are not compiled: of each batch shape, that takes longer
# than these runs win by it.
_TRAINING: dict[str, Any] = {
    "training.batch_tokens": 2048,
    "training.schedule": "linear",
    "training.learning_rate": 0.001,
    "training.warmup_steps": 300,
    "training.clip_norm": 1.0,
    "training.mixed_precision": "float32",
    "training.jit_compile": "false",
    "training.keep_checkpoints": 1,
    "training.keep_best": 1,
}
_MODELS: dict[str, Any] = {
    **_TRAINING,
    "training.max_steps": 3000,
    "training.checkpoint_steps": 300,
    "training.bleu_steps": 300,
    "training.best_metric": "bleu",
}
_POSITIONS: dict[str, Any] = {
    **_TRAINING, "training.max_steps": 2500, "training.checkpoint_steps": 250,
}  # fmt: skip
_ATTENTION: dict[str, Any] = {
    **_TRAINING, "training.max_steps": 1500, "training.checkpoint_steps": 100,
}  # fmt: skip


def _transformer(
    layers: int, d_model: int, d_ff: int, dropout: float, **others: Any
) -> dict[str, Any]:
    return {
        "model.num_encoder_layers": layers,
        "model.num_decoder_layers": layers,
        "model.d_model": d_model,
        "model.d_ff": d_ff,
        "model.num_heads": 4,
        "model.embedding_dropout": dropout,
        "model.residual_dropout": dropout,
        **{f"model.{name}": value for name, value in others.items()},
    }


def model_trials() -> list[Trial]:
    """The paper's Table 2 in small: models of about 9 M parameters with 4,000 pieces."""
    transformer = _transformer(4, 256, 1152, 0.3, norm_position="pre")
    return [
        Trial("transformer", "Transformer", "transformer", {**_MODELS, **transformer}),
        Trial("convolutional", "ConvS2S", "convolutional", _MODELS),
        Trial("gru", "GRU with attention", "gru", _MODELS),
    ]


def position_trials() -> list[Trial]:
    """Two Transformers of 1.8 M parameters with 4,000 pieces; learned positions are more."""
    return [
        Trial(
            positions,
            f"{positions} positions",
            "transformer",
            {
                **_POSITIONS,
                **_transformer(
                    4, 128, 256, 0.2, norm_position="pre", positions=positions, max_positions=256
                ),
            },
        )
        for positions in ("sinusoidal", "learned")
    ]


def attention_trials() -> list[Trial]:
    """Six Transformers of two layers, as the paper has them but for the attention's scores."""
    kinds = {
        "scaled": ("softmax(QKᵀ/√d_k)", "transformer"),
        "unscaled": ("softmax(QKᵀ)", "transformer without scale"),
        "additive": ("softmax(vᵀtanh(q + k))", "transformer with additive attention"),
    }
    return [
        Trial(
            f"{name}_{key_dim}",
            f"{title}, d_k {key_dim}",
            architecture,
            # h · d_k is d_model, as in the paper: by Glorot's initialization the components of
            # queries and keys of a normalized input have the variance 1 then, as its argument
            # assumes (footnote 4).
            {**_ATTENTION, **_transformer(2, 128, 256, 0.2, num_heads=128 // key_dim)},
        )
        for key_dim in (16, 64)
        for name, (title, architecture) in kinds.items()
    ]


STUDIES: dict[str, Callable[[], list[Trial]]] = {
    "models": model_trials,
    "positions": position_trials,
    "attention": attention_trials,
}


def run_study(
    study: str,
    material: Material,
    work_dir: Path,
    *,
    only: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    max_minutes: float | None = None,
    longest: int = LONGEST,
) -> dict[str, Any]:
    """Trains and scores the models of a study, one after the other, and draws what there is.

    What is done already is not done again, so the same call continues after a stop.

    Args:
        study: one of `STUDIES`.
        material: data and tests; `positions` makes its own of the data, and takes no tests.
        work_dir: gets a folder for each model, STUDY.json and STUDY.svg.
        only: names of the models to train in this call; by default all.
        settings: what differs from the study's settings, of every model.
        max_minutes: end this call's training after so long, to be continued.
        longest: tokens that `positions` trains on.

    Returns:
        What is in STUDY.json: `trials` by name, and whether all are `finished`.

    Raises:
        InputError: for an unknown study or model, and as `run_trial`.
    """
    if study not in STUDIES:
        raise InputError(f"there is no study {study!r}; expected one of {', '.join(STUDIES)}")
    trials = {
        trial.name: dataclasses.replace(trial, settings={**trial.settings, **(settings or {})})
        for trial in STUDIES[study]()
    }
    if unknown := [name for name in only if name not in trials]:
        raise InputError(
            f"the study {study} has no model {unknown[0]!r}; expected one of {', '.join(trials)}"
        )
    if max_minutes is not None and not max_minutes > 0:
        raise InputError(f"max_minutes is {max_minutes}; expected more than 0")
    metrics.evaluate(["a"], ["a"], tokenize=material.tokenize)  # knows the tokenizer
    from keras_transformer.paper.baselines.plots import draw  # late: it takes a second to load

    try:
        if study == "positions":
            material = _of_positions(material, work_dir, longest)
        elif not material.tests:
            raise InputError(f"the study {study} has nothing to score; expected a test set")
        for trial in trials.values():  # before any is trained, for hours
            check_same(trial, material, work_dir)
        work_dir.mkdir(parents=True, exist_ok=True)
        deadline = None if max_minutes is None else time.monotonic() + 60 * max_minutes
        for name in only or trials:
            left = None if deadline is None else (deadline - time.monotonic()) / 60
            if left is not None and left <= 0:
                break
            if not run_trial(trials[name], material, work_dir, left)["finished"]:
                break
        results = _collected(study, trials, work_dir)
        if study == "positions":
            results["longest"] = longest
        write_results(work_dir / f"{study}.json", results)
        draw(results, work_dir / f"{study}.svg")
        return results
    except OSError as error:  # what rooms below write, they tell of themselves
        raise InputError(
            f"{work_dir} cannot be written ({error}); once it can, the same command continues"
        ) from error


def _of_positions(material: Material, work_dir: Path, longest: int) -> Material:
    if material.tests:
        raise InputError("the study positions makes tests of its own; expected no test set")
    tests = length_tests(material.data_dir, longest)
    data_dir = prepare_short(material.data_dir, work_dir / "short", longest)
    return dataclasses.replace(material, data_dir=data_dir, tests=tests)


def _collected(study: str, trials: Mapping[str, Trial], work_dir: Path) -> dict[str, Any]:
    """Returns the results of all models that have some, whichever call has left them."""
    found = {name: read_results(work_dir / name / "results.json") for name in trials}
    found = {name: results for name, results in found.items() if results}
    finished = len(found) == len(trials) and all(each["finished"] for each in found.values())
    return {"study": study, "finished": finished, "trials": found}


def summary(results: Mapping[str, Any]) -> str:
    """Returns a table of what the models cost and reached, for a person."""
    lines = [
        f"{'':<15}{'parameters':>12}{'steps':>8}{'minutes':>9}{'training FLOP':>15}  "
        "test: BLEU, perplexity"
    ]
    for name, each in results["trials"].items():
        last = each["curve"][-1] if each["curve"] else {}
        lines.append(
            f"{name:<15}{each['parameters']:>12,}{each['steps']:>8,}"
            f"{last.get('minutes', 0.0):>9.1f}{last.get('flop', 0.0):>15.2e}"
            + ("" if each["finished"] else "  (not finished)")
        )
        if "diverged" in each:
            lines.append(f"  diverged: {each['diverged']}")
        for test, scores in each["tests"].items():
            published = ""
            if results["study"] == "models":
                published = f"  (published: {PUBLISHED[name]})"
            lines.append(
                f"  {test:<24}{scores['bleu']:6.2f} {scores['perplexity']:9.2f}"
                f"  {scores['signature']}{published}"
            )
    return "\n".join(lines)
