"""Translation memories: units become pairs, invalid files raise errors."""

import contextlib
import gzip

import hypothesis
import hypothesis.strategies as st
import pytest

from keras_transformer.data.prepare import PrepareOptions, prepare
from keras_transformer.errors import InputError
from keras_transformer.extensions.corpora.tmx import READER, TmxFile, TmxOptions
from tests.messages import mentions, tells

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
    path.write_bytes(gzip.compress(TMX.encode()))
    (corpus,) = READER.read(str(path), TmxOptions("en", "de"))
    assert corpus.name == str(path)
    assert list(corpus.pairs()) == [
        (b"A <b> dog runs.", b"Ein Hund rennt.!"),
        (b"Two", b""),
        (b"Three", b"Drei"),
    ]
    written = TMX.replace('"en-US"', '"EN_us"').replace("de-AT", "de_AT")
    path.write_bytes(gzip.compress(written.encode()))
    for source, target in (("en", "de"), ("en_US", "DE-at")):
        pairs = list(TmxFile(path, source, target).pairs())
        assert pairs[0][0] == b"A <b> dog runs." and pairs[2][1] == b"Drei"
    assert list(TmxFile(path, "fr", "en").pairs())[1] == (b"Deux", b"Two")


def test_entities_neither_grow_nor_name_files(tmp_path):
    (tmp_path / "secret").write_text("secret")
    for entity in ("'" + "ha" * 50 + "'", f"SYSTEM '{tmp_path}/secret'"):
        doctype = f"<!DOCTYPE tmx [<!ENTITY a {entity}><!ENTITY b '{'&a;' * 50}'>]>"
        content = memory(unit("x&b;&a;", "y"), declaration=doctype)
        assert read(tmp_path, content) == [("x&b;&a;", "y")], "as it stands"


def test_html_entities_are_decoded(tmp_path):
    content = memory(unit("Two&nbsp;caf&eacute;s"))
    assert read(tmp_path, content) == [("Two\u00a0cafés", "Gut.")]


def test_bad_files_and_missing_languages_are_input_errors(tmp_path):
    options = TmxOptions("en", "de")
    with pytest.raises(InputError, match=mentions("m.tmx", "missing")):
        READER.read(str(tmp_path / "m.tmx"), options)
    with pytest.raises(InputError, match=mentions("m.tmx", "en", "None")):
        READER.read("m.tmx", TmxOptions("en", None))
    for content, message in (
        (b"", mentions("m.tmx", "TMX")),
        (TMX.encode()[:-30], mentions("m.tmx", "TMX")),
        (b"a\tb\n", mentions("m.tmx", "TMX", "translation units")),
        (b"<tmx><body/></tmx>", mentions("m.tmx", "translation units")),
    ):
        with pytest.raises(InputError, match=message):
            read(tmp_path, content)
    with pytest.raises(InputError, match=mentions("m.tmx", "fr", "en-us", "de-de")):
        read(tmp_path, memory(unit("a"), unit("b")), "en", "fra")


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
    units = [unit(f"Good {number}.").encode() for number in range(3)]
    units.insert(1, b"<tu><tuv xml:lang='en'>" + bad)
    pairs = read(tmp_path, memory("UNITS").encode().replace(b"UNITS", b"".join(units)))
    expected = [(f"Good {number}.", "Gut.") for number in range(3)]
    assert pairs == [expected[0], ("", ""), *expected[1:]]
    warning = capsys.readouterr().err
    assert tells(warning, tmp_path / "m.tmx", "unit 2", "empty")
    assert b"\xff" not in bad or tells(warning, "bytes", "encoding")


def test_characters_that_xml_does_not_allow_do_not_drop_a_unit(tmp_path, capsys):
    content = memory(
        unit("Press&#x1F; OK", "OK&#31; drücken"),
        unit("a\x0bb", "c\x00d"),
        unit("tab&#9;line&#10;end", "&#x1F600;"),
        unit("Last."),
    )
    assert read(tmp_path, content) == [
        ("Press  OK", "OK  drücken"),
        ("a b", "c d"),
        ("tab\tline end", "😀"),
        ("Last.", "Gut."),
    ]
    assert not capsys.readouterr().err, "no unit was dropped"


