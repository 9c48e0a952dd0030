r"""Trains the models of a table of the paper, and shows the results next to the published ones.

Example:
    keras-transformer prepare --source=train.en --target=train.de --valid_source=val.en \
        --valid_target=val.de --vocab_size=4000 --output_dir=build/data
    keras-transformer sweep --table3 --preset_base=tiny --data_dir=build/data \
        --work_dir=build/table3

Each row is a change of the paper's Table 3, with sizes in proportion, applied to --preset_base.
--set changes all rows. With tiny, a row has 3,000 steps of 2,048 target tokens. Other presets keep
their settings. Rows are trained one after the other, or with --ray on the machines of a cluster at
the same time, and scored on the validation set.

The same command resumes after an interruption, even in the middle of a row. Other --rows are added
to the existing results. A row that diverges is marked in the table, and training continues with the
next row. Ctrl-C stops after the current step and writes a checkpoint.

The work directory has a run for each row, results.jsonl, table.md and chart.svg. The last line of
standard output is a JSON object with the results.
"""

from __future__ import annotations

import json

from absl import flags

from keras_transformer.cli import config_flags
from keras_transformer.errors import InputError, needs_extra

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_boolean("table3", False, "train the paper's Table 3")
    flags.DEFINE_string("preset_base", "tiny", "preset that the rows differ from")
    config_flags.define_path_flags("data_dir", "work_dir", required=True)
    config_flags.define_option_flags("tokenize", "lowercase", "max_minutes")
    config_flags.define_cluster_flags()
    flags.DEFINE_list("rows", None, "rows or groups, such as A,B,E_learned; base is always added")
    config_flags.define_config_flags(
        "max_steps",
        "batch_tokens",
        "num_microbatches",
        "learning_rate",
        "warmup_steps",
        "checkpoint_steps",
        "seed",
        "deterministic",
        "mixed_precision",
        "jit_compile",
    )


def main() -> None:
    """Runs `run_table3` with the flags."""
    with needs_extra("plots", "the chart of the results"):
        import matplotlib  # noqa: F401  found missing now, not after training
    from keras_transformer.extensions.paper import tables  # slow to import

    if not FLAGS.table3:
        raise InputError("Name a table: --table3.")
    table, results = tables.run_table3(
        FLAGS.data_dir,
        FLAGS.work_dir,
        preset_base=FLAGS.preset_base,
        settings=config_flags.config_settings(),
        names=FLAGS.rows,
        tokenize=FLAGS.tokenize,
        lowercase=FLAGS.lowercase,
        max_minutes=FLAGS.max_minutes,
        workers=config_flags.workers() or 1,
    )
    print(table)
    print(json.dumps(results))
