"""Corpora: blocks and pairs are aligned by their line feeds, or raise an error."""

import contextlib
import hashlib
import re
from types import SimpleNamespace

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from keras_transformer.data import blocks as blocks_module
from keras_transformer.data.blocks import read_blocks
from keras_transformer.data.corpus import ParallelFiles, TsvFile, parallel_files
from keras_transformer.errors import InputError
from tests.builders import refuses
from tests.conftest import ROOT
from tests.messages import mentions


@pytest.fixture
def files(tmp_path):
    """Writes a source and a target file and returns their corpus."""

    def write(source, target):
        (tmp_path / "s").write_bytes(source)
        (tmp_path / "t").write_bytes(target)
        return ParallelFiles(tmp_path / "s", tmp_path / "t")

    return write


@pytest.mark.parametrize(
    ("source", "target", "counts"),
    [
        (b"a\nb\nc\n", b"1\n", "s has 3 lines, but {}/t has 1"),
        (b"a\n", b"1\n2\n3\n4", "s has 1 lines, but {}/t has 4"),
        (b"a\nb\n", b"", "t is empty"),
        (b"", b"a\n", "s is empty"),
    ],
)
def test_different_numbers_of_lines_are_reported(files, tmp_path, source, target, counts):
    corpus = files(source, target)
    for read in (corpus.pairs, lambda: read_blocks(corpus)):
        with pytest.raises(InputError, match=counts.format(tmp_path)):
            list(read())


def lengths(count):
    """Lengths of sentences and of their translations."""
    random = np.random.default_rng(0)
    source = random.normal(4, 0.6, count)
    return [
        np.exp(side).astype(int) for side in (source, source + 0.2 + random.normal(0, 0.25, count))
    ]


@pytest.mark.parametrize(
    "gaps",  # side, line, and number of missing lines
    [
        *([(side, line, missing)] for side in (0, 1) for line in (0, 700) for missing in (1, 40)),
        [(0, 700, 1), (0, 1500, 3)],
        [(0, 600, 30), (1, 900, 7)],
        [(0, 300, 60), (0, 1900, 300)],
        [(1, 1900, 100)],
    ],
)
def test_the_error_names_the_first_line_that_does_not_fit(files, gaps):
    sides = lengths(2000)
    for side, line, missing in reversed(gaps):
        sides[side] = np.delete(sides[side], slice(line, line + missing))
    corpus = files(*(b"".join(b"x" * length + b"\n" for length in side) for side in sides))
    with pytest.raises(InputError) as error:
        list(read_blocks(corpus))
    (found,) = re.findall(r"near line ([\d,]+)", str(error.value))
    assert abs(int(found.replace(",", "")) - (gaps[0][1] + 1)) <= 12


def test_errors_name_files_that_cannot_be_read(tmp_path):
    good = tmp_path / "good.en"
    good.write_bytes(b"a\n")
    for sources, targets, facts in (
        ([good], [tmp_path / "absent.de"], ("absent.de", "missing")),
        ([good], [tmp_path], ("regular file",)),
        ([good, good], [good], ("2", "source files", "1", "target files")),
    ):
        refuses(parallel_files, (sources, targets), *facts)


# Files of ManyThings (Anki), whose third column is the license, and of joeynmt.
ANKI = "It is late.\tEs ist spät.\tCC-BY 2.0\nHello!\tHallo!\tCC-BY 2.0\n"
JOEY = "src\tsrc_prompt\ttrg\ttrg_prompt\nEs ist spät .\t<de>\tIt is late .\t<en>\n"


@pytest.mark.parametrize(
    ("text", "columns", "pairs"),
    [
        (ANKI, ("1", "2"), [("It is late.", "Es ist spät."), ("Hello!", "Hallo!")]),
        (ANKI, ("2", "1"), [("Es ist spät.", "It is late."), ("Hallo!", "Hello!")]),
        (JOEY, ("src", "trg"), [("Es ist spät .", "It is late .")]),
        ("\ufeffen\tde\r\na\tb\r\n", ("de", "en"), [("b", "a")]),
        ("1\t2\n", ("1", "2"), [("1", "2")]),
        ("one\teins\ntwo\tzwei\r\n", None, [("one", "eins"), ("two", "zwei")]),
    ],
)
def test_columns_by_number_or_name(tmp_path, text, columns, pairs):
    path = tmp_path / "c.tsv"
    path.write_text(text)
    corpus = TsvFile(path, columns)
    assert [tuple(map(bytes.decode, pair)) for pair in corpus.pairs()] == pairs
    (block,) = read_blocks(corpus)
    assert [text.count(b"\n") for text in block.texts] == [len(pairs)] * (2 if columns else 1)


@pytest.mark.parametrize(
    "text",
    [
        '"She said ""yes""."\tJa\n"a\nb"\t"x, y"\n',
        '"She said ""yes""."\tJa\r\n"a b"\tx, y\r\n',
        '"She said ""yes"".",Ja\n"a\nb","x, y"\n',
        '"She said ""yes"".";Ja\n"a\tb";x, y\n',
    ],
)
def test_files_of_spreadsheets(tmp_path, text):
    path = tmp_path / "c.csv"
    path.write_text(text, newline="")
    corpus = TsvFile(path, quoted=True)
    assert [*corpus.pairs()] == [(b'She said "yes".', b"Ja"), (b"a b", b"x, y")]
    (block,) = read_blocks(corpus)
    assert block.texts == (b'She said "yes".\na b\n', b"Ja\nx, y\n")
    path.write_text("en,de\n" + 'He,"Er\nja"\n')
    assert [*TsvFile(path, ("de", "en"), quoted=True).pairs()] == [(b"Er ja", b"He")]
    path.write_text("a; b,c\rd\r\ne,f\r\n\r\n", newline="")
    assert [*corpus.pairs()] == [(b"a; b", b"c d"), (b"e", b"f")]
    for text, facts in (
        ('a,b\n"c,d\n' + 'e,"f"\n', ("c.csv", "line 3", "begins in line 2", "omit tsv_quoted")),
        ('a,b\n"c' + 200 * "\nd,e" + '",f\n', ("line 202", "begins in line 2", "100 lines")),
        ("a,b\n\nc\n", ("line 3", 1, "columns")),
    ):
        path.write_text(text)
        refuses(list, (corpus.pairs(),), *facts)


