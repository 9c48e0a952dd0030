r"""Translates a large text by an exported model: for back-translation and distillation.

Example:
    keras-transformer translate_corpus --model_dir=build/export --input=mono.de.gz \
        --output_dir=build/mono

OUTPUT_DIR/translations.txt has one line for each line of the input, whose flag may be repeated.
After a kill, the same command continues. One process uses all cores. --workers=2 starts two of
them. --ray uses all machines of a cluster (docs/scale.md).
"""

from __future__ import annotations

from typing import Any

from absl import flags

from keras_transformer.cli import app, config_flags

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_string("model_dir", None, "a SavedModel or a LiteRT model", required=True)
    config_flags.define_path_flags("input", required=True, repeatable=True)
    config_flags.define_path_flags("output_dir", required=True)
    config_flags.define_option_flags("workers", "source_language", "target_language")
    config_flags.define_cluster_flags()


def translate(*rules: Any) -> dict[str, Any]:
    """Translates the text of the flags, with the arguments of `PairRules` if the output is pairs.

    Returns the report.
    """
    app.load_engine(FLAGS.model_dir)
    from keras_transformer.extensions.corpora import monolingual  # slow to import

    return monolingual.translate_corpus(
        FLAGS.model_dir,
        FLAGS.input,
        FLAGS.output_dir,
        config_flags.workers() or 1,
        config_flags.languages(),
        monolingual.PairRules(*rules) if rules else None,
    )


def main() -> None:
    """Runs `translate_corpus` with the flags."""
    report = translate()
    without = f", {report['untranslated']:,} without translation" if report["untranslated"] else ""
    print(
        f"{FLAGS.output_dir}/translations.txt has {report['lines']:,} lines{without} ("
        f"{report['lines'] / max(report['seconds'], 1e-9):,.0f} per second and process)"
    )
