"""The packages; everything else is in setup.cfg."""

from setuptools import find_packages, setup

# Folders beside the package whose files a wheel has inside it.
DATA = {"keras_transformer.recipes": "recipes", "keras_transformer.deploy": "deploy"}

setup(
    packages=[*find_packages(include=["keras_transformer", "keras_transformer.*"]), *DATA],
    package_dir=DATA,
)
