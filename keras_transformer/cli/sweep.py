r"""Trains a table of models that differ from one base, and shows it beside the paper's own.

Example:
    bin/prepare.py --source=train.en --target=train.de --valid_source=val.en \
        --valid_target=val.de --vocab_size=4000 --output_dir=build/data
    bin/sweep.py --table3 --preset_base=tiny --data_dir=build/data --work_dir=build/table3

Each row is a change of the paper's Table 3, sizes in ratios, applied to --preset_base; --set is for
all rows. On tiny a row has 3,000 steps of 2,048 target tokens, on other bases what their preset
says. Rows are trained one after the other, and scored on the validation set. The same command again
continues, in the middle of a row too; one with other --rows adds to what is there. A row that
diverges is told as such in the table, and the others go on. Ctrl-C stops after the current step and
leaves a checkpoint. The work directory then has a run for each row, table.txt, table.md,
delta_bleu.svg and results.json, which is the last line of standard output.
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
    config_flags.define_path_flags("data_dir", required=True)
    flags.DEFINE_string("work_dir", None, "directory for all that is made", required=True)
    flags.DEFINE_list("rows", [], "rows or groups of them, as in A,B,E_learned; base comes along")
    flags.DEFINE_string(
        "tokenize", "13a", "sacreBLEU's tokenizer for BLEU; none takes text as it is"
    )
    flags.DEFINE_boolean("lowercase", False, "score without regard to case")
    flags.DEFINE_float("max_minutes", None, "end this call's training after so many minutes")
    config_flags.define_config_flags(
        "max_steps",
        "batch_tokens",
        "accumulate_steps",
        "learning_rate",
        "warmup_steps",
        "checkpoint_steps",
        "seed",
        "deterministic",
        "mixed_precision",
        "jit_compile",
    )


def main() -> None:
    """Runs `run_table3` on what the flags name."""
    with needs_extra("plots", "the chart of the results"):
        import matplotlib  # noqa: F401  found missing now, not after training
    from keras_transformer.paper.table3 import printed, running  # late: --help stays quick

    if not FLAGS.table3:
        raise InputError("no table is named; expected --table3")
    results = running.run_table3(
        FLAGS.data_dir,
        FLAGS.work_dir,
        preset_base=FLAGS.preset_base,
        settings=config_flags.config_settings(),
        names=FLAGS.rows,
        tokenize=FLAGS.tokenize,
        lowercase=FLAGS.lowercase,
        max_minutes=FLAGS.max_minutes,
    )
    print(printed.text(results))
    print(json.dumps(results))
