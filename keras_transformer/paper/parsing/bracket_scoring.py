"""Scores of trees as EVALB computes them with the rules of COLLINS.prm (Sekine and Collins, 1997).

The constituents of a tree are labelled spans over its words, from which punctuation and traces
are left out. Those of the predicted tree match those of the gold tree as multisets:

    precision = matched / predicted,  recall = matched / gold,  F1 = 2 P R / (P + R)

summed over all sentences. Which words are punctuation say the gold tree's tags, by position:
trees of a model that predicts no tags, as that of Vinyals et al. (2015), have none of their own.
EVALB takes each tree's own, which is the same where both agree on punctuation; tagging accuracy,
which it prints too, has no meaning here.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.paper.parsing.trees import TRACE, Constituent, Tree

RULES = "EVALB, COLLINS.prm; punctuation by the gold tags"
SHORT = 40  # words, punctuation counted, of the sentences that are scored by themselves, too
# COLLINS.prm: DELETE_LABEL, EQ_LABEL ADVP PRT, MAX_ERROR.
_DELETED = frozenset({"TOP", TRACE, ",", ":", "``", "''", "."})
_SAME = {"PRT": "ADVP"}
_MAX_ERRORS = 10


@dataclasses.dataclass(frozen=True)
class BracketScores:
    """Scores of sentences, in the fields of a JSON object.

    Attributes:
        sentences: number of gold trees.
        errors: those of them whose words are not the prediction's. They are not scored.
        skipped: those of them that have no words but punctuation. They are not scored.
        matched, predicted, gold: constituents of the others.
        precision, recall, f1: 0 to 100.
        complete_match: share of the others whose constituents are all there and all right, 0
            to 100.
        average_crossing: predicted constituents a sentence that overlap one of the gold tree and
            are neither inside it nor around it.
        no_crossing: share of the others without such, 0 to 100.
    """

    sentences: int
    errors: int
    skipped: int
    matched: int
    predicted: int
    gold: int
    precision: float
    recall: float
    f1: float
    complete_match: float
    average_crossing: float
    no_crossing: float

    def summary(self) -> str:
        """Returns the scores in a few words, for a person."""
        left_out = f", {self.errors:,} with other words not scored" if self.errors else ""
        return (
            f"F1 {self.f1:.2f} (precision {self.precision:.2f}, recall {self.recall:.2f}), "
            f"complete match {self.complete_match:.2f}, {self.sentences:,} sentences{left_out}"
        )


@dataclasses.dataclass(frozen=True)
class TreebankScores:
    """Scores of a treebank, and of its sentences of up to 40 words.

    Attributes:
        all: of all sentences.
        short: of those whose gold tree has at most `SHORT` words, punctuation counted.
        errors: for each sentence whose words are not the prediction's, what differs.
    """

    all: BracketScores
    short: BracketScores
    errors: tuple[str, ...]

    def summary(self) -> str:
        """Returns two lines, for a person."""
        return (
            f"all sentences:             {self.all.summary()}\n"
            f"sentences of <= {SHORT} words: {self.short.summary()}"
        )

    def fields(self) -> dict[str, Any]:
        """Returns what is in it, and by which rules, ready for JSON."""
        return {
            "all": dataclasses.asdict(self.all),
            f"up_to_{SHORT}_words": dataclasses.asdict(self.short),
            "rules": RULES,
        }


def score_trees(gold: Sequence[Tree], predicted: Sequence[Tree]) -> TreebankScores:
    """Scores predicted trees.

    Raises:
        InputError: for different numbers of trees, none, or more than 10 sentences whose words
            differ, as EVALB does.
    """
    if len(gold) != len(predicted) or not gold:
        raise InputError(
            f"there are {len(gold):,} gold trees and {len(predicted):,} predicted ones; expected "
            "as many of one as of the other, at least one"
        )
    rows, errors = [], []
    for number, (own, other) in enumerate(zip(gold, predicted, strict=True), start=1):
        rows.append(_counts(own, other))
        if rows[-1].error:
            errors.append(f"sentence {number} {rows[-1].error}, and is not scored")
    if len(errors) > _MAX_ERRORS:
        raise InputError(
            f"{len(errors):,} of {len(gold):,} trees have other words than the gold tree; expected "
            f"at most {_MAX_ERRORS}. The first: {errors[0]}"
        )
    short = [row for row, tree in zip(rows, gold, strict=True) if len(tree.words) <= SHORT]
    return TreebankScores(_totals(rows), _totals(short), tuple(errors))


@dataclasses.dataclass(frozen=True)
class _Counts:
    """What one sentence adds to the totals."""

    matched: int = 0
    predicted: int = 0
    gold: int = 0
    crossing: int = 0
    error: str = ""  # how the words differ
    is_skipped: bool = False


def _counts(gold: Tree, predicted: Tree) -> _Counts:
    kept = [tag not in _DELETED for tag in gold.tags]
    if error := _difference(gold, predicted, kept):
        return _Counts(error=error)
    if not any(kept):
        return _Counts(is_skipped=True)
    own, other = _spans(gold, kept), _spans(predicted, kept)
    return _Counts(
        (collections.Counter(own) & collections.Counter(other)).total(),
        len(other),
        len(own),
        sum(any(_cross(theirs, ours) for ours in own) for theirs in other),
    )


def _spans(tree: Tree, kept: Sequence[bool]) -> list[Constituent]:
    """Returns the constituents that count, in terms of the words that are kept."""
    before = [0, *itertools.accumulate(map(int, kept))]  # of each place, words kept before it
    spans = (
        Constituent(_SAME.get(each.label, each.label), before[each.start], before[each.end])
        for each in tree.constituents
        if each.label not in _DELETED
    )
    return [span for span in spans if span.start < span.end]


def _cross(one: Constituent, other: Constituent) -> bool:
    return (
        one.start < other.start < one.end < other.end
        or other.start < one.start < other.end < one.end
    )


def _difference(gold: Tree, predicted: Tree, kept: Sequence[bool]) -> str:
    """Says how the words differ, or nothing; how punctuation is written does not count."""
    as_many = len(gold.words) == len(predicted.words)
    for own, other, counts in zip(gold.words, predicted.words, kept, strict=False):
        if own != other and (counts or not as_many):
            return f"has the word {other!r} where the gold tree has {own!r}"
    return "" if as_many else f"has {len(predicted.words)} words, the gold tree {len(gold.words)}"


def _totals(rows: Sequence[_Counts]) -> BracketScores:
    scored = [row for row in rows if not (row.error or row.is_skipped)]
    matched, predicted, gold, crossing = (
        sum(getattr(row, name) for row in scored)
        for name in ("matched", "predicted", "gold", "crossing")
    )
    precision, recall = _percent(matched, predicted), _percent(matched, gold)
    complete = sum(row.matched == row.predicted == row.gold for row in scored)
    return BracketScores(
        sentences=len(rows),
        errors=sum(bool(row.error) for row in rows),
        skipped=sum(row.is_skipped for row in rows),
        matched=matched,
        predicted=predicted,
        gold=gold,
        precision=precision,
        recall=recall,
        f1=2 * precision * recall / (precision + recall) if matched else 0.0,
        complete_match=_percent(complete, len(scored)),
        average_crossing=crossing / len(scored) if scored else 0.0,
        no_crossing=_percent(sum(row.crossing == 0 for row in scored), len(scored)),
    )


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
