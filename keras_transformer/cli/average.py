r"""Averages the weights of the last or best checkpoints of a run, and selects the average.

Examples:
    keras-transformer average --run_dir=build/run --last=5
    keras-transformer average --run_dir=build/run --best=3

The best checkpoints have the lowest validation loss, or the highest BLEU if training.best_metric is
bleu. training.keep_best is the number of best checkpoints that a run keeps.

Translation, evaluation and export use the selected weights. --select changes them without
averaging: to last (the newest checkpoint), ema (its moving average), best (the best on validation)
or the name of other weights of the run.
"""

from __future__ import annotations

from absl import flags

from keras_transformer.cli import app, config_flags

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    config_flags.define_path_flags("run_dir", required=True)
    flags.DEFINE_integer("last", 5, "number of newest checkpoints")
    flags.DEFINE_integer("best", None, "number of best checkpoints instead, by validation")
    select_help = "only select these weights: last, best, ema, step-00001000, an average"
    flags.DEFINE_string("select", None, select_help)


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
    if FLAGS.best is None:
        name = averaging.average_checkpoints(run, FLAGS.last)
    else:
        app.reject_unused(["last"], "together with --best. Remove one of them.")
        name = averaging.average_checkpoints(run, FLAGS.best, "best")
    print(f"{run.path} now uses {name}")


if __name__ == "__main__":
    from keras_transformer.cli.main import run

    run("average")
