"""Splits any text into words like a treebank, without changes to the words."""

import random
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.export.saved_model.serving_checks import served_ops
from keras_transformer.extensions.paper.parsing.text_ops import restore_trees, tokenize, words_of
from keras_transformer.extensions.paper.parsing.trees import read_trees, restore

TEXT = [tf.TensorSpec([None], tf.string)]
SPLIT = tf.function(lambda text: words_of(tokenize(text)), input_signature=TEXT, autograph=False)
WORDS = tf.function(words_of, input_signature=TEXT, autograph=False)


def words(text: str | bytes) -> list[str]:
    return [word.decode() for word in SPLIT(tf.constant([text])).to_list()[0]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The mice weren't fed.", "The mice were n't fed ."),
        ("It's John's, they'll say; isn't it?", "It 's John 's , they 'll say ; is n't it ?"),
        ("the mice’s and mice' tails", "the mice ’s and mice ' tails"),
        ("He paid $1,000.50 (5%) at 10:30.", "He paid $ 1,000.50 -LRB- 5 % -RRB- at 10:30 ."),
        ('He said: "Stop."', 'He said : " Stop . "'),
        ("'Quoted' “words” (see Fig. 3A).", "' Quoted ' “ words ” -LRB- see Fig. 3A -RRB- ."),
        ("beta-catenin and a-b-c", "beta - catenin and a - b - c"),
        ("non-coding 2-fold Anti-mouse pre- and", "non-coding 2-fold Anti-mouse pre- and"),
        ("and/or a/b/c http://a.org", "and / or a / b / c http://a.org"),
        ("x=5, p<0.05 [3,4]", "x = 5 , p < 0.05 [ 3,4 ]"),
        ("so--well... then – no", "so -- well ... then – no"),
        ("Dr. Smith of the U.S. left.", "Dr. Smith of the U.S. left ."),
        ("Results", "Results"),
        (".", "."),
        ("", ""),
        (" \t\n ", ""),
    ],
)
def test_text_is_split_as_treebanks_split_it(text: str, expected: str) -> None:
    assert words(text) == expected.split()


def test_only_spaces_separate_words() -> None:
    texts = ["a(b) 'c'. ", "\u200ad\xa0e f\tg\x00h\u2028i\x85j", b"\xffk \xe4", "", "-LRB- ("]
    assert [[w.decode() for w in row] for row in WORDS(tf.constant(texts)).to_list()] == [
        ["a-LRB-b-RRB-", "'c'."],
        ["\u200ad\xa0e", "f", "g", "h", "i", "j"],
        ["\ufffdk", "\ufffd"],
        [],
        ["-LRB-", "-LRB-"],
    ]


LIKELY = st.sampled_from([*"ab1.,:;-'’\"()/ ", "n't", "'s", "--", "...", "non-", "\x01", "é", "\n"])


@given(st.lists(LIKELY, max_size=30).map("".join) | st.text())
def test_only_spaces_are_added_between_letters(text: str) -> None:
    spaces = r"[\x00-\x20\x7f-\x9f\u2028\u2029]+"
    escaped = text.replace("(", "-LRB-").replace(")", "-RRB-")
    found = words(text)
    assert "".join(found) == re.sub(spaces, "", escaped)
    assert all(found)
    (plain,) = WORDS(tf.constant([text])).to_list()
    assert [word.decode() for word in plain] == [w for w in re.split(spaces, escaped) if w]


@given(st.binary())
def test_any_bytes_are_words(text: bytes) -> None:
    for word in words(text):
        assert word and not set(word) & set("() \n\x00")


def test_words_of_a_treebank_are_not_split(test_data: Path) -> None:
    trees = [
        tree
        for path in sorted((test_data / "craft" / "penn").glob("*.tree"))[:3]
        for tree in read_trees(path)
    ]
    texts = [" ".join(tree.words).replace("-LRB-", "(").replace("-RRB-", ")") for tree in trees]
    found = SPLIT(tf.constant(texts)).to_list()
    same = sum(
        [word.decode() for word in row] == list(tree.words)
        for row, tree in zip(found, trees, strict=True)
    )
    assert same > 0.98 * len(trees)


SYMBOLS = ["", "", "XX", "NN", "(S", ")S", "(NP", ")NP", "(VP", ")VP", "(", "((", "a(b", "-NONE-"]
MOST = 80
SPECS = [
    tf.TensorSpec([None, None], tf.int32),
    tf.TensorSpec([None], tf.int32),
    tf.RaggedTensorSpec([None, None], tf.string, 1),
]
GRAPH = tf.function(
    lambda ids, lengths, words: restore_trees(SYMBOLS, ids, lengths, words, MOST),
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


@settings(max_examples=60)
@given(st.integers(0, MOST), st.integers(0, 2**32))
def test_thousands_of_random_sequences(width: int, seed: int) -> None:
    # 64 rows per example. Hypothesis would take too long to draw them.
    source = random.Random(seed)
    rows = 64
    likely = source.sample([-1, *range(len(SYMBOLS) + 1), 10**9], source.randint(1, 6))
    ids = [[source.choice(likely) for _ in range(width)] for _ in range(rows)]
    lengths = [source.randint(0, width) for _ in range(rows)]
    words = [[f"w{i}" for i in range(source.choice([0, 1, 2, 5, 30]))] for _ in range(rows)]
    assert in_graph(ids, lengths, words) == by_reference(ids, lengths, words)


def test_no_rows() -> None:
    assert in_graph([], [], []) == []


def test_no_op_that_a_server_lacks_and_no_loop() -> None:
    graph = GRAPH.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    ops = {node.op for node in nodes}
    assert ops <= served_ops()
    assert not ops & {"Assert", "While", "StatelessWhile", "StatefulPartitionedCall"}
