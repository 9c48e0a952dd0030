"""Scores of trees as EVALB computes them with the rules of COLLINS.prm (Sekine and Collins, 1997).

The constituents of a tree are labelled spans over its words, without punctuation and traces. The
constituents of the predicted tree match those of the gold tree as multisets:

    precision = matched / predicted,  recall = matched / gold,  F1 = 2 P R / (P + R)

The numbers are summed over all sentences. The tags of the gold tree determine which words are
punctuation, because models such as Vinyals et al. (2015) predict trees without tags. EVALB uses the
tags of each tree, which is the same if both agree on punctuation. EVALB's tagging accuracy is left
out.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Sequence

from keras_transformer.errors import InputError
from keras_transformer.extensions.paper.parsing.trees import TRACE, Constituent, Tree

RULES = "EVALB, COLLINS.prm; punctuation by the gold tags"
SHORT = 40  # maximum words, including punctuation, of sentences with separate scores
# COLLINS.prm: DELETE_LABEL, EQ_LABEL ADVP PRT, MAX_ERROR.
_DELETED = frozenset({"TOP", TRACE, ",", ":", "``", "''", "."})
_SAME = {"PRT": "ADVP"}
_MAX_ERRORS = 10
_Counts = tuple[int, int, int, int]  # matched, predicted, gold and crossing constituents


@dataclasses.dataclass(frozen=True)
class BracketScores:
    """Scores of sentences, with the fields of a JSON object. Rates and shares are in percent.

    Two constituents cross if they overlap and neither contains the other.
    """

    sentences: int  # sentences with a gold tree; the next two kinds are not scored
    errors: int  # the prediction has other words
    skipped: int  # the sentence has only punctuation
    matched: int  # constituents
    predicted: int
    gold: int
    precision: float
    recall: float
    f1: float
    complete_match: float  # share of the trees whose constituents are all correct
    average_crossing: float  # predicted constituents per sentence that cross a gold one
    no_crossing: float  # share of the trees without crossing constituents

    def summary(self) -> str:
        """Returns a short summary of the scores."""
        left_out = f", {self.errors:,} with other words not scored" if self.errors else ""
        return (
            f"F1 {self.f1:.2f} (precision {self.precision:.2f}, recall {self.recall:.2f}), "
            f"complete match {self.complete_match:.2f}, {self.sentences:,} sentences{left_out}"
        )


def score_trees(
    gold: Sequence[Tree], predicted: Sequence[Tree]
) -> tuple[BracketScores, BracketScores, list[str]]:
    """Scores predicted trees.

    Returns the scores of all sentences, those of sentences whose gold tree has at most `SHORT`
    words, and a message for each sentence that is not scored because its words differ.
    """
    if len(gold) != len(predicted) or not gold:
        raise InputError(
            f"There are {len(gold):,} gold trees but {len(predicted):,} predicted ones. Both need "
            "the same number, at least 1."
        )
    rows = [_count(own, other) for own, other in zip(gold, predicted, strict=True)]
    errors = [
        f"sentence {number} {row}, and is not scored"
        for number, row in enumerate(rows, start=1)
        if isinstance(row, str)
    ]
    if len(errors) > _MAX_ERRORS:
        raise InputError(
            f"{len(errors):,} of {len(gold):,} trees do not have the words of the gold tree, but "
            f"the limit is {_MAX_ERRORS}. The first: {errors[0]}"
        )
    short = [row for row, tree in zip(rows, gold, strict=True) if len(tree.words) <= SHORT]
    return _total(rows), _total(short), errors


def _count(gold: Tree, predicted: Tree) -> _Counts | str | None:
    """Counts the constituents of a sentence.

    Returns instead how the words differ, or None if all are punctuation.
    """
    kept = [tag not in _DELETED for tag in gold.tags]
    same_number = len(gold.words) == len(predicted.words)
    for own, other, counts in zip(gold.words, predicted.words, kept, strict=False):
        if own != other and (counts or not same_number):  # punctuation may be written differently
            return f"has the word {other!r} where the gold tree has {own!r}"
    if not same_number:
        return f"has {len(predicted.words)} words, the gold tree {len(gold.words)}"
    if not any(kept):
        return None
    ours, theirs = _spans(gold, kept), _spans(predicted, kept)
    crossing = sum(
        any(
            one.start < other.start < one.end < other.end
            or other.start < one.start < other.end < one.end
            for other in ours
        )
        for one in theirs
    )
    matched = (collections.Counter(ours) & collections.Counter(theirs)).total()
    return matched, len(theirs), len(ours), crossing


def _spans(tree: Tree, kept: Sequence[bool]) -> list[Constituent]:
    """Returns the scored constituents as spans over the words that are kept."""
    before = [0, *itertools.accumulate(map(int, kept))]  # number of kept words before each position
    spans = (
        Constituent(_SAME.get(label, label), before[start], before[end])
        for label, start, end in tree.constituents
        if label not in _DELETED
    )
    return [span for span in spans if span.start < span.end]


def _total(rows: Sequence[_Counts | str | None]) -> BracketScores:
    scored = [row for row in rows if isinstance(row, tuple)]
    matched, predicted, gold, crossing = (sum(row[i] for row in scored) for i in range(4))
    precision, recall = _percent(matched, predicted), _percent(matched, gold)
    complete = sum(row[0] == row[1] == row[2] for row in scored)
    return BracketScores(
        sentences=len(rows),
        errors=sum(isinstance(row, str) for row in rows),
        skipped=sum(row is None for row in rows),
        matched=matched,
        predicted=predicted,
        gold=gold,
        precision=precision,
        recall=recall,
        f1=2 * precision * recall / (precision + recall) if matched else 0.0,
        complete_match=_percent(complete, len(scored)),
        average_crossing=crossing / len(scored) if scored else 0.0,
        no_crossing=_percent(sum(row[3] == 0 for row in scored), len(scored)),
    )


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
