#!/usr/bin/env python3
r"""Translates a test set and scores the translations: BLEU, chrF and exact matches.

Example:
    bin/evaluate.py --model_dir=build/run --source=test.en --reference=test.de

The scores are sacreBLEU's. The last line of standard output is one JSON object
with the scores, the signatures that repeat them, and the seconds taken.
"""

import dataclasses
import json
import os
import sys

import command_line

from absl import flags

FLAGS = flags.FLAGS

command_line.define_path_flags("model_dir", required=True)
flags.DEFINE_string("source", None, "text to translate, one sentence a line", required=True)
flags.DEFINE_string("reference", None, "its translation, line by line", required=True)
flags.DEFINE_string("tokenize", "13a", "sacreBLEU's tokenizer for BLEU; none takes text as it is")
flags.DEFINE_boolean("lowercase", False, "score without regard to case")
flags.DEFINE_string("output", None, "file for the translations")
flags.DEFINE_enum(
    "precision", "float32", ["float32", "bfloat16", "float16"], "of a run's weights and products"
)
flags.DEFINE_integer("threads", None, "of a LiteRT model; all cores if not given", lower_bound=1)
command_line.define_config_flags("beam_size", "length_penalty")


def main(argv: list[str]) -> None:
    """Runs `inference.evaluate` on what the flags name."""
    from keras_transformer import inference, loading  # late: --help stays quick
    from keras_transformer.data.corpus import read_text

    sources, references = read_text(FLAGS.source), read_text(FLAGS.reference)
    inference.use_cores_for_batches(len(sources))
    model = loading.load_model(
        FLAGS.model_dir,
        command_line.config_settings(),
        precision=FLAGS.precision,
        threads=FLAGS.threads,
    )
    with inference.output_file(FLAGS.output or os.devnull) as file:
        result = inference.evaluate(
            model, sources, references, tokenize=FLAGS.tokenize, lowercase=FLAGS.lowercase
        )
        file.writelines(f"{hypothesis}\n".encode() for hypothesis in result.hypotheses)
    for remark in inference.remarks(model, sources):
        print(f"{FLAGS.source}: {remark}", file=sys.stderr)
    print(result.summary())
    print(json.dumps({**dataclasses.asdict(result.scores), "seconds": round(result.seconds, 3)}))


if __name__ == "__main__":
    command_line.run(main)
