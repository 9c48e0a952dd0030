"""Files: only their text changes, broken ones give one error, and nothing is overwritten."""

from __future__ import annotations

import io
import re
import shutil
import zipfile
from pathlib import Path

import pytest
from babel.messages.pofile import read_po
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lxml import etree

import keras_transformer as kt
from keras_transformer.errors import InputError
from keras_transformer.extensions.documents.files import translate_file
from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import old_vocabulary, refuses
from tests.driver import Driver
from tests.extensions.documents.fakes import fake_engine, reverse
from tests.messages import tells

FOLDER = Path(__file__).parents[2] / "fixtures" / "documents"
FILES = sorted(path.name for path in FOLDER.iterdir())
IDENTITY, CAPITALS = fake_engine(str), fake_engine(str.upper)


def translated(name: str, data: bytes, folder: Path, **options: object) -> bytes:
    """Returns the translation of a file into capitals."""
    (folder / name).write_bytes(data)
    model = options.pop("model", CAPITALS)
    translate_file(model, folder / name, folder / "output", overwrite=True, **options)  # type: ignore[arg-type]
    return (folder / "output").read_bytes()


def without_translations(name: str) -> str:
    """Returns an XLIFF or PO file of the fixtures without its translations."""
    text = (FOLDER / name).read_text()
    if name.endswith("po"):
        head, rest = text.split("\n\n", 1)
        lines = re.sub(r'(?m)^(msgstr(?:\[\d\])?) ".*"((?:\n".*")*)', r'\1 ""', rest)
        return f"{head}\n\n{lines}"
    return re.sub(r"\s*<target>.*?</target>", "", text)


@pytest.mark.parametrize("name", FILES)
def test_the_identity_changes_no_byte(name: str, tmp_path: Path) -> None:
    output = tmp_path / name
    translate_file(IDENTITY, FOLDER / name, output)
    assert output.read_bytes() == (FOLDER / name).read_bytes()


@pytest.mark.parametrize("name", ["app.po", "app12.xlf", "app20.xlf"])
def test_missing_translations_are_filled_in(name: str, tmp_path: Path) -> None:
    text = without_translations(name)
    assert text != (FOLDER / name).read_text()
    output = translated(name, text.encode(), tmp_path, model=IDENTITY).decode()
    expected = (FOLDER / name).read_text()
    # A string of a PO file may continue on the next line.
    squeezed = [re.sub(r"\s", "", text).replace('""', "") for text in (output, expected)]
    assert squeezed[0] == squeezed[1]
    if name.endswith("po"):
        catalog = read_po(io.StringIO(translated(name, text.encode(), tmp_path).decode()))
        assert catalog.get("%d file").string == ("%d FILE", "%d FILES")
        assert catalog.get("Two lines\nand <b>more</b>", "menu").string.endswith("<b>MORE</b>")
    else:
        etree.fromstring(translated(name, text.encode(), tmp_path))


# For each file what the translation has, and what stays.
CONTENTS = {
    "page.html": (
        ["<em>RED</em> HOUSE", "<b>{name}</b>", "THIS <i>PAGE</i></a><br>", "5 &lt; 6", "<li>ONE<"],
        ["='not translated'", "Brand Name", "  kept\nas it is", "<code>ls -l</code>", '"</p>"'],
    ),
    "app.json": (['"THE CAFÉ IS OPEN"', '"HELLO {{name}}"', "ONE\\nLINE"], ['"a\\"b": ', '"%d"']),
    "film.srt": (["A DOG RUNS OVER THE\n<i>GREEN</i>", "- WHO IS IT?\n- THE OLD"], ["\r\n{\\an8}"]),
    "film.vtt": (["<v Bob>A DOG &amp; A", "<c.loud>STOP!</c>"], ["NOTE this stays", "<00:02.000>"]),
    "guide.md": (
        ["# THE *OLD* HOUSE", "[LINK TO **IT**](https://example.com \"title\")", "LINE.  \nAFTER",
         "> QUOTED TEXT IN TWO LINES", "- [ ] A TASK", "| A DOG | A *CAT* |"],
        ["title: not translated", "`code`", "snake_case", 'print("kept")', "[ref]: https"],
    ),
    "Main.strings": (['= "HELLO, %@!"', 'HE SAID \\"YES\\".\\nNEXT', '"TWO DOGS AND CAFÉ"'],
                     ['/* A comment with "quotes" = and ; */', "key.without.quotes"]),
    "strings.xml": (
        ["<b>WORLD</b>! IT\\'S &app;", "<![CDATA[<p>TWO DOGS</p>]]>", '"  A DOG', "%1$d FILES"],
        ["Brand Name", "@string/hello", '<xliff:g id="x">%2$s</xliff:g>', '<string name="empty"/>'],
    ),
    "a.txt": (["A DOG RUNS.\r\n\n  TWO DOGS, {name}.\nNO LINE END"], []),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTENTS)
