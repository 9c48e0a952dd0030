"""Cleaning counts dropped pairs, and keeps one line of text per pair."""

import json
import time
import unicodedata

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from keras_transformer.data import cleaning
from keras_transformer.data.cleaning import CleaningReport, clean, is_repetitive
from keras_transformer.data.options import PrepareOptions
from keras_transformer.data.reading import Block
from keras_transformer.errors import InputError
from tests.builders import refuses
from tests.messages import mentions


def block(pairs, line=1):
    texts = [b"".join(text + b"\n" for text in side) for side in zip(*pairs, strict=True)]
    return Block(("s", "t"), line, tuple(texts), {})


def run(pairs, **options):
    report = CleaningReport()
    kept = clean(block(pairs), PrepareOptions(**options), report)
    assert report.read == len(pairs) and report.kept == len(kept.lines)
    return [*zip(kept.lines.tolist(), kept.sources, kept.targets, strict=True)], report


def test_drops_are_counted_by_reason_with_their_lines():
    pairs = [(b"a", b"b"), (b"", b"x"), (b"y", b" \t"), (b"z" * 101, b"w" * 50), (b"c", b"d")]
    kept, report = run(pairs, max_bytes=100)
    assert kept == [(1, b"a", b"b"), (5, b"c", b"d")]
    assert report.dropped == {"empty": 2, "too_many_bytes": 1}
    assert [example["line"] for example in report.examples["empty"]] == [2, 3]
    assert report.examples["too_many_bytes"] == [
        {"corpus": "s + t", "line": 4, "source": "z" * 80 + "…", "target": "w" * 50}
    ]


# Spaces, format characters, fillers, variation selectors, blank Braille, a byte order mark, a tag
# and control characters.
INVISIBLE = (
    *"\u00a0\u00ad\u034f\u061c\u115f\u3164\uffa0\u17b4\u180e\u200b\u2028\u2060\u2800\u3000\ufe0f",
    *"\U000e0100\ufeff\ufff9\U000e0041", "\u200c\u200d", "\u202d\u202c", "\u2066\u2069", "\x07\x85",
    " \u200b\ufe0f \u2800\u200d",
)  # fmt: skip


def test_a_side_of_invisible_characters_is_empty():
    for characters in INVISIBLE:
        pairs = [("Hund", "dog"), ("leer", characters), (characters, "empty")]
        pairs.append(("x", f"{characters}."))
        kept, report = run([(s.encode(), t.encode()) for s, t in pairs])
        assert [line for line, _, _ in kept] == [1, 4], characters
        assert report.dropped == {"empty": 2}
        assert [example["line"] for example in report.examples["empty"]] == [2, 3]


def test_small_and_unusual_characters_are_text():
    for character in "\u0301\u2581\u0600\ufffd\ue000·。":
        assert run([(b"x", character.encode())])[1].kept == 1, character


def test_sides_of_unlike_lengths_are_dropped_unless_they_are_short():
    pairs = [(b"a" * 100, b"b" * 901), (b"b" * 901, b"a" * 100), (b"a" * 100, b"b" * 900)]
    pairs += [(b"a", b"b" * 180), (b"a", b"b" * 181)]
    kept, report = run(pairs)
    assert [line for line, *_ in kept] == [3, 4]
    assert report.dropped == {"length_ratio": 3}
    assert len(run(pairs, max_length_ratio=None)[0]) == 5


def test_identical_pairs_are_dropped_and_sources_are_tagged_on_request():
    pairs = [(b"a ", b"a"), (b"A", b"a")]
    assert run(pairs)[1].dropped == {}
    kept, report = run(pairs, drop_identical=True, source_tag="<2de>")
    assert kept == [(2, b"<2de> A", b"a")] and report.dropped == {"identical": 1}


