r"""Averages the weights of a run's last or best checkpoints, and selects the average.

Examples:
    bin/average_checkpoints.py --run_dir=build/run --last=5
    bin/average_checkpoints.py --run_dir=build/run --best=3

The best are those with the lowest validation loss, or with the highest BLEU where
training.best_metric is bleu, of those that are there: training.keep_best says how many a run keeps.
The selected weights are those that bin/translate.py, bin/evaluate.py and
bin/export.py use. --select=last goes back to the newest checkpoint, --select=ema
to its moving average, --select=best to what validated best, and --select=NAME to
any other weights of the run, without averaging.
"""

from __future__ import annotations

from absl import flags

from keras_transformer.cli import app, config_flags

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    config_flags.define_path_flags("run_dir", required=True)
    flags.DEFINE_integer(
        "last", None, "how many of the newest checkpoints; 5 when nothing is given"
    )
    flags.DEFINE_integer("best", None, "how many of the best checkpoints by validation instead")
    flags.DEFINE_string(
        "select", None, "only select these weights: last, best, ema, step-00001000, an average"
    )


def main() -> None:
    """Runs `average_checkpoints`, or `RunDirectory.select`."""
    app.load_tensorflow()
    from keras_transformer.runs import averaging
    from keras_transformer.runs.run_directory import RunDirectory

    run = RunDirectory(FLAGS.run_dir)
    if FLAGS.select is not None:
        run.select(FLAGS.select)
        print(f"{run.path} now uses {FLAGS.select}")
        return
    last = 5 if FLAGS.last is None and FLAGS.best is None else FLAGS.last
    name = averaging.average_checkpoints(run, last, best=FLAGS.best)
    which = f"last {last}" if FLAGS.best is None else f"best {FLAGS.best}"
    print(f"{run.path} now uses {name}, the average of its {which} checkpoints")
