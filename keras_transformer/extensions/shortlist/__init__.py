"""The flag --shortlist of `export`: the search scores only likely tokens."""

from __future__ import annotations

from typing import Any

help = "likely translations of each token to score, as in 50, or a file lex.*.s2t.bin of Marian"
default = None


def learn(run_dir: str, data_dir: str | None, value: str) -> Any:
    """Returns the shortlist of a run, learned from its training data or read from a file."""
    if value.isdecimal():
        from keras_transformer.extensions.shortlist.learning import learn_shortlist

        return learn_shortlist(run_dir, data_dir, int(value))
    from keras_transformer.extensions.shortlist.marian import read_shortlist

    return read_shortlist(value, run_dir)
