"""EVALB's scores on cases that were counted by hand, with the rules of COLLINS.prm."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.extensions.paper.parsing.scoring import BracketScores, score_trees
from keras_transformer.extensions.paper.parsing.trees import Tree, parse_trees, restore
from tests.builders import refuses
from tests.extensions.paper.parsing.sentences import SYMBOLS, trees
from tests.messages import tells


def read(*texts: str) -> list[Tree]:
    return list(parse_trees(texts, "text"))


def scored(gold: str, predicted: str) -> BracketScores:
    return score_trees(read(gold), read(predicted))[0]


def counts(gold: str, predicted: str) -> tuple[int, int, int]:
    scores = scored(gold, predicted)
    return scores.matched, scores.predicted, scores.gold


GOLD = "(S (NP (DT the) (NN cat)) (VP (VBZ sees) (NP (DT a) (NN dog)) (PP (IN in) (NP (NN it)))))"


def test_counted_by_hand() -> None:
    # S 0-7, NP 0-2, VP 2-7, NP 3-5, PP 5-7, NP 6-7; predicted with an NP 3-7 and one label wrong.
    predicted = (
        "(S (NP (XX the) (XX cat)) (VP (XX sees) (NP (NP (XX a) (XX dog)) (PP (XX in) "
        "(ADJP (XX it))))))"
    )
    scores = scored(GOLD, predicted)
    assert (scores.matched, scores.predicted, scores.gold) == (5, 7, 6)
    assert scores.precision == pytest.approx(100 * 5 / 7)
    assert scores.recall == pytest.approx(100 * 5 / 6)
    assert scores.f1 == pytest.approx(100 * 10 / 13)
    assert (scores.complete_match, scores.average_crossing, scores.no_crossing) == (0, 0, 100)


@pytest.mark.parametrize(
    ("gold", "predicted", "expected"),
    [
        # The gold tags leave punctuation out: both S are the words a b.
        ("(S (NP (NN a) (, ,)) (VP (VB b)) (. .))", "(S (NP (XX a)) (XX ,) (VP (XX b) (XX .)))",
         (3, 3, 3)),
        ("(S (`` ``) (NP (NN a)) ('' ''))", "(NP (X (XX ``)) (S (XX a)) (XX ''))", (2, 2, 2)),
        # In COLLINS.prm, brackets, hyphens and words that look like a full stop are not
        # punctuation.
        ("(S (NN a) (-RRB- -RRB-))", "(S (S (XX a)) (XX -RRB-))", (1, 2, 1)),
        ("(S (NN a) (SYM .))", "(S (S (XX a)) (XX .))", (1, 2, 1)),
        # ADVP and PRT are one label.
        ("(VP (VB a) (PRT (RP b)))", "(VP (XX a) (ADVP (XX b)))", (2, 2, 2)),
        ("(VP (ADVP (PRT (RP b))))", "(VP (PRT (PRT (XX b))))", (3, 3, 3)),
        # As multisets: a bracket matches once.
        ("(NP (NP (NN a)))", "(NP (NP (NP (XX a))))", (2, 3, 2)),
        ("(NP (NP (NP (NN a))))", "(NP (XX a))", (1, 1, 3)),
        # The order of a unary chain does not count.
        ("(S (VP (NN a)))", "(VP (S (XX a)))", (2, 2, 2)),
        # Traces, function tags and the outermost bracket.
        ("( (S (NP-SBJ (-NONE- *)) (VP-TMP=1 (VB a))))", "(TOP (S (VP (XX a))))", (2, 2, 2)),
        # A TOP at any position is not scored, either.
        ("(S (NN a) (NN b))", "(S (TOP (XX a)) (XX b))", (1, 1, 1)),
        # No constituents.
        ("(NN a)", "(XX a)", (0, 0, 0)),
        ("(S (NN a))", "(XX a)", (0, 0, 1)),
    ],
)  # fmt: skip
def test_rules(gold: str, predicted: str, expected: tuple[int, int, int]) -> None:
    assert counts(gold, predicted) == expected


def test_crossing_brackets_are_the_predicted_ones() -> None:
    gold = "(S (NP (NN a) (NN b)) (VP (VB c) (NP (NN d) (NN e))))"
    # 1-3 crosses NP 0-2 and VP 2-5, and counts once; 3-5 is the gold NP; 0-3 crosses VP.
    predicted = "(S (X (XX a) (Y (XX b) (XX c))) (NP (XX d) (XX e)))"
    scores = scored(gold, predicted)
    assert (scores.average_crossing, scores.no_crossing) == (2, 0)
    assert (scores.matched, scores.predicted, scores.gold) == (2, 4, 4)


def test_sums_are_over_all_sentences_and_those_of_forty_words() -> None:
    def sentence(label: str, count: int, tag: str = "NN", last: str = ".") -> str:
        return f"(S ({label} {f'({tag} w) ' * count}) ({last} .))"

    # 39 words and a full stop count as 40. 40 words and a full stop are too long.
    gold = read(sentence("NP", 39), sentence("NP", 40), sentence("NP", 2))
    predicted = read(sentence("VP", 39), sentence("NP", 40), sentence("NP", 2))
    scores, short, _ = score_trees(gold, predicted)
    # Without the full stop, both brackets of a sentence contain all of its words.
    assert (scores.matched, scores.gold, scores.sentences) == (5, 6, 3)
    assert scores.f1 == pytest.approx(100 * 5 / 6)
    assert scores.complete_match == pytest.approx(100 * 2 / 3)
    assert (short.matched, short.gold, short.sentences) == (3, 4, 2)
    assert short.complete_match == 50
    assert short.f1 == 75


def test_other_words_are_errors_that_are_not_scored() -> None:
    gold = read("(S (NN a))", "(S (NN b))", "(S (NN c) (. .))", "(X (. .))")
    predicted = read("(S (XX a))", "(S (XX x))", "(S (XX c))", "(X (XX .))")
    scores, _, (another, shorter) = score_trees(gold, predicted)
    assert tells(another, "sentence 2", "'x'", "'b'")
    assert tells(shorter, "sentence 3", "1", "2")
    # A sentence with nothing but punctuation is skipped.
    assert (scores.sentences, scores.errors, scores.skipped) == (4, 2, 1)
    assert (scores.matched, scores.gold, scores.complete_match) == (1, 1, 100)


def test_more_than_ten_errors_are_too_many() -> None:
    gold, other = read(*["(S (NN a))"] * 11), read(*["(S (NN b))"] * 11)
    assert score_trees(gold[:10], other[:10])[0].errors == 10
    refuses(score_trees, (gold, other), "11 of 11", "words", "gold")


def test_numbers_of_trees_must_be_equal() -> None:
    refuses(score_trees, (read("(NN a)"), []), "1 gold", "0 predicted")
    refuses(score_trees, ([], []), "0 gold", "0 predicted")


@given(trees(), st.lists(SYMBOLS, max_size=40))
def test_scores_are_scores(gold: Tree, symbols: list[str]) -> None:
    predicted = restore(gold.words, symbols)
    scores, *_ = score_trees([gold], [predicted])
    assert scores.errors == 0
    assert scores.matched <= min(scores.predicted, scores.gold)
    for value in (scores.precision, scores.recall, scores.f1, scores.no_crossing):
        assert 0 <= value <= 100
    # With both trees swapped and the same tags, precision and recall are swapped.
    swapped, *_ = score_trees([dataclasses.replace(predicted, tags=gold.tags)], [gold])
    assert (swapped.precision, swapped.recall) == (scores.recall, scores.precision)
    assert swapped.f1 == pytest.approx(scores.f1)
    own, *_ = score_trees([gold], [gold])
    assert own.matched == own.gold == own.predicted


def test_how_punctuation_is_written_does_not_count() -> None:
    gold = "(S (`` ``) (NP (NN a)) ('' ''))"
    assert counts(gold, "(S (`` \") (NP (NN a)) ('' \"))") == (2, 2, 2)
    assert scored(gold, "(S (`` ``) (NP (NN b)) ('' ''))").errors == 1
    assert scored(gold, "(S (`` ``) (NP (NN a)))").errors == 1
