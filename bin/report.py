#!/usr/bin/env python3
r"""Writes the one-page report of a run: report.html in its directory.

Example:
    bin/report.py --run_dir=build/run

The page shows scores, curves, configuration, data and checkpoints, and needs no
other file. bin/train.py writes it when it ends; this does so at any time, also
while the run goes on or after it was killed.
"""

import command_line

from absl import flags

FLAGS = flags.FLAGS

command_line.define_path_flags("run_dir", required=True)


def main(argv: list[str]) -> None:
    """Runs `report.write_report` on the run that the flag names."""
    from keras_transformer.report import write_report  # late: --help stays quick
    from keras_transformer.run_directory import RunDirectory

    print(write_report(RunDirectory(FLAGS.run_dir)))


if __name__ == "__main__":
    command_line.run(main)
