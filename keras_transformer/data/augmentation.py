"""Changes of training pairs by extensions, such as symbols for protected spans."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Any, Protocol, TypeAlias

from keras_transformer import plugins
from keras_transformer.data.options import DEFAULT_SHARES
from keras_transformer.errors import InputError
from keras_transformer.text.vocabulary import Vocabulary

Pair: TypeAlias = tuple[str, str]  # a source and a target


class Augmentation(Protocol):
    """Changes some training pairs: a class with the entry point `keras_transformer.augmentations`.

    It is created for a preparation, with the result of `learn`. Worker processes get a pickled
    copy.

    Attributes:
        kinds: names of changes. `PrepareOptions.augment` gives the share of the pairs for each.
        symbols: tokens that a new vocabulary gets. A given vocabulary must have them.

    Example:
    >>> class Shouting:
    ...     kinds, symbols = ("capitals",), ()
    ...     def __init__(self, learned, vocabulary):
    ...         pass
    ...     @staticmethod
    ...     def learn(pairs):
    ...         return None
    ...     def __call__(self, kind, pair, following, random_):
    ...         source, target = pair
    ...         return source.upper(), target.upper()
    """

    kinds: Collection[str]
    symbols: Sequence[str]

    def __init__(self, learned: Any, vocabulary: Vocabulary) -> None: ...

    @staticmethod
    def learn(pairs: Sequence[Pair]) -> Any:
        """Returns JSON values that are learned from a random sample of the training pairs."""
        ...

    def __call__(self, kind: str, pair: Pair, following: Pair, random_: Random) -> Pair | None:
        """Returns a changed pair, or None to leave the pair as it is.

        The result may depend only on the arguments. `following` is the next training pair. A pair
        that becomes too long or empty, or gets unknown tokens, stays as it is.
        """
        ...


def installed(
    shares: Mapping[str, float], vocabulary: Vocabulary | None
) -> dict[str, type[Augmentation]]:
    """Returns the extensions with these kinds of changes that a given vocabulary allows."""
    found = dict(plugins.all_of("augmentations"))
    known = {kind for extension in found.values() for kind in extension.kinds}
    if unknown := {*shares} - known - {*DEFAULT_SHARES}:
        names = ", ".join(sorted(known)) or "none"
        raise InputError(f"augment has {min(unknown)!r}. The installed changes are: {names}.")
    # Those of the source and of the target.
    pieces = [] if vocabulary is None else [{*side} for side in vocabulary.pieces()]
    used = {}
    for name, extension in found.items():
        kinds = {kind for kind in extension.kinds if shares.get(kind)}
        if kinds and all(side.issuperset(extension.symbols) for side in pieces):
            used[name] = extension
        elif needed := {kind for kind in kinds if shares[kind] != DEFAULT_SHARES.get(kind)}:
            raise InputError(
                f"The vocabulary lacks the symbols of augment={min(needed)}. Learn a new one, or "
                "leave this change out."
            )
    return used
