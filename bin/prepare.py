#!/usr/bin/env python3
r"""Prepares parallel text for training: vocabulary, token ids, report.

Example:
    bin/prepare.py --source=train.en --target=train.de \
        --valid_source=val.en --valid_target=val.de --output_dir=build/data

Files hold one sentence a line, UTF-8, and may be .gz; several are given by
repeating a flag or with commas. Without validation files, pairs are held out
of the training files. --tfds takes a TFDS translation set instead of files.
The same command again returns at once.
"""

import command_line

from absl import flags

from keras_transformer.data import corpus, prepare

FLAGS = flags.FLAGS
DEFAULTS = prepare.PrepareOptions()

flags.DEFINE_multi_string("source", [], "source text to train on")
flags.DEFINE_multi_string("target", [], "its translation, line by line")
flags.DEFINE_multi_string("valid_source", [], "source text to validate on")
flags.DEFINE_multi_string("valid_target", [], "its translation")
flags.DEFINE_string("output_dir", None, "new directory for the prepared data", required=True)
flags.DEFINE_integer("vocab_size", DEFAULTS.vocab_size, "pieces to learn, if the text has as many")
flags.DEFINE_string("model_type", DEFAULTS.model_type, "unigram|bpe")
flags.DEFINE_boolean("byte_fallback", False, "spell unknown characters in bytes")
flags.DEFINE_boolean("separate_vocabularies", False, "one vocabulary for each language")
flags.DEFINE_float("character_coverage", 1.0, "share of the characters that get a piece")
flags.DEFINE_string(
    "normalization", DEFAULTS.normalization, "SentencePiece's rule; nmt_nfkc_cf also folds case"
)
flags.DEFINE_string("vocab_from", None, "take the vocabulary of this prepared data or tokenizer")
flags.DEFINE_integer("max_tokens", DEFAULTS.max_tokens, "longest sentence kept, in tokens")
flags.DEFINE_integer("valid_pairs", None, "pairs held out; 2 %, at most 1000, when not given")
flags.DEFINE_integer("seed", DEFAULTS.seed, "of the pairs held out and the vocabulary's sample")
flags.DEFINE_string("tfds", None, "TFDS translation set, as in wmt14_translate/de-en")
flags.DEFINE_string("tfds_split", "train", "its split to train on")
flags.DEFINE_string("tfds_valid_split", None, "its split to validate on")
flags.DEFINE_string("tfds_data_dir", None, "where TFDS keeps its data")
flags.DEFINE_boolean("tfds_download", False, "let TFDS download what it does not have")
flags.DEFINE_string("source_language", None, "language of --tfds to translate from, as in de")
flags.DEFINE_string("target_language", None, "language to translate into, where it has several")


def _files(sources: list[str], targets: list[str]) -> list[corpus.Corpus]:
    return [*corpus.parallel_files(",".join(sources).split(","), ",".join(targets).split(","))]


def main(argv: list[str]) -> None:
    """Runs `prepare` on what the flags name."""
    corpora = _files(FLAGS.source, FLAGS.target) if FLAGS.source or FLAGS.target else []
    valid_corpora = (
        _files(FLAGS.valid_source, FLAGS.valid_target)
        if FLAGS.valid_source or FLAGS.valid_target
        else []
    )
    if FLAGS.tfds:
        from keras_transformer.data.tfds_corpus import TfdsCorpus  # late: loads TensorFlow

        for split, group in ((FLAGS.tfds_split, corpora), (FLAGS.tfds_valid_split, valid_corpora)):
            if split:
                group.append(
                    TfdsCorpus(
                        FLAGS.tfds,
                        split,
                        FLAGS.source_language,
                        FLAGS.tfds_data_dir,
                        target_language=FLAGS.target_language,
                        download=FLAGS.tfds_download,
                    )
                )
    prepared = prepare.prepare(
        corpora,
        FLAGS.output_dir,
        prepare.PrepareOptions(
            vocab_size=FLAGS.vocab_size,
            model_type=FLAGS.model_type,
            byte_fallback=FLAGS.byte_fallback,
            separate_vocabularies=FLAGS.separate_vocabularies,
            character_coverage=FLAGS.character_coverage,
            normalization=FLAGS.normalization,
            max_tokens=FLAGS.max_tokens,
            valid_pairs=FLAGS.valid_pairs,
            seed=FLAGS.seed,
        ),
        valid_corpora=valid_corpora,
        vocab_from=FLAGS.vocab_from,
    )
    print(prepared.summary())


if __name__ == "__main__":
    command_line.run(main, needs_tensorflow=False)
