r"""Translates text, one sentence per line, from standard input to standard output.

Examples:
    keras-transformer translate --model_dir=build/run --beam_size=4 <input.en >output.de
    keras-transformer translate --model_dir=build/run --document <letter.en >letter.de
    keras-transformer translate --model_dir=build/run --sample --n_best=3 <input.en
    keras-transformer translate --model_dir=localhost:8501 <input.en >output.de

--input and --output name files. The output has one line for each line of the input. With --n_best=N
it has up to N lines, best first, in the format of Moses: INDEX ||| TEXT ||| SCORE. With
--format=jsonl each line is an object with the tokens, scores, log-probabilities and alignment of
each translation. With --format=moses, a line ends with the aligned words: TEXT ||| 0-0 1-2.

With --document, a line may have several sentences, which are translated separately and joined
again. Line breaks, indents, variables, URLs and tags stay. This is the default for lines with
several sentences if the model was trained on single ones; --nodocument turns it off.
--source_language=de selects the abbreviations that do not end a sentence. By default it is the
language of the export. A --glossary (TBX, or a term, a tab and its translation in each line) gives
the exact translations of terms, in lines that are translated as with --document. With --terms=soft,
a model that was trained for it may change their endings (docs/real_text.md). In such lines,
sentences in capitals are translated like others, and written in capitals again. --casing=keep turns
this off, and --casing=auto applies it to other lines, too.

A model for several target languages needs a tag in each line, such as <2de>. --source_tag=<2de>
adds it to every line. With --document, the tag of a line applies to all of its sentences.
Lines that are empty, truncated (in a document: translated in parts), or longer than all training
sentences are reported on standard error, and the exit code is 3.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, BinaryIO

from absl import flags

from keras_transformer import console, plugins
from keras_transformer.cli import app, config_flags
from keras_transformer.errors import InputError

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    config_flags.define_path_flags("model_dir", required=True)
    config_flags.define_path_flags("input", "output")
    flags.DEFINE_boolean("document", None, "split lines into sentences, or not; see above")
    config_flags.define_option_flags("source_language", "target_language")
    config_flags.define_option_flags("glossary", "terms", "casing")
    flags.DEFINE_boolean(
        "interactive", None, "translate each line when it arrives; default: on a terminal"
    )
    flags.DEFINE_string("prefix", None, "file with the start of each translation")
    config_flags.define_format_flag("text", "jsonl", "moses")
    flags.DEFINE_boolean("attention", False, "with --format=jsonl: also write the attention")
    config_flags.define_precision_flag()
    flags.DEFINE_boolean("compile_search", False, "compile the search of a run with XLA")
    config_flags.define_option_flags("threads", "source_tag")
    config_flags.define_quality_flags()
    config_flags.define_config_flags("beam_size", "length_penalty", "n_best", "sample")


def _check_flags() -> None:
    if FLAGS.attention and FLAGS.format != "jsonl":
        raise InputError("--attention needs --format=jsonl, because plain text cannot hold it.")
    for name in ("document", "glossary", "casing", "compile_search"):
        app.exclude(name, "format", "prefix")
    app.exclude("interactive", "input", "prefix", "document")


def _is_interactive() -> bool:
    if FLAGS.interactive is None:
        needs_all = bool(FLAGS.input or FLAGS.document or FLAGS.prefix)
        return not needs_all and sys.stdin is not None and sys.stdin.isatty()
    return bool(FLAGS.interactive)


def _translate(
    model: Any, data: bytes, lines: list[str], first_line: int
) -> tuple[str, list[str], str | None]:
    """Returns the output for a part of the input, warnings, and a remark about unknown tokens."""
    from keras_transformer.data.reading import read_text
    from keras_transformer.inference import translate

    if FLAGS.document:
        lines = data.decode("utf-8-sig").split("\n")  # the ends of lines stay
    text, warnings, unknown = translate.translate_to_text(
        model,
        lines,
        source_tag=FLAGS.source_tag or "",
        document=FLAGS.document,
        format=FLAGS.format,
        prefixes=None if FLAGS.prefix is None else read_text(FLAGS.prefix),
        attention=FLAGS.attention,
        first_line=first_line,
    )
    return text.removesuffix("\n") if FLAGS.document else text, warnings, unknown


def _translate_all(model: Any, parts: Iterator[bytes], file: BinaryIO) -> int:
    """Translates each part of the input. Returns the number of warnings."""
    from keras_transformer.data.reading import decode_lines
    from keras_transformer.inference import tags

    count, first_line, untagged = 0, 1, None
    for data in parts:
        lines = decode_lines(data, FLAGS.input or "standard input", first_line)
        if untagged is None:  # the warning is printed once
            untagged = tags.missing_tags(lines, model.symbols, FLAGS.source_tag or model.source_tag)
            if untagged:
                console.warn(untagged)
        text, warnings, unknown = _translate(model, data, lines, first_line)
        file.write(text.encode())
        file.flush()
        for warning in filter(None, [unknown, *warnings]):
            console.warn(warning)
        count += len(warnings)
        first_line += len(lines)
    return count


def main() -> int:
    """Translates the input of the flags. Returns 3 if it reports a problem with a line."""
    _check_flags()
    app.load_engine(FLAGS.model_dir)
    from keras_transformer.data.reading import decode_lines
    from keras_transformer.inference import batching, loading, tags, translate
    from keras_transformer.runs import atomic

    if _is_interactive():
        parts = iter(sys.stdin.buffer.readline, b"")
    else:  # errors of the input are reported before the model is loaded
        data = app.read_input(FLAGS.input)
        batching.use_cores_for_batches(len(decode_lines(data, FLAGS.input or "standard input")))
        parts = iter([data])
    model = loading.load_model(
        FLAGS.model_dir,
        config_flags.config_settings(),
        precision=FLAGS.precision,
        jit_compile=FLAGS.compile_search,
        threads=FLAGS.threads,
    )
    has_sentences = FLAGS.document is not False or FLAGS.glossary or FLAGS.casing == "auto"
    if not has_sentences and model.source_tag is None:
        app.reject_unused(["source_language"], "with --nodocument. Give one of them.")
    model = translate.with_languages(model, *config_flags.languages())
    tags.check_tag(FLAGS.source_tag, model.symbols, model.label)
    model = translate.with_fallback(model, FLAGS.on_low_quality, FLAGS.min_quality)
    if FLAGS.glossary or FLAGS.terms or FLAGS.casing:
        with_options = plugins.find("text_options", "document").with_options
        model = with_options(model, FLAGS.glossary, FLAGS.terms, FLAGS.casing)
    with atomic.output_file(FLAGS.output) as file:
        warnings = _translate_all(model, parts, file)
    return 3 if warnings else 0


if __name__ == "__main__":
    from keras_transformer.cli.main import run

    run("translate")
