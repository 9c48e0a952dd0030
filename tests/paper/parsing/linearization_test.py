"""Symbols of trees, and trees of any symbols whatever."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.paper.parsing.linearization import linearize, restore, symbols_of
from keras_transformer.paper.parsing.trees import Tree, parse_trees, read_trees
from tests.paper.parsing.sentences import SYMBOLS, TREEBANK, trees

# Figure 2 of Vinyals et al. (2015), tags in place of words.
JOHN = "(S (NP (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog))) (. .))"


def test_the_example_of_the_literature() -> None:
    (tree,) = parse_trees([JOHN], "text")
    assert " ".join(linearize(tree, tags=False)) == "(S (NP XX )NP (VP XX (NP XX XX )NP )VP XX )S"
    assert " ".join(linearize(tree)) == "(S (NP NNP )NP (VP VBZ (NP DT NN )NP )VP . )S"
    assert str(restore(tree.words, linearize(tree))) == f"(TOP {JOHN})"


@pytest.mark.parametrize(
    ("symbols", "tree"),
    [
        ("", "(TOP (XX a) (XX b))"),
        ("(S XX XX )S", "(TOP (S (XX a) (XX b)))"),
        # Any label closes, and nothing closes where nothing is open.
        (")S )NP (S XX (NP XX )VP )", "(TOP (S (XX a) (NP (XX b))))"),
        # Brackets that are left open close at the end.
        ("(S (NP XX (PP XX", "(TOP (S (NP (XX a) (PP (XX b)))))"),
        # Too many words: those beyond the last are nothing, and so is what holds only them.
        ("(S XX XX XX (NP XX )NP (VP XX )VP )S", "(TOP (S (XX a) (XX b)))"),
        # Too few: the others come at the end, in what is open there.
        ("(S (NP XX )NP", "(TOP (S (NP (XX a)) (XX b)))"),
        ("(S (NP XX )NP )S", "(TOP (S (NP (XX a))) (XX b))"),
        ("(S (NP", "(TOP (S (NP (XX a) (XX b))))"),
        # Nothing is left of what holds no word, at any depth and anywhere.
        ("(S (NP (PP )PP )NP XX (X (Y )Y )X XX (Z )Z )S", "(TOP (S (XX a) (XX b)))"),
        (")S )S )S", "(TOP (XX a) (XX b))"),
        # Several trees; words outside of all; tags; a bracket that has no label.
        ("(S XX )S (NP NN )NP", "(TOP (S (XX a)) (NP (NN b)))"),
        ("NN (S ( XX )S", "(TOP (NN a) (S (XX b)))"),
    ],
)
def test_a_tree_of_any_symbols(symbols: str, tree: str) -> None:
    assert str(restore(["a", "b"], symbols.split())) == tree


def test_one_word_and_none() -> None:
    assert str(restore(["a"], [])) == "(TOP (XX a))"
    assert str(restore(["-LRB-"], ["(NP", "XX", ")NP"])) == "(TOP (NP (XX -LRB-)))"
    assert restore([], ["(S", "XX", ")S"]) == Tree((), (), ())


def by_nesting(words: Sequence[str], symbols: Sequence[str]) -> str:
    """The rules of `restore` once more, with nested lists and recursion."""
    left = list(words)
    top: list = ["TOP"]
    stack = [top]
    for symbol in symbols:
        if symbol in ("", "(", "((", "(a b", "a(b", "-NONE-"):
            continue
        if symbol.startswith("("):
            stack[-1].append([symbol[1:]])
            stack.append(stack[-1][-1])
        elif symbol.startswith(")"):
            stack = stack[:-1] if len(stack) > 1 else stack
        elif left:
            stack[-1].append((symbol, left.pop(0)))
    stack[-1].extend(("XX", word) for word in left)

    def text(node: list | tuple) -> str:
        if isinstance(node, tuple):
            return f"({node[0]} {node[1]})"
        children = [child for child in map(text, node[1:]) if child]
        return f"({' '.join([node[0], *children])})" if children else ""

    return text(top)


@given(st.integers(1, 8), st.lists(SYMBOLS, max_size=30))
def test_two_readings_of_the_rules_agree(count: int, symbols: list[str]) -> None:
    words = [f"w{i}" for i in range(count)]
    assert str(restore(words, symbols)) == by_nesting(words, symbols)


@given(st.lists(st.just("w"), min_size=1, max_size=6), st.lists(SYMBOLS | st.text(), max_size=30))
def test_any_symbols_give_a_tree_over_exactly_the_words(
    words: list[str], symbols: list[str]
) -> None:
    tree = restore(words, symbols)
    assert tree.words == tuple(words) and len(tree.tags) == len(words)
    for one in tree.constituents:
        assert 0 <= one.start < one.end <= len(words)
        for other in tree.constituents:
            apart = one.end <= other.start or other.end <= one.start
            inside = other.start <= one.start and one.end <= other.end
            assert apart or inside or (one.start <= other.start and other.end <= one.end)


@given(trees())
def test_symbols_give_back_the_tree(tree: Tree) -> None:
    assert restore(tree.words, linearize(tree)) == tree
    untagged = dataclasses.replace(tree, tags=("XX",) * len(tree.words))
    assert restore(tree.words, linearize(tree, tags=False)) == untagged
    assert set(linearize(tree, tags=False)) <= set(symbols_of([tree], tags=False)) | {"XX"}
    assert set(linearize(tree)) <= set(symbols_of([tree]))


def test_a_real_treebank(test_data: Path) -> None:
    for path in sorted((test_data / "craft" / "penn").glob("*.tree"))[:3]:
        for tree in read_trees(path):
            assert restore(tree.words, linearize(tree)) == tree


def test_symbols_of_a_treebank() -> None:
    found = symbols_of(parse_trees(TREEBANK[2:3], "text"), tags=False)
    assert found == sorted(["XX", "(HEADING", ")HEADING", "(NP", ")NP"])
    assert symbols_of(parse_trees(["(NN a)"], "text")) == ["NN"]


@given(st.lists(SYMBOLS | st.text(), max_size=20))
def test_a_tree_of_any_symbols_is_well_formed(symbols: list[str]) -> None:
    tree = restore(["a", "b"], symbols)
    (again,) = parse_trees(str(tree).split("\n"), "text")
    assert (again.words, again.tags) == (tree.words, tree.tags)
