r"""Prepares parallel text for training: cleaned, split into pieces, on disk, with a report.

Example:
    bin/prepare.py --source=train.en --target=train.de \
        --valid_source=val.en --valid_target=val.de --output_dir=build/data

Files hold one sentence a line, UTF-8, and may be .gz, .bz2, .xz or .zst; several
are given by repeating a flag or with commas. --tsv takes files with both sentences
on a line, a TAB between them; --tmx translation memories; --tfds a TFDS translation
set. Without validation text, pairs are held out of the training text. Killed, the
same command continues; done, it returns at once. OUTPUT_DIR/report.html shows what
was read and what was dropped, and why.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from absl import flags

from keras_transformer.cli import app, runner_flags
from keras_transformer.data.corpora import corpus
from keras_transformer.data.preparation import prepare
from keras_transformer.data.preparation.pipeline import OF_LEARNING
from keras_transformer.runs.machine import available_cores
from keras_transformer.runs.report import write_data_page

FLAGS = flags.FLAGS
DEFAULTS = prepare.PrepareOptions()


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_multi_string("source", [], "source text to train on")
    flags.DEFINE_multi_string("target", [], "its translation, line by line")
    flags.DEFINE_multi_string("valid_source", [], "source text to validate on")
    flags.DEFINE_multi_string("valid_target", [], "its translation")
    flags.DEFINE_multi_string("tsv", [], "files to train on: source, TAB, target")
    flags.DEFINE_multi_string("valid_tsv", [], "such files to validate on")
    flags.DEFINE_multi_string("tmx", [], "translation memories to train on")
    flags.DEFINE_multi_string("valid_tmx", [], "translation memories to validate on")
    flags.DEFINE_string(
        "tfds", None, "TFDS translation set, as in wmt14_translate/de-en, or translate_folder:DIR"
    )
    flags.DEFINE_string(
        "tfds_split", "train", "its split to train on, or a slice, as in train[:10%]"
    )
    flags.DEFINE_string("tfds_valid_split", None, "its split to validate on")
    flags.DEFINE_string("tfds_data_dir", None, "where TFDS keeps its data")
    flags.DEFINE_boolean("tfds_download", False, "let TFDS download what it does not have")
    flags.DEFINE_string(
        "source_language", None, "language of --tfds or --tmx to translate from, as de"
    )
    flags.DEFINE_string("target_language", None, "language of them to translate into")
    flags.DEFINE_string("output_dir", None, "new directory for the prepared data", required=True)
    runner_flags.define_runner_flags(None, "processes; all cores if not given")
    flags.DEFINE_integer(
        "vocab_size", DEFAULTS.vocab_size, "pieces to learn, if the text has as many"
    )
    flags.DEFINE_string("model_type", DEFAULTS.model_type, "unigram|bpe")
    flags.DEFINE_boolean("byte_fallback", False, "spell unknown characters in bytes")
    flags.DEFINE_boolean("separate_vocabularies", False, "one vocabulary for each language")
    flags.DEFINE_float("character_coverage", 1.0, "share of the characters that get a piece")
    flags.DEFINE_string(
        "normalization", DEFAULTS.normalization, "SentencePiece's rule; nmt_nfkc_cf also folds case"
    )
    flags.DEFINE_integer(
        "vocabulary_lines",
        DEFAULTS.vocabulary_lines,
        "lines, drawn at random, to learn pieces from",
    )
    flags.DEFINE_multi_string("symbols", [], "pieces of their own, as in '<2de>,<2fr>'")
    flags.DEFINE_string(
        "vocab_from", None, "take the vocabulary of this prepared data or tokenizer"
    )
    flags.DEFINE_string("source_tag", None, "begins every source sentence, as in '<2de>'")
    flags.DEFINE_integer("max_tokens", DEFAULTS.max_tokens, "longest sentence kept, in tokens")
    flags.DEFINE_integer("max_bytes", DEFAULTS.max_bytes, "longest sentence kept, in bytes")
    flags.DEFINE_float(
        "max_length_ratio", DEFAULTS.max_length_ratio, "of the sides of a pair kept; 0 for any"
    )
    flags.DEFINE_boolean("drop_identical", False, "drop pairs with the same text on both sides")
    flags.DEFINE_boolean("drop_repetitive", False, "drop pairs that go round in circles on a side")
    flags.DEFINE_boolean("drop_duplicates", False, "of equal pairs keep the first")
    flags.DEFINE_list("check_languages", None, "drop pairs in other languages than, as in en,de")
    flags.DEFINE_string("on_bad_utf8", DEFAULTS.on_bad_utf8, "fail|replace|drop")
    flags.DEFINE_integer("valid_pairs", None, "pairs held out; 2 %, at most 1000, when not given")
    flags.DEFINE_integer("seed", DEFAULTS.seed, "of the pairs held out and the vocabulary's sample")


def _corpora(prefix: str, split: str | None) -> list[corpus.Corpus]:
    """Returns what the flags with a prefix name."""

    def given(name: str) -> list[str]:
        return [path for value in FLAGS[f"{prefix}{name}"].value or [] for path in value.split(",")]

    corpora: list[corpus.Corpus] = [*corpus.parallel_files(given("source"), given("target"))]
    corpora += [corpus.TsvFile(corpus.require_file(path)) for path in given("tsv")]
    if paths := given("tmx"):
        from keras_transformer.data.corpora.tmx import tmx_files

        corpora += tmx_files(paths, FLAGS.source_language, FLAGS.target_language)
    if FLAGS.tfds and split:
        from keras_transformer.data.corpora.tfds_corpus import tfds_corpus  # loads TensorFlow

        corpora.append(
            tfds_corpus(
                FLAGS.tfds,
                split,
                FLAGS.source_language,
                FLAGS.tfds_data_dir,
                target_language=FLAGS.target_language,
                download=FLAGS.tfds_download,
            )
        )
    return corpora


def _options() -> prepare.PrepareOptions:
    """Returns the options, each of which has a flag of its name."""
    values: dict[str, Any] = {
        field.name: FLAGS[field.name].value for field in dataclasses.fields(DEFAULTS)
    }
    values["symbols"] = tuple(s for value in values["symbols"] for s in value.split(","))
    values["max_length_ratio"] = values["max_length_ratio"] or None
    if values["check_languages"] is not None:
        values["check_languages"] = tuple(values["check_languages"])
    return prepare.PrepareOptions(**values)


def _refuse_what_does_nothing() -> None:
    """Raises `InputError` for a flag that would change nothing, given the others."""
    if FLAGS.vocab_from is not None:
        app.refuse(OF_LEARNING, "beside --vocab_from; expected one of them")
    if not FLAGS.tfds:
        of_tfds = ("tfds_split", "tfds_valid_split", "tfds_data_dir", "tfds_download")
        app.refuse(of_tfds, "without --tfds; expected both, or neither")
    if not (FLAGS.tfds or FLAGS.tmx or FLAGS.valid_tmx):
        languages = ("source_language", "target_language")
        app.refuse(languages, "without --tfds or --tmx; expected both, or neither")
    to_validate_on = ("valid_source", "valid_target", "valid_tsv", "valid_tmx", "tfds_valid_split")
    if any(FLAGS[name].value for name in to_validate_on):
        app.refuse(["valid_pairs"], "beside text to validate on; expected one of them")


def main() -> None:
    """Runs `prepare` on what the flags name."""
    _refuse_what_does_nothing()
    workers = FLAGS.workers or available_cores()
    prepared = prepare.prepare(
        _corpora("", FLAGS.tfds_split),
        FLAGS.output_dir,
        _options(),
        valid_corpora=_corpora("valid_", FLAGS.tfds_valid_split),
        vocab_from=FLAGS.vocab_from,
        runner=runner_flags.runner(workers, Path(FLAGS.output_dir)),
    )
    print(prepared.summary())
    if not (prepared.reused and (prepared.directory / "report.html").exists()):
        write_data_page(prepared.directory, dataclasses.asdict(DEFAULTS))
