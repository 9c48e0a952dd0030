r"""Trains and scores the models that the Transformer is compared with, and draws the comparison.

Examples:
    bin/baseline.py --study=models --data_dir=build/de_en --source=test.de --reference=test.en \
        --tokenize=none --work_dir=build/models
    bin/baseline.py --study=positions --data_dir=build/de_en --tokenize=none \
        --work_dir=build/positions
    bin/baseline.py --study=attention --data_dir=build/de_en --source=test.de \
        --reference=test.en --tokenize=none --work_dir=build/attention

models: the paper's Table 2 in small; Transformer, ConvS2S and GRU with attention, each of about
9 M parameters. positions: sinusoidal against learned, on sentences longer than any of training.
attention: with and without the scale, and additive, at d_k of 16 and 64.

Leaves a folder for each model with its run and results.json, and of all of them STUDY.json and
STUDY.svg. The same command again continues. The last line of standard output is STUDY.json.
"""

from __future__ import annotations

import json
from pathlib import Path

from absl import flags

from keras_transformer.cli import config_flags
from keras_transformer.errors import InputError, needs_extra

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_enum("study", "models", ["models", "positions", "attention"], "what to compare")
    config_flags.define_path_flags("data_dir", required=True)
    flags.DEFINE_string("work_dir", None, "directory for all that is made", required=True)
    flags.DEFINE_string("source", None, "text to translate in the end, one sentence a line")
    flags.DEFINE_string("reference", None, "its translation, line by line")
    flags.DEFINE_string(
        "tokenize", None, "sacreBLEU's tokenizer for BLEU; none takes text as it is"
    )
    flags.DEFINE_list(
        "only", [], "models of the study to train in this call, as in gru,transformer"
    )
    flags.DEFINE_integer("longest", 18, "tokens that the study positions trains on", lower_bound=2)
    flags.DEFINE_float("max_minutes", None, "end this call's training after so many minutes")
    config_flags.define_config_flags(
        "max_steps", "checkpoint_steps", "bleu_steps", "bleu_sentences", "seed", "jit_compile"
    )


def main() -> None:
    """Runs `studies.run_study` on what the flags name."""
    with needs_extra("plots", "the chart of the results"):
        import matplotlib  # noqa: F401  found missing now, not after training
    from keras_transformer.evaluation import test_sets  # late: --help stays quick
    from keras_transformer.paper.baselines import studies
    from keras_transformer.paper.baselines.material import Material

    if (FLAGS.source is None) != (FLAGS.reference is None):
        raise InputError("--source and --reference: one given; expected both, or neither")
    tests = {}
    if FLAGS.source:
        name = Path(FLAGS.source).name
        tests[name] = test_sets.read_files(FLAGS.reference, FLAGS.source)
    results = studies.run_study(
        FLAGS.study,
        Material(Path(FLAGS.data_dir), tests, FLAGS.tokenize),
        Path(FLAGS.work_dir),
        only=FLAGS.only,
        settings=config_flags.config_settings(),
        max_minutes=FLAGS.max_minutes,
        longest=FLAGS.longest,
    )
    print(studies.summary(results))
    print(json.dumps(results))
