r"""Writes report.html, the one-page report of a run or of prepared data.

Example:
    keras-transformer report --run_dir=build/run
    keras-transformer report --data_dir=build/data

The page of a run shows scores, curves, configuration, data and checkpoints. The page of data shows
statistics, dropped pairs and lengths. Training and preparation write the pages at the end. This
command writes them at any time, also during training and after a kill.
"""

from __future__ import annotations

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
    from keras_transformer.extensions.pages import report  # slow to import
    from keras_transformer.runs.run_directory import RunDirectory

    if FLAGS.data_dir:
        print(report.write_data_page(FLAGS.data_dir))
    if FLAGS.run_dir:
        print(report.write_report(RunDirectory(FLAGS.run_dir)))
