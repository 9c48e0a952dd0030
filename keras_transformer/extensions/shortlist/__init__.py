"""The flag --shortlist of `export`: the search scores only likely tokens."""

from __future__ import annotations

from typing import Any

help = "number of likely translations of each token that the search scores, as in 50"
default = 0


def learn(run_dir: str, data_dir: str | None, number: int) -> Any:
    """Returns the shortlist of a run, learned from its training data."""
    from keras_transformer.extensions.shortlist.learning import learn_shortlist

    return learn_shortlist(run_dir, data_dir, number)
