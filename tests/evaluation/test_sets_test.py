"""Test sets from files and from sacreBLEU's folder. Nothing is downloaded."""

import contextlib
import tempfile
import urllib.request
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.dataset import DATASETS

from keras_transformer.errors import InputError
from keras_transformer.evaluation import test_sets
from keras_transformer.evaluation.metrics import evaluate
from keras_transformer.evaluation.test_sets import read_files, sacrebleu_set
from tests.builders import refuses

SOURCES = ["Two dogs run.", "A man  sings &amp; plays."]
GERMAN = ["Zwei Hunde laufen.", "Ein Mann singt &amp; spielt."]
OTHER = ["Zwei Hunde rennen.", "Ein Mann singt und spielt."]


def sgml(lines):
    segments = "\n".join(f'<seg id="{i}">{line}</seg>' for i, line in enumerate(lines, 1))
    return f'<srcset>\n<doc docid="news" origlang="en">\n{segments}\n</doc>\n</srcset>\n'


@contextlib.contextmanager
def sacrebleu_folder(path):
    """Makes sacreBLEU use this folder, like the environment variable SACREBLEU."""

    def refuse(*_, **__):
        raise AssertionError("a connection was opened")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(urllib.request, "urlopen", refuse)
        patch.setattr(test_sets, "SACREBLEU_DIR", str(path))
        for name, dataset in DATASETS.items():
            patch.setattr(dataset, "_outdir", str(path / name))
            patch.setattr(dataset, "_rawdir", str(path / name / "raw"))
        yield


@pytest.fixture
def folder(tmp_path):
    with sacrebleu_folder(tmp_path):
        yield tmp_path


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def full(source, reference):
    path = "wmt14/full/raw/test-full/newstest2014-deen-"
    return {f"{path}src.en.sgm": source, f"{path}ref.de.sgm": reference}


def test_a_set_is_read_from_downloaded_files(folder):
    write(folder, full(sgml(SOURCES), sgml(GERMAN)))
    test = sacrebleu_set("wmt14/full", "en-de")
    # sacreBLEU keeps the text of the SGML, except spaces.
    assert test.sources == ["Two dogs run.", "A man sings &amp; plays."]
    assert test.references == [GERMAN]
    assert (test.name, test.language_pair, test.target_language) == ("wmt14/full", "en-de", "de")
    assert test.title == "wmt14/full en-de"
    # From now on the extracted text is enough.
    for raw in (folder / "wmt14/full/raw").rglob("*.sgm"):
        raw.unlink()
    assert sacrebleu_set("wmt14/full", "en-de") == test
    # The other direction needs other files.
    refuses(sacrebleu_set, {"name": "wmt14/full", "language_pair": "de-en"}, "-l de-en")


@pytest.mark.parametrize(
    ("name", "pair", "files", "references"),
    [
        (
            "wmt20/tworefs", "en-de",
            {
                "sgm/newstest2020-ende-src.en.sgm": sgml(SOURCES),
                "sgm/newstest2020-ende-ref.de.sgm": sgml(GERMAN),
                "sgm/newstestB2020-ende-ref.de.sgm": sgml(OTHER),
            },
            [GERMAN, OTHER],
        ),
        (
            "multi30k/2016", "en-de",
            {
                "test_2016_flickr.en": "".join(f"{line}\n" for line in SOURCES),
                "test_2016_flickr.de": "".join(f"{line} \r\n" for line in OTHER),
            },
            [OTHER],
        ),
    ],
)  # fmt: skip
def test_file_formats_of_sacrebleu(folder, name, pair, files, references):
    write(folder / name / "raw", files)
    test = sacrebleu_set(name, pair)
    assert test.references == references
    assert test.sources is not None and len(test.sources) == 2
    scores = evaluate([row[0] for row in references[:1] * 2], test)
    signature = f"nrefs:{len(references)}|test:{name}|lang:{pair}|case:mixed|"
    assert scores.signature.startswith(signature) and scores.chrf_signature.startswith(signature)


@pytest.mark.parametrize(
    ("name", "pair", "files", "facts"),
    [
        # Nothing is downloaded.
        ("wmt14/full", "en-de", {}, ("wmt14/full", "sacrebleu --download wmt14/full -l en-de")),
        ("wmt2014", "en-de", {}, ("wmt2014", "sacreBLEU", "wmt14/full", "--list")),
        ("wmt14/full", "", {}, ("wmt14/full", "language pair", "''", "en-de")),
        ("wmt14/full", "en-de", full(sgml(SOURCES), sgml(GERMAN[:1])),
         ("2", "1", "sacrebleu --download wmt14/full -l")),
        ("wmt14/full", "en-de", full("no segments\n", "no segments\n"),
         ("wmt14_full.en-de.src", "empty")),
        ("wmt14/full", "en-de", full(sgml(["a\0b"]), sgml(["a"])),
         ("wmt14_full.en-de.src", "line 1", "NUL")),
        ("wmt21", "en-de", {"wmt21/raw/test/newstest2021.en-de.xml": "<dataset"},
         ("test set", "read")),
    ],
)  # fmt: skip
def test_sets_that_cannot_be_used(folder, name, pair, files, facts):
    write(folder, files)
    refuses(sacrebleu_set, {"name": name, "language_pair": pair}, *facts)
    assert files or list(folder.iterdir()) == []


RAW = st.one_of(
    st.binary(max_size=60),
    st.lists(st.text(max_size=10), max_size=4).map(
        lambda lines: sgml(lines).encode("utf-8", "replace")
    ),
)


@settings(max_examples=60)
@given(source=RAW, reference=RAW)
def test_any_bytes_are_aligned_or_refused(source, reference):
    with tempfile.TemporaryDirectory() as name, sacrebleu_folder(Path(name)):
        write(Path(name), full(source, reference))
        try:
            test = sacrebleu_set("wmt14/full", "en-de")
        except InputError as error:
            assert "\n" not in str(error)
        else:
            assert test.sources is not None
            assert len(test.sources) == len(test.references[0]) > 0


def test_read_files(tmp_path):
    write(tmp_path, {"en": "a\r\nb\n", "de": "\ufeffA\nB", "other": "C\nD\n", "short": "A\n"})
    de, en, other, short = (tmp_path / name for name in ("de", "en", "other", "short"))
    test = read_files(de, en)
    assert (test.sources, test.references) == (["a", "b"], [["A", "B"]])
    assert (test.title, test.target_language) == (None, "")
    assert read_files(de).sources is None
    assert read_files([de, other]).references == [["A", "B"], ["C", "D"]]
    for paths, facts in (((short, en), ("en", 2, 1)), (([de, short], None), ("short", 1, 2))):
        arguments = dict(zip(("reference", "source"), paths, strict=True))
        refuses(read_files, arguments, *facts)
