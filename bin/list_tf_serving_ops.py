#!/usr/bin/env python3
r"""Lists the ops that TF Serving's stock binary links, from sources.

Exports are checked against this list. For a new TF Serving, check out its release,
the TensorFlow that its WORKSPACE pins, and the tensorflow-text that its
tensorflow_serving/workspace.bzl pins:

    bin/list_tf_serving_ops.py --serving=serving --tensorflow=tensorflow --text=text \
        >keras_transformer/export/saved_model/tf_serving_ops.txt
"""

import sys
from pathlib import Path

import command_line

from absl import flags

FLAGS = flags.FLAGS

flags.DEFINE_string("serving", None, "sources of tensorflow/serving", required=True)
flags.DEFINE_string("tensorflow", None, "sources of tensorflow/tensorflow", required=True)
flags.DEFINE_string("text", None, "sources of tensorflow/text", required=True)
flags.DEFINE_multi_string("note", [], "a paragraph for the list's head: what the sources are")


def main(argv: list[str]) -> None:
    """Writes the list to standard output."""
    from keras_transformer.export.saved_model import served_ops

    sources = (Path(FLAGS.serving), Path(FLAGS.tensorflow), Path(FLAGS.text))
    sys.stdout.write(served_ops.list_ops(*sources, FLAGS.note))


if __name__ == "__main__":
    command_line.run(main, needs_tensorflow=False)
