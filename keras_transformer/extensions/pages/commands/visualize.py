r"""Draws a model: attention, statistics of its heads, positions, sentence embeddings.

Examples:
    keras-transformer visualize --model_dir=build/run --sentence="A dog sleeps." \
        --output_dir=build/pictures
    keras-transformer visualize --model_dir=build/export --source=test.en --target=test.de \
        --output_dir=build/pictures

index.html in the output directory shows all pictures. attention.html is interactive: choose
a layer and a head, and point at a token. It shows the attention of --sentence and
--translation, or of the first pair of the files. Without a translation, the model translates.
For an ensemble RUN,RUN the first model is drawn.
heads.png and heads.tsv have statistics of every head, over all pairs of the files if there are
any. embeddings.html shows the sentences of the files.

At most 64 tokens of a sentence are used. Standard error reports truncated sentences and
empty lines, and the exit code is then 3. The last line of standard output is a JSON object
with the names of the files.
"""

from __future__ import annotations

import json

from absl import flags

from keras_transformer import console
from keras_transformer.cli import app, config_flags

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_string("model_dir", None, "a run, RUN@WEIGHTS, or a SavedModel", required=True)
    flags.DEFINE_string("sentence", None, "sentence to draw the attention of")
    flags.DEFINE_string("translation", None, "translation of --sentence; default: the model's own")
    config_flags.define_path_flags("source", "target")
    config_flags.define_path_flags("output_dir", required=True)
    config_flags.define_option_flags("source_language", "target_language")
    flags.DEFINE_integer("max_sentences", 1000, "maximum lines of the files", lower_bound=1)


def main() -> int:
    """Runs `visualize`. Returns 3 if it reports a problem with the sentences."""
    app.load_tensorflow()
    from keras_transformer.extensions.pages import pictures  # slow to import

    names = ("sentence", "translation", "source", "target", "max_sentences")
    options = {**config_flags.values_of(names), "languages": config_flags.languages()}
    result, remarks = pictures.visualize(FLAGS.model_dir, FLAGS.output_dir, **options)
    for remark in remarks:
        console.warn(remark)
    print(f"Wrote {result['output_dir']}/index.html.")
    print(json.dumps(result))
    return 3 if remarks else 0
