"""Invented trees: a small treebank, and strategies that draw trees and symbols."""

from hypothesis import strategies as st

from keras_transformer.extensions.paper.parsing.trees import Tree, restore

# As the Penn Treebank writes them: traces, function tags, indices, an outermost bracket.
TREEBANK = (
    "( (S (NP-SBJ-1 (DT The) (NNS mice)) (VP (VBD were) (RB n't) (VP (VBN fed) (NP-1 (-NONE- *))))"
    " (. .)) )",
    "( (S (NP-SBJ (PRP They)) (VP (VBP eat) (NP (NP (NNS seeds)) (PP-LOC (IN in) (NP (DT the) "
    "(NN lab))))) (. .)) )",
    "( (HEADING (NP (NNS Results))) )",
    "( (S (NP-SBJ (NP (JJ Old) (NNS mice)) (NP (-LRB- -LRB-) (NN OM) (-RRB- -RRB-))) (VP (VBP eat) "
    "(ADVP-MNR (RB slowly))) (. .)) )",
    "( (S (NP-SBJ (DT The) (NN lab)) (VP (VBD was) (ADJP-PRD (JJ old))) (. .)) )",
    "( (S (NP-SBJ (PRP They)) (VP (VBP eat) (PRT (RP up)) (NP (DT the) (NNS seeds))) (. .)) )",
)

WORDS = st.text(
    st.characters(codec="utf-8", exclude_categories=("Z", "C"), exclude_characters="()"), min_size=1
)
LABELS = st.sampled_from(["S", "NP", "VP", "PP", "SBAR", "ADVP", "X|Y"])
TAGS = st.sampled_from(["NN", "DT", ",", ".", "-LRB-", "VBZ", "XX"])
SYMBOLS = st.one_of(
    st.just("XX"),
    TAGS,
    LABELS.map("({}".format),
    LABELS.map("){}".format),
    st.sampled_from(["", "(", ")", "((", "))", "(a b", "a(b", "-NONE-"]),
)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Draws a well-formed tree with at least one word."""
    words = draw(st.lists(WORDS, min_size=1, max_size=8))
    tree = restore(words, draw(st.lists(SYMBOLS, max_size=40)))
    tags = draw(st.lists(TAGS, min_size=len(words), max_size=len(words)))
    return Tree(tree.words, tuple(tags), tree.constituents)
