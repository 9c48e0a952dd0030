"""Finds and prepares TFDS sets, also unregistered ones, and reports errors."""

import pytest
import tensorflow_datasets as tfds
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_transformer.errors import InputError
from keras_transformer.extensions.corpora import tfds_sets
from keras_transformer.extensions.corpora.tfds_corpus import TfdsCorpus
from tests.data.prepared_sets import write_set
from tests.messages import mentions

OPUS = "opus/fr-en for EMEA, KDE4"


@settings(deadline=None)  # TFDS loads its modules as they are needed
@given(st.text() | st.from_regex(r"(opus|wmt14_translate)/[a-z]{2}-[a-z]{2}( for [A-Z, ]*)?\n?"))
@example("a:b/c:1.0.0/d=[")
@example("../../etc")
def test_any_name_is_a_set_or_an_input_error(name):
    try:
        tfds_sets.text_keys(tfds_sets.find(name, "/no/such/directory"))
    except InputError as error:
        assert repr(name) in str(error) or name in str(error)
        assert len(str(error)) < 1000 + 2 * len(name)


def test_a_set_prepared_elsewhere_needs_no_code(tmp_path):
    class MyOwnSet(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")
        name = "my_own_set"

        def _info(self):
            features = tfds.features.Translation(languages=("de", "en"))
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, _):
            return {"dev": [(0, {"de": "eins", "en": "one"})]}

        def _generate_examples(self):
            return ()

    MyOwnSet(data_dir=str(tmp_path)).download_and_prepare()
    corpus = TfdsCorpus("my_own_set", "dev", "de", str(tmp_path))
    assert list(corpus.pairs()) == [(b"eins", b"one")]


def test_parts_of_opus_are_prepared_by_tfds_from_its_files(tmp_path, monkeypatch):
    for subset, sentence in (("EMEA", "Fever\n"), ("KDE4", "File\nEdit\n")):
        (tmp_path / f"{subset}.en-fr.en").write_text(sentence)
        (tmp_path / f"{subset}.en-fr.fr").write_text(sentence.replace("e", "é"))
    urls = []

    def download_and_extract(self, url):
        urls.append(url)
        return str(tmp_path)

    manager = tfds.download.DownloadManager
    monkeypatch.setattr(manager, "download_and_extract", download_and_extract)
    corpus = TfdsCorpus(OPUS, "train", "fr", str(tmp_path / "data"), download=True)
    assert [url.rsplit("=")[1] for url in urls] == [
        "EMEA/v3/moses/en-fr.txt.zip",
        "KDE4/v2/moses/en-fr.txt.zip",
    ]
    # TFDS keeps the line ends of OPUS. Here each is a space, which cleaning strips.
    assert sorted(corpus.pairs()) == [
        (b"Edit ", b"Edit "),
        ("Filé ".encode(), b"File "),
        ("Févér ".encode(), b"Fever "),
    ]


@pytest.mark.parametrize(
    "error",
    [
        OSError("No space left on device"),
        AssertionError("Dataset needs data that you download by hand.\n\nSee the manual."),
        tfds.download.DownloadError("Failed to get url"),
    ],
)
def test_reasons_for_unprepared_sets_are_one_sentence(tmp_path, monkeypatch, error):
    def fail(self, **_):
        raise error

    monkeypatch.setattr(tfds.core.DatasetBuilder, "download_and_prepare", fail)
    message = mentions("opus/law", tmp_path, str(error).split(".")[0])
    with pytest.raises(InputError, match=message) as caught:
        TfdsCorpus("opus/law", "train", "de", str(tmp_path), download=True)
    assert "\n" not in str(caught.value)


def test_a_set_that_another_process_prepared_first_is_taken(tmp_path, monkeypatch):
    name = "opus/law"

    def outrun(self, **_):
        monkeypatch.undo()
        write_set(name, tmp_path, {"train": [("eins", "one")]})
        raise OSError("Directory not empty")

    builder = tfds_sets.find(name, str(tmp_path))
    monkeypatch.setattr(type(builder), "download_and_prepare", outrun)
    corpus = TfdsCorpus(name, "train", "de", str(tmp_path), download=True)
    assert list(corpus.pairs()) == [(b"eins", b"one")]


def test_leftovers_of_a_kill_are_not_a_set(tmp_path):
    write_set("opus/law", tmp_path / "whole", {"train": [("eins", "one")]})
    whole = tmp_path / "whole/opus/law/0.1.0"
    left = tmp_path / "killed/opus/law/incomplete.ABC123_0.1.0"
    left.parent.mkdir(parents=True)
    whole.rename(left)
    (left / "dataset_info.json").unlink()
    with pytest.raises(InputError, match=mentions("prepared", tmp_path / "killed")):
        TfdsCorpus("opus/law", "train", "de", str(tmp_path / "killed"))
    write_set("opus/law", tmp_path / "killed", {"train": [("zwei", "two")]})
    corpus = TfdsCorpus("opus/law", "train", "de", str(tmp_path / "killed"))
    assert list(corpus.pairs()) == [(b"zwei", b"two")]
