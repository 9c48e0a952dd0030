r"""Exports a trained run, for servers and for phones.

Example:
    bin/export.py --run_dir=build/run --data_dir=build/data --output_dir=build/export
    bin/export.py --run_dir=build/run --data_dir=build/data --output_dir=build/litert \
        --format=litert --quantize=int8

--run_dir=RUN@WEIGHTS takes other weights than the selected ones, and --run_dir=RUN,RUN
several runs of one vocabulary, which decide together.

Writes the version 1 under the output directory, or the next one. Before it gets its number
it is read back and compared with the run on the validation sentences, of prepared data or
of text files. A SavedModel, for TF Serving, and a LiteRT model, one file for phones, have to
find the same tokens, or in fewer bits to lose no more BLEU than --max_bleu_loss; nothing
in them may be what their runtimes have not. A CTranslate2 model has to agree on
probabilities. Of SavedModels --languages and --license go on the model card.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from keras_transformer.cli import app, config_flags
from keras_transformer.errors import InputError

if TYPE_CHECKING:
    from keras_transformer.export.saved_model.model_card import About

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    config_flags.define_path_flags("run_dir", required=True)
    flags.DEFINE_string("output_dir", None, "directory of the versions", required=True)
    flags.DEFINE_string("format", "saved_model", "saved_model|litert|ctranslate2")
    flags.DEFINE_string(
        "quantization",
        None,
        "how weights are held: litert none|float16|int8; ctranslate2 also "
        "int8_float32|int8_float16|int16|bfloat16",
    )
    flags.DEFINE_alias("quantize", "quantization")
    flags.DEFINE_enum(
        "precision", "float32", ["float32", "bfloat16"], "of a SavedModel's weights and products"
    )
    flags.DEFINE_float("max_bleu_loss", None, "BLEU that rounding may cost; 0.1, int8 0.3")
    flags.DEFINE_list("languages", None, "source and target, for the model card, as in en,de")
    flags.DEFINE_string("license", None, "of the model, for its card, as in cc-by-4.0")
    config_flags.define_path_flags("data_dir")
    flags.DEFINE_string("valid_source", None, "text to compare on, in place of --data_dir's")
    flags.DEFINE_string("valid_target", None, "its translations, by which the export is scored")
    config_flags.define_config_flags("beam_size", "length_penalty", "n_best")


def _sentences() -> tuple[list[str], list[str] | None]:
    """Returns sentences and, where there are any, their references."""
    from keras_transformer.data.corpora.reading import read_text
    from keras_transformer.data.token_store import TokenStore

    if (FLAGS.data_dir is None) == (FLAGS.valid_source is None):
        raise InputError(
            "the export is compared with the run on real sentences; expected either --data_dir "
            "or --valid_source"
        )
    if FLAGS.data_dir is not None:
        store = TokenStore(Path(FLAGS.data_dir) / "valid")
        return store.source_text(), store.target_text()
    target = FLAGS.valid_target
    return read_text(FLAGS.valid_source), None if target is None else read_text(target)


def _about() -> About | None:
    """Returns what the model card is to say, or None of a format that has none."""
    if FLAGS.format != "saved_model" and FLAGS.languages is FLAGS.license is None:
        return None
    from keras_transformer.export.saved_model.model_card import About

    languages = FLAGS.languages
    if languages is not None and len(languages) != 2:
        raise InputError(
            f"--languages is {','.join(languages)}; expected a source and a target, as in en,de"
        )
    compared = FLAGS.valid_source and Path(FLAGS.valid_source).name
    return About(
        None if languages is None else (languages[0], languages[1]),
        FLAGS.license,
        {"dataset": compared or "the validation set of its data"},
    )


def main() -> None:
    """Runs `export` on what the flags name."""
    app.load_tensorflow()
    from keras_transformer.export import ExportOptions, export  # late: --help stays quick
    from keras_transformer.paper.parsing.export_signatures import parser_signatures

    sentences, references = _sentences()
    exported = export(
        FLAGS.run_dir,
        FLAGS.output_dir,
        sentences,
        ExportOptions(
            references=references,
            quantization=FLAGS.quantization,
            precision=FLAGS.precision,
            max_bleu_loss=FLAGS.max_bleu_loss,
            about=_about(),
            extra_signatures=parser_signatures,
        ),
        format=FLAGS.format,
        settings=config_flags.config_settings(),
    )
    if exported.remark is not None:
        print(exported.remark)
    for tie in exported.ties:
        print(f"a tie, translated with other tokens of the same score: {tie}")
    compared = f"{exported.sentences:,} validation sentences"
    if exported.largest_difference is None:
        rounded = (FLAGS.quantization or "none") != "none"
        how = "about as well as" if rounded else "as"
        print(f"exported {exported.path}, which translates {compared} {how} the run does")
        if exported.scores is not None:
            print(f"on them BLEU {exported.scores.bleu:.2f}  {exported.scores.signature}")
    else:
        print(
            f"exported {exported.path}, which gives the run's translations of {compared} "
            f"log-probabilities that differ by at most {exported.largest_difference:.2g}"
        )
