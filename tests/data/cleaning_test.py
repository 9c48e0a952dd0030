"""Cleaning: what is dropped is counted, what is kept is one line of text."""

import time
import unicodedata

import hypothesis
import hypothesis.strategies as st

from keras_transformer.data.cleaning import CleaningReport, clean


def run(pairs, max_bytes=100):
    report = CleaningReport()
    return list(clean("corpus", pairs, max_bytes, report)), report


def test_drops_are_counted_by_reason_with_their_lines():
    pairs = [(b"a", b"b"), (b"", b"x"), (b"y", b" \t"), (b"z" * 101, b"w"), (b"c", b"d")]
    kept, report = run(pairs)
    assert [(pair.line, pair.source, pair.target) for pair in kept] == [
        (1, b"a", b"b"),
        (5, b"c", b"d"),
    ]
    assert (report.read, report.kept) == (5, 2)
    assert report.dropped == {"empty": 2, "too_many_bytes": 1}
    assert [example["line"] for example in report.examples["empty"]] == [2, 3]
    assert report.examples["too_many_bytes"] == [
        {"corpus": "corpus", "line": 4, "source": "z" * 80 + "…", "target": "w"}
    ]


def test_five_examples_are_kept_of_many():
    _, report = run([(b"", b"x")] * 9)
    assert report.dropped["empty"] == 9
    assert [example["line"] for example in report.examples["empty"]] == [1, 2, 3, 4, 5]


def test_control_characters_and_line_separators_become_counted_spaces():
    text = "a\tb\x01c\x7fd\u0085e\u2028f\u2029g\n"
    kept, report = run([(text.encode(), "ÄÂ\u00a0–€†".encode())])
    assert kept[0].source == b"a b c d e f g"
    assert kept[0].target.decode() == "ÄÂ\u00a0–€†", "neighbours in UTF-8 stay"
    assert report.control_characters == 7


def test_a_line_of_megabytes_is_dropped_at_once():
    line = b"word " * 2_000_000
    start = time.process_time()
    kept, report = run([(line, b"x"), (b"x", line)], max_bytes=16_384)
    assert time.process_time() - start < 0.5
    assert not kept and report.dropped == {"too_many_bytes": 2}
    assert len(report.examples["too_many_bytes"][0]["source"]) == 81


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), max_size=6))
def test_every_pair_is_kept_as_one_line_or_counted(pairs):
    kept, report = run([(s.encode(), t.encode()) for s, t in pairs], max_bytes=20)
    assert report.read == len(pairs) and report.kept == len(kept)
    assert sum(map(len, report.examples.values())) == min(5, report.dropped["empty"]) + min(
        5, report.dropped["too_many_bytes"]
    )
    for pair in kept:
        for before, after in zip(
            pairs[pair.line - 1], (pair.source.decode(), pair.target.decode()), strict=True
        ):
            assert len(after.splitlines()) == 1 and after.strip(" ") == after != ""
            assert not any(unicodedata.category(c) == "Cc" for c in after)
            assert "".join(after.split()) == "".join(
                c for c in before if not c.isspace() and unicodedata.category(c) != "Cc"
            )
