r"""Exports a trained run for servers and for phones.

Example:
    keras-transformer export --run_dir=build/run --data_dir=build/data --output_dir=build/export
    keras-transformer export --run_dir=build/run --data_dir=build/data --output_dir=build/litert \
        --format=litert --weights=int8

--run_dir=RUN@WEIGHTS exports weights other than the selected ones. --run_dir=RUN,RUN exports an
ensemble of runs with one vocabulary.

Writes the next version under the output directory, such as build/export/1. Before that, the export
is loaded and compared with the run on the validation sentences of --data_dir or --valid_source. A
SavedModel (for TF Serving) and a LiteRT model (one file for phones) must give the same tokens.
CTranslate2 and MarianMT models must give the same probabilities. With fewer bits or a shortlist,
models may lose at most --max_bleu_loss BLEU. --format=cpu writes a LiteRT model with int8 weights,
for servers without a GPU. --shortlist=50 makes the search score only likely tokens, learned from
the training data in --data_dir; --shortlist=FILE reads a binary shortlist of Marian. --languages
and --license go into the model cards of SavedModels and MarianMT models. --source_language and
--target_language are the default languages of the export, if the model has several, such as NLLB.

With --quality, a SavedModel or a LiteRT model returns the quality of its translations, which is
learned from at least 100 sentences and their references, as in --data_dir.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from absl import flags

from keras_transformer import console, plugins
from keras_transformer.cli import app, config_flags
from keras_transformer.errors import InputError

FLAGS = flags.FLAGS
# Flags of options with the same names.
_OPTIONS = ("weights", "max_bleu_loss", "tokenize", "license", "quality")
_LANGUAGES = ("source_language", "target_language")


def define_flags() -> None:
    """Defines the flags of the command."""
    config_flags.define_path_flags("run_dir", "output_dir", required=True)
    config_flags.define_format_flag(*dict.fromkeys(("saved_model", *plugins.names("exporters"))))
    weights_help = "number format of the weights, such as int8; default: the first of the format"
    flags.DEFINE_string("weights", None, weights_help)
    loss_help = "maximum BLEU loss; default: 0.1 for rounded weights, int8 and a shortlist 0.3"
    flags.DEFINE_float("max_bleu_loss", None, loss_help)
    flags.DEFINE_boolean("quality", False, "also return the quality of translations")
    for name, option in plugins.all_of("export_options"):
        config_flags.define_flag(name, option.default, option.help)
    config_flags.define_option_flags("tokenize", *_LANGUAGES)
    languages_help = "source and target language, for the model card, as in en,de"
    flags.DEFINE_list("languages", None, languages_help)
    flags.DEFINE_string("license", None, "license in the model card, as in cc-by-4.0")
    config_flags.define_path_flags("data_dir", "valid_source", "valid_target")
    config_flags.define_config_flags("beam_size", "length_penalty", "n_best")


def _extension_options() -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the given flags of extensions, and the options learned from the training data.

    An extension has `default` and `help`. If it has `learn(run_dir, data_dir, value)`, too, this
    makes the option of the value of the flag.
    """
    options = dict(plugins.all_of("export_options"))
    given = config_flags.values_of(name for name in options if FLAGS[name].present)
    learned = {
        name: options[name].learn(FLAGS.run_dir, FLAGS.data_dir, value)
        for name, value in given.items()
        if hasattr(options[name], "learn")
    }
    return given, learned


def _sentences() -> tuple[list[str], list[str] | None]:
    """Returns sentences, and their references if there are any."""
    from keras_transformer.data.reading import read_text
    from keras_transformer.data.token_store import TokenStore

    if FLAGS.valid_source is not None:
        target = FLAGS.valid_target
        return read_text(FLAGS.valid_source), None if target is None else read_text(target)
    if FLAGS.data_dir is None:
        raise InputError(
            "The export is compared with the run on real sentences. Give --data_dir, "
            "or --valid_source and --valid_target."
        )
    store = TokenStore(Path(FLAGS.data_dir) / "valid")
    return store.source.text(), store.target.text()


def main() -> None:
    """Runs `export` with the flags."""
    app.load_tensorflow()
    from keras_transformer import export  # slow to import

    languages = FLAGS.languages and tuple(FLAGS.languages)
    if languages and len(languages) != 2:
        raise InputError(
            f"--languages is {','.join(languages)}. Give a source and a target language, as in "
            "en,de."
        )
    sentences, references = _sentences()
    source = FLAGS.valid_source
    given, learned = _extension_options()
    if source is not None and not learned:
        app.reject_unused(["data_dir"], "together with --valid_source. Remove one of them.")
    options = export.ExportOptions.of(
        references=references,
        languages=languages,
        test_set="the validation set of its data" if source is None else Path(source).name,
        **config_flags.values_of((*_OPTIONS, *_LANGUAGES)),
        **(given | learned),
    )
    target = {"format": FLAGS.format, "settings": config_flags.config_settings()}
    exported = export.export(FLAGS.run_dir, FLAGS.output_dir, sentences, options, **target)
    if exported.warning is not None:
        console.warn(exported.warning)
    for tie in exported.ties:
        print(f"a tie, with different tokens of the same score: {tie}")
    compared = f"compared with the run on {len(sentences):,} validation sentences"
    print(f"Exported {exported.path}, {compared}.")
    if exported.largest_difference is not None:
        print(f"Log-probabilities differ by at most {exported.largest_difference:.2g}.")
    elif exported.scores is not None:
        print(f"BLEU of these: {exported.scores.bleu:.2f}  {exported.scores.signature}")


if __name__ == "__main__":
    from keras_transformer.cli.main import run

    run("export")