def test_language_tokens_of_a_source_replace_those_of_the_tag():
    sources = [b"a", b">>fr<< b", b">>fr<<>>es<<  c", b"<2fr> d"]
    kept, _ = run([(source, b"x") for source in sources], source_tag=">>de<< >>en<<")
    tagged = [b">>de<< >>en<< a", b">>fr<< >>en<< b", b">>fr<< >>es<< c", b">>de<< >>en<< <2fr> d"]
    assert [source for _, source, _ in kept] == tagged
    kept, _ = run([(b">>fr<< b", b"x")], source_tag="<bt>")
    assert kept[0][1] == b"<bt> >>fr<< b"


def test_repetitive_pairs_are_dropped_on_request():
    quote = b"a sign with &quot; s &quot; s &quot; s"
    eight = b" ".join(b"%d" % i for i in range(8))
    pairs = [(b"ein Schild", quote), (quote, b"ein Schild"), (b"x", b"y " + b" ".join([eight] * 3))]
    assert run(pairs)[1].dropped == {}
    kept, report = run(pairs, drop_repetitive=True)
    assert kept == [] and report.dropped == {"repetitive": 3}
    for varied in (
        b"a man and a man and a dog",
        b"no no no no no",  # six would be three repetitions of two
        b"up and down and up and down and up and",
        b"s &quot s &quot; s &quot;s &quot; s",
        b" ".join([eight + b" 8"] * 3),
    ):
        assert run([(b"x", varied)], drop_repetitive=True)[0], varied


@hypothesis.given(
    st.lists(st.sampled_from([b"a", b"b", b"ab"]), max_size=40),
    st.integers(0, 40),
    st.integers(2, 8),
)
def test_circles_are_found_as_by_comparing_all_spans(words, start, period):
    words[start:start] = words[start : start + period] * 2  # often a circle, not always
    circles = (
        words[i : i + n] == words[i + n : i + 2 * n] == words[i + 2 * n : i + 3 * n]
        for n in range(2, 9)
        for i in range(len(words) - 3 * n + 1)
    )
    assert is_repetitive(b" ".join(words)) == any(circles)


def test_reports_add_up():
    total = CleaningReport()
    later = [(b"\x01a", b"b"), *[(b"", b"x")] * 9, (b"y", b"\xff")]
    for line, pairs in ((1, [(b"", b"x")] * 3), (4, later)):
        part = CleaningReport()
        clean(block(pairs, line), PrepareOptions(on_bad_utf8="drop"), part)
        total.add(json.loads(json.dumps(part.as_dict())))
    assert (total.read, total.kept, total.control_characters_made_spaces) == (14, 1, 1)
    assert total.dropped == {"empty": 12, "bad_utf8": 1}
    assert [example["line"] for example in total.examples["empty"]] == [1, 2, 3, 5, 6]


def test_control_characters_and_line_separators_become_counted_spaces():
    text = "a\tb\x01c\x7fd\u0085e\u2028f\u2029g"
    kept, report = run([(text.encode(), "ÄÂ\u00a0–€†".encode())])
    assert kept[0][1] == b"a b c d e f g"
    assert kept[0][2].decode() == "ÄÂ\u00a0–€†", "neighbours in UTF-8 stay"
    assert report.control_characters_made_spaces == 6
    for character in "\x00\u0085\u2028\u2029\x1f\x7f\t"[1:]:  # each one is found
        assert run([(f"a{character}b".encode(), b"c")])[0][0][1] == b"a b"


