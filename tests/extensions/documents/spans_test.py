"""Protected spans: which texts are spans, and ICU messages."""

from __future__ import annotations

import time

import pytest

from keras_transformer.extensions.documents.spans import branches_of, find_spans


def spans_in(text: str, *patterns: str) -> list[str]:
    return [text[start:end] for start, end in find_spans(text, patterns)]


# Texts with bars around each span, which the text does not have.
MARKED = {
    "url": (
        "See |https://example.com/a_b?x=1&y=%20#z|, (|http://a.b|) or |www.example.org|.",
        "|https://en.wikipedia.org/wiki/A_(b)|! |https://a.b/{id}/c|: |mailto:x@y.org|; |ftp://a/b|",
        "“|https://a.b|” 见 |https://a.b/c|。",
    ),
    "email": ("Write to |a.b+c@mail.example.org|. No@t one",),
    "name": ("|@bob| and |@eve.smith|, not a@ or @@x",),
    "tag": ("|#news| and |#año2026|, not #1 or a#b",),
    "path": (
        "In |/usr/lib/x86| or |~/a.txt| and |./run|, |C:\\Users\\a| b",
        "and/or, 5 km/h, he/she. Open |README.md| and |src/main/app.js|.",
    ),
    "variable": (
        "|{name}| |{0}| |{{ user.name }}| |${x}| |#{x}| |%{x}|, not { } or {a b}",
        "|{n, number, integer}| |{\\an8}|Text |{{{raw}}}|",
    ),
    "entity": ("a |&nbsp;|b 5 |&lt;| 6 |&#39;|c|&#xA0;|, not R&D; or a & b;",),
    "format": (
        "|%s| |%d|: |%1$s|, |%(name)s| |%5.2f| |%@| |%lld| |%%| |%USERNAME%|, not 100% sure or 5 %",
    ),
    "parameter": ("Hello |:name|, |:smile:| at 5:30 PM, note:this, 10:a",),
    "version": ("|v2| and |1.2.3-beta|, |10.0.0.1|, not 2.0, 24.12.2026 or 1.234.567",),
    "identifier": (
        "|snake_case| |camelCase| |run()| |os.path()| |AB-12| |deadbeef1| |__init__|",
        "not a Word, USA, 5th or _Open",
    ),
    "emoji": ("|\U0001f44d\U0001f3fd| |\U0001f468\u200d\U0001f469| |\u2764\ufe0f|, © ™ 3",),
    "symbol": ("typed |｟0｠| and |｟a｠|",),
    "escape": ("Line\\n".replace("\\n", "|\\n|") + "two |\\u00e9|",),
}


@pytest.mark.parametrize("marked", [m for texts in MARKED.values() for m in texts])
def test_spans_of_each_kind(marked: str) -> None:
    assert spans_in(marked.replace("|", "")) == marked.split("|")[1::2]


def test_plain_numbers_and_times_are_not_protected() -> None:
    text = "At 5:30 PM on 24.12.2026 and 12/24/2026, 1,234.56 € are 50% of 3-4 m²; 007, -3, 10:00."
    assert spans_in(text) == []


def test_the_first_and_longest_span_counts() -> None:
    text = "https://a.b/@bob/{id}?q=%s #x"
    assert spans_in(text) == ["https://a.b/@bob/{id}?q=%s", "#x"]


def test_patterns_of_the_user_are_spans() -> None:
    assert spans_in("ACME Corp. and acme", r"ACME( Corp\.)?") == ["ACME Corp."]
    assert spans_in("a  b", r"\s*b?") == ["b"]  # without white space around it


ICU = "You have {n, plural, offset:1 =0 {no files} one {# file} other {# of {max} files}}."
NESTED = "{g, select, male {{n, plural, one {his {x}} other {his}}} other {it's '{'}}"


def test_branches_of_icu_messages() -> None:
    [span] = spans_in(ICU)
    branches = [span[slice(*branch)] for branch in branches_of(span)]
    assert branches == ["no files", "# file", "# of {max} files"]
    assert spans_in(NESTED) == [NESTED]
    assert NESTED[slice(*branches_of(NESTED)[1])] == "it's '{'"


MALFORMED = "{n, plural, one {a}|{n, plural, }|{n, plural, one a}|{n, plural, one {a} b {c}|{n,"


@pytest.mark.parametrize("text", MALFORMED.split("|"))
def test_a_malformed_icu_message_is_no_message(text: str) -> None:
    assert not any(branches_of(span) for span in spans_in(text))


@pytest.mark.parametrize("text", ["_" * 2000, "a." * 2000, "{" * 1000, "https://" + "(" * 1000,
                                  "%" * 2000, "/" * 1000, "1." * 1000, "a_" * 1000, "@a." * 1000,
                                  "{n, plural, one {" * 300])  # fmt: skip
def test_long_texts_take_no_long_time(text: str) -> None:
    start = time.process_time()
    find_spans(text)
    assert time.process_time() - start < 2
