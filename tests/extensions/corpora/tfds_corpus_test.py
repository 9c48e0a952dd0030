"""Corpora from TensorFlow Datasets: direction, order, and error messages."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow_datasets as tfds
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.data.corpus import ParallelFiles
from keras_transformer.errors import InputError
from keras_transformer.extensions.corpora.tfds_corpus import (
    TfdsCorpus,
    _one_line_each,
    tfds_corpus,
)
from tests.data.prepared_sets import write_set
from tests.messages import mentions

WMT14 = "wmt14_translate/de-en"
SETS = [
    (WMT14, "de", "en"),
    ("wmt14_translate/fr-en", "fr", "en"),
    ("wmt16_translate/de-en", "de", "en"),
    ("wmt16_translate/ro-en", "ro", "en"),
    ("ted_hrlr_translate/pt_to_en", "pt", "en"),
    ("ted_hrlr_translate/aztr_to_en", "az_tr", "en"),
    ("opus/medical", "de", "en"),
    ("opus/en-fr for EMEA, KDE4", "en", "fr"),
]
PAIRS = [(f"{i} Möwen am Meer\u2028.", f"{i} gulls at sea") for i in range(7)]


@pytest.mark.parametrize(("name", "source", "target"), SETS)
def test_sets_of_the_catalogue_by_name_with_mock_data(tmp_path, name, source, target):
    with tfds.testing.mock_data(num_examples=5):
        forth = TfdsCorpus(name, "train", source, str(tmp_path))
        back = TfdsCorpus(name, "train", target, str(tmp_path))
        there, and_back = list(forth.pairs()), list(back.pairs())
    assert len(there) == len(set(there)) == 5
    assert and_back == [(b, a) for a, b in there] != there
    assert forth.name == f"{name}[train]"
    assert (forth.source_language, forth.target_language) == (source, target)


@pytest.mark.parametrize(("name", "source", "target"), SETS)
def test_sets_of_the_catalogue_by_name_on_disk(tmp_path, name, source, target):
    write_set(name, tmp_path, {"train": PAIRS, "validation": PAIRS[:2]})
    expected = sorted((a.encode(), b.encode()) for a, b in PAIRS)
    corpus = TfdsCorpus(name, "train", source, str(tmp_path))
    assert sorted(corpus.pairs()) == expected
    assert list(corpus.pairs()) == list(corpus.pairs())
    back = TfdsCorpus(name, "validation", target, str(tmp_path))
    assert sorted(back.pairs()) == sorted((b.encode(), a.encode()) for a, b in PAIRS[:2])


def test_either_side_selects_the_languages(tmp_path):
    write_set(WMT14, tmp_path, {"train": PAIRS[:1]})
    for source, target in (("en", None), (None, "de"), ("en", "de")):
        corpus = TfdsCorpus(WMT14, "train", source, str(tmp_path), target_language=target)
        assert list(corpus.pairs()) == [(PAIRS[0][1].encode(), PAIRS[0][0].encode())]


def test_bytes_equal_those_of_the_set_except_line_breaks(tmp_path):
    odd = {
        b"eins\r\nzwei\n\n": b"one\ntwo",
        b"": b"nothing there",
        b"\xff no UTF-8": b"\0",
        b"\xef\xbb\xbfBOM\t": b"\r",
    }
    write_set(WMT14, tmp_path, {"train": odd.items()})
    assert sorted(TfdsCorpus(WMT14, "train", "de", str(tmp_path)).pairs()) == sorted(
        [
            (b"eins zwei ", b"one two"),
            (b"", b"nothing there"),
            (b"\xff no UTF-8", b"\0"),
            (b"\xef\xbb\xbfBOM\t", b" "),
        ]
    )


@given(st.lists(st.binary() | st.text("\r\n a").map(str.encode)))
def test_every_text_stays_one_line_in_its_place(texts):
    lines = _one_line_each(texts)
    assert [b"".join(line.split()) for line in lines] == [b"".join(t.split()) for t in texts]
    assert not any(b"\n" in line or b"\r" in line for line in lines)


@pytest.mark.parametrize(
    ("name", "language", "message"),
    [
        ("no_such_set/de-en", "de", mentions("dataset", "no_such_set/de-en", "prepared")),
        ("wmt14_translate/xx-en", "en", mentions("xx-en", "wmt14_translate/de-en")),
        ("wmt14_translate/de-en:9.9.9", "de", mentions("loaded", "9.9.9")),
        ("wmt14_translate/de-en/x=1", "de", "unexpected keyword argument 'x'"),
        ("wmt14_translate", "de", mentions("parts", "wmt14_translate/de-en")),
        ("what is this", "de", mentions("dataset", "what is this")),
        ("", "de", mentions("dataset", "''")),
        ("huggingface:opus_books/de-en", "de", mentions("community")),
        ("imdb_reviews", "de", mentions("translation dataset", "['text']")),
        ("ted_multi_translate", "de", mentions("translation dataset")),
        (WMT14, "fr", mentions("source language", "'fr'", "'de'", "'en'")),
        (WMT14, None, mentions("source language", "None", "'de'", "'en'")),
        ("opus", "de", mentions("parts", "opus/medical", "opus/en-fr for EMEA")),
        ("opus/de-en", "de", mentions("opus/medical", "opus/en-fr for EMEA, KDE4")),
        ("opus/de-en for Books", "de", mentions("Books", "OPUS", "EMEA", "GNOME")),
        ("opus/de-en for EMEA, ", "de", mentions("''", "OPUS")),
        ("opus/de-xx for EMEA", "de", mentions("EMEA", "de-xx", "bg", "cs")),
    ],
)
def test_errors_name_an_unusable_set(tmp_path, name, language, message):
    with pytest.raises(InputError, match=message) as caught:
        TfdsCorpus(name, "train", language, str(tmp_path))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("tran", mentions("split", "'tran'", "train")),
        ("train[:200%]", mentions("split", "'train[:200%]'")),
        ("train[", mentions("split", "'train[")),
        ("", mentions("split", "''")),
        ("train[5:2]", mentions("split", "'train[5:2]'", "empty")),
        ("train[:0]", mentions("split", "'train[:0]'", "empty")),
    ],
)
def test_a_missing_split_is_refused_before_anything_is_read(tmp_path, split, message):
    write_set(WMT14, tmp_path, {"train": PAIRS})
    with pytest.raises(InputError, match=message):
        TfdsCorpus(WMT14, split, "de", str(tmp_path))


def test_a_relative_data_directory_is_found_from_elsewhere(tmp_path, monkeypatch):
    write_set(WMT14, tmp_path / "sets", {"train": PAIRS})
    monkeypatch.chdir(tmp_path)
    passed_on = pickle.dumps(TfdsCorpus(WMT14, "train", "de", "sets"))
    monkeypatch.chdir("/")
    assert len(list(pickle.loads(passed_on).pairs())) == len(PAIRS)


def test_data_are_downloaded_only_on_request(tmp_path):
    with pytest.raises(InputError, match=mentions("prepared", "--tfds_download")):
        TfdsCorpus(WMT14, "train", "de", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_an_error_names_a_path_that_is_not_a_data_directory(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(InputError, match=mentions("prepared", f"{file}/")):
        TfdsCorpus(WMT14, "train", "de", str(file))


# Folders of text files.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = {
        "en.train.txt": "one\ntwo\nthree\n",
        "de.train.txt": "eins\nzwei\ndrei Möwen\n",
        "en.valid.txt": "four\n",
        "de.valid.txt": "vier\n",
        "notes.md": "not a text of it",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_translate_folder_in_both_directions(folder):
    name = f"translate_folder:{folder}"
    forth = tfds_corpus(name, "train", "en")
    assert forth == ParallelFiles(folder / "en.train.txt", folder / "de.train.txt")
    assert list(forth.pairs()) == [
        (b"one", b"eins"),
        (b"two", b"zwei"),
        (b"three", "drei Möwen".encode()),
    ]
    assert list(tfds_corpus(name, "valid", "de").pairs()) == [(b"vier", b"four")]


def test_translate_folder_equals_tfds(folder):
    (folder / "notes.md").unlink()  # which stops TFDS
    of_tfds = tfds.TranslateFolder(str(folder)).as_dataset(split="train").as_numpy_iterator()
    corpus = tfds_corpus(f"translate_folder:{folder}", "train", "de")
    assert list(corpus.pairs()) == [(pair["de"], pair["en"]) for pair in of_tfds]


def test_lines_of_a_folder_end_only_at_lf(folder):
    (folder / "en.train.txt").write_bytes("one\u2028\ntwo\nthree\n".encode())
    (folder / "de.train.txt").write_bytes(b"eins\nzwei\x0c\ndrei\n")
    pairs = list(tfds_corpus(f"translate_folder:{folder}", "train", "en").pairs())
    assert [english[:3] + b"|" + german[:4] for english, german in pairs] == [
        b"one|eins",
        b"two|zwei",
        b"thr|drei",
    ]


def test_sets_with_three_languages_need_a_target_language(folder):
    (folder / "fr.train.txt").write_text("un\ndeux\ntrois\n")
    name = f"translate_folder:{folder}"
    with pytest.raises(
        InputError, match=mentions("target language", "None", "'de'", "'en'", "'fr'")
    ):
        tfds_corpus(name, "train", "en")
    corpus = tfds_corpus(name, "train", "en", target_language="fr")
    assert next(corpus.pairs()) == (b"one", b"un")


def test_errors_name_unusable_folders(folder):
    with pytest.raises(InputError, match=mentions("/no/such/folder", "No such file")):
        tfds_corpus("translate_folder:/no/such/folder", "train", "en")
    with pytest.raises(InputError, match=mentions("split", "'test'", "train", "valid")):
        tfds_corpus(f"translate_folder:{folder}", "test", "en")
    (folder / "empty").mkdir()
    with pytest.raises(InputError, match=mentions("empty", "LANGUAGE.SPLIT.txt")):
        tfds_corpus(f"translate_folder:{folder}/empty", "train", "en")
    (folder / "de.valid.txt").unlink()
    with pytest.raises(InputError, match=mentions("['en']", "two languages")):
        tfds_corpus(f"translate_folder:{folder}", "valid", "en")
    (folder / "de.train.txt").write_text("eins\n")
    with pytest.raises(InputError, match=mentions("en.train.txt", "3", "de.train.txt", "1")):
        list(tfds_corpus(f"translate_folder:{folder}", "train", "en").pairs())


def test_registered_sets_and_folders_are_distinguished(tmp_path):
    write_set(WMT14, tmp_path, {"train": PAIRS[:1]})
    corpus = tfds_corpus(WMT14, "train", data_dir=str(tmp_path), target_language="en")
    assert isinstance(corpus, TfdsCorpus) and len(list(corpus.pairs())) == 1


def test_neither_the_module_nor_a_folder_loads_tfds(folder):
    code = (
        "import sys; from keras_transformer.extensions.corpora.tfds_corpus import tfds_corpus;"
        f"list(tfds_corpus('translate_folder:{folder}', 'train', 'en').pairs());"
        "sys.exit('tensorflow_datasets' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
