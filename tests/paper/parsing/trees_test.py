"""Trees are read as they stand, without what is not scored; what is no tree is told by place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.errors import InputError
from keras_transformer.paper.parsing.trees import (
    Constituent,
    Tree,
    is_name,
    parse_trees,
    read_trees,
)
from tests.messages import mentions, tells
from tests.paper.parsing.sentences import TREEBANK, trees


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
        # Traces, and what holds nothing else, at any depth.
        ("(S (NP-SBJ (-NONE- *)) (VP (VB eat) (SBAR (-NONE- 0) (S (-NONE- *T*-1)))))",
         "(TOP (S (VP (VB eat))))"),
        # Function tags and indices, but not of tags of words, nor of labels that are one.
        ("(S (NP-SBJ=2 (NN a)) (ADVP|PRT-CLR (-LRB- -LRB-)) (-X- (NN b)))",
         "(TOP (S (NP (NN a)) (ADVP|PRT (-LRB- -LRB-)) (-X- (NN b))))"),
        # The outermost bracket.
        ("( (S (NN a)))", "(TOP (S (NN a)))"),
        ("((S (NN a)))", "(TOP (S (NN a)))"),
        ("(ROOT (S (NN a)) (. .))", "(TOP (S (NN a)) (. .))"),
        ("(TOP (NN a))", "(TOP (NN a))"),
        ("(NN a)", "(TOP (NN a))"),
        # Unary chains stay as they are, and words look like anything.
        ("(S (S (NP (NP (NN \u200aa-b=c)))))", "(TOP (S (S (NP (NP (NN \u200aa-b=c))))))"),
    ],
)  # fmt: skip
def test_what_is_no_constituent_is_left_out(text: str, tree: str) -> None:
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
def test_what_is_no_tree_is_told_by_its_place(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        parsed(*text.split("\n"))
    assert re.search(message, str(error.value))


@pytest.mark.parametrize("text", ["(S (NN ab~cd))", "(S (N~N ab))", "(S~X (NN ab))", "(S (NN~ab))"])
def test_control_characters_are_told_by_their_place(text: str) -> None:
    controls = {*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029} - set(b"\t\n\r")
    for control in controls:
        with pytest.raises(InputError) as error:
            parsed("(S (NN a))", text.replace("~", chr(control)))
        place = ("text", "line 2", f"column {text.index('~') + 1}")
        assert tells(str(error.value), *place, f"U+{control:04X}")


def test_tabs_and_returns_are_spaces() -> None:
    assert parsed("\t(S\r(NN\ta))\r") == ["(TOP (S (NN a)))"]


@pytest.mark.parametrize("character", ["\0", "\x0b", "\x1f", "\x7f", "\x85", "\u2028", "\t", " "])
def test_names_have_neither_spaces_nor_control_characters(character: str) -> None:
    assert is_name("a\u200ab") and not is_name(f"a{character}b") and not is_name(character)


def test_files_are_utf8_text(tmp_path: Path) -> None:
    path = tmp_path / "a.tree"
    path.write_bytes("\ufeff(S (NN ä))\r\n".encode())
    assert [tree.words for tree in read_trees(path)] == [("ä",)]
    path.write_bytes(b"(S (NN a))\n(S (NN \xff))\n")
    with pytest.raises(InputError, match=mentions("line 2", "0xff")):
        read_trees(path)
    with pytest.raises(InputError, match=mentions("missing")):
        read_trees(tmp_path / "none")


def test_no_depth_is_too_deep() -> None:
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


def test_a_real_treebank(test_data: Path) -> None:
    # Read by regular expressions alone: words are what stands before a closing bracket.
    import re

    path = sorted((test_data / "craft" / "penn").glob("*.tree"))[0]
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    found = read_trees(path)
    assert len(found) == len(lines) > 0
    for tree, line in zip(found, lines, strict=True):
        leaves = re.findall(r"\(([^ ()]+) ([^ ()]+)\)", line)
        assert list(zip(tree.tags, tree.words, strict=True)) == [
            leaf for leaf in leaves if leaf[0] != "-NONE-"
        ]
        assert not any(set("-=") & set(each.label) for each in tree.constituents)


def test_the_small_treebank() -> None:
    assert parsed(TREEBANK[0]) == [
        "(TOP (S (NP (DT The) (NNS mice)) (VP (VBD were) (RB n't) (VP (VBN fed))) (. .)))"
    ]
