r"""Prepares parallel text for training: cleans it, splits it into tokens, and writes a report.

Example:
    keras-transformer prepare --source=train.en --target=train.de \
        --valid_source=val.en --valid_target=val.de --output_dir=build/data

Files have one sentence per line in UTF-8, and may be .gz, .bz2, .xz or .zst. Repeat a flag to give
several files. --tsv reads both sentences from a line, separated by a TAB. Without validation text,
pairs are held out. --source_language and --target_language add the tokens of a model such as NLLB.

The same command resumes after a kill. OUTPUT_DIR/report.html shows statistics and dropped pairs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from absl import flags

from keras_transformer import plugins
from keras_transformer.cli import app, config_flags
from keras_transformer.config.schema import check_scalar
from keras_transformer.data import corpus, prepare, reading
from keras_transformer.data.options import DEFAULT_SHARES, LEARNING_OPTIONS, PrepareOptions
from keras_transformer.errors import InputError
from keras_transformer.runs.machine import available_cores

FLAGS = flags.FLAGS
# Flags of `PrepareOptions` that no other command has.
_OPTIONS = {
    "model_type": "unigram|bpe",
    "byte_fallback": "spell unknown characters in bytes",
    "separate_vocabularies": "one vocabulary for each language",
    "character_coverage": "share of the characters that get a token",
    "normalization": "nmt_nfkc turns 10³ into 103, nmt_nfkc_cf folds case",
    "vocabulary_lines": "most lines to learn the vocabulary from, drawn at random",
    "max_bytes": "maximum bytes of a sentence",
    "max_length_ratio": "maximum ratio of the lengths of both sides; 0 for no limit",
    "drop_identical": "drop pairs with the same text on both sides",
    "drop_repetitive": "drop pairs if a side repeats the same words",
    "drop_duplicates": "keep only the first of equal pairs",
    "on_bad_utf8": "fail|replace|drop",
}


def define_flags() -> None:
    """Defines the flags of the command."""
    texts = ("source", "target", "valid_source", "valid_target")
    config_flags.define_path_flags(*texts, repeatable=True)
    flags.DEFINE_multi_string("tsv", [], "files to train on: source, TAB, target")
    flags.DEFINE_multi_string("valid_tsv", [], "files to validate on: source, TAB, target")
    columns_help = "columns of the --tsv files, as in 1,2, or as names from the first line"
    flags.DEFINE_list("tsv_columns", None, columns_help)
    quoted_help = "read --tsv as a spreadsheet saves it: with quoted columns, or as CSV"
    flags.DEFINE_boolean("tsv_quoted", False, quoted_help)
    config_flags.define_option_flags("source_language", "target_language")
    for name, reader in plugins.all_of("corpora"):
        flags.DEFINE_multi_string(name, [], f"train on: {reader.help}")
        flags.DEFINE_multi_string(f"valid_{name}", [], f"validate on: {reader.help}")
        config_flags.define_option_class_flags(reader.options)
    config_flags.define_path_flags("output_dir", required=True)
    config_flags.define_option_flags("workers")
    config_flags.define_cluster_flags()
    config_flags.define_option_flags(
        "valid_pairs",
        "symbols",
        "source_tag",
        vocab_size=PrepareOptions.vocab_size,
        max_tokens=PrepareOptions.max_tokens,
    )
    vocab_help = "prepared data, a tokenizer, or a .model file to take the vocabulary from"
    flags.DEFINE_string("vocab_from", None, vocab_help)
    config_flags.define_option_class_flags(PrepareOptions, _OPTIONS)
    shares = ",".join(f"{kind}:{share}" for kind, share in DEFAULT_SHARES.items())
    augment_help = "training pairs to change, as in upper:0.05; default: "
    flags.DEFINE_list("augment", None, augment_help + shares)
    config_flags.define_option_flags("check_languages", seed=PrepareOptions.seed)


def _corpora(prefix: str) -> list[corpus.Corpus]:
    """Returns the corpora of the flags whose names start with `prefix`."""

    def given(name: str) -> list[str]:
        return FLAGS[f"{prefix}{name}"].value or []

    corpora: list[corpus.Corpus] = [*corpus.parallel_files(given("source"), given("target"))]
    columns = FLAGS.tsv_columns and tuple(FLAGS.tsv_columns)
    tables = [reading.require_file(path) for path in given("tsv")]
    corpora += [corpus.TsvFile(path, columns, FLAGS.tsv_quoted) for path in tables]
    for name, reader in plugins.all_of("corpora"):
        options = reader.options(**config_flags.values_of(_names(reader.options)))
        for location in given(name):
            corpora += reader.read(location, options)
    return corpora


def _names(options: type) -> list[str]:
    """Returns the names of the fields of a dataclass, which are those of their flags."""
    return [field.name for field in dataclasses.fields(options)]


def _options() -> PrepareOptions:
    """Returns the options. Each option has a flag of the same name."""
    values = config_flags.values_of_rules(_names(PrepareOptions))
    values["symbols"] = tuple(config_flags.parse_symbols(values["symbols"])) or None
    values["source_tag"] = _source_tag()
    given = values["augment"]
    values["augment"] = dict(DEFAULT_SHARES) if given is None else _shares(given)
    return PrepareOptions(**values)


def _source_tag() -> str | None:
    """Returns --source_tag, or the tokens of the languages if the vocabulary has some."""
    languages, tag = config_flags.languages(), FLAGS.source_tag
    if any(languages) and FLAGS.vocab_from is not None and tag is None:
        tag = prepare.language_tag(FLAGS.vocab_from, *languages)
    readers = [f"{prefix}{name}" for name in plugins.names("corpora") for prefix in ("", "valid_")]
    if tag == FLAGS.source_tag and not any(FLAGS[name].value for name in readers):
        reason = "without a corpus of several languages, or a --vocab_from with some. Remove it."
        app.reject_unused(["source_language", "target_language"], reason)
    return tag


def _shares(texts: Sequence[str]) -> dict[str, float]:
    """Parses kinds and their shares, such as upper:0.05."""
    shares: dict[str, float] = {}
    for text in texts:
        kind, colon, share = text.partition(":")
        if not (kind and colon) or kind in shares:
            problem = "is given twice" if kind in shares else "is not a kind and its share"
            raise InputError(f"--augment: {text!r} {problem}. An example is upper:0.05,typos:0.05.")
        shares[kind] = check_scalar(f"--augment={text}", float, share, convert=True)
    return shares


def _check_flags() -> None:
    """Raises `InputError` for a flag of the core that would have no effect with the others."""
    if FLAGS.vocab_from is not None:
        app.reject_unused(LEARNING_OPTIONS, "together with --vocab_from. Remove one of them.")
    if FLAGS.tsv_columns is not None and len(FLAGS.tsv_columns) != 2:
        raise InputError(
            f"--tsv_columns is {','.join(FLAGS.tsv_columns)}. Give a source and a target column, "
            "as in 1,2."
        )
    if not (FLAGS.tsv or FLAGS.valid_tsv):
        app.reject_unused(["tsv_columns", "tsv_quoted"], "without --tsv. Give both, or neither.")
    kinds = ("source", "target", "tsv", *plugins.names("corpora"))
    if any(FLAGS[f"valid_{kind}"].value for kind in kinds):
        app.reject_unused(["valid_pairs"], "together with validation text. Remove one of them.")


def main() -> None:
    """Runs `prepare` with the flags."""
    _check_flags()
    prepared = prepare.prepare(
        _corpora(""),
        FLAGS.output_dir,
        _options(),
        valid_corpora=_corpora("valid_"),
        vocab_from=FLAGS.vocab_from,
        num_workers=config_flags.workers() or available_cores(),
    )
    print(prepared.summary())


if __name__ == "__main__":
    from keras_transformer.cli.main import run

    run("prepare")
