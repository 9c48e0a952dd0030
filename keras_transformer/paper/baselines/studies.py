"""The comparisons: which models, on what, with which settings. All of their numbers stand here.

models     the paper's Table 2 in small: Transformer, convolutions, recurrence
positions  sinusoidal against learned positions, on sentences longer than any of training
attention  with and without the scale 1/√d_k, and additive, at d_k of 16 and 64

experiment.json    the settings, the data and the tests that the directory was begun with
NAME/run/          a run, with its report
NAME/results.json  what it cost, its curve over training, and its scores
STUDY.json         all of them; STUDY.svg draws them
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.config import Config
from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics
from keras_transformer.paper.baselines.long_sentences import length_tests, prepare_short
from keras_transformer.paper.baselines.material import Material, StudyModel
from keras_transformer.paper.experiment import Deadline, Trial, begun, results_of, run_trials
from keras_transformer.runs.results import mixed_origins, write_results
from keras_transformer.tf_import import load_tensorflow

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


def compared_models() -> list[StudyModel]:
    """The paper's Table 2 in small: models of about 9 M parameters with 4,000 pieces."""
    transformer = _transformer(4, 256, 1152, 0.3, norm_position="pre")
    return [
        StudyModel("transformer", "Transformer", "transformer", {**_MODELS, **transformer}),
        StudyModel("convolutional", "ConvS2S", "convolutional", _MODELS),
        StudyModel("gru", "GRU with attention", "gru", _MODELS),
    ]


def position_models() -> list[StudyModel]:
    """Two Transformers of 1.8 M parameters with 4,000 pieces; learned positions are more."""
    return [
        StudyModel(
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


def attention_models() -> list[StudyModel]:
    """Six Transformers of two layers, as the paper has them but for the attention's scores."""
    kinds = {
        "scaled": ("softmax(QKᵀ/√d_k)", "transformer"),
        "unscaled": ("softmax(QKᵀ)", "transformer without scale"),
        "additive": ("softmax(vᵀtanh(q + k))", "transformer with additive attention"),
    }
    return [
        StudyModel(
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


STUDIES: dict[str, Callable[[], list[StudyModel]]] = {
    "models": compared_models,
    "positions": position_models,
    "attention": attention_models,
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

    Each is trained in a separate process. What is done already is not done again, so the same
    call continues after a stop.

    Args:
        study: one of `STUDIES`.
        material: data and tests; `positions` makes its own of the data, and takes no tests.
        work_dir: gets a folder for each model, STUDY.json and STUDY.svg.
        only: names of the models to train in this call; by default all.
        settings: what differs from the study's settings, of every model.
        max_minutes: end this call's training after so long, to be continued.
        longest: tokens that `positions` trains on.

    Returns:
        The content of STUDY.json: `trials` by name, and whether all are `finished`.

    Raises:
        InputError: for an unknown study or model, settings or data that do not fit, and a
            directory of something else.
        KeyboardInterrupt: where training was interrupted; a checkpoint is written.

    Example:
    >>> material = Material(Path("build/data"), {"test": test_set})  # doctest: +SKIP
    >>> run_study("models", material, Path("build/models"))  # doctest: +SKIP
    """
    if study not in STUDIES:
        raise InputError(f"there is no study {study!r}; expected one of {', '.join(STUDIES)}")
    models = {
        model.name: dataclasses.replace(model, settings={**model.settings, **(settings or {})})
        for model in STUDIES[study]()
    }
    if unknown := [name for name in only if name not in models]:
        raise InputError(
            f"the study {study} has no model {unknown[0]!r}; expected one of {', '.join(models)}"
        )
    deadline = Deadline(max_minutes)
    metrics.evaluate(["a"], ["a"], tokenize=material.tokenize)  # knows the tokenizer
    from keras_transformer.paper.baselines.plots import draw  # late: it takes a second to load

    if study == "positions":
        if material.tests:
            raise InputError("the study positions makes tests of its own; expected no test set")
        for model in models.values():
            Config().updated(model.settings)  # before data is written
        tests = length_tests(material.data_dir, longest)
        material = dataclasses.replace(material, tests=tests)
    elif not material.tests:
        raise InputError(f"the study {study} has nothing to score; expected a test set")
    identity: dict[str, Any] = {
        "study": study,
        "data and tests": material.fingerprint,
        "models": {
            name: {"architecture": model.architecture, "settings": model.settings}
            for name, model in models.items()
        },
        **({"longest": longest} if study == "positions" else {}),
    }
    with begun(work_dir, identity):
        if study == "positions":
            short = prepare_short(material.data_dir, work_dir / "short", longest)
            material = dataclasses.replace(material, data_dir=short)
        trials = {
            name: Trial(
                name,
                _train_and_score,
                (model, material),
                model.title,
                facts={
                    "name": name,
                    "title": model.title,
                    "material": material.fingerprint,
                    **identity["models"][name],
                },
                in_child=True,
            )
            for name, model in models.items()
        }
        run_trials([trials[name] for name in only or trials], work_dir, deadline)
        found = results_of(trials.values(), work_dir)  # whichever call has left them
        finished = len(found) == len(trials) and all(each["finished"] for each in found.values())
        results = {"study": study, "finished": finished, "trials": found}
        if study == "positions":
            results["longest"] = longest
        write_results(work_dir / f"{study}.json", results)
        draw(results, work_dir / f"{study}.svg")
    return results


def _train_and_score(*arguments: Any) -> dict[str, Any]:
    """Calls `measuring.train_and_score` in a process that has no TensorFlow yet."""
    load_tensorflow()  # here: the process that starts others must not hold the GPU they need
    from keras_transformer.paper.baselines.measuring import train_and_score

    return train_and_score(*arguments)


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
    return "\n".join(filter(None, [*lines, mixed_origins(results["trials"])]))
