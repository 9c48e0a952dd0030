#!/usr/bin/env python3
r"""Translates a test set and scores the translations: BLEU, chrF and exact matches.

Examples:
    bin/evaluate.py --model_dir=build/run --source=test.en --reference=test.de
    bin/evaluate.py --model_dir=build/run --test_set=wmt14/full --language_pair=en-de --paper_bleu
    bin/evaluate.py --hypothesis=new.de --baseline=old.de --reference=test.de

The scores are sacreBLEU's. The last line of standard output is one JSON object
with the scores, the signatures that repeat them, and the seconds taken.
"""

import functools
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import command_line

from absl import flags

from keras_transformer.errors import InputError

FLAGS = flags.FLAGS

command_line.define_path_flags("model_dir")
flags.DEFINE_string("hypothesis", None, "in place of a model: translations, one a line")
flags.DEFINE_string("source", None, "text to translate, one sentence a line")
flags.DEFINE_string("reference", None, "its translation, line by line")
flags.DEFINE_string("test_set", None, "in place of both: sacreBLEU's, as in wmt14/full")
flags.DEFINE_string("language_pair", None, "of --test_set, as in en-de")
flags.DEFINE_string(
    "tokenize",
    None,
    "sacreBLEU's tokenizer for BLEU; none takes text as it is (default: 13a, or what sacreBLEU "
    "has for the target language of --test_set)",
)
flags.DEFINE_boolean("lowercase", False, "score without regard to case")
flags.DEFINE_boolean(
    "paper_bleu", False, "also BLEU as in the paper, for German: tokenized, compounds split"
)
flags.DEFINE_string("baseline", None, "another system's translations, to compare BLEU with")
flags.DEFINE_string("output", None, "file for the translations")
flags.DEFINE_string(
    "write_files",
    None,
    "folder for source.txt, hypothesis.txt and reference.txt, which comet-score reads",
)
flags.DEFINE_enum(
    "precision", "float32", ["float32", "bfloat16", "float16"], "of a run's weights and products"
)
flags.DEFINE_integer(
    "threads", None, "of a LiteRT model; all cores if not given", lower_bound=1, upper_bound=1024
)
command_line.define_config_flags("beam_size", "length_penalty")


def _check_flags() -> None:
    """Refuses flags of which one has to go, or that lack another."""
    for one, other in (("model_dir", "hypothesis"), ("test_set", "reference")):
        if (FLAGS[one].value is None) == (FLAGS[other].value is None):
            found = "neither" if FLAGS[one].value is None else "both"
            raise InputError(f"--{one} and --{other}: {found} given; expected one of them")
    for one, other in (
        ("test_set", "source"),
        ("reference", "language_pair"),
        ("hypothesis", "output"),
    ):
        if FLAGS[one].value is not None and FLAGS[other].value is not None:
            raise InputError(f"--{one} and --{other}: both given; expected one of them")
    for needs in ("model_dir", "write_files"):
        if FLAGS[needs].value and not (FLAGS.source or FLAGS.test_set):
            raise InputError(f"--source is missing; expected the text that --{needs} needs")


def _translate(sources: Sequence[str]) -> tuple[list[str], float]:
    """Returns the model's translations, and the seconds that they took."""
    from keras_transformer.inference import loading, translate  # late: --help stays quick
    from keras_transformer.runs import atomic

    translate.use_cores_for_batches(len(sources))
    model = loading.load_model(
        FLAGS.model_dir,
        command_line.config_settings(),
        precision=FLAGS.precision,
        threads=FLAGS.threads,
    )
    with atomic.output_file(FLAGS.output or os.devnull) as file:
        start = time.perf_counter()
        hypotheses = [best.text for best, *_ in translate.translate_lines(model, sources)]
        seconds = time.perf_counter() - start
        file.writelines(f"{hypothesis}\n".encode() for hypothesis in hypotheses)
    for remark in translate.remarks(model, sources):
        print(f"{FLAGS.source or FLAGS.test_set}: {remark}", file=sys.stderr)
    return hypotheses, seconds


def main(argv: list[str]) -> None:
    """Runs `evaluation.assess` on what the flags name."""
    from keras_transformer.evaluation import metrics, test_sets

    _check_flags()
    test = (
        test_sets.sacrebleu_set(FLAGS.test_set, FLAGS.language_pair or "")
        if FLAGS.test_set
        else test_sets.read_files(FLAGS.reference, FLAGS.source)
    )
    assess = functools.partial(
        metrics.assess,
        references=test,
        baseline=(test_sets.read_translations(FLAGS.baseline, test) if FLAGS.baseline else None),
        as_in_paper=FLAGS.paper_bleu,
        tokenize=FLAGS.tokenize,
        lowercase=FLAGS.lowercase,
    )
    if FLAGS.write_files:
        files = test_sets.text_files(FLAGS.write_files, len(test.references))
    fields: dict[str, Any] = {}
    if test.title:
        fields["dataset"] = test.title  # as the model card of an export has it
    sources = test.sources or []
    if FLAGS.hypothesis:
        hypotheses = test_sets.read_translations(FLAGS.hypothesis, test)
    else:
        assess(test.references[0])  # finds what is wrong before anything is translated
        hypotheses, seconds = _translate(sources)
        fields["seconds"] = round(seconds, 3)
    result = assess(hypotheses)
    if FLAGS.write_files:
        test_sets.write_text_files(files, [sources, hypotheses, *test.references])
    print(result.summary())
    if "seconds" in fields:
        a_second = len(sources) / max(seconds, 1e-9)
        print(f"translated in {seconds:.1f} s ({a_second:,.0f} sentences a second)")
    print(json.dumps({**result.fields(), **fields}))


if __name__ == "__main__":
    command_line.run(main)
