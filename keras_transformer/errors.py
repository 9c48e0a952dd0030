"""The one exception that stands for a mistake in what the user gave.

Binaries print its message as one sentence and exit with code 1; every other
exception is a defect of ours and keeps its stack trace.
"""


class InputError(ValueError):
    """Bad input: names the place, the value and what was expected there."""


class DivergedError(InputError):
    """Training whose loss or gradients stayed NaN or infinite, step after step."""


class StoppedError(InputError):
    """Work was stopped for a reason outside the data; the same command continues it."""
