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

import dataclasses
import json
import os

from absl import flags

from keras_transformer import console
from keras_transformer.cli import app, config_flags
from keras_transformer.errors import InputError

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_multi_string(
        "gold", None, "files of gold trees, or patterns of them", required=True
    )
    config_flags.define_path_flags("ids", "hypothesis", "output")
    flags.DEFINE_string("model_dir", None, "a run, RUN@WEIGHTS, RUN,RUN, or a SavedModel")
    config_flags.define_precision_flag()
    config_flags.define_config_flags("beam_size", "length_penalty")


def main() -> int:
    """Runs `score_trees` with the flags. Returns 3 if words differ."""
    app.load_tensorflow()
    from keras_transformer.extensions.paper.commands import parse
    from keras_transformer.extensions.paper.parsing import scoring, treebank, trees

    if (FLAGS.model_dir is None) == (FLAGS.hypothesis is None):
        found = "neither" if FLAGS.model_dir is None else "both"
        raise InputError(f"--model_dir and --hypothesis: {found} given. Give exactly one of them.")
    files = treebank.find_files(treebank.split_patterns(FLAGS.gold), FLAGS.ids)
    gold = list(treebank.Treebank(tuple(files)).trees())
    timing = {}
    if FLAGS.hypothesis:
        if FLAGS.output:
            raise InputError("--hypothesis and --output: both given. Remove one of them.")
        predicted = trees.read_trees(FLAGS.hypothesis)
    else:
        sentences = [" ".join(tree.words) for tree in gold]
        results, seconds = parse.parse_to(FLAGS.output or os.devnull, sentences, tokens=True)
        timing = {"seconds": round(seconds, 3)}
        predicted = list(trees.parse_trees([r.tree for r in results], "the output of the model"))
    every, short, errors = scoring.score_trees(gold, predicted)
    for error in errors:
        console.warn(error)
    print(f"all sentences:             {every.summary()}")
    print(f"sentences of <= {scoring.SHORT} words: {short.summary()}")
    fields = {
        "all": dataclasses.asdict(every),
        f"up_to_{scoring.SHORT}_words": dataclasses.asdict(short),
        "rules": scoring.RULES,
    }
    print(json.dumps({**fields, **timing}))
    return 3 if errors else 0