def test_the_text_is_translated_and_everything_else_stays(name: str, tmp_path: Path) -> None:
    data = (FOLDER / name).read_bytes()
    output = translated(name, data, tmp_path).decode()
    found, kept = CONTENTS[name]
    assert [part for part in (*found, *kept) if part not in output] == []
    assert [part for part in kept if part not in data.decode()] == []
    if name.endswith("xml"):
        etree.fromstring(output.encode())


def docx_text(data: bytes) -> list[str]:
    """Returns the text of each paragraph, with the text of formatted runs in brackets."""
    space = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        root = etree.fromstring(archive.read("word/document.xml"))
    return [
        "".join(
            f"[{text}]" if run.find(f"{space}rPr") is not None else text
            for run in paragraph.iter(f"{space}r")
            for text in ["".join(element.text or "" for element in run.iter(f"{space}t"))]
        )
        for paragraph in root.iter(f"{space}p")
    ]


def test_runs_of_docx_files_keep_their_words(tmp_path: Path) -> None:
    data = (FOLDER / "letter.docx").read_bytes()
    assert docx_text(data)[:2] == ["The [red] house & garden", "See [this page]"]
    model = fake_engine(str, reverse, returns_alignments=True)
    output = translated("letter.docx", data, tmp_path, model=model)
    translations = ["garden & house [red] The", "[page this] See", "cell atab a after", ""]
    assert docx_text(output) == translations
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(io.BytesIO(output)) as new:
        assert old.namelist() == new.namelist()
        others = [name for name in old.namelist() if name != "word/document.xml"]
        assert all(old.read(name) == new.read(name) for name in others)


