r"""Prepares parallel text for training: cleans it, splits it into tokens, and writes a report.

Example:
    keras-transformer prepare --source=train.en --target=train.de \
        --valid_source=val.en --valid_target=val.de --output_dir=build/data

Files have one sentence per line in UTF-8, and may be .gz, .bz2, .xz or .zst. Repeat a flag to give
several files. --tsv reads files with both sentences on a line, separated by a TAB. Without
validation text, pairs are held out of the training text.

The same command resumes after a kill, and returns at once if everything is complete.
OUTPUT_DIR/report.html shows statistics, and the dropped pairs with the reasons.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from absl import flags

from keras_transformer import plugins
from keras_transformer.cli import app, config_flags
from keras_transformer.data import corpus, prepare, reading
from keras_transformer.data.prepare import LEARNING_OPTIONS
from keras_transformer.errors import InputError
from keras_transformer.runs.machine import available_cores

FLAGS = flags.FLAGS
DEFAULTS = prepare.PrepareOptions()


def _readers() -> dict[str, corpus.CorpusReader]:
    """Returns the readers of other formats by the names of their flags."""
    return dict(plugins.all_of("corpora"))


def define_flags() -> None:
    """Defines the flags of the command."""
    config_flags.define_path_flags(
        "source", "target", "valid_source", "valid_target", repeatable=True
    )
    flags.DEFINE_multi_string("tsv", [], "files to train on: source, TAB, target")
    flags.DEFINE_multi_string("valid_tsv", [], "files to validate on: source, TAB, target")
    flags.DEFINE_list(
        "tsv_columns",
        None,
        "columns of the --tsv files, as in 1,2, or as names from the first line",
    )
    defined: set[str] = set()
    for name, reader in _readers().items():
        flags.DEFINE_multi_string(name, [], f"train on: {reader.help}")
        flags.DEFINE_multi_string(f"valid_{name}", [], f"validate on: {reader.help}")
        for field in dataclasses.fields(reader.options):
            if field.name not in defined:  # readers share some
                default: Any = field.default
                is_switch = isinstance(default, bool)
                define = flags.DEFINE_boolean if is_switch else flags.DEFINE_string
                define(field.name, default, field.metadata["help"])
                defined.add(field.name)
    config_flags.define_path_flags("output_dir", required=True)
    config_flags.define_option_flags(
        "workers", "valid_pairs", vocab_size=DEFAULTS.vocab_size, max_tokens=DEFAULTS.max_tokens
    )
    flags.DEFINE_string("model_type", DEFAULTS.model_type, "unigram|bpe")
    flags.DEFINE_boolean("byte_fallback", False, "spell unknown characters in bytes")
    flags.DEFINE_boolean("separate_vocabularies", False, "one vocabulary for each language")
    flags.DEFINE_float("character_coverage", 1.0, "share of the characters that get a token")
    flags.DEFINE_string(
        "normalization", DEFAULTS.normalization, "SentencePiece's rule; nmt_nfkc_cf also folds case"
    )
    flags.DEFINE_integer(
        "vocabulary_lines",
        DEFAULTS.vocabulary_lines,
        "lines to learn the vocabulary from, drawn at random",
    )
    config_flags.define_option_flags("symbols", "source_tag")
    flags.DEFINE_string(
        "vocab_from",
        None,
        "prepared data, a tokenizer, or a .model file to take the vocabulary from",
    )
    flags.DEFINE_integer("max_bytes", DEFAULTS.max_bytes, "maximum bytes of a sentence")
    flags.DEFINE_float(
        "max_length_ratio",
        DEFAULTS.max_length_ratio,
        "maximum ratio of the lengths of both sides; 0 for no limit",
    )
    flags.DEFINE_boolean("drop_identical", False, "drop pairs with the same text on both sides")
    flags.DEFINE_boolean("drop_repetitive", False, "drop pairs if a side repeats the same words")
    flags.DEFINE_boolean("drop_duplicates", False, "keep only the first of equal pairs")
    flags.DEFINE_list(
        "check_languages", None, "drop pairs that are not in these languages, as in en,de"
    )
    flags.DEFINE_string("on_bad_utf8", DEFAULTS.on_bad_utf8, "fail|replace|drop")
    config_flags.define_seed_flag(DEFAULTS.seed)


def _corpora(prefix: str) -> list[corpus.Corpus]:
    """Returns the corpora of the flags whose names start with `prefix`."""

    def given(name: str) -> list[str]:
        values = FLAGS[f"{prefix}{name}"].value or []
        # A comma can be part of a file name.
        paths = ([value] if Path(value).is_file() else value.split(",") for value in values)
        return [path for each in paths for path in each]

    corpora: list[corpus.Corpus] = [*corpus.parallel_files(given("source"), given("target"))]
    columns = FLAGS.tsv_columns and tuple(FLAGS.tsv_columns)
    corpora += [corpus.TsvFile(reading.require_file(path), columns) for path in given("tsv")]
    for name, reader in _readers().items():
        names = [field.name for field in dataclasses.fields(reader.options)]
        options = reader.options(**{option: FLAGS[option].value for option in names})
        for location in FLAGS[f"{prefix}{name}"].value or []:
            corpora += reader.read(location, options)
    return corpora


def _options() -> prepare.PrepareOptions:
    """Returns the options. Each option has a flag of the same name."""
    values: dict[str, Any] = {
        field.name: FLAGS[field.name].value for field in dataclasses.fields(DEFAULTS)
    }
    values["symbols"] = tuple(config_flags.parse_symbols(values["symbols"])) or None
    values["max_length_ratio"] = values["max_length_ratio"] or None
    if values["check_languages"] is not None:
        values["check_languages"] = tuple(values["check_languages"])
    return prepare.PrepareOptions(**values)


def _check_flags() -> None:
    """Raises `InputError` for a flag that would have no effect with the other flags."""
    if FLAGS.vocab_from is not None:
        app.refuse(LEARNING_OPTIONS, "together with --vocab_from. Remove one of them.")
    if FLAGS.tsv_columns is not None and len(FLAGS.tsv_columns) != 2:
        raise InputError(
            f"--tsv_columns is {','.join(FLAGS.tsv_columns)}. Give a source and a target column, "
            "as in 1,2."
        )
    if not (FLAGS.tsv or FLAGS.valid_tsv):
        app.refuse(["tsv_columns"], "without --tsv. Give both, or neither.")
    readers = _readers()
    readers_of: dict[str, list[str]] = {}
    for name, reader in readers.items():
        for field in dataclasses.fields(reader.options):
            readers_of.setdefault(field.name, []).append(name)
    for option, names in readers_of.items():
        if not any(FLAGS[f"{prefix}{name}"].value for name in names for prefix in ("", "valid_")):
            app.refuse([option], f"without --{' or --'.join(names)}. Give both, or neither.")
    validation_flags = [f"valid_{name}" for name in ("source", "target", "tsv", *readers)]
    if any(FLAGS[name].value for name in validation_flags):
        app.refuse(["valid_pairs"], "together with validation text. Remove one of them.")


def main() -> None:
    """Runs `prepare` with the flags."""
    _check_flags()
    prepared = prepare.prepare(
        _corpora(""),
        FLAGS.output_dir,
        _options(),
        valid_corpora=_corpora("valid_"),
        vocab_from=FLAGS.vocab_from,
        num_workers=FLAGS.workers or available_cores(),
    )
    print(prepared.summary())