def test_a_preparation_counts_bad_units_and_control_characters(tmp_path):
    units = [unit(f"Good {number}.", f"Gut {number}.") for number in range(30)]
    units[3] = "<tu><tuv xml:lang='en'><seg>AT&T</seg></tuv></tu>"
    units[7] = unit("Press&#x1F; OK", "OK&#31; drücken")
    (tmp_path / "m.tmx").write_text(memory(*units))
    corpora = READER.read(str(tmp_path / "m.tmx"), TmxOptions("en", "de"))
    options = PrepareOptions(vocab_size=60, valid_pairs=2)
    cleaning = prepare(corpora, tmp_path / "data", options).report["cleaning"]["train"]
    assert (cleaning["read"], cleaning["dropped"]) == (30, {"empty": 1})
    assert cleaning["examples"]["empty"][0]["line"] == 4


TEXT = [("Straße", "naïve — “quoted” ☃ 雪"), ("The end.", "Gut.")]


@pytest.mark.parametrize("declared", ["", "utf-8", "utf-16", "x-none"])
@pytest.mark.parametrize("real", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_unicode_is_recognized_by_its_bytes(tmp_path, capsys, declared, real):
    declaration = f'<?xml version="1.0" encoding="{declared}"?>' if declared else ""
    content = memory(*(unit(*pair) for pair in TEXT), declaration=declaration)
    assert read(tmp_path, content.lstrip().encode(real)) == TEXT
    assert not capsys.readouterr().err


@pytest.mark.parametrize(
    "encoding, text",
    [
        ("iso-8859-1", "Straße"),
        ("windows-1251", "Привет"),
        ("gbk", "你好 世界"),
        ("shift_jis", "表示"),
    ],
)
def test_the_declaration_decides_about_other_encodings(tmp_path, encoding, text):
    declaration = f"<?xml version='1.0' encoding='{encoding}'?>"
    content = memory(unit(text), unit("a"), declaration=declaration).encode(encoding)
    assert read(tmp_path, content) == [(text, "Gut."), ("a", "Gut.")]


@pytest.mark.parametrize("code", ["en", "EN", "en-US", "en_us", "eng", "ENG-us", "eng_US"])
@pytest.mark.parametrize("german", ["de", "deu", "ger", "ger-AT", "de_DE"])
def test_language_codes_of_one_language_match(tmp_path, code, german):
    content = memory(unit("a", "b", code, german), unit("x", "y", "enm", "gsw"))
    for source, target in (("en", "de"), ("eng", "ger"), ("EN", "deu")):
        assert read(tmp_path, content, source, target) == [("a", "b"), ("", "")]


def test_a_region_only_matches_itself(tmp_path):
    content = memory(unit("colour", "a", "en-GB"), unit("color", "b", "eng-US"))
    assert read(tmp_path, content, "en_US") == [("", "a"), ("color", "b")]


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


def test_prefixes_of_namespaces(tmp_path):
    root = "tmx xmlns='http://www.lisa.org/tmx14' xmlns:x='urn:x'"
    extended = unit("a").replace("<tu>", "<tu x:state='new'>")
    assert read(tmp_path, memory(extended, unit("b"), root=root)) == [("a", "Gut."), ("b", "Gut.")]


def test_units_across_pieces_of_the_file(tmp_path, monkeypatch):
    content = memory(*(unit(f"Number {i} ☃<ph/>") for i in range(20)), "<tu />")
    expected = [*((f"Number {i} ☃", "Gut.") for i in range(20)), ("", "")]
    for size in range(100, 140):
        monkeypatch.setattr("keras_transformer.extensions.corpora.tmx._CHUNK", size)
        for encoding in ("utf-8", "utf-16"):
            assert read(tmp_path, content.encode(encoding)) == expected


ODD = "<tu> </tu> <!-- --> <![CDATA[ ]]> </tmx> &#0; &#x1F; & < <ph/> \0 ￿".encode().split()


@hypothesis.settings(max_examples=300, deadline=None)
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
