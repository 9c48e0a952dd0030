"""Runs the commands of this clone, whether or not it is installed."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from keras_transformer.cli.main import run

__all__ = ["run"]