def test_errors_name_missing_columns(tmp_path):
    path = tmp_path / "c.tsv"
    for text, columns, facts in (
        ("a\tb\none", None, ("c.tsv", "line 2", 1, "columns")),
        ("a,b\n", None, ("c.tsv", 1, "CSV", "tsv_quoted")),
        (JOEY, None, ("c.tsv", "line 1", 4, "tsv_columns")),
        (JOEY, ("en", "trg"), ("c.tsv", "'en'", "src", "trg_prompt")),
        (JOEY + "zwei\tSpalten\n", ("src", "trg"), ("c.tsv", "line 3", 2, "at least 3")),
    ):
        path.write_text(text)
        refuses(list, (TsvFile(path, columns).pairs(),), *facts)


@hypothesis.given(
    st.binary(max_size=40), st.tuples(*[st.sampled_from(["1", "2", "3", "a", ""])] * 2)
)
def test_any_bytes_in_columns_are_pairs_or_an_error(tmp_path_factory, content, columns):
    path = tmp_path_factory.mktemp("columns") / "c.tsv"
    path.write_bytes(content)
    with contextlib.suppress(InputError):
        for pair in TsvFile(path, columns).pairs():
            assert not any(b"\t" in side or b"\n" in side for side in pair)


def corpus_of(*pairs, error=None):
    """Returns a corpus of another package. Its reader raises the error after the pairs."""

    def read():
        yield from pairs
        if error:
            raise error

    return SimpleNamespace(name="pairs", pairs=read)


def test_pairs_without_a_file_become_blocks(monkeypatch):
    corpus = corpus_of((b"a\nb", b"1"), (b"c", b"2"), (b"d", b"3" * 90), (b"e", b"4"))
    monkeypatch.setattr(blocks_module, "BLOCK_LINES", 2)
    monkeypatch.setattr(blocks_module, "BLOCK_BYTES", 80)
    blocks = list(read_blocks(corpus))
    assert [(block.line, *block.texts) for block in blocks] == [
        (1, b"a b\nc\n", b"1\n2\n"),
        (3, b"d\n", b"3" * 90 + b"\n"),
        (4, b"e\n", b"4\n"),
    ]
    everything = b"".join(text for block in blocks for text in block.texts)
    assert blocks[-1].sha256 == {"pairs": hashlib.sha256(everything).hexdigest()}


def test_errors_of_a_reader_name_the_corpus():
    corpus = corpus_of((b"a", b"b"), (b"c", b"d"), error=FileNotFoundError("no such file"))
    refuses(list, (read_blocks(corpus),), "pairs", "read", "line 2", "no such file")
    for pair in (("a", "b"), (b"a", b"b", b"c"), b"ab"):
        with pytest.raises(TypeError, match=re.escape(f"yielded {pair!r}. A pair is")):
            list(read_blocks(corpus_of(pair)))


def test_the_reader_of_the_documentation(tmp_path):
    page, module = (ROOT / "docs" / "corpora.md").read_text("utf-8"), {}
    exec(page.split("```python\n")[1].split("```")[0], module)
    path = tmp_path / "x.csv"
    path.write_bytes('\ufeffa,"b\nc"\r\n"d,e",f\r\n'.encode())
    (corpus,) = module["READER"].read(str(path), module["CsvOptions"]())
    assert list(corpus.pairs()) == [(b"a", b"b\nc"), (b"d,e", b"f")]
    with pytest.raises(InputError, match=mentions("x.csv", "line 1", "--csv_delimiter")):
        list(module["CsvFile"](str(path), ";").pairs())


LINE = st.binary(max_size=6).map(lambda b: b.replace(b"\n", b" "))
PACKED = (b"PK", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
PLAIN = LINE.filter(lambda b: not b.startswith((*PACKED, b"\xff\xfe", b"\xfe\xff")))
LINES = st.lists(PLAIN, max_size=9)


@hypothesis.settings(max_examples=150)
@hypothesis.given(source=LINES, target=LINES, same=st.booleans(), size=st.integers(1, 4))
def test_blocks_are_the_files_or_an_error(tmp_path_factory, source, target, same, size):
    if same:
        target = (target * (len(source) + 1))[: len(source)] or [b"x"] * len(source)
    directory = tmp_path_factory.mktemp("fuzz")
    for name, lines in (("s", source), ("t", target)):
        (directory / name).write_bytes(b"".join(line + b"\n" for line in lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks_module, "BLOCK_BYTES", 5)
        try:
            blocks = list(read_blocks(ParallelFiles(directory / "s", directory / "t"), size))
        except InputError:
            is_of_mac = any(len(side) == 1 and b"\r" in side[0] for side in (source, target))
            assert len(source) != len(target) or not source or is_of_mac
            return
    found = [
        (block.line + i, *pair)
        for block in blocks
        for i, pair in enumerate(zip(*(t.split(b"\n")[:-1] for t in block.texts), strict=True))
    ]
    assert found == [(i + 1, *pair) for i, pair in enumerate(zip(source, target, strict=True))]
