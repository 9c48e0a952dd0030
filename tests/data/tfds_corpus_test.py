"""Corpora from TensorFlow Datasets: direction, order, and what a mistake says."""

import subprocess
import sys

import pytest
import tensorflow_datasets as tfds

from keras_transformer.data.tfds_corpus import TfdsCorpus
from keras_transformer.errors import InputError

WMT14 = "wmt14_translate/de-en"


@pytest.fixture
def folder(tmp_path):
    texts = {
        "en.train.txt": "one\ntwo\nthree\n",
        "de.train.txt": "eins\nzwei\ndrei Möwen\n",
        "en.valid.txt": "four\n",
        "de.valid.txt": "vier\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_source_language_gives_the_direction_of_a_registered_set(tmp_path):
    with tfds.testing.mock_data(num_examples=5):
        to_english = TfdsCorpus(WMT14, "train", "de", str(tmp_path))
        to_german = TfdsCorpus(WMT14, "train", "en", str(tmp_path))
        forth, back = list(to_english.pairs()), list(to_german.pairs())
        mocked = tfds.load(WMT14, split="train", data_dir=str(tmp_path))
        expected = [(pair["de"], pair["en"]) for pair in mocked.as_numpy_iterator()]
    assert forth == expected and len(forth) == 5
    assert back == [(english, german) for german, english in expected]
    assert to_english.name == f"{WMT14}[train]"
    assert (to_german.source_language, to_german.target_language) == ("en", "de")


def test_line_breaks_inside_a_text_become_spaces(tmp_path):
    import tensorflow as tf

    def as_dataset(self, *args, **kwargs):
        return tf.data.Dataset.from_tensors({"de": "eins\r\nzwei\n\n", "en": "one\ntwo"})

    with tfds.testing.mock_data(as_dataset_fn=as_dataset):
        corpus = TfdsCorpus(WMT14, "train", "de", str(tmp_path))
        assert list(corpus.pairs()) == [(b"eins zwei ", b"one two")]


def test_translate_folder_in_both_directions(folder):
    name = f"translate_folder:{folder}"
    forth = list(TfdsCorpus(name, "train", "en").pairs())
    assert forth == [(b"one", b"eins"), (b"two", b"zwei"), (b"three", "drei Möwen".encode())]
    assert list(TfdsCorpus(name, "valid", "de").pairs()) == [(b"vier", b"four")]


def test_a_third_language_asks_which_is_the_target(folder):
    for split, text in (("train", "un\ndeux\ntrois\n"), ("valid", "quatre\n")):
        (folder / f"fr.{split}.txt").write_text(text)
    name = f"translate_folder:{folder}"
    with pytest.raises(InputError, match=r"target language .* None; .*'de', 'en', 'fr'"):
        TfdsCorpus(name, "train", "en")
    corpus = TfdsCorpus(name, "valid", "en", target_language="fr")
    assert list(corpus.pairs()) == [(b"four", b"quatre")]


@pytest.mark.parametrize(
    ("name", "language", "message"),
    [
        ("no_such_set/de-en", "de", "no data set 'no_such_set/de-en'"),
        ("wmt14_translate/xx-en", "en", "'wmt14_translate/xx-en'.*xx-en not found"),
        ("wmt14_translate/de-en:9.9.9", "de", "cannot be loaded at version 9.9.9"),
        ("what is this", "de", "no data set 'what is this'"),
        ("", "de", "no data set ''"),
        ("huggingface:opus_books/de-en", "de", "community data set"),
        ("imdb_reviews", "de", "no translation set: its texts are .'text'.; expected two"),
        ("ted_multi_translate", "de", "no translation set"),
        (WMT14, "fr", "source language .* is 'fr'; expected one of .'de', 'en'"),
        ("translate_folder:/no/such/folder", "de", "/no/such/folder is no directory"),
    ],
)
def test_a_set_that_cannot_be_used_is_named(tmp_path, name, language, message):
    with pytest.raises(InputError, match=message) as caught:
        TfdsCorpus(name, "train", language, str(tmp_path))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_unknown_splits_name_those_that_exist(folder):
    corpus = TfdsCorpus(f"translate_folder:{folder}", "test", "en")
    with pytest.raises(InputError, match=r"no split 'test'; expected one of \['train', 'valid'\]"):
        list(corpus.pairs())


def test_nothing_is_downloaded_unasked(tmp_path):
    corpus = TfdsCorpus(WMT14, "train", "de", str(tmp_path))
    with pytest.raises(InputError, match="is not prepared in .*--tfds_download"):
        list(corpus.pairs())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("en.train.txt", b"one\n", "'de': 3"),
        ("en.train.txt", b"one\n\xff\nthree\n", "en.train.txt, line 2: byte 0xff is not UTF-8"),
        ("notes.md", b"", "notes.md is not named LANGUAGE.SPLIT.txt"),
    ],
)
def test_a_folder_that_does_not_hold_together_is_named(folder, name, content, message):
    (folder / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        TfdsCorpus(f"translate_folder:{folder}", "train", "en")
    assert str(folder) in str(caught.value)


def test_importing_the_module_does_not_load_tfds():
    module = "keras_transformer.data.tfds_corpus"
    code = f"import sys, {module}; sys.exit('tensorflow_datasets' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
