"""Checkpoints of a run with two small weights."""

import numpy as np

from keras_transformer.runs.run_directory import RunDirectory

LINES = [
    b"a small dog runs",
    b"ein kleiner Hund rennt",
    b"the dog sleeps",
    b"der Hund schl\xc3\xa4ft",
]


def arrays(value):
    return {
        "embedding/embeddings": np.full((3, 2), value, np.float32),
        "encoder/layer_0/norm/gamma": np.arange(2, dtype=np.float32) + value,
    }


STATE = {"adam/iteration": np.array(7, np.int64), "loss_scale": np.array(8.0, np.float32)}


def save(run, *steps):
    for step in steps:
        run.save_checkpoint(step, arrays(step), STATE, {"loss": step / 10})


def save_validated(run, **losses):
    """Saves `step_5=0.25` as step 5 with that validation loss."""
    for name, loss in losses.items():
        step = int(name.removeprefix("step_"))
        metrics = {"loss": step / 10, "val_loss": loss, "val_bleu": 30 + loss}
        run.save_checkpoint(step, arrays(step), STATE, metrics, ema=arrays(-step))


def reconfigured(run, **changes):
    """The run with another configuration, as if a user had edited it."""
    (run.path / "config.json").write_text(run.config.updated(**changes).to_json())
    return RunDirectory(run.path)


def steps(run):
    return [checkpoint.step for checkpoint in run.checkpoints()]


def entries(run):
    return sorted(path.name for path in (run.path / "checkpoints").iterdir())
