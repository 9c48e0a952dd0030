r"""Scores trees: precision, recall and F1 of labelled brackets, as EVALB with COLLINS.prm.

Examples:
    keras-transformer score_trees --model_dir=build/export --gold='penn/*.tree' --ids=dev.txt
    keras-transformer score_trees --hypothesis=trees.txt --gold=dev.tree

A model parses the words of the gold trees. --output keeps its trees. Traces, function tags, the
outermost bracket and punctuation (by the tags of the gold tree) are not scored. Sentences
whose words differ from the gold tree count as errors. They are listed on standard error, and the
exit code is 3.

The last line of standard output is one JSON object with two scores: for all sentences, and for
sentences of up to 40 words.
"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from absl import flags

from keras_transformer import console
from keras_transformer.cli import app, config_flags
from keras_transformer.errors import InputError

if TYPE_CHECKING:
    from keras_transformer.extensions.paper.parsing.trees import Tree

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_multi_string(
        "gold", None, "files of gold trees, or patterns of them", required=True
    )
    config_flags.define_path_flags("ids", "hypothesis", "output")
    flags.DEFINE_string("model_dir", None, "a run, RUN@WEIGHTS, RUN,RUN, or a SavedModel")
    config_flags.define_choice_flag("precision", *config_flags.PRECISIONS)
    config_flags.define_config_flags("beam_size", "length_penalty")


def _parse(sentences: list[str]) -> tuple[float, list[Tree]]:
    """Returns the seconds that the model took, and its trees."""
    from keras_transformer.extensions.paper.parsing import parser, trees
    from keras_transformer.inference import batching
    from keras_transformer.runs import atomic

    batching.use_cores_for_batches(len(sentences))
    model = parser.load_parser(
        FLAGS.model_dir, config_flags.config_settings(), precision=FLAGS.precision
    )
    with atomic.output_file(FLAGS.output or os.devnull) as file:
        start = time.perf_counter()
        lines = [parsed.tree for parsed in parser.parse_lines(model, sentences, tokens=True)]
        seconds = time.perf_counter() - start
        file.writelines(f"{line}\n".encode() for line in lines)
    return seconds, list(trees.parse_trees(lines, "the output of the model"))


def main() -> int:
    """Runs `bracket_scoring.score_trees` with the flags. Returns 3 if words differ."""
    app.load_tensorflow()
    from keras_transformer.extensions.paper.parsing import (
        bracket_scoring,
        treebank,
        trees,
    )

    if (FLAGS.model_dir is None) == (FLAGS.hypothesis is None):
        found = "neither" if FLAGS.model_dir is None else "both"
        raise InputError(f"--model_dir and --hypothesis: {found} given. Give exactly one of them.")
    patterns = [path for value in FLAGS.gold for path in value.split(",")]
    gold = list(treebank.Treebank(tuple(treebank.find_files(patterns, FLAGS.ids))).trees())
    if FLAGS.hypothesis:
        if FLAGS.output:
            raise InputError("--hypothesis and --output: both given. Remove one of them.")
        seconds, predicted = None, trees.read_trees(FLAGS.hypothesis)
    else:
        seconds, predicted = _parse([" ".join(tree.words) for tree in gold])
    scores = bracket_scoring.score_trees(gold, predicted)
    for error in scores.errors:
        console.warn(error)
    print(scores.summary())
    fields = scores.fields()
    if seconds is not None:
        print(f"parsed in {seconds:.1f} s ({len(gold) / max(seconds, 1e-9):,.0f} sentences/s)")
        fields["seconds"] = round(seconds, 3)
    print(json.dumps(fields))
    return 3 if scores.errors else 0
