r"""Prepares a treebank for training a parser: words in, symbols of trees out.

Example:
    bin/prepare_trees.py --trees='penn/*.tree' --ids=train.txt --valid_trees='penn/*.tree' \
        --valid_ids=valid.txt --output_dir=build/data
    bin/train.py --data_dir=build/data --run_dir=build/run --preset=parser_tiny

Files hold trees in brackets, as the Penn Treebank's: any number a line, or each on several
lines. --trees takes files, or patterns of them in quotes; several are given by repeating it or
with commas. --ids is a file with a name a line, by which some of the files are chosen. Traces,
function tags and indices are left out. Without --valid_trees some sentences are held out.

OUTPUT_DIR is prepared data as bin/prepare.py leaves it, with report.html.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from absl import flags

from keras_transformer.cli import app
from keras_transformer.data.preparation import prepare, workers
from keras_transformer.paper.parsing import treebank
from keras_transformer.runs.machine import available_cores
from keras_transformer.runs.report import write_data_page

FLAGS = flags.FLAGS
DEFAULTS = treebank.DEFAULTS


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_multi_string(
        "trees", None, "files to train on, or patterns of them", required=True
    )
    flags.DEFINE_string("ids", None, "names of those of the files to take, one a line")
    flags.DEFINE_multi_string("valid_trees", [], "files to validate on, or patterns of them")
    flags.DEFINE_string("valid_ids", None, "names of those of them to take, one a line")
    flags.DEFINE_boolean("tags", True, "learn parts of speech, too; with --notags all words are XX")
    flags.DEFINE_string("output_dir", None, "new directory for the prepared data", required=True)
    flags.DEFINE_integer("vocab_size", DEFAULTS.vocab_size, "pieces of words to learn")
    flags.DEFINE_integer("max_tokens", DEFAULTS.max_tokens, "pieces or symbols of a sentence kept")
    flags.DEFINE_integer(
        "valid_pairs", None, "sentences held out; 2 %, at most 1000, when not given"
    )
    flags.DEFINE_integer("seed", DEFAULTS.seed, "of the sentences held out")


def _files(trees: str, ids: str) -> list[Path]:
    patterns = [path for value in FLAGS[trees].value or [] for path in value.split(",")]
    return treebank.find_files(patterns, FLAGS[ids].value) if patterns else []


def main() -> None:
    """Runs `treebank.prepare_trees` on what the flags name."""
    if FLAGS.valid_trees:
        app.refuse(["valid_pairs"], "beside --valid_trees; expected one of them")
    else:
        app.refuse(["valid_ids"], "without --valid_trees; expected both, or neither")
    names = ("vocab_size", "max_tokens", "valid_pairs", "seed")
    chosen: dict[str, Any] = {name: FLAGS[name].value for name in names}
    prepared = treebank.prepare_trees(
        _files("trees", "ids"),
        FLAGS.output_dir,
        dataclasses.replace(DEFAULTS, **chosen),
        valid_files=_files("valid_trees", "valid_ids"),
        tags=FLAGS.tags,
        runner=workers.Workers(available_cores()),
    )
    print(prepared.summary())
    if not (prepared.reused and (prepared.directory / "report.html").exists()):
        write_data_page(prepared.directory, dataclasses.asdict(prepare.PrepareOptions()))
