"""Runs a benchmark as a command: flags, one-line error messages, exit codes, progress lines."""

from __future__ import annotations

from collections.abc import Sequence

from absl import flags

from keras_transformer.cli.app import run
from keras_transformer.console import info

flags.disclaim_key_flags()  # --help lists the flags defined here under the calling benchmark


__all__ = ["define_numbers", "info", "run"]


def define_numbers(name: str, default: Sequence[int], help_text: str) -> None:
    """Defines a flag that takes a list of positive integers, such as `--clients=1,4,16`.

    The value of the flag is a list of strings.

    Args:
        name: the flag's name.
        default: the default numbers.
        help_text: the help text.
    """
    flags.DEFINE_list(name, [str(number) for number in default], help_text)
    flags.register_validator(
        name,
        lambda texts: all(t.isascii() and t.isdecimal() and int(t) > 0 for t in texts),
        "expected whole numbers from 1 on, as in 1,2,8",
    )
