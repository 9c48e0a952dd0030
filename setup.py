"""The packages; everything else is in setup.cfg."""

import sys

from setuptools import find_packages, setup

# Folders beside the package whose files a wheel has inside it.
DATA = {"keras_transformer.recipes": "recipes", "keras_transformer.deploy": "deploy"}
# An editable installation finds them in the clone. This layout makes setuptools write a path for it
# instead of an import hook, which type checkers and editors cannot follow.
EDITABLE = "editable_wheel" in sys.argv

setup(
    packages=[
        *find_packages(include=["keras_transformer", "keras_transformer.*"]),
        *([] if EDITABLE else DATA),
    ],
    package_dir={"": "."} if EDITABLE else DATA,
)