def test_invalid_utf8_is_refused_replaced_or_dropped():
    pairs = [("ä".encode(), b"b"), (b"a\xffb", b"c"), (b"c", b"d\xc3"), (b"e", b"f")]
    refuses(run, (pairs,), "s", "line 2", "byte 2", "0xff", "UTF-8")
    with pytest.raises(InputError, match=mentions("t", "line 12", "byte 2", "0xc3", "UTF-8")):
        clean(block(pairs[2:], 12), PrepareOptions(), CleaningReport())
    kept, report = run(pairs, on_bad_utf8="replace")
    assert [pair[1:] for pair in kept][1:3] == [
        ("a\ufffdb".encode(), b"c"),
        (b"c", "d\ufffd".encode()),
    ]
    assert report.bad_utf8_replaced == 2
    kept, report = run(pairs, on_bad_utf8="drop")
    assert [line for line, *_ in kept] == [1, 4] and report.dropped == {"bad_utf8": 2}
    assert report.examples["bad_utf8"][0]["source"] == "a\ufffdb"
    for on_bad_utf8 in ("fail", "replace", "drop"):
        with pytest.raises(InputError, match=mentions("t", "line 1", "NUL", "byte 2")):
            run([(b"a", b"b\0")], on_bad_utf8=on_bad_utf8)


def test_only_the_first_line_has_a_bom_and_every_line_may_have_a_cr():
    pairs = [(b"\xef\xbb\xbfa\r", b"b"), (b"\xef\xbb\xbfc\r", b"d\re\r")]
    assert run(pairs)[0] == [(1, b"a", b"b"), (2, b"\xef\xbb\xbfc", b"d e")]


def test_lines_of_two_columns():
    lines = Block(("c",), 7, (b"a\tb\nc\td\r\n",), {})
    kept = clean(lines, PrepareOptions(), CleaningReport())
    assert (kept.corpus, kept.lines.tolist()) == ("c", [7, 8])
    assert (kept.sources, kept.targets) == ([b"a", b"c"], [b"b", b"d"])
    with pytest.raises(InputError, match=mentions("c", "line 8", "1", "columns")):
        clean(lines._replace(texts=(b"a\tb\nc\n",)), PrepareOptions(), CleaningReport())


def test_a_line_of_megabytes_is_dropped_at_once():
    line = b"word " * 2_000_000
    start = time.process_time()
    kept, report = run([(line, b"x"), (b"x", line)])
    assert time.process_time() - start < 0.5
    assert not kept and report.dropped == {"too_many_bytes": 2}
    assert len(report.examples["too_many_bytes"][0]["source"]) == 81


LINE = st.text(max_size=12).map(lambda text: text.replace("\n", " ").replace("\0", " "))


@hypothesis.settings(max_examples=100)
@hypothesis.given(st.lists(st.tuples(LINE, LINE), min_size=1, max_size=6))
def test_every_pair_is_kept_as_one_line_or_counted(pairs):
    kept, report = run([(s.encode(), t.encode()) for s, t in pairs], max_bytes=20)
    assert sum(map(len, report.examples.values())) == sum(
        min(5, count) for count in report.dropped.values()
    )
    for line, *sides in kept:
        for side, (before, after) in enumerate(zip(pairs[line - 1], sides, strict=True)):
            if line == 1:
                before = before.removeprefix("\ufeff")
            after = after.decode()
            assert len(after.splitlines()) == 1 and after.strip(" ") == after != "", side
            assert not any(unicodedata.category(c) == "Cc" for c in after)
            assert "".join(after.split()) == "".join(
                c for c in before if not c.isspace() and unicodedata.category(c) != "Cc"
            )


@hypothesis.settings(max_examples=100)
@hypothesis.given(
    st.lists(
        st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 9), max_size=9), min_size=1, max_size=4
    ),
    st.sampled_from([1, 3, 100]),
)
def test_all_repetitions_are_found_in_parts_or_at_once(tmp_path_factory, files, at_once):
    directory = tmp_path_factory.mktemp("hashes")
    paths, seen, expected = [], set(), []
    for number, file in enumerate(files):
        paths.append(directory / f"{number}.npy")
        np.save(paths[-1], np.array(file, np.uint64))
        expected += [value in seen or value in file[:i] for i, value in enumerate(file)]
        seen |= set(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cleaning, "_MAX_HASHES", at_once)
        found = cleaning.find_duplicates(paths)
    assert found.tolist() == expected
