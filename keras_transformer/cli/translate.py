r"""Translates text, one sentence per line, from standard input to standard output.

Examples:
    bin/translate.py --model_dir=build/run --beam_size=4 <input.en >output.de
    bin/translate.py --model_dir=build/run --document <letter.en >letter.de
    bin/translate.py --model_dir=build/run --sample --n_best=3 --set=decoding.top_p=0.9 <input.en
    bin/translate.py --server=localhost:8501 <input.en >output.de
    bin/translate.py --model_dir=build/litert/1/model.tflite --threads=2 <input.en >output.de

--input and --output name files, instead of standard input and standard output. The output has one
line for each line of the input. With --n_best=N it has up to N lines, best first, in the format of
Moses: INDEX ||| TEXT ||| SCORE. With --format=jsonl each line is an object with the tokens, scores,
log-probabilities and alignment of each translation.

With --document, a line may have several sentences, which are translated separately and joined
again. Line breaks, empty lines and indents stay.

An empty line gives an empty line. A line over decoding.max_source_tokens is truncated (a sentence
of a document is translated in parts). A line longer than all training sentences is translated. All
of these are reported on standard error, and the exit code is 3.
"""

from __future__ import annotations

from typing import Any

from absl import flags

from keras_transformer import console
from keras_transformer.cli import app, config_flags
from keras_transformer.errors import InputError

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    config_flags.define_path_flags("model_dir", "server", "input", "output")
    flags.DEFINE_boolean("document", False, "lines may contain several sentences; see above")
    flags.DEFINE_string("prefix", None, "file with the start of each translation")
    config_flags.define_choice_flag("format", "text", "jsonl")
    flags.DEFINE_boolean("attention", False, "with --format=jsonl: also write the attention")
    config_flags.define_choice_flag("precision", *config_flags.PRECISIONS)
    flags.DEFINE_boolean(
        "compile_search", False, "compile the search of a run with XLA, for single lines"
    )
    config_flags.define_option_flags("threads")
    config_flags.define_config_flags("beam_size", "length_penalty", "n_best", "sample")


def _check_flags() -> None:
    if (FLAGS.model_dir is None) == (FLAGS.server is None):
        raise InputError("Give either --model_dir or --server.")
    fixed = [*config_flags.config_settings()] + [
        name for name in ("precision", "compile_search", "threads") if FLAGS[name].present
    ]
    if FLAGS.server is not None and fixed:
        raise InputError(
            f"{fixed[0]} cannot be set for --server, because its model is fixed. Use --model_dir."
        )
    if FLAGS.server is not None and (FLAGS.format != "text" or FLAGS.prefix is not None):
        raise InputError(
            "--format=jsonl and --prefix do not work with --server. Use --model_dir, or call the "
            "server's signature `translate`."
        )
    if FLAGS.attention and FLAGS.format == "text":
        raise InputError("--attention needs --format=jsonl, because plain text cannot hold it.")
    for name in ("document", "compile_search"):
        if FLAGS[name].value and (FLAGS.format != "text" or FLAGS.prefix is not None):
            raise InputError(
                f"--{name} works only for plain translation. Remove --format=jsonl and --prefix."
            )


def _model() -> Any:
    if FLAGS.server is not None:
        from keras_transformer.serving.client import connect_model

        return connect_model(FLAGS.server)
    from keras_transformer.inference import loading

    return loading.load_model(
        FLAGS.model_dir,
        config_flags.config_settings(),
        precision=FLAGS.precision,
        jit_compile=FLAGS.compile_search,
        threads=FLAGS.threads,
    )


def main() -> int:
    """Translates the input of the flags. Returns 3 if it reports a problem with a line."""
    _check_flags()
    app.load_tensorflow()
    from keras_transformer.data.corpora.reading import decode_lines, read_text
    from keras_transformer.inference import batching, documents, translate
    from keras_transformer.runs import atomic

    data = app.read_input(FLAGS.input)
    lines = decode_lines(data, FLAGS.input or "standard input")
    batching.use_cores_for_batches(len(lines))
    model = _model()
    with atomic.output_file(FLAGS.output) as file:
        if FLAGS.document:  # UTF-8 with unchanged line ends
            text, warnings = documents.translate_document(model, data.decode("utf-8-sig"))
        else:
            text, warnings = translate.translate_to_text(
                model,
                lines,
                as_json=FLAGS.format == "jsonl",
                prefixes=None if FLAGS.prefix is None else read_text(FLAGS.prefix),
                attention=FLAGS.attention,
            )
        file.write(text.encode())
    for warning in warnings:
        console.warn(warning)
    return 3 if warnings else 0
