#!/usr/bin/env python3
r"""Translates a large text by an exported model: for back-translation and distillation.

Examples:
    bin/translate_corpus.py --model_dir=build/export --source=mono.de --output_dir=build/mono
    bin/translate_corpus.py --model_dir=/shared/export --source=/shared/mono.de.gz \
        --output_dir=/shared/mono --beam=--runner=FlinkRunner --beam=--flink_master=HOST:8081

OUTPUT_DIR/translations.txt has a line for each line of the source. Killed, the same
command continues. On Apache Beam all machines must see the same files.
"""

from pathlib import Path

import command_line

from absl import flags

FLAGS = flags.FLAGS

flags.DEFINE_string("model_dir", None, "a SavedModel or a LiteRT model", required=True)
flags.DEFINE_string("source", None, "text to translate, one sentence a line", required=True)
flags.DEFINE_string("output_dir", None, "new directory for the translations", required=True)
flags.DEFINE_integer("workers", 1, "processes, each with all the cores", lower_bound=1)
flags.DEFINE_multi_string(
    "beam", [], "run on Apache Beam, with an option of it, as in --runner=FlinkRunner; repeatable"
)


def main(argv: list[str]) -> None:
    """Runs `translate_corpus` on what the flags name."""
    from keras_transformer.inference import batching  # late: --help stays quick
    from keras_transformer.inference.corpus_translation import BLOCK_LINES, translate_corpus

    batching.use_cores_for_batches(BLOCK_LINES)
    output_dir = Path(FLAGS.output_dir)
    report = translate_corpus(
        FLAGS.model_dir,
        FLAGS.source,
        output_dir,
        command_line.runner(FLAGS.beam, FLAGS.workers, output_dir),
    )
    without = f", {report['untranslated']:,} without translation" if report["untranslated"] else ""
    print(
        f"{output_dir}/translations.txt has {report['lines']:,} lines{without}; "
        f"{report['lines'] / max(report['seconds'], 1e-9):,.0f} a second"
    )


if __name__ == "__main__":
    command_line.run(main)