ENCODINGS = [
    ("a.strings", '"a" = "café";', "utf-16"), ("a.json", '["café"]', "utf-8-sig"),
    ("a.html", "<meta charset=iso-8859-1><p>café</p>", "iso-8859-1"),
    ("a.srt", "1\n00:00:01,000 --> 00:00:02,000\ncafé\n", "utf-8-sig"),
    ("a.xml", '<?xml version="1.0" encoding="iso-8859-1"?>\n'
     '<resources><string name="a">café</string></resources>', "iso-8859-1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "encoding"), ENCODINGS)
def test_encodings_are_kept(name: str, text: str, encoding: str, tmp_path: Path) -> None:
    data = text.encode(encoding)
    assert translated(name, data, tmp_path, model=IDENTITY) == data
    assert translated(name, data, tmp_path).decode(encoding) == text.replace("café", "CAFÉ")
    if encoding == "iso-8859-1":  # a character that the encoding lacks
        model = fake_engine(lambda text: "猫")
        assert b">&#29483;<" in translated(name, data, tmp_path, model=model)


# Unusual files. The text between « and » is translated.
UNUSUAL = [
    ("a.html", '<div translate="no"><div>a</div>b</div><p class="x notranslate">d</p>«c»'),
    ("b.html", "<?php $a->b ?><p>«a» {% if x %} «b» &lt;b id='x'&gt;«c»&lt;/b&gt; «d»"),
    ("c.html", "\ufeff<meta charset=utf-8><p>«é»"),
    ("a.json", '{"a": "«b»", "a": ' + "1" * 5000 + "}"),
    ("a.srt", "1\r00:00:01,0 --> 00:00:02,0\r«a b»\r«c d»\r"),
    ("a.vtt", "WEBVTT\n00:01.0 --> 00:02.0\n<v A><i>«b»</i>"),
    ("a.md", "+++\na\n+++\n1. 1 «b» [c]\n\n|«a»|«b» \\| «c»|\n|-|-|\n\n[c]: d"),
    ("a.xml", '<resources><string name="a">«a» &lt;b x="y">«c»&lt;/b></string></resources>'),
    (
        "b.md",
        "> [!NOTE]\n> «a b»\n\n[^1]: «a b»[^1]\n\n"
        "«a» <code>b *c*</code> <i translate='no'>d</i> «e»<br>",
    ),
    ("b.srt", "1\n00:00:01,0 --> 00:00:02,0\n«a» &amp; &lt;3 «b» &nbsp;«c» &#39;«d»&#39;\n"),
    ("e.json", '["«a» {{{b}}} <c> «d»", "«a» &nbsp;«b» 5 &lt; 6"]'),
    ("e.html", "<p data-translate='no'>«a» <a href='?translate=no'>«b»</a>"),
    ("b.xml", '<resources><string name="a"><![CDATA[«a & b»]]></string></resources>'),
    ("a.txt", "\u202b«a»\u202c{x} «e\u0301» https://a.b/c %d%%\r\n"),
    ("b.json", "[\"{n, plural, one {«It''s» # «file»} other {''{x}''}}\"]"),
    (
        "c.json",
        '["«a» <i>{n, plural, one {«a» <b>#</b> «b»} other {{g, select, a {<b>«b»</b>}}}}</i>"]',
    ),
    ("d.html", "<p>{n, plural, one {<b>«a» &lt;</b> #} other {# <img/>}} <i>«a»</i> «b»"),
]


@pytest.mark.parametrize(("name", "marked"), UNUSUAL)
def test_unusual_files(name: str, marked: str, tmp_path: Path) -> None:
    source = re.sub("[«»]", "", marked)
    expected = re.sub("«(.*?)»", lambda match: match[1].upper(), marked)
    assert translated(name, source.encode(), tmp_path).decode() == expected


def test_line_breaks_of_strings(tmp_path: Path) -> None:
    output = translated("a.po", b'msgid "a\\n"\r\n"b %d%%"\r\nmsgstr ""', tmp_path)
    assert output.endswith(b'msgstr "A\\nB %d%%"')
    source = b"<source xml:space='preserve'><![CDATA[a\n<b>c</b> & d]]></source>"
    output = translated("a.xlf", b"<xliff><segment>%b</segment></xliff>" % source, tmp_path)
    assert b"<target><![CDATA[A\n<b>C</b> &amp; D]]></target>" in output
    model = fake_engine(lambda text: "a & b]]>")
    source = b"<xliff><segment><source><![CDATA[a]]></source></segment></xliff>"
    root = etree.fromstring(translated("a.xlf", source, tmp_path, model=model))
    assert root.findtext("*/target") == "a & b]]>"


def test_byte_order_marks_stay_and_empty_translations_are_counted(tmp_path: Path) -> None:
    data = b"\xfe\xff" + '"a" = "b";'.encode("utf-16-be")
    assert translated("a.strings", data, tmp_path) == data.replace(b"b", b"B")
    (tmp_path / "a.txt").write_text("One {x}.\nTwo.\n{x}\n")
    counts = translate_file(fake_engine(lambda line: ""), tmp_path / "a.txt", tmp_path / "b.txt")
    assert counts == {"texts": 3, "empty": 2, "kept": 1, "symbols": 0, "aligned": 0, "appended": 0}
    assert (tmp_path / "b.txt").read_text() == (tmp_path / "a.txt").read_text()


ZIP = io.BytesIO()
with zipfile.ZipFile(ZIP, "w") as archive:
    archive.writestr("word/document.xml", "<w:document><w:p></w:document>")
BOMB = io.BytesIO()
with zipfile.ZipFile(BOMB, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
    archive.writestr("word/document.xml", bytes(2**26 + 1))
BROKEN = [
    ("a.html", b"<p>one</p>\n<p>two <a href='x", "line 2, column 8", "does not end"),
    ("b.html", b"<p>one\n\xff</p>", "line 2", "utf-8"),
    ("c.html", b'<meta charset="no-such">', "no-such"),
    ("a.json", b'{\n "a": "b",\n}', "line 3, column 1", "JSON"),
    ("b.json", b"[" * 200_000, "nested"),
    ("a.xlf", b"<xliff version='1.2'>\n<file></xliff>", "line 2, column 9", "mismatched tag"),
    ("b.xlf", b"<html/>", "line 1, column 1", "<html>", "XLIFF"),
    ("c.xlf", b"", "no element found"),
    ("a.xml", b"<resources>\n <string name='a'>&x;</string></resources>", "line 2", "undefined"),
    ("a.po", b'msgid "a"\nmsgstr "b"\n\nmsgid "c\nmsgstr ""\n', "line 4", "entry"),
    ("b.po", b'msgid "a"\nmsgid "b"\nmsgstr ""\n', "line 1", "entry"),
    ("a.srt", b"1\n00:00:01,000 --> 00:00:02,000\nHi\n\n2\nno time\n", "line 5, column 1", "-->"),
    ("a.vtt", b"00:01.000 --> 00:02.000\nHi\n", "line 1", "WEBVTT"),
    ("a.strings", b'"a" = "b";\n"c" = "d"\n"e" = "f";', "line 2, column 1", "entry"),
    ("a.docx", b"PK not a zip", "a.docx", "not a readable DOCX"),
    ("b.docx", (FOLDER / "letter.docx").read_bytes()[:-40], "b.docx", "not a readable DOCX"),
    ("c.docx", ZIP.getvalue(), "c.docx: word/document.xml", "line 1", "mismatched tag"),
    ("d.docx", BOMB.getvalue(), "d.docx", "64 MB"),
    ("a.pdf", b"%PDF", "a.pdf", "unknown", "html"),
]


@pytest.mark.parametrize(("name", "data", "facts"), [(n, d, f) for n, d, *f in BROKEN])
def test_a_broken_file_is_one_error_with_its_place(
    name: str, data: bytes, facts: list[str], tmp_path: Path
) -> None:
    refuses(translated, (name, data, tmp_path), *facts)
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(FILES), st.data())
def test_a_damaged_file_is_translated_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    content = bytearray((FOLDER / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        index = data.draw(st.integers(0, len(content) - 1))
        damage = data.draw(st.sampled_from(b"<>\"'&;{}\\\n\0[]:=#") | st.integers(0, 255))
        content[index : index + data.draw(st.integers(0, 9))] = bytes([damage])
    folder = tmp_path_factory.mktemp("fuzz")
    try:
        translated(name, bytes(content), folder, model=IDENTITY)
    except InputError as error:
        assert "\n" not in str(error) and not (folder / "output").exists()


SUFFIXES = sorted({Path(name).suffix for name in FILES})


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SUFFIXES), st.text(max_size=80) | st.text(st.sampled_from(
    "<>/&;\"'= \n\r\t-!?[]{}*_`#1:,.\\abxWEBVTT|msgidtr()"), max_size=80))  # fmt: skip
@example(".md", "[a](\n```\n")
@example(".po", 'msgid "a"\nmsgstr ""\nmsgstr[1] ""')
@example(".html", "<script>")
def test_any_text_is_translated_or_refused(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, text: str
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    try:
        for model in (IDENTITY, CAPITALS):
            data = text.encode(errors="ignore")
            output = translated(f"a{suffix}", data, folder, model=model)
            if model is IDENTITY and suffix not in (".po", ".xlf"):
                assert output == data
    except InputError as error:
        assert "\n" not in str(error)


def test_nothing_is_overwritten_or_left_behind(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a dog")
    (tmp_path / "b.txt").write_text("mine")
    a, b, c = (tmp_path / f"{name}.txt" for name in "abc")
    refuses(translate_file, (CAPITALS, a, b), "b.txt", "exists")
    assert (tmp_path / "b.txt").read_text() == "mine"
    translate_file(CAPITALS, tmp_path / "a.txt", tmp_path / "b.txt", overwrite=True)
    assert (tmp_path / "b.txt").read_text() == "A DOG"
    refuses(translate_file, (CAPITALS, tmp_path / "none.txt", c), "none.txt", "No such file")
    missing = tmp_path / "none" / "c.txt"
    refuses(translate_file, (CAPITALS, a, missing), "none/c.txt", "cannot be written")
    given = {"model": CAPITALS, "input": a, "output": c, "spans": ["("]}
    refuses(translate_file, given, "'('", "regular expression", "character 1")
    refuses(translate_file, (fake_engine(str, n_best=2), a, c), "fake", "2 translations", "n_best")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt"]


def test_patterns_and_tags_of_the_user(tmp_path: Path) -> None:
    model = fake_engine(lambda line: line.upper().replace("<2DE>", "TAG"))
    output = translated(
        "a.html", b"<p>A big <b>ACMEfoo</b> dog.", tmp_path, model=model,
        spans=[r"ACME\w*"], source_tag="<2de>",
    )  # fmt: skip
    assert output == b"<p>TAG A BIG <b>ACMEfoo</b> DOG."


def test_a_number_that_an_old_vocabulary_changes_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = fake_engine(str, vocabulary=old_vocabulary())
    assert translated("a.html", "<p>10<b>³</b> 10³".encode(), tmp_path, model=model)
    [line] = capsys.readouterr().err.splitlines()
    assert tells(line, "a.html", "'10³'", "'103'")


def test_the_command_and_the_method_agree(
    run_directory: RunDirectory, driver: Driver, tmp_path: Path
) -> None:
    shutil.copy(FOLDER / "page.html", tmp_path)
    counts = kt.load(run_directory.path).translate_file(tmp_path / "page.html", tmp_path / "a.html")
    assert counts["texts"] == 7
    paths = [f"--model_dir={run_directory.path}", "--input=page.html", "--output=b.html"]
    code, out, err, *_ = driver.run(tmp_path, "translate_file", paths, "")
    assert code == 0 and out.startswith("Wrote b.html: 7 texts.")
    assert tells(err, "page.html", "not in the vocabulary", "line 5") and err.count("\n") == 1
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert (tmp_path / "a.html").read_bytes().count(b"{name}") == 1
    code, _, err, *_ = driver.run(tmp_path, "translate_file", [*paths, "--span=("], "")
    assert code == 1 and tells(err, "b.html", "exists")
