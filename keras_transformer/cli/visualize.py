r"""Draws a model: who attends to whom, what each head does, positions, embeddings.

Examples:
    bin/visualize.py --model_dir=build/run --source="A dog sleeps." --output_dir=build/pictures
    bin/visualize.py --model_dir=build/export --source_file=test.en --target_file=test.de \
        --output_dir=build/pictures
    bin/visualize.py --model_dir=build/run --source="A dog sleeps." --layer=3 --head=2 \
        --output_dir=build/head

index.html in the output directory shows all of it. attention.html is to be explored: choose
a layer and a head, point at a token. The attention is that of --source and --target, or of
the file's first pair; without a target the model's own translation is read. heads.png and
heads.tsv summarize every head, over the pairs of the file where there is one, whose
sentence embeddings are drawn, too. Layers and heads are counted from 1.

Of a sentence of more than 64 tokens, or more than the model takes, the first so many are
drawn. Standard error says so, as it does of empty lines, of fewer than 3 sentences and of signs
that no font has; the exit code is then 3. The last line of standard output is a JSON object
with the files.
"""

from __future__ import annotations

import json
import sys

from absl import flags

from keras_transformer.cli import app
from keras_transformer.errors import needs_extra

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_string(
        "model_dir", None, "a run, RUN@WEIGHTS, RUN,RUN (the first is drawn) or a SavedModel",
        required=True,
    )  # fmt: skip
    flags.DEFINE_string("source", None, "the sentence whose attention is drawn")
    flags.DEFINE_string("target", None, "its translation; the model's own when not given")
    flags.DEFINE_string("source_file", None, "sentences, one a line")
    flags.DEFINE_string("target_file", None, "their translations, line by line")
    flags.DEFINE_string("output_dir", None, "new directory for the files", required=True)
    flags.DEFINE_integer("layer", None, "draw the attention of this layer alone")
    flags.DEFINE_integer("head", None, "draw this head alone, large")
    flags.DEFINE_integer("max_sentences", 1000, "of the files, the first ones")


def main() -> int:
    """Runs `visualize` on what the flags name; returns 3 where there is a remark on it."""
    app.load_tensorflow()
    with needs_extra("plots", "drawing"):
        from keras_transformer.visualization.gallery import (  # late: --help stays quick
            VisualizationOptions,
            visualize,
        )

    drawn = visualize(
        FLAGS.model_dir,
        FLAGS.output_dir,
        VisualizationOptions(
            FLAGS.source,
            FLAGS.target,
            FLAGS.source_file,
            FLAGS.target_file,
            FLAGS.layer,
            FLAGS.head,
            FLAGS.max_sentences,
        ),
    )
    for remark in drawn.remarks:
        print(remark, file=sys.stderr)
    print(drawn.summary())
    print(json.dumps(drawn.fields()))
    return 3 if drawn.remarks else 0
