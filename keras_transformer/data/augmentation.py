"""Changes of training pairs by extensions, such as symbols for protected spans."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Protocol

from keras_transformer.data.options import PrepareOptions
from keras_transformer.text.vocabulary import Vocabulary


class Augmentation(Protocol):
    """Changes some training pairs: a class with the entry point `keras_transformer.augmentations`.

    It is created for a preparation, with the result of `learn`. Worker processes get a pickled
    copy.

    Example:
    >>> class Shouting:
    ...     def __init__(self, learned, options, vocabulary):
    ...         pass
    ...     @staticmethod
    ...     def learn(pairs):
    ...         return None
    ...     def __call__(self, source, target, random_):
    ...         shouts = random_.random() < 0.01
    ...         return ("capitals", source.upper(), target.upper()) if shouts else None
    """

    def __init__(self, learned: Any, options: PrepareOptions, vocabulary: Vocabulary) -> None: ...

    @staticmethod
    def learn(pairs: Sequence[tuple[str, str]]) -> Any:
        """Returns JSON values that are learned from a random sample of the training pairs."""
        ...

    def __call__(self, source: str, target: str, random_: Random) -> tuple[str, str, str] | None:
        """Returns a name for the report and a changed pair, or None to leave the pair as it is.

        The result may depend only on the arguments. A pair that becomes too long stays as it is.
        """
        ...
