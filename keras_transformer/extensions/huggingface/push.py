r"""Uploads an export to the Hugging Face Hub.

Example:
    keras-transformer push --model_dir=build/export/1 --name=user/en-de

All files of --model_dir become one commit. A new model on the Hub is public: create it on the web
page first to keep it private. Log in with `hf auth login`, or set HF_TOKEN.
"""

from __future__ import annotations

from pathlib import Path

from absl import flags

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_string("model_dir", None, "a version of an export, such as build/export/1")
    flags.DEFINE_string("name", None, "the model on the Hub: USER/NAME")
    flags.mark_flags_as_required(["model_dir", "name"])


def main() -> None:
    """Checks the files, uploads them, and prints the address of the page."""
    from keras_transformer.extensions.huggingface import hub  # slow to import
    from keras_transformer.inference.manifest import check_manifest

    path = Path(FLAGS.model_dir)
    check_manifest(path)
    print(hub.upload(path, FLAGS.name))
