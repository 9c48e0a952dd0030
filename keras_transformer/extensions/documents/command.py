r"""Translates the text of a file, and keeps everything else in it.

Examples:
    keras-transformer translate_file --model_dir=build/run --input=page.html --output=seite.html
    keras-transformer translate_file --model_dir=build/run --input=app.po --output=de.po
    keras-transformer translate_file --model_dir=build/run --input=a.txt --output=b.txt \
        --span='ACME\w*' --glossary=terms.tsv

Formats: HTML, Markdown, DOCX, XLIFF 1.2 and 2, PO, JSON, SRT, WebVTT, Android's strings.xml, iOS
.strings files, and text with one paragraph per line. --format is needed only for other suffixes.

Variables ({name}, %s), URLs, e-mail addresses, @names, #tags, paths, versions, identifiers and
emojis are kept, as are the texts that a regular expression of --span finds. Each tag stays at its
words. XLIFF and PO files get the translations that are missing. A glossary has in each line a term,
a tab and its translation, or is a TBX file. Its translations are in the text in exactly this form.
Sentences in capitals are translated like others, and written in capitals again; --casing=keep turns
this off.
"""

from __future__ import annotations

import os

from absl import flags

from keras_transformer.cli import app, config_flags
from keras_transformer.extensions.documents import translate_file

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    config_flags.define_path_flags("model_dir", "input", "output", required=True)
    flags.DEFINE_string("format", None, "html, markdown, docx, xliff, po, json, srt, vtt, ...")
    flags.DEFINE_multi_string("span", [], "regular expression of texts that are kept")
    flags.DEFINE_boolean("overwrite", False, "replace the output if it exists")
    config_flags.define_option_flags("source_language", "target_language", "threads", "source_tag")
    config_flags.define_option_flags("glossary", "terms", "casing")
    config_flags.define_quality_flags()
    config_flags.define_config_flags("beam_size", "length_penalty")


def main() -> None:
    """Runs `translate_file` with the flags."""
    app.load_engine(FLAGS.model_dir)
    from keras_transformer.inference import batching, loading, tags  # slow to import

    batching.use_cores_for_batches(os.cpu_count() or 1)  # files have more sentences than cores
    settings = config_flags.config_settings()
    model = loading.load_model(FLAGS.model_dir, settings, threads=FLAGS.threads)
    tags.check_tag(FLAGS.source_tag, model.symbols, model.label)
    names = "format source_language target_language glossary terms casing overwrite".split()
    options = config_flags.values_of([*names, "on_low_quality", "min_quality"])
    options |= {"spans": FLAGS.span, "source_tag": FLAGS.source_tag or ""}
    counts = translate_file(model, FLAGS.input, FLAGS.output, **options)
    from keras_transformer.extensions.documents.protection import ways  # needs the extra

    texts = counts.pop("texts")
    print(f"Wrote {FLAGS.output}: {texts:,} texts. {ways(counts)}")
