"""The TFDS builder of the phrasebook: the tests of TFDS, and the pairs of `write_corpus`."""

import functools
import tempfile

import pytest
import tensorflow_datasets as tfds

from keras_transformer.extensions.corpora import phrasebook
from keras_transformer.extensions.corpora.phrasebook import corpus, tfds_builder
from keras_transformer.extensions.corpora.tfds import tfds_corpus

FEW = functools.partial(corpus.phrases, per_template=6)  # of each template: done in seconds


class PhrasebookTest(tfds.testing.DatasetBuilderTestCase):
    DATASET_CLASS = tfds_builder.Phrasebook

    @classmethod
    def setUpClass(cls):
        cls.enterClassContext(pytest.MonkeyPatch.context()).setattr(tfds_builder, "phrases", FEW)
        cls.EXAMPLE_DIR = cls.enterClassContext(tempfile.TemporaryDirectory())  # nothing is read
        cls.SPLITS = {"train": len(FEW()) - 1500, "validation": 500, "test": 1000}
        super().setUpClass()


@pytest.fixture
def few(monkeypatch):
    for module in (corpus, tfds_builder):
        monkeypatch.setattr(module, "phrases", FEW)


def test_the_set_has_the_phrases_of_write_corpus_in_order(few, tmp_path):
    phrasebook.write_corpus(tmp_path / "files")
    for split, part in (("train", "train"), ("validation", "valid"), ("test", "test")):
        english, german = (
            (tmp_path / f"files/{part}.{language}").read_bytes().split(b"\n")[:-1]
            for language in ("en", "de")
        )
        pairs = tfds_corpus("phrasebook/de-en", split, "en", str(tmp_path / "data")).pairs()
        assert list(pairs) == list(zip(english, german, strict=True))


def test_it_is_prepared_unasked_and_once(few, tmp_path, monkeypatch):
    first = list(tfds_corpus("phrasebook", "test[:20]", "de", str(tmp_path)).pairs())
    assert len(first) == 20
    monkeypatch.setattr(tfds_builder, "phrases", None)
    again = tfds_corpus("phrasebook/de-en", "test[:20]", "de", str(tmp_path))
    assert list(again.pairs()) == first


def test_another_cldr_is_another_version():
    from babel.core import get_cldr_version

    builder = tfds_builder.Phrasebook(data_dir="/nowhere")
    assert get_cldr_version().split(".")[0] == str(builder.version).split(".")[1]
