"""Translation memories: units become pairs, invalid files raise errors."""

import contextlib
import gzip

import hypothesis
import hypothesis.strategies as st
import pytest

from keras_transformer.data.prepare import PrepareOptions, prepare
from keras_transformer.errors import InputError
from keras_transformer.extensions.corpora import LanguageOptions
from keras_transformer.extensions.corpora.tmx import READER, TmxFile
from tests.builders import refuses
from tests.messages import tells

TMX = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"/><body>
<tu><tuv xml:lang="en-US"><seg>A &lt;b&gt; dog<ph>&lt;br/&gt;</ph> runs.</seg></tuv>
    <tuv xml:lang="de"><seg>Ein <hi>Hund</hi>
rennt.<bpt i="1">{\\b</bpt>!<ept i="1">}</ept></seg></tuv></tu>
<tu><tuv xml:lang="EN"><seg>Two</seg></tuv><tuv xml:lang="fr"><seg>Deux</seg></tuv></tu>
<tu><tuv lang="en"><seg>Three</seg></tuv><tuv lang="de-AT"><seg>Drei</seg></tuv>
    <tuv lang="de"><seg>drei</seg></tuv><tuv xml:lang="den"><seg>x</seg></tuv></tu>
</body></tmx>
"""


def unit(english, german="Gut.", source_language="en-US", target_language="de-DE"):
    variants = ((source_language, english), (target_language, german))
    segments = (f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>' for code, text in variants)
    return f"<tu>{''.join(segments)}</tu>"


def memory(*units, declaration='<?xml version="1.0" encoding="utf-8"?>', root="tmx"):
    body = "".join(units)
    return f"{declaration}\n<{root} version='1.4'><header/><body>\n{body}\n</body></tmx>\n"


def read(tmp_path, content, source="en", target="de"):
    path = tmp_path / "m.tmx"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [tuple(map(bytes.decode, pair)) for pair in TmxFile(path, source, target).pairs()]


def test_units_of_two_languages(tmp_path):
    path = tmp_path / "m.tmx.gz"
    written = TMX.replace('"en-US"', '"EN_us"').replace("de-AT", "de_AT")
    for content in (TMX, written):
        path.write_bytes(gzip.compress(content.encode()))
        (corpus,) = READER.read(str(path), LanguageOptions("en", "de"))
        assert corpus.name == str(path)
        assert list(corpus.pairs()) == [
            (b"A <b> dog runs.", b"Ein Hund rennt.!"),
            (b"Two", b""),
            (b"Three", b"Drei"),
        ]
        # A region only matches itself.
        assert list(TmxFile(path, "en_US", "DE-at").pairs())[1:] == [(b"", b""), (b"", b"Drei")]
        assert list(TmxFile(path, "fr", "en").pairs())[1] == (b"Deux", b"Two")


def test_entities_neither_grow_nor_name_files(tmp_path):
    (tmp_path / "secret").write_text("secret")
    for entity in ("'" + "ha" * 50 + "'", f"SYSTEM '{tmp_path}/secret'"):
        doctype = f"<!DOCTYPE tmx [<!ENTITY a {entity}><!ENTITY b '{'&a;' * 50}'>]>"
        content = memory(unit("x&b;&a;", "y"), declaration=doctype)
        assert read(tmp_path, content) == [("x&b;&a;", "y")], "as it stands"


def test_bad_files_and_missing_languages_are_input_errors(tmp_path):
    for location, options, facts in (
        (str(tmp_path / "m.tmx"), LanguageOptions("en", "de"), ("m.tmx", "missing")),
        ("m.tmx", LanguageOptions("en", None), ("m.tmx", "en", "None")),
    ):
        refuses(READER.read, (location, options), *facts)
    for content, facts in (
        (b"", ("m.tmx", "TMX")),
        (TMX.encode()[:-30], ("m.tmx", "truncated")),
        (b"a\tb\n", ("m.tmx", "translation units")),
        (memory(unit("a", "b", "en", "fr")), ("m.tmx", "de", "en, fr")),
        (gzip.compress(TMX.encode())[:-9], ("m.tmx", "read")),
    ):
        refuses(read, (tmp_path, content), *facts)


@pytest.mark.parametrize(
    "bad",
    [
        b"<seg>AT&T</seg></tuv></tu>",
        b"<seg>a < b</seg></tuv></tu>",
        b"<seg>a<b></seg></tuv></tu>",
        b"<seg x=1>a</seg></tuv></tu>",
        b"<seg>a</seg></tuv>",
        b"<seg>a <!-- b</seg></tuv></tu>",
        b"<seg>a <![CDATA[ b</seg></tuv></tu>",
        b"<seg>\xff</seg></tuv></tu>",
    ],
)
def test_a_bad_unit_is_dropped_and_counted(tmp_path, capsys, bad):
    units = [unit(f"Good {number}.", f"Gut {number}.").encode() for number in range(9)]
    units.insert(1, b"<tu><tuv xml:lang='en'>" + bad)
    pairs = read(tmp_path, memory("UNITS").encode().replace(b"UNITS", b"".join(units)))
    expected = [(f"Good {number}.", f"Gut {number}.") for number in range(9)]
    assert pairs == [expected[0], ("", ""), *expected[1:]]
    warning = capsys.readouterr().err
    assert tells(warning, tmp_path / "m.tmx", "unit 2", "empty")
    assert b"\xff" not in bad or tells(warning, "bytes", "encoding")
    corpora = READER.read(str(tmp_path / "m.tmx"), LanguageOptions("en", "de"))
    options = PrepareOptions(vocab_size=40, valid_pairs=2)
    cleaning = prepare(corpora, tmp_path / "data", options).report["cleaning"]["train"]
    assert (cleaning["read"], cleaning["dropped"]) == (10, {"empty": 1})
    assert cleaning["examples"]["empty"][0]["line"] == 2


def test_characters_that_xml_does_not_allow_do_not_drop_a_unit(tmp_path, capsys):
    root = "tmx xmlns='http://www.lisa.org/tmx14' xmlns:x='urn:x'"
    content = memory(
        unit("Press&#x1F; OK", "OK&#31; drücken"),
        unit("a\x0bb", "c\x00d"),
        unit("tab&#9;line&#10;end", "&#x1F600;"),
        unit("Two&nbsp;caf&eacute;s").replace("<tu>", "<tu x:state='new'>"),
        root=root,
    )
    assert read(tmp_path, content) == [
        ("Press  OK", "OK  drücken"),
        ("a b", "c d"),
        ("tab\tline end", "😀"),
        ("Two\u00a0cafés", "Gut."),
    ]
    assert not capsys.readouterr().err, "no unit was dropped"


@pytest.mark.parametrize(
    "declared, real, text",
    [
        *((declared, "utf-8", "☃ 雪") for declared in ("", "utf-8", "utf-16", "x-none")),
        ("utf-8", "utf-8-sig", "☃ 雪"),
        *(("utf-16", f"utf-16{order}", "☃ 雪") for order in ("", "-le", "-be")),
        *((name, name, "Straße") for name in ("iso-8859-1", "latin-1")),
        ("windows-1251", "windows-1251", "Привет"),
        ("gbk", "gbk", "你好 世界"),
        ("shift_jis", "shift_jis", "表示"),
    ],
)
def test_encodings(tmp_path, capsys, declared, real, text):
    declaration = f"<?xml version='1.0' encoding='{declared}'?>" if declared else ""
    content = memory(unit(text), unit("The end."), declaration=declaration)
    assert read(tmp_path, content.lstrip().encode(real)) == [(text, "Gut."), ("The end.", "Gut.")]
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    ("segment", "expected"),
    [
        ('First line<ph x="1">&lt;br/&gt;</ph>Second line', "First line Second line"),
        ("First line.<ph>&lt;br/&gt;</ph>Second line", "First line. Second line"),
        ("First line.<ph type='lb'/>Second line", "First line. Second line"),
        ("one<ph>\\n</ph>two", "one two"),
        ("one <ph>\\n</ph>two<ph>\\n</ph> three", "one two three"),
        ("one<ph/>two", "one two"),
        ("one<ph/><ph/>two", "one two"),
        ("Hello<ph>{0}</ph>!", "Hello!"),
        ("<ph>{0}</ph>Hello<ph>{1}</ph>", "Hello"),
        ("<ph>\\n</ph><ph>\\n</ph>Hello<ph>\\n</ph>", "Hello"),
        ("नमस्ते<ph/>दुनिया", "नमस्ते दुनिया"),
        ("one<it pos='begin'>&lt;p&gt;</it>two", "one two"),
        ("one<ut>&lt;BR&gt;</ut>two", "one two"),
        ("one<br/>two", "one two"),
        ("un<bpt i='1'>&lt;b&gt;</bpt>like<ept i='1'>&lt;/b&gt;</ept>ly", "unlikely"),
        ("un<hi type='bold'>like</hi>ly", "unlikely"),
        ("one<hi><ph>&lt;br&gt;</ph></hi>two", "one two"),
        ("a<ph>&lt;img alt='<sub>text</sub>'&gt;</ph>b", "a b"),
        ("a<![CDATA[<b>]]>b<!-- c -->d", "a<b>bd"),
    ],
)
def test_breaks_keep_words_apart(tmp_path, segment, expected):
    assert read(tmp_path, memory(unit(segment))) == [(expected, "Gut.")]


def test_units_across_pieces_of_the_file(tmp_path, monkeypatch):
    content = memory(*(unit(f"Number {i} ☃<ph/>") for i in range(20)), "<tu />")
    expected = [*((f"Number {i} ☃", "Gut.") for i in range(20)), ("", "")]
    for size in range(100, 140, 3):
        monkeypatch.setattr("keras_transformer.extensions.corpora.tmx._CHUNK", size)
        for encoding in ("utf-8", "utf-16"):
            assert read(tmp_path, content.encode(encoding)) == expected


ODD = "<tu> </tu> <!-- --> <![CDATA[ ]]> </tmx> &#0; &#x1F; & < <ph/> \0 ￿".encode().split()


@hypothesis.settings(max_examples=300)
@hypothesis.given(
    st.binary(max_size=30) | st.integers(0, len(TMX)),
    st.integers(0, 30),
    st.binary(max_size=6) | st.sampled_from(ODD),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32"]),
)
def test_any_bytes_are_pairs_of_one_line_or_an_error(tmp_path_factory, start, cut, odd, encoding):
    content = start
    if isinstance(start, int):
        end = TMX[start + cut :].encode(encoding.removesuffix("-sig"))
        content = TMX[:start].encode(encoding) + odd + end
    path = tmp_path_factory.mktemp("fuzz") / "m.tmx"
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        for pair in TmxFile(path, "en", "de").pairs():
            for side in pair:
                side.decode()
                assert b"\n" not in side and b"\0" not in side
