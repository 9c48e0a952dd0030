"""Reads trees without the parts that are not scored. Errors name the line and column."""

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.errors import InputError
from keras_transformer.extensions.paper.parsing.trees import (
    Constituent,
    Tree,
    linearize,
    parse_trees,
    read_trees,
    restore,
    symbols_of,
)
from tests.builders import refuses
from tests.extensions.paper.parsing.sentences import SYMBOLS, TREEBANK, trees
from tests.messages import mentions, tells


def parsed(*lines: str) -> list[str]:
    return [str(tree) for tree in parse_trees(lines, "text")]


def test_words_tags_and_constituents() -> None:
    (tree,) = parse_trees(["(S (NP (DT The) (NN cat)) (VP (VBZ sleeps)) (. .))"], "text")
    assert tree.words == ("The", "cat", "sleeps", ".")
    assert tree.tags == ("DT", "NN", "VBZ", ".")
    assert tree.constituents == (
        Constituent("S", 0, 4), Constituent("NP", 0, 2), Constituent("VP", 2, 3)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        # Traces, and constituents that contain nothing else, at any depth.
        ("(S (NP-SBJ (-NONE- *)) (VP (VB eat) (SBAR (-NONE- 0) (S (-NONE- *T*-1)))))",
         "(TOP (S (VP (VB eat))))"),
        # Function tags and indices of labels, but not of tags of words.
        ("(S (NP-SBJ=2 (NN a)) (ADVP|PRT-CLR (-LRB- -LRB-)) (-X- (NN b)))",
         "(TOP (S (NP (NN a)) (ADVP|PRT (-LRB- -LRB-)) (-X- (NN b))))"),
        # The outermost bracket.
        ("( (S (NN a)))", "(TOP (S (NN a)))"),
        ("((S (NN a)))", "(TOP (S (NN a)))"),
        ("(ROOT (S (NN a)) (. .))", "(TOP (S (NN a)) (. .))"),
        ("(TOP (NN a))", "(TOP (NN a))"),
        ("(NN a)", "(TOP (NN a))"),
        # Unary chains are kept, and words can contain any characters.
        ("(S (S (NP (NP (NN \u200aa-b=c)))))", "(TOP (S (S (NP (NP (NN \u200aa-b=c))))))"),
    ],
)  # fmt: skip
def test_traces_and_empty_constituents_are_left_out(text: str, tree: str) -> None:
    assert parsed(text) == [tree]


