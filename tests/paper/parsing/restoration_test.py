"""Restoration within a graph: for any symbols and any words what `linearization.restore` gives."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.export.saved_model.served_ops import served_ops
from keras_transformer.paper.parsing.linearization import restore
from keras_transformer.paper.parsing.restoration import restored

SYMBOLS = ["", "", "XX", "NN", "(S", ")S", "(NP", ")NP", "(VP", ")VP", "(", "((", "a(b", "-NONE-"]
MOST = 80
SPECS = [
    tf.TensorSpec([None, None], tf.int32),
    tf.TensorSpec([None], tf.int32),
    tf.RaggedTensorSpec([None, None], tf.string, 1),
]
GRAPH = tf.function(
    lambda ids, lengths, words: restored(SYMBOLS, ids, lengths, words, MOST),
    input_signature=SPECS, autograph=False,
)  # fmt: skip


def in_graph(
    ids: Sequence[Sequence[int]], lengths: Sequence[int], words: Sequence[Sequence[str]]
) -> list[str]:
    width = len(ids[0]) if ids else 3
    trees = GRAPH(
        tf.constant(ids, tf.int32, shape=[len(ids), width]),
        tf.constant(lengths, tf.int32),
        tf.ragged.constant(words, tf.string, ragged_rank=1),
    )
    return [tree.decode() for tree in trees.numpy()]


def by_reference(
    ids: Sequence[Sequence[int]], lengths: Sequence[int], words: Sequence[Sequence[str]]
) -> list[str]:
    def symbols(row: Sequence[int], length: int) -> list[str]:
        return [SYMBOLS[i] for i in row[:length] if 0 <= i < len(SYMBOLS)]

    return [
        str(restore(sentence, symbols(row, length))) if sentence else ""
        for row, length, sentence in zip(ids, lengths, words, strict=True)
    ]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, MOST), st.integers(0, 2**32))
def test_thousands_of_random_sequences(width: int, seed: int) -> None:
    # 64 rows an example, which Hypothesis itself would take too long to draw.
    source = random.Random(seed)
    rows = 64
    likely = source.sample(range(-1, len(SYMBOLS) + 1), source.randint(1, 6))
    ids = [[source.choice(likely) for _ in range(width)] for _ in range(rows)]
    lengths = [source.randint(0, width) for _ in range(rows)]
    words = [[f"w{i}" for i in range(source.choice([0, 1, 2, 5, 30]))] for _ in range(rows)]
    assert in_graph(ids, lengths, words) == by_reference(ids, lengths, words)


OPEN, CLOSE, WORD = SYMBOLS.index("(S"), SYMBOLS.index(")S"), SYMBOLS.index("XX")


@pytest.mark.parametrize("words", [["a"], ["a", "b", "c"], ["w"] * MOST])
@pytest.mark.parametrize(
    "ids",
    [
        [],
        [OPEN] * MOST,
        [CLOSE] * MOST,
        [WORD] * MOST,
        [0] * MOST,
        [10**9, -(10**9), len(SYMBOLS)],
        [OPEN] * (MOST - 1) + [WORD],
        [OPEN] * (MOST // 2) + [CLOSE] * (MOST // 2),
        [OPEN, CLOSE] * (MOST // 2),
        [OPEN, WORD, CLOSE, CLOSE] * (MOST // 4),
    ],
    ids=["none", "opening", "closing", "words", "nothing", "no ids", "deep", "empty", "empties",
         "too many closing"],
)  # fmt: skip
def test_extremes(ids: list[int], words: list[str]) -> None:
    assert in_graph([ids], [len(ids)], [words]) == by_reference([ids], [len(ids)], [words])


def test_rows_do_not_know_of_each_other() -> None:
    ids = [[OPEN, WORD, CLOSE], [WORD, WORD, WORD], [OPEN, OPEN, OPEN]]
    words = [["a"] * 200, [], ["ä", "-LRB-"]]
    together = in_graph(ids, [3, 2, 1], words)
    assert together == by_reference(ids, [3, 2, 1], words)
    for row in range(3):
        assert in_graph([ids[row]], [[3, 2, 1][row]], [words[row]]) == [together[row]]


def test_no_rows() -> None:
    assert in_graph([], [], []) == []


def test_no_op_that_a_server_lacks_and_no_loop() -> None:
    graph = GRAPH.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    ops = {node.op for node in nodes}
    assert ops <= served_ops()
    assert not ops & {"Assert", "While", "StatelessWhile", "StatefulPartitionedCall"}
