r"""Trains the same run in float32, bfloat16 and float16, and compares the losses.

Example:
    python -m tests.stress mixed_precision --data_dir=build/data --work_dir=build/mixed_precision

Each precision trains in --work_dir/PRECISION. The same command resumes what was interrupted and
skips finished runs. A short run needs settings that differ from the paper: pre-norm, and a linear
schedule, which ends at 0, so that the loss depends little on the last batches. --set changes any
field.

Prints one JSON object with, for each precision:

* the validation loss (label-smoothed, nats per token) after the last step
* its relative difference from the first precision; above --tolerance the exit code is 1
* target tokens per second, without padding and validation
* the steps skipped because of gradients that were not finite
"""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import command
import keras
import tensorflow as tf
from absl import flags
from absl import logging as absl_logging

from keras_transformer.errors import InputError
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.training import training_run

FLAGS = flags.FLAGS
flags.DEFINE_string("preset", "tiny", "named configuration")
flags.DEFINE_string("data_dir", None, "prepared data", required=True)
flags.DEFINE_string("work_dir", None, "folder of the runs", required=True)
flags.DEFINE_integer("max_steps", 2000, "steps of each run", lower_bound=1)
flags.DEFINE_integer("batch_tokens", 1024, "target positions of a batch", lower_bound=1)
flags.DEFINE_list(
    "precisions", ["float32", "bfloat16", "float16"], "precisions; the first is the reference"
)
flags.DEFINE_float("tolerance", 0.02, "maximum relative difference of the validation losses")
flags.DEFINE_multi_string("set", [], "any other field, as in --set=training.learning_rate=0.002")

# As in the recipes, but without XLA, so that the runs differ only in precision.
SETTINGS: dict[str, Any] = {
    "model.norm_position": "pre",
    "training.schedule": "linear",
    "training.learning_rate": 0.004,
    "training.warmup_steps": 400,
    "training.checkpoint_steps": 500,
    "training.jit_compile": "false",
}


def settings() -> dict[str, Any]:
    """Returns the settings that all runs share, from the flags.

    Raises:
        InputError: if --set is not an assignment.
    """
    result = {
        **SETTINGS,
        "training.max_steps": FLAGS.max_steps,
        "training.batch_tokens": FLAGS.batch_tokens,
    }
    for assignment in FLAGS.set:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise InputError(f"--set={assignment} is not a setting. Use --set=section.field=value.")
        result[name] = value
    return result


def train(precision: str) -> dict[str, Any] | None:
    """Trains one run and returns its results, or None if it was interrupted."""
    directory = Path(FLAGS.work_dir) / precision
    print(f"{precision}: {directory}", file=sys.stderr, flush=True)
    trained = training_run.train(
        FLAGS.data_dir,
        directory,
        FLAGS.preset,
        {**settings(), "training.mixed_precision": precision},
    )
    print(f"{precision}: {trained.summary(directory)}", file=sys.stderr, flush=True)
    if not trained.finished:
        return None
    return {
        "steps": trained.step,
        "val_loss": trained.metrics["val_loss"],
        "val_perplexity": trained.metrics["val_perplexity"],
        "tokens_per_second": round(trained.tokens_per_second),
        "skipped_steps": _skipped_steps(directory),
    }


def _skipped_steps(directory: Path) -> int:
    """Counts the steps of a run that changed no weights."""
    restored = RunDirectory(directory).restore()
    assert restored is not None, "a finished run has a checkpoint"
    [updates] = [int(v) for path, v in restored.state.items() if path.endswith("/iteration")]
    return restored.checkpoint.step - updates


def main() -> int:
    """Prints the results."""
    absl_logging.get_absl_handler().setFormatter(logging.Formatter("%(message)s"))
    absl_logging.set_verbosity(absl_logging.WARNING)  # of the libraries
    logging.getLogger("keras_transformer").setLevel(logging.INFO)
    runs: dict[str, dict[str, Any]] = {}
    for precision in FLAGS.precisions:
        run = train(precision)
        if run is None:
            print("Interrupted. The same command resumes.", file=sys.stderr)
            return 130
        runs[precision] = run
    reference = runs[FLAGS.precisions[0]]["val_loss"]
    for run in runs.values():
        run["relative_difference"] = run["val_loss"] / reference - 1.0
    result = {
        "preset": FLAGS.preset,
        "settings": settings(),
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "compared_with": FLAGS.precisions[0],
        "tolerance": FLAGS.tolerance,
        "runs": runs,
    }
    print(json.dumps(result))
    return int(any(abs(run["relative_difference"]) > FLAGS.tolerance for run in runs.values()))


if __name__ == "__main__":
    command.run(main)
