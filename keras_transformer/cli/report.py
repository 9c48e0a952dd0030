r"""Writes the one-page report of a run or of prepared data: report.html in its directory.

Example:
    bin/report.py --run_dir=build/run
    bin/report.py --data_dir=build/data

A run's page shows scores, curves, configuration, data and checkpoints; that of data
what was read, what was dropped and why, and lengths. Neither needs another file.
bin/train.py and bin/prepare.py write them when they end; this does so at any time,
also while a run goes on or after it was killed.
"""

from __future__ import annotations

import dataclasses

from absl import flags

from keras_transformer.cli import app, config_flags
from keras_transformer.errors import InputError

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    config_flags.define_path_flags("run_dir", "data_dir")


def main() -> None:
    """Runs `write_report` or `write_data_page` on what the flags name."""
    app.load_tensorflow()
    if not (FLAGS.run_dir or FLAGS.data_dir):
        raise InputError("--run_dir and --data_dir: neither given; expected one of them, or both")
    if FLAGS.data_dir:
        from pathlib import Path

        from keras_transformer.data.preparation.prepare import PrepareOptions
        from keras_transformer.runs.report import write_data_page

        print(write_data_page(Path(FLAGS.data_dir), dataclasses.asdict(PrepareOptions())))
    if FLAGS.run_dir:
        from keras_transformer.runs.report import write_report  # late: --help stays quick
        from keras_transformer.runs.run_directory import RunDirectory

        print(write_report(RunDirectory(FLAGS.run_dir)))
