#!/usr/bin/env python3
r"""Averages the weights of a run's last checkpoints, and selects the average.

Example:
    bin/average_checkpoints.py --run_dir=build/run --last=5

The selected weights are those that bin/translate.py, bin/evaluate.py and
bin/export.py use. --select=last goes back to the newest checkpoint, and
--select=NAME to any other weights of the run, without averaging.
"""

import command_line

from absl import flags

FLAGS = flags.FLAGS

command_line.define_path_flags("run_dir", required=True)
flags.DEFINE_integer("last", 5, "checkpoints to average")
flags.DEFINE_string("select", None, "only select these weights: last, step-00001000, an average")


def main(argv: list[str]) -> None:
    """Runs `average_checkpoints`, or `RunDirectory.select`."""
    from keras_transformer import inference  # late: --help stays quick
    from keras_transformer.run_directory import RunDirectory

    run = RunDirectory(FLAGS.run_dir)
    if FLAGS.select is not None:
        run.select(FLAGS.select)
        print(f"{run.path} now uses {FLAGS.select}")
        return
    name = inference.average_checkpoints(run, FLAGS.last)
    print(f"{run.path} now uses {name}, the average of its last {FLAGS.last} checkpoints")


if __name__ == "__main__":
    command_line.run(main)
