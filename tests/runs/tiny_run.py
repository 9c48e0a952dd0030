"""Checkpoints of a run with two small weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from keras_transformer.runs.run_directory import RunDirectory

LINES = [
    b"a small dog runs",
    b"ein kleiner Hund rennt",
    b"the dog sleeps",
    b"der Hund schl\xc3\xa4ft",
]


def arrays(value: float) -> dict[str, np.ndarray]:
    return {
        "embedding/embeddings": np.full((3, 2), value, np.float32),
        "encoder/layer_0/norm/gamma": np.arange(2, dtype=np.float32) + value,
    }


STATE = {"adam/iteration": np.array(7, np.int64), "loss_scale": np.array(8.0, np.float32)}


def save(run: RunDirectory, *steps: int) -> None:
    for step in steps:
        run.save_checkpoint(step, arrays(step), STATE, {"loss": step / 10})


def save_validated(run: RunDirectory, **losses: float) -> None:
    """Saves `step_5=0.25` as step 5 with that validation loss."""
    for name, loss in losses.items():
        step = int(name.removeprefix("step_"))
        metrics = {"loss": step / 10, "val_loss": loss, "val_bleu": 30 + loss}
        run.save_checkpoint(step, arrays(step), STATE, metrics, ema=arrays(-step))


def reconfigured(run: RunDirectory, **changes: Any) -> RunDirectory:
    """The run with another configuration, as if a user had edited it."""
    (run.path / "config.json").write_text(run.config.replace(**changes).to_json())
    return RunDirectory(run.path)


def steps(run: RunDirectory) -> list[int]:
    return [checkpoint.step for checkpoint in run.checkpoints()]


def entries(run: RunDirectory) -> list[str]:
    return sorted(path.name for path in (run.path / "checkpoints").iterdir())
