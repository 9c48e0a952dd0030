r"""Lists the ops that TF Serving's stock binary links, from sources.

Exports are checked against this list. For a new TF Serving, check out its release,
the TensorFlow that its WORKSPACE pins, and the tensorflow-text that its
tensorflow_serving/workspace.bzl pins:

    bin/list_tf_serving_ops.py --serving=serving --tensorflow=tensorflow --text=text \
        >keras_transformer/export/saved_model/tf_serving_ops.txt
"""

from __future__ import annotations

import sys
from pathlib import Path

from absl import flags

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_string("serving", None, "sources of tensorflow/serving", required=True)
    flags.DEFINE_string("tensorflow", None, "sources of tensorflow/tensorflow", required=True)
    flags.DEFINE_string("text", None, "sources of tensorflow/text", required=True)
    flags.DEFINE_multi_string("note", [], "a paragraph for the list's head: what the sources are")


def main() -> None:
    """Writes the list to standard output."""
    from keras_transformer.export.saved_model import served_ops

    sources = (Path(FLAGS.serving), Path(FLAGS.tensorflow), Path(FLAGS.text))
    sys.stdout.write(served_ops.list_ops(*sources, FLAGS.note))
