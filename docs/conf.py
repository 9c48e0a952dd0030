"""The site: `sphinx-build -W -c docs . build/site`, or `bin/site`.

The source folder is the whole repository, so that the pages may link to the recipes' pages and to
source files. Only the pages named here are part of the site.
"""

from __future__ import annotations

import inspect
import os
import re
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras

from keras_transformer import __version__ as release

project = "keras_transformer"
author = "the keras_transformer authors"
project_copyright = f"2026, {author}"
html_title = f"keras_transformer {release}"
root_doc = "docs/index"
include_patterns = [
    "*.md",
    "docs/**",
    "deploy/README.md",
    "recipes/*/README.md",
    "benchmarks/results/*.md",
]
exclude_patterns = ["**/_build", "**/.ipynb_checkpoints"]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
# The notebooks are committed with their outputs. The tests run their cells.
nb_execution_mode = "off"

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Call arguments", "params_style"), "Source"]

html_theme = "furo"
html_extra_path = ["root"]
html_theme_options = {"navigation_with_keys": True}
copybutton_prompt_text = r"^(\$|>>>|\.\.\.) "
copybutton_prompt_is_regexp = True


def markdown_to_rst(
    app: Any, what: str, name: str, object_: Any, options: Any, lines: list[str]
) -> None:
    """Converts the Markdown of our docstrings: `code`, examples, and `**` of keyword arguments."""
    converted: list[str] = []
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        if line.strip() == "Example:" and following.startswith(line.replace("Example:", ">>>")):
            converted += [line.replace("Example:", ".. rubric:: Example"), ""]
            continue
        # A letter right after the code, as in a plural, needs an escaped space.
        line = re.sub(
            r"(?<!`)`([^`]+)`(?!`)(\w?)",
            lambda found: f"``{found[1]}``" + (f"\\ {found[2]}" if found[2] else ""),
            line,
        )
        converted.append(re.sub(r"(?<![\w*`])\*\*(?=\w+\b(?!\*))", r"\\*\\*", line))
    lines[:] = converted


def layer_signature(
    app: Any, what: str, name: str, object_: Any, options: Any, signature: Any, returns: Any
) -> tuple[str, str | None] | None:
    """Shows the arguments of `__init__`: Keras gives every layer a `__new__(*args, **kwargs)`."""
    if what != "class" or not issubclass(object_, keras.Layer):
        return None
    parameters = [*inspect.signature(object_.__init__).parameters.values()][1:]
    shown = inspect.Signature([p.replace(annotation=p.empty) for p in parameters])
    return str(shown), returns


def setup(app: Any) -> None:
    """Connects both to autodoc. The first runs before Napoleon, which reads the sections."""
    app.connect("autodoc-process-docstring", markdown_to_rst, priority=400)
    app.connect("autodoc-process-signature", layer_signature)
