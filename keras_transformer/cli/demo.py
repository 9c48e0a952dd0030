r"""Opens a page to try a model on: its n-best with scores, their alignment, their attention.

Examples:
    bin/demo.py --model=build/run
    bin/demo.py --model=build/run --model=build/export   # two are compared, side by side
    bin/demo.py --model=grpc://localhost:8500/export     # TF Serving, or bin/serve.py

A model is a run directory (RUN@WEIGHTS, an ensemble RUN,RUN), a SavedModel of bin/export.py,
or the address of a server that has one: HOST:PORT/MODEL or grpc://HOST:PORT/MODEL.

Needs the extra [demo]. The page asks nothing of any other machine. It has no users and no
passwords: who reaches the port may translate. Ctrl-C ends it.
"""

from __future__ import annotations

import os
import sys

from absl import flags

from keras_transformer.cli import app, config_flags
from keras_transformer.errors import InputError, needs_extra

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    flags.DEFINE_multi_string(
        "model", None, "a run, a SavedModel or a server; twice to compare two", required=True
    )
    flags.DEFINE_multi_string("example", [], "a sentence to choose on the page; repeatable")
    flags.DEFINE_string("host", "127.0.0.1", "address to listen at; 0.0.0.0: all of this machine")
    flags.DEFINE_integer(
        "port", 7860, "port of the page; 0: the first free one from 7860 on", lower_bound=0,
        upper_bound=65535,
    )  # fmt: skip
    flags.DEFINE_boolean("browser", None, "open it in a browser; default: where a screen is known")
    config_flags.define_config_flags("beam_size", "length_penalty", "n_best")


def _has_screen() -> bool:
    return sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


def main() -> None:
    """Opens the models that the flags name, and serves the page."""
    app.load_tensorflow()
    with needs_extra("demo", "the page"):
        from keras_transformer.visualization.playground import page  # late: --help stays quick
    from keras_transformer.visualization.playground.models import open_model

    if len(FLAGS.model) > 2:
        raise InputError(f"there are {len(FLAGS.model)} models; expected one, or two to compare")
    settings = config_flags.config_settings()
    models = []
    for place in FLAGS.model:
        print(f"opening {place}", flush=True)
        models.append(open_model(place, settings))
        models[-1].warm_up()
    blocks = page.build_page(models, FLAGS.example)
    open_browser = _has_screen() if FLAGS.browser is None else FLAGS.browser
    address = page.serve(blocks, FLAGS.host, FLAGS.port, open_browser=open_browser)
    print(f"the playground is at {address}; Ctrl-C ends it", flush=True)
    blocks.block_thread()
