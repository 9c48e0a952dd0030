"""How every benchmark starts and fails, as the binaries do by their own module; its numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from absl import flags

from keras_transformer.cli import app

flags.disclaim_key_flags()  # flags defined here count as the calling benchmark's, for --help


def run(main: Callable[[], int | None]) -> None:
    """Parses the flags, calls `main` and exits, with the codes of `app.run`."""
    app.run(main)


def define_numbers(
    name: str, default: Sequence[int], help_text: str, *, or_none: bool = False
) -> None:
    """Defines a flag of whole numbers from 1 on, as in 1,2,8; its value is their texts.

    Args:
        name: of the flag.
        default: the numbers where it is not given.
        help_text: what they are.
        or_none: whether it may be "none", for no number.
    """
    flags.DEFINE_list(name, [str(number) for number in default], help_text)
    flags.register_validator(
        name,
        lambda texts: _are_numbers(texts) or (or_none and texts == ["none"]),
        "expected whole numbers from 1 on, as in 1,2,8" + or_none * ", or none",
    )


def _are_numbers(texts: Sequence[str]) -> bool:
    return all(text.isascii() and text.isdecimal() and int(text) > 0 for text in texts)
