"""The report of a preparation: statistics of the token stores, and a summary."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from keras_transformer.data.cleaning import EXAMPLE_CHARACTERS, EXAMPLES
from keras_transformer.text.vocabulary import MAX_UNKNOWN_RATE, Vocabulary

_HISTOGRAM_STEP = 16
_COMMON_FORM = 0.01  # share of texts; single ones may quote the marks
# Forms of text that a model would learn to write, and what to do about each.
_FORMS = {
    "doubled quotation marks, as a spreadsheet saves them": (
        re.compile(r'(?=.*"")"(?:[^"]|"")*"'),
        "Read the file as TSV with tsv_quoted.",
    ),
    "marks or escapes of Moses (@-@, &apos;)": (
        re.compile(r".*(?: @[-/,.]@ |&(?:apos|quot|amp|lt|gt|bar|#\d+);).*"),
        "Detokenize the text, for example with sacremoses detokenize.",
    ),
    "words split by BPE or SentencePiece (@@, \u2581)": (
        re.compile(r".*(?:\S@@(?: |$)|(?:^|\s)\u2581).*"),
        "Join the words: prepare learns its own pieces.",
    ),
}
_COMPARED_TEXTS = 1000  # the largest number for each side of a shard


def describe_texts(
    side: Literal["source", "target"],
    lines: Sequence[bytes],
    ids: Sequence[Sequence[int]],
    vocabulary: Vocabulary,
) -> dict[str, Any]:
    """Counts the unknown tokens of one side of a shard. In a sample of its texts, counts those that
    normalization changes, with examples, and those in one of `_FORMS`.
    """
    sample = lines[:: -(-len(lines) // _COMPARED_TEXTS)]
    texts = [" ".join(line.decode().split()) for line in sample]
    rewritten = vocabulary.rewritten(side, texts)
    examples = []
    for index, after in itertools.islice(rewritten.items(), EXAMPLES):
        # A long text is shown from a little before its first change.
        start = len(os.path.commonprefix([texts[index], after])) - EXAMPLE_CHARACTERS // 4
        part = slice(max(0, start), max(0, start) + EXAMPLE_CHARACTERS)
        examples.append({"before": texts[index][part], "after": after[part]})
    return {
        "unknown": sum(row.count(vocabulary.unknown_id) for row in ids),
        "compared": len(texts),
        "rewritten": len(rewritten),
        "rewritten_examples": examples,
        "forms": {
            form: sum(map(bool, map(pattern.fullmatch, texts)))
            for form, (pattern, _) in _FORMS.items()
        },
    }


def describe_side(
    lengths: npt.NDArray[np.uint32], shards: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Returns the report of one side of a store from the results of `describe_texts`."""
    tokens = int(lengths.sum(dtype=np.int64))
    histogram = np.bincount((lengths - 1) // _HISTOGRAM_STEP).tolist()
    starts = itertools.count(1, _HISTOGRAM_STEP)
    counted = ("unknown", "compared", "rewritten")
    counts = {name: sum(shard[name] for shard in shards) for name in counted}
    examples = itertools.chain.from_iterable(shard["rewritten_examples"] for shard in shards)
    return {
        "tokens": tokens,
        **counts,
        "unknown_rate": counts["unknown"] / tokens,
        "mean_length": round(tokens / len(lengths), 2),
        "max_length": int(lengths.max()),
        # Sentences per range of lengths: {"1-16": 12, "17-32": 30, ...}.
        "length_histogram": {
            f"{start}-{start + _HISTOGRAM_STEP - 1}": count
            for start, count in zip(starts, histogram, strict=False)
        },
        "rewritten_examples": list(itertools.islice(examples, EXAMPLES)),
        "forms": {form: sum(shard["forms"][form] for shard in shards) for form in _FORMS},
    }


def summarize(report: Mapping[str, Any]) -> list[str]:
    """Returns a few lines for a person to read."""
    vocabulary = report["vocabulary"]
    lines = [
        f"vocabulary: {vocabulary['type']}, {vocabulary['source_size']:,} source and "
        f"{vocabulary['target_size']:,} target pieces",
    ]
    for split in ("train", "valid"):
        store = report[split]
        lines.append(
            f"{split}: {store['pairs']:,} pairs, {store['source']['tokens']:,} source and "
            f"{store['target']['tokens']:,} target tokens"
        )
        for side in ("source", "target"):
            if (rate := store[side]["unknown_rate"]) > MAX_UNKNOWN_RATE:
                lines.append(
                    f"Warning: {rate:.1%} of the {side} tokens of {split} are not in the "
                    "vocabulary, so the model cannot read or write them. Learn a vocabulary "
                    "from text of this language (without vocab_from), or set byte_fallback."
                )
    for side in ("source", "target"):
        counts = report["train"][side]
        for example in counts.get("rewritten_examples", ())[:1]:
            lines.append(
                f"normalization {vocabulary['normalization']} changes {counts['rewritten']:,} of "
                f"{counts['compared']:,} training {side}s, for example {example['before']!r} to "
                f"{example['after']!r}. With normalization=identity the text stays unchanged."
            )
        for form, count in counts.get("forms", {}).items():
            if count > _COMMON_FORM * counts["compared"]:
                lines.append(
                    f"Warning: {count:,} of {counts['compared']:,} training {side}s have {form}. "
                    f"{_FORMS[form][1]}"
                )
    for split, cleaning in report["cleaning"].items():
        dropped = ", ".join(f"{n:,} {reason}" for reason, n in cleaning["dropped"].items())
        lines.append(
            f"{split} corpus: {cleaning['read']:,} pairs read, dropped: {dropped or 'none'}"
        )
        if cleaning["bad_utf8_replaced"]:
            lines.append(f"{cleaning['bad_utf8_replaced']:,} lines of it had invalid UTF-8")
    if augmented := report.get("augmented"):  # missing in older reports
        counts = ", ".join(f"{count:,} with {name}" for name, count in sorted(augmented.items()))
        lines.append(f"augmented training pairs: {counts}")
    if held_out := report["held_out"]:
        lines.append(f"held out of the training corpus for validation: {held_out:,} pairs")
    if known := report["valid_pairs_in_train"]:
        lines.append(
            f"validation pairs that are also in the training text: {known:,} of "
            f"{report['valid']['pairs']:,}. Scores on them overestimate the quality."
        )
    return lines
