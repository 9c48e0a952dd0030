"""Hypothesis strategies for settings and batches of a search."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from keras_transformer.config import DecodingConfig
from keras_transformer.decoding import SpecialIds
from tests.decoding.reference import END, IDS, LENGTH, PAD, START, VOCAB, A, B, Rules

# Searches without a graph are slow, so `bin/test --long` has most of their examples.
SEARCHES = settings.get_profile("searches")
SEEDS = st.integers(0, 2**31)

# Marian models begin with the pad or the end token; some use one token for everything.
OTHER_IDS = [
    SpecialIds(PAD, END, PAD),
    SpecialIds(START, END, END),
    SpecialIds(END, END, PAD),
    SpecialIds(END, END, END),
]

PHRASES = st.sets(
    st.lists(st.sampled_from([1, A, B, END]), min_size=1, max_size=3).map(tuple), max_size=3
).map(tuple)


@st.composite
def rules(draw: st.DrawFn, beam_size: int, ids: SpecialIds = IDS, **fixed: Any) -> Rules:
    """Draws any combination of options of a search with this beam."""
    options = {
        "beam_size": beam_size,
        "n_best": draw(st.sampled_from([1, (beam_size + 1) // 2, beam_size])),
        "length_penalty": draw(st.sampled_from([0.0, 0.6, 1.0, 2.0])),
        "length_penalty_formula": draw(st.sampled_from(["gnmt", "power"])),
        "min_length": draw(st.integers(0, 4)),
        "repetition_penalty": draw(st.sampled_from([1.0, 1.0, 1.5])),
        "no_repeat_ngram": draw(st.sampled_from([0, 0, 1, 2, 3])),
    }
    options.update({name: value for name, value in fixed.items() if name != "banned"})
    banned = fixed["banned"] if "banned" in fixed else draw(PHRASES)
    return Rules(DecodingConfig(**options), banned, ids)


class Batch(NamedTuple):
    """Sentences with different maximum lengths and forced prefixes."""

    max_lengths: NDArray[np.int32]  # [sentence]
    prefix: NDArray[np.int32]  # [sentence, any]


@st.composite
def batches(draw: st.DrawFn, size: int, longest: int = LENGTH) -> Batch:
    """Draws batches. Some forced tokens are special or unknown: the prefix ends there."""
    lengths = draw(st.lists(st.integers(1, longest), min_size=1, max_size=3))
    token = st.sampled_from([1, A, B, A, B]) | st.integers(-2, VOCAB + 1)
    prefixes = draw(st.lists(st.lists(token, max_size=LENGTH + 1), min_size=1, max_size=5))
    width = max(map(len, prefixes))
    padded = [[*prefix, *[-1] * (width - len(prefix))] for prefix in prefixes]
    rows = np.resize(np.arange(len(prefixes)), size)
    return Batch(
        np.resize(np.array([longest, *lengths], np.int32), size),
        np.array(padded, np.int32).reshape(len(prefixes), width)[rows],
    )
