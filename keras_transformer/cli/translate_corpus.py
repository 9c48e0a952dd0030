r"""Translates a large text by an exported model: for back-translation and distillation.

Examples:
    bin/translate_corpus.py --model_dir=build/export --source=mono.de --output_dir=build/mono
    bin/translate_corpus.py --model_dir=/shared/export --source=/shared/mono.de.gz \
        --output_dir=/shared/mono --beam=--runner=FlinkRunner --beam=--flink_master=HOST:8081

OUTPUT_DIR/translations.txt has a line for each line of the source. Killed, the same
command continues. On Apache Beam all machines must see the same files.
"""

from __future__ import annotations

from pathlib import Path

from absl import flags

from keras_transformer.cli import app, runner_flags

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_string("model_dir", None, "a SavedModel or a LiteRT model", required=True)
    flags.DEFINE_string("source", None, "text to translate, one sentence a line", required=True)
    flags.DEFINE_string("output_dir", None, "new directory for the translations", required=True)
    runner_flags.define_runner_flags(1, "processes, each with all the cores")


def main() -> None:
    """Runs `translate_corpus` on what the flags name."""
    app.load_tensorflow()
    from keras_transformer.inference import (
        batching,  # late: --help stays quick
    )
    from keras_transformer.inference.corpus_translation import BLOCK_LINES, translate_corpus

    batching.use_cores_for_batches(BLOCK_LINES)
    output_dir = Path(FLAGS.output_dir)
    report = translate_corpus(
        FLAGS.model_dir,
        FLAGS.source,
        output_dir,
        runner_flags.runner(FLAGS.workers, output_dir),
    )
    without = f", {report['untranslated']:,} without translation" if report["untranslated"] else ""
    print(
        f"{output_dir}/translations.txt has {report['lines']:,} lines{without}; "
        f"{report['lines'] / max(report['seconds'], 1e-9):,.0f} a second"
    )
