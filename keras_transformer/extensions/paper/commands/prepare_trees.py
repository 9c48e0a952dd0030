r"""Prepares a treebank for training a parser from words to symbols of trees.

Example:
    keras-transformer prepare_trees --trees='penn/*.tree' --ids=train.txt \
        --valid_trees='penn/*.tree' \
        --valid_ids=valid.txt --output_dir=build/data
    keras-transformer train --data_dir=build/data --run_dir=build/run --preset=parser_tiny

Files contain trees in brackets, as in the Penn Treebank, with any line breaks. --trees takes files,
or quoted patterns. Give several by repeating the flag or with commas. --ids is a file with one name
per line, which selects files. Traces, function tags and indices are removed. Without --valid_trees,
some sentences are held out. The vocabulary options apply to the words. --max_tokens also limits the
symbols of a tree.

OUTPUT_DIR is prepared data, as from keras-transformer prepare, with report.html.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from absl import flags

from keras_transformer.cli import app, config_flags
from keras_transformer.extensions.paper.parsing import treebank
from keras_transformer.runs.machine import available_cores

FLAGS = flags.FLAGS
DEFAULTS = treebank.DEFAULTS


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_multi_string(
        "trees", None, "files to train on, or patterns of them", required=True
    )
    config_flags.define_path_flags("ids")
    flags.DEFINE_multi_string("valid_trees", [], "files to validate on, or patterns of them")
    flags.DEFINE_string(
        "valid_ids", None, "file with the names of the --valid_trees to use, one per line"
    )
    flags.DEFINE_boolean("tags", True, "learn parts of speech, too; with --notags all words are XX")
    config_flags.define_path_flags("output_dir", required=True)
    config_flags.define_option_flags(
        "valid_pairs", vocab_size=DEFAULTS.vocab_size, max_tokens=DEFAULTS.max_tokens
    )
    config_flags.define_option_flags(seed=DEFAULTS.seed)


def main() -> None:
    """Runs `treebank.prepare_trees` with the flags."""
    if FLAGS.valid_trees:
        app.reject_unused(["valid_pairs"], "together with --valid_trees. Remove one of them.")
    else:
        app.reject_unused(["valid_ids"], "without --valid_trees. Give both, or neither.")
    names = ("vocab_size", "max_tokens", "valid_pairs", "seed")
    chosen: dict[str, Any] = {name: FLAGS[name].value for name in names}
    valid = treebank.split_patterns(FLAGS.valid_trees)
    prepared = treebank.prepare_trees(
        treebank.find_files(treebank.split_patterns(FLAGS.trees), FLAGS.ids),
        FLAGS.output_dir,
        dataclasses.replace(DEFAULTS, **chosen),
        valid_files=treebank.find_files(valid, FLAGS.valid_ids) if valid else None,
        tags=FLAGS.tags,
        num_workers=available_cores(),
    )
    print(prepared.summary())
