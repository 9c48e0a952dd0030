r"""Makes training pairs from text in the target language, for back-translation.

Example:
    keras-transformer back_translate --model_dir=build/de-en --input=mono.1.de.gz \\
        --input=mono.2.de.gz --source_tag='<bt>' --min_score=-1 --output_dir=build/bt
    keras-transformer prepare --source=train.en --source=build/bt/source.txt --target=train.de \\
        --target=build/bt/target.txt --symbols='<bt>' --output_dir=build/data

--model_dir translates in the other direction than the model to train. OUTPUT_DIR/source.txt has
translations, and target.txt their lines of the input. Pairs that a rule drops are left out:
report.json has their numbers and examples. A score is that of the search, see
decoding.length_penalty. The same command resumes after a kill. --ray uses all machines of a cluster
(docs/scale.md).
"""

from __future__ import annotations

from absl import flags

from keras_transformer.cli import config_flags
from keras_transformer.data.options import PrepareOptions
from keras_transformer.extensions.corpora.translate_corpus import translate

FLAGS = flags.FLAGS
_RULES = {
    "max_bytes": "maximum bytes of a sentence",
    "max_length_ratio": "maximum ratio of the lengths of both sides; 0 for no limit",
}


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_string("model_dir", None, "a SavedModel or a LiteRT model", required=True)
    config_flags.define_path_flags("input", required=True, repeatable=True)
    config_flags.define_path_flags("output_dir", required=True)
    config_flags.define_option_flags("workers", "source_language", "target_language", "source_tag")
    config_flags.define_cluster_flags()
    flags.DEFINE_float("min_score", None, "lowest score of a translation, such as -1")
    config_flags.define_option_class_flags(PrepareOptions, _RULES)
    config_flags.define_option_flags("check_languages")


def main() -> None:
    """Runs `translate_corpus` with the flags and rules for pairs."""
    given = config_flags.values_of_rules(["source_tag", "check_languages", *_RULES])
    cleaning = PrepareOptions(**given, drop_identical=True, drop_repetitive=True)
    report = translate(cleaning, FLAGS.min_score)
    found = report["cleaning"]
    dropped = ", ".join(f"{number:,} {reason}" for reason, number in found["dropped"].items())
    print(
        f"{FLAGS.output_dir} has {found['kept']:,} pairs of {report['lines']:,} lines (dropped: "
        f"{dropped or 'none'})"
    )
