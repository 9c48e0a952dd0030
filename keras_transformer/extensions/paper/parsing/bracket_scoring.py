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
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.extensions.paper.parsing.trees import (
    TRACE,
    Constituent,
    Tree,
)

RULES = "EVALB, COLLINS.prm; punctuation by the gold tags"
SHORT = 40  # maximum words, including punctuation, of sentences with separate scores
# COLLINS.prm: DELETE_LABEL, EQ_LABEL ADVP PRT, MAX_ERROR.
_DELETED = frozenset({"TOP", TRACE, ",", ":", "``", "''", "."})
_SAME = {"PRT": "ADVP"}
_MAX_ERRORS = 10


@dataclasses.dataclass(frozen=True)
class BracketScores:
    """Scores of sentences, with the fields of a JSON object.

    Attributes:
        sentences: number of gold trees.
        errors: number of gold trees whose words differ from the prediction. They are not scored.
        skipped: number of gold trees with only punctuation. They are not scored.
        matched: number of matched constituents of the other trees.
        predicted: number of predicted constituents.
        gold: number of gold constituents.
        precision: 0 to 100.
        recall: 0 to 100.
        f1: 0 to 100.
        complete_match: share of the scored trees whose constituents are all correct, 0 to 100.
        average_crossing: predicted constituents per sentence that overlap a gold constituent
            without being inside or around it.
        no_crossing: share of the scored trees without crossing constituents, 0 to 100.
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
        """Returns a short summary of the scores."""
        left_out = f", {self.errors:,} with other words not scored" if self.errors else ""
        return (
            f"F1 {self.f1:.2f} (precision {self.precision:.2f}, recall {self.recall:.2f}), "
            f"complete match {self.complete_match:.2f}, {self.sentences:,} sentences{left_out}"
        )


@dataclasses.dataclass(frozen=True)
class TreebankScores:
    """Scores of a treebank, and of its sentences of up to 40 words.

    Attributes:
        all: scores of all sentences.
        short: scores of sentences whose gold tree has at most `SHORT` words, with punctuation.
        errors: the difference for each sentence whose words differ from the prediction.
    """

    all: BracketScores
    short: BracketScores
    errors: tuple[str, ...]

    def summary(self) -> str:
        """Returns a summary of two lines."""
        return (
            f"all sentences:             {self.all.summary()}\n"
            f"sentences of <= {SHORT} words: {self.short.summary()}"
        )

    def fields(self) -> dict[str, Any]:
        """Returns the scores and their rules as JSON values."""
        return {
            "all": dataclasses.asdict(self.all),
            f"up_to_{SHORT}_words": dataclasses.asdict(self.short),
            "rules": RULES,
        }


def score_trees(gold: Sequence[Tree], predicted: Sequence[Tree]) -> TreebankScores:
    """Scores predicted trees."""
    if len(gold) != len(predicted) or not gold:
        raise InputError(
            f"There are {len(gold):,} gold trees but {len(predicted):,} predicted ones. Both need "
            "the same number, at least 1."
        )
    rows, errors = [], []
    for number, (own, other) in enumerate(zip(gold, predicted, strict=True), start=1):
        rows.append(_counts(own, other))
        if rows[-1].error:
            errors.append(f"sentence {number} {rows[-1].error}, and is not scored")
    if len(errors) > _MAX_ERRORS:
        raise InputError(
            f"{len(errors):,} of {len(gold):,} trees do not have the words of the gold tree, but "
            f"the limit is {_MAX_ERRORS}. The first: {errors[0]}"
        )
    short = [row for row, tree in zip(rows, gold, strict=True) if len(tree.words) <= SHORT]
    return TreebankScores(_totals(rows), _totals(short), tuple(errors))


@dataclasses.dataclass(frozen=True)
class _Counts:
    """The numbers of one sentence."""

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
    """Returns the scored constituents as spans over the words that are kept."""
    before = [0, *itertools.accumulate(map(int, kept))]  # number of kept words before each place
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
    """Returns how the words differ, or "". Differences in punctuation do not count."""
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
