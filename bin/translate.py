#!/usr/bin/env python3
r"""Translates text, one sentence a line, from standard input to standard output.

Examples:
    bin/translate.py --model_dir=build/run --beam_size=4 <input.en >output.de
    bin/translate.py --model_dir=build/run --document <letter.en >letter.de
    bin/translate.py --model_dir=build/run --sample --n_best=3 --set=decoding.top_p=0.9 <input.en
    bin/translate.py --server=localhost:8501 <input.en >output.de
    bin/translate.py --model_dir=build/litert/1/model.tflite --threads=2 <input.en >output.de

The output has a line for each line of the input. With --n_best=N it has up to N,
best first, as Moses writes them: INDEX ||| TEXT ||| SCORE. With --format=jsonl it
is an object: tokens, scores, log-probabilities and alignment of each translation.

With --document a line has any number of sentences. They are found, translated
together and joined again; line breaks, empty lines and indents stay as they are.

An empty line gives an empty line; a line over decoding.max_source_tokens is cut
(a sentence of a document is translated in parts), and one longer than any of
training translated as it is. Standard error says so, and the exit code is 3.
"""

import json
import sys
from typing import Any

import command_line

from absl import flags

from keras_transformer.errors import InputError

FLAGS = flags.FLAGS

command_line.define_path_flags("model_dir")
flags.DEFINE_string(
    "server",
    None,
    "in its place, bin/serve.py or TF Serving: HOST:PORT/MODEL, or grpc://HOST:PORT/MODEL",
)
flags.DEFINE_string("input", None, "text to translate; standard input when not given")
command_line.define_path_flags("output")
flags.DEFINE_boolean("document", False, "lines hold any number of sentences; see above")
flags.DEFINE_string("prefix", None, "file of texts, line by line, that translations begin with")
flags.DEFINE_enum("format", "text", ["text", "jsonl"], "text|jsonl")
flags.DEFINE_boolean("attention", False, "with --format=jsonl: also the whole attention")
flags.DEFINE_enum("precision", "float32", ["float32", "bfloat16", "float16"], "of a run's weights")
flags.DEFINE_boolean("jit_compile", None, "compile a run's search with XLA, for single lines")
flags.DEFINE_integer(
    "threads", None, "of a LiteRT model; all cores if not given", lower_bound=1, upper_bound=1024
)
command_line.define_config_flags("beam_size", "length_penalty", "n_best", "sample")


def _check_flags() -> None:
    if (FLAGS.model_dir is None) == (FLAGS.server is None):
        raise InputError("there is no model, or more than one; expected --model_dir or --server")
    fixed = [*_settings()] + [
        name for name in ("precision", "jit_compile", "threads") if FLAGS[name].present
    ]
    if FLAGS.server is not None and fixed:
        raise InputError(
            f"{fixed[0]} cannot be chosen for --server, whose model was made before; expected "
            "--model_dir"
        )
    if FLAGS.server is not None and (FLAGS.format != "text" or FLAGS.prefix is not None):
        raise InputError(
            "--format=jsonl and --prefix do not go with --server; expected --model_dir, or the "
            "server's signature `translate`"
        )
    if FLAGS.attention and FLAGS.format == "text":
        raise InputError("--attention does not go into text; expected --format=jsonl")
    for name in ("document", "jit_compile"):
        if FLAGS[name].value and (FLAGS.format != "text" or FLAGS.prefix is not None):
            raise InputError(
                f"--{name} is for plain translation; expected no --format=jsonl and no --prefix "
                "beside it"
            )


def _settings() -> dict[str, str]:
    settings = command_line.config_settings()
    if FLAGS.jit_compile is not None:
        del settings["training.jit_compile"]  # what a flag of this name is to bin/train.py
    return settings


def _model() -> Any:
    if FLAGS.server is not None:
        from keras_transformer.serving.client.remote import connect_model

        return connect_model(FLAGS.server)
    from keras_transformer.inference import loading

    return loading.load_model(
        FLAGS.model_dir,
        _settings(),
        precision=FLAGS.precision,
        jit_compile=bool(FLAGS.jit_compile),
        threads=FLAGS.threads,
    )


def _translated(model: Any, lines: list[str]) -> tuple[str, list[str]]:
    """Returns what the lines come to in --format, and the remarks on them."""
    from keras_transformer.data.corpora.reading import read_text
    from keras_transformer.inference import translate
    from keras_transformer.inference.translation import Translation

    if FLAGS.format == "text" and FLAGS.prefix is None:
        results = translate.translate_lines(model, lines)
        remarks = translate.remarks(model, lines, results)
        return translate.format_translations(model, results), remarks
    prefixes = None if FLAGS.prefix is None else read_text(FLAGS.prefix)
    details = translate.translate_in_detail(model, lines, prefixes, FLAGS.attention)
    results = [
        [Translation(t["text"], t["score"]) for t in detail["translations"]]
        or [translate.NO_TRANSLATION]
        for detail in details
    ]
    remarks = translate.remarks(model, lines, results, prefixes or [])
    if FLAGS.format == "text":
        return translate.format_translations(model, results), remarks
    return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in details), remarks


def main(argv: list[str]) -> int:
    """Translates what the flags name; returns 3 where there is a remark on it."""
    from keras_transformer.inference import documents, translate  # late: --help stays quick
    from keras_transformer.runs import atomic

    _check_flags()
    data = command_line.read_input(FLAGS.input)
    lines = translate.decode_lines(data, FLAGS.input or "standard input")
    translate.use_cores_for_batches(len(lines))
    model = _model()
    with atomic.output_file(FLAGS.output) as file:
        if FLAGS.document:  # in UTF-8, as its lines are; what ends them stays
            text, remarks = documents.translate(model, data.decode("utf-8-sig"))
        else:
            text, remarks = _translated(model, lines)
        file.write(text.encode())
    for remark in remarks:
        print(remark, file=sys.stderr)
    return 3 if remarks else 0


if __name__ == "__main__":
    command_line.run(main)
