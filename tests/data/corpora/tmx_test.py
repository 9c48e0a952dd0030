"""Translation memories: units become pairs, invalid files raise errors."""

import contextlib
import gzip

import hypothesis
import hypothesis.strategies as st
import pytest

from keras_transformer.data.corpora.tmx import TmxFile, tmx_files
from keras_transformer.errors import InputError
from tests.messages import mentions

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


def test_units_of_two_languages(tmp_path):
    path = tmp_path / "m.tmx.gz"
    path.write_bytes(gzip.compress(TMX.encode()))
    (corpus,) = tmx_files([path], "en", "de")
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
    path = tmp_path / "m.tmx"
    for entity in ("'" + "ha" * 50 + "'", f"SYSTEM '{tmp_path}/secret'"):
        path.write_text(
            f"<!DOCTYPE tmx [<!ENTITY a {entity}><!ENTITY b '{'&a;' * 50}'>]><tmx><body><tu>"
            "<tuv xml:lang='en'><seg>x&b;&a;</seg></tuv><tuv xml:lang='de'><seg>y</seg></tuv></tu>"
            "</body></tmx>"
        )
        assert list(TmxFile(path, "en", "de").pairs()) == [(b"x&b;&a;", b"y")], "as it stands"


def test_html_entities_are_decoded(tmp_path):
    path = tmp_path / "m.tmx"
    path.write_text(TMX.replace("Two", "Two&nbsp;caf&eacute;s"))
    pairs = list(TmxFile(path, "en", "fr").pairs())
    assert pairs[1] == ("Two\u00a0cafés".encode(), b"Deux")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", mentions("m.tmx", "TMX")),
        (TMX.encode()[:-30], mentions("m.tmx", "TMX")),
        (b"a\tb\n", mentions("m.tmx", "TMX", "Start tag expected")),
        (b"<tmx><body/></tmx>", mentions("m.tmx", "translation unit")),
    ],
)
def test_bad_files_are_input_errors(tmp_path, content, message):
    (tmp_path / "m.tmx").write_bytes(content)
    with pytest.raises(InputError, match=message):
        list(TmxFile(tmp_path / "m.tmx", "en", "de").pairs())


def test_languages_and_files_are_needed(tmp_path):
    with pytest.raises(InputError, match=mentions("m.tmx", "missing")):
        tmx_files([tmp_path / "m.tmx"], "en", "de")
    with pytest.raises(InputError, match=mentions("m.tmx", "en", "None")):
        tmx_files(["m.tmx"], "en", None)


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(
    st.binary(max_size=30)
    | st.tuples(st.integers(0, len(TMX)), st.binary(max_size=6)).map(
        lambda cut: TMX.encode()[: cut[0]] + cut[1] + TMX.encode()[cut[0] :]
    )
)
def test_any_bytes_are_pairs_of_one_line_or_an_error(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("fuzz") / "m.tmx"
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        for pair in TmxFile(path, "en", "de").pairs():
            for side in pair:
                side.decode()
                assert b"\n" not in side
