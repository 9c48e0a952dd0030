r"""Compares the Transformer with a convolutional and a recurrent model (paper, Table 2).

Example:
    keras-transformer baseline --data_dir=build/de_en --source=test.de --reference=test.en \
        --tokenize=none --work_dir=build/baselines

Trains a Transformer, ConvS2S and a GRU with attention, each of about 9 million parameters, with
the same data and settings, and scores them on the test set.

Writes a folder for each model, results.jsonl, table.md and chart.svg. The same command resumes
after an interruption. The last line of standard output is a JSON object with the results.
"""

from __future__ import annotations

import json

from absl import flags

from keras_transformer.cli import config_flags
from keras_transformer.errors import needs_extra

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    config_flags.define_path_flags("data_dir", "work_dir", "source", "reference", required=True)
    config_flags.define_option_flags("tokenize", "max_minutes")
    flags.DEFINE_list("only", None, "models to train in this call, such as gru,transformer")
    config_flags.define_config_flags(
        "max_steps", "checkpoint_steps", "bleu_steps", "bleu_sentences", "seed", "jit_compile"
    )


def main() -> None:
    """Runs the comparison and prints its results."""
    with needs_extra("plots", "the chart of the results"):
        import matplotlib  # noqa: F401  reports a missing extra before training
    from keras_transformer.evaluation import test_sets  # slow to import
    from keras_transformer.extensions.paper import tables

    table, results = tables.run_table2(
        FLAGS.data_dir,
        FLAGS.work_dir,
        test_sets.read_files(FLAGS.reference, FLAGS.source),
        settings=config_flags.config_settings(),
        names=FLAGS.only,
        tokenize=FLAGS.tokenize,
        max_minutes=FLAGS.max_minutes,
    )
    print(table)
    print(json.dumps(results))
