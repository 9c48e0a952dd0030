r"""Writes report.html, the one-page report of a run or of prepared data.

Example:
    keras-transformer report --run_dir=build/run
    keras-transformer report --data_dir=build/data

The page of a run shows scores, curves, configuration, data and checkpoints. The page of data shows
statistics, dropped pairs and lengths. Training and preparation write the pages at the end. This
command writes them at any time, also during training and after a kill.
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
    """Runs `write_report` or `write_data_page` with the flags."""
    app.load_tensorflow()
    if not (FLAGS.run_dir or FLAGS.data_dir):
        raise InputError("--run_dir and --data_dir: neither given. Give at least one of them.")
    if FLAGS.data_dir:
        from pathlib import Path

        from keras_transformer.data.prepare import PrepareOptions
        from keras_transformer.extensions.pages.report.data_page import write_data_page

        print(write_data_page(Path(FLAGS.data_dir), dataclasses.asdict(PrepareOptions())))
    if FLAGS.run_dir:
        from keras_transformer.extensions.pages.report.page import write_report

        print(write_report(FLAGS.run_dir))
