r"""Opens a page to try models: translations, scores, alignment and attention.

Examples:
    keras-transformer demo --model_dir=build/run
    keras-transformer demo --model_dir=build/run --model_dir=build/export   # compares two models
    keras-transformer demo --model_dir=localhost:8501/export  # a server

--source_tag is added to each text that has no tag.

Needs the extra [demo]. The page loads nothing from other machines. It has neither users nor
passwords: anyone who reaches the port may translate. Ctrl-C stops it.
"""

from __future__ import annotations

import os

from absl import flags

from keras_transformer.cli import app, config_flags
from keras_transformer.errors import needs_extra

FLAGS = flags.FLAGS


def define_flags() -> None:
    """Defines the flags of the command."""
    model_help = "a run, RUN@WEIGHTS, RUN,RUN, a SavedModel, or a server HOST:PORT/MODEL"
    flags.DEFINE_multi_string("model_dir", None, model_help, required=True)
    flags.DEFINE_multi_string("example", [], "a sentence to choose on the page; repeatable")
    config_flags.define_option_flags("host", "source_tag", "source_language", "target_language")
    flags.DEFINE_integer("port", 7860, "port; 0: a free one", lower_bound=0, upper_bound=65535)
    flags.DEFINE_boolean("browser", None, "open the page; default: if there is a screen")
    config_flags.define_config_flags("beam_size", "length_penalty", "n_best")


def main() -> None:
    """Opens the models of the flags, and serves the page."""
    app.load_tensorflow()
    with needs_extra("demo", "the page"):
        from keras_transformer.extensions.pages import playground  # slow to import

    models = []
    for label in FLAGS.model_dir:
        print(f"opening {label}", flush=True)
        settings, languages = config_flags.config_settings(), config_flags.languages()
        models.append(
            playground.open_playground_model(label, settings, FLAGS.source_tag, languages)
        )
        models[-1].warm_up()
    page = playground.build_page(models, FLAGS.example)
    has_screen = any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    open_browser = has_screen if FLAGS.browser is None else FLAGS.browser
    address = playground.serve(page, FLAGS.host, FLAGS.port, open_browser=open_browser)
    print(f"The playground is at {address} (Ctrl-C stops it)", flush=True)
    page.block_thread()