def test_trees_are_one_a_line_or_several_or_each_on_several() -> None:
    first, second = "(TOP (S (NN a)))", "(TOP (NP (NN b)))"
    assert parsed(first, second) == [first, second]
    assert parsed(first + second) == [first, second]
    assert parsed("", "(", "  (S", "\t(NN a)", "))  (TOP (NP ( NN b )))", "") == [first, second]
    assert parsed() == parsed("", "  ") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(S (NN a)", mentions("text", "line 1", "column 1", "tree", "closed")),
        ("(S (NN a)\n(S (NN b))", mentions("text", "line 1", "column 1", "tree")),
        ("( (S (NN a))\n( (S (NN b)))",
         mentions("text", "line 2", "column 1", "bracket", "label", "line 1")),
        ("(S (NN a)))", mentions("text", "line 1", "column 11", "closes")),
        ("(S (NN a))\n\n oh", mentions("text", "line 3", "column 2", "'oh'", "brackets")),
        ("(S (NN a b))", mentions("text", "line 1", "column 10", "'b'", "'a'")),
        ("(S (NN a) b)", mentions("text", "line 1", "column 11", "'b'", "brackets")),
        ("(S (NN a (NN b)))", mentions("text", "line 1", "column 10", "'a'", "bracket")),
        ("(S (NN))", mentions("text", "line 1", "column 4", "(NN)", "empty")),
        ("()", mentions("text", "line 1", "column 1", "()", "empty")),
        ("(S (NP (-NONE- *)))", mentions("text", "line 1", "column 19", "tree", "words")),
    ],
)  # fmt: skip
def test_invalid_trees_are_reported_with_their_place(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        parsed(*text.split("\n"))
    assert re.search(message, str(error.value))


@pytest.mark.parametrize("text", ["(S (NN ab~cd))", "(S (N~N ab))", "(S~X (NN ab))", "(S (NN~ab))"])
def test_control_characters_are_reported_with_their_place(text: str) -> None:
    controls = {*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029} - set(b"\t\n\r")
    for control in controls:
        with pytest.raises(InputError) as error:
            parsed("(S (NN a))", text.replace("~", chr(control)))
        location = ("text", "line 2", f"column {text.index('~') + 1}")
        assert tells(str(error.value), *location, f"U+{control:04X}")


def test_files_are_utf8_text(tmp_path: Path) -> None:
    path = tmp_path / "a.tree"
    path.write_bytes("\ufeff(S (NN ä))\r\n".encode())
    assert [tree.words for tree in read_trees(path)] == [("ä",)]
    path.write_bytes(b"(S (NN a))\n(S (NN \xff))\n")
    refuses(read_trees, (path,), "line 2", "0xff")
    refuses(read_trees, (tmp_path / "none",), "missing")


def test_any_depth_is_accepted() -> None:
    depth = 20_000
    (tree,) = parse_trees(["(S " * depth + "(NN a)" + ")" * depth], "text")
    assert len(tree.constituents) == depth
    assert str(tree) == "(TOP" + " (S" * depth + " (NN a)" + ")" * (depth + 1)


@given(trees())
def test_a_tree_is_read_as_it_was_written(tree: Tree) -> None:
    assert list(parse_trees([str(tree)], "text")) == [tree]


TOKENS = st.sampled_from(["(", ")", "(S", "(NN a)", "a", " ", "-NONE-", "\n", "\u2028", "é"])


@given(st.one_of(st.text(), st.lists(TOKENS).map("".join)))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = list(parse_trees(text.split("\n"), "text"))
    except InputError as error:
        assert str(error).startswith("text, line ")
        return
    for tree in found:
        assert len(tree.words) == len(tree.tags) >= 1
        assert list(parse_trees([str(tree)], "text")) == [tree]


# Figure 2 of Vinyals et al. (2015), with tags instead of words.
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
        # Any label closes a bracket. If none is open, it is ignored.
        (")S )NP (S XX (NP XX )VP )", "(TOP (S (XX a) (NP (XX b))))"),
        # Open brackets are closed at the end.
        ("(S (NP XX (PP XX", "(TOP (S (NP (XX a) (PP (XX b)))))"),
        # Too many words: the rest are ignored, with the constituents that contain only
        # them.
        ("(S XX XX XX (NP XX )NP (VP XX )VP )S", "(TOP (S (XX a) (XX b)))"),
        # Too few words: the missing ones are added at the end, inside the open brackets.
        ("(S (NP XX )NP", "(TOP (S (NP (XX a)) (XX b)))"),
        ("(S (NP XX )NP )S", "(TOP (S (NP (XX a))) (XX b))"),
        ("(S (NP", "(TOP (S (NP (XX a) (XX b))))"),
        # Constituents without words are left out, at any depth.
        ("(S (NP (PP )PP )NP XX (X (Y )Y )X XX (Z )Z )S", "(TOP (S (XX a) (XX b)))"),
        (")S )S )S", "(TOP (XX a) (XX b))"),
        # Several trees; words outside of all trees; tags; a bracket without a label.
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


def test_a_real_treebank_is_read_linearized_and_restored(test_data: Path) -> None:
    for path in sorted((test_data / "craft" / "penn").glob("*.tree"))[:3]:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        for tree, line in zip(read_trees(path), lines, strict=True):
            # Read with a regular expression.
            leaves = re.findall(r"\(([^ ()]+) ([^ ()]+)\)", line)
            leaves = [leaf for leaf in leaves if leaf[0] != "-NONE-"]
            assert list(zip(tree.tags, tree.words, strict=True)) == leaves
            assert not any(set("-=") & set(found.label) for found in tree.constituents)
            assert restore(tree.words, linearize(tree)) == tree


def test_symbols_of_a_treebank() -> None:
    found = symbols_of(parse_trees(TREEBANK[2:3], "text"), tags=False)
    assert found == sorted(["XX", "(HEADING", ")HEADING", "(NP", ")NP"])
    assert symbols_of(parse_trees(["(NN a)"], "text")) == ["NN"]
