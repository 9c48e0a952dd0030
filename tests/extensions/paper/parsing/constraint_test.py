"""The tree constraint against a definition of trees, and the search with it."""

import re

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.config import DecodingConfig
from keras_transformer.extensions.paper.parsing.parser import TreeConstraint
from tests.decoding.reference import (
    END,
    EXHAUSTIVE_BEAMS,
    UNKNOWN,
    VOCAB,
    A,
    B,
    Rules,
    assert_best,
    hypotheses,
    outputs,
    random_tables,
    search,
)
from tests.decoding.strategies import SEEDS

LEAF, OPEN, CLOSE = UNKNOWN, A, B
WRITTEN = {LEAF: "x", OPEN: "(", CLOSE: ")"}


TREES = TreeConstraint([OPEN], [CLOSE], [LEAF], END, VOCAB)


def is_tree(text, count):
    """True if all brackets of `text` match and contain something, around this number of leaves."""
    if text.count("x") != count:
        return False
    while (shorter := re.sub(r"\(x+\)", "x", text)) != text:
        text = shorter
    return set(text) <= {"x"}


def goes_on(tokens, count, longest):
    """True if these tokens start a tree of `count` leaves and at most `longest` tokens."""
    if not set(tokens) <= {*WRITTEN, END} or END in tokens[:-1]:
        return False
    text = "".join(WRITTEN[token] for token in tokens if token != END)
    if tokens[-1:] == (END,):
        return is_tree(text, count)
    if count >= longest:  # such a tree does not exist
        return set(text) <= {"x"} and len(text) <= count
    closing = ")" * (text.count("(") - text.count(")"))
    shortest = text + "x" * (count - text.count("x")) + closing
    return is_tree(shortest, count) and len(shortest) < longest


@st.composite
def beginnings(draw):
    """Tokens with which a tree of some leaves begins, how many it has, and the longest's tokens."""
    count, longest, tokens = draw(st.integers(0, 4)), draw(st.integers(1, 14)), ()
    for token in draw(st.lists(st.sampled_from([*WRITTEN]), max_size=longest - 1)):
        if goes_on((*tokens, token), count, longest):
            tokens = (*tokens, token)
    return tokens, count, longest


@settings(max_examples=300)
@given(beginning=beginnings(), rest=st.lists(st.sampled_from([*WRITTEN]), max_size=5))
def test_allowed_tokens_continue_a_tree(beginning, rest):
    tokens, count, longest = beginning
    allowed = TREES.allowed_tokens(
        tf.constant([count]),
        tf.constant([[*tokens, *rest, 0]]),
        tf.constant(len(tokens)),
        tf.constant([longest]),
    )
    expected = [goes_on((*tokens, token), count, longest) for token in range(VOCAB)]
    np.testing.assert_array_equal(allowed[0], expected)


@settings(max_examples=10)
@given(seed=SEEDS, counts=st.lists(st.integers(0, 5), min_size=20, max_size=20))
def test_exhaustive_beam_equals_brute_force(seed, counts):
    tables = random_tables(seed, len(counts))
    rules = Rules(DecodingConfig(beam_size=EXHAUSTIVE_BEAMS[5], n_best=4, length_penalty=0.6))
    result = search(
        tables, np.full(len(counts), 5), rules, constraint=TREES, constraint_inputs=np.array(counts)
    )
    for sentence, count in enumerate(counts):
        every = outputs(rules, (), 5).scores(tables, sentence, rules.config)
        expected = {tokens: every[tokens] for tokens in every if goes_on(tokens, count, 5)}
        assert_best(hypotheses(result, sentence), expected, 4)


@pytest.mark.parametrize(
    "options",
    [
        {"beam_size": 1},
        {"sample": True, "n_best": 3},
        {"beam_size": 3, "min_length": 5},  # which does not apply to trees
        {"beam_size": 3, "repetition_penalty": 1.3},
    ],
)
def test_all_that_is_found_are_trees(options):
    counts = np.resize([1, 2, 3], 60)
    tables, config = random_tables(1, len(counts)), DecodingConfig(**options)
    result = search(
        tables, np.full(len(counts), 5), config, constraint=TREES, constraint_inputs=counts
    )
    found = [(one.tokens, n) for i, n in enumerate(counts) for one in hypotheses(result, i)]
    assert len(found) == 60 * config.n_best
    assert all(tokens[-1] == END and goes_on(tokens, count, 5) for tokens, count in found)
    assert len({tokens for tokens, _ in found}) > 5


def test_a_prefix_is_the_beginning_of_the_tree():
    config, prefix = DecodingConfig(beam_size=3), np.resize([[OPEN, -1], [LEAF, OPEN]], (20, 2))
    result = search(
        random_tables(2, 20),
        [5] * 20,
        config,
        prefix=prefix,
        constraint=TREES,
        constraint_inputs=np.full(20, 2),
    )
    for sentence, forced in enumerate(prefix):
        [one] = hypotheses(result, sentence)
        assert list(one.tokens[: np.sum(forced >= 0)]) == forced[forced >= 0].tolist()
        assert one.tokens[-1] == END and goes_on(one.tokens, 2, 5)
