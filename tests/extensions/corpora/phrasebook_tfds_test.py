"""The TFDS builder of the phrasebook: the tests of TFDS, and the pairs of `write_corpus`."""

import functools
import tempfile

import pytest
import tensorflow_datasets as tfds

from keras_transformer.extensions.corpora import phrasebook
from keras_transformer.extensions.corpora.phrasebook import tfds_builder
from tests.extensions.corpora.tfds_test import tfds_corpus

FEW = functools.partial(phrasebook.phrases, per_template=6)  # of each template: done in seconds


class PhrasebookTest(tfds.testing.DatasetBuilderTestCase):
    DATASET_CLASS = tfds_builder.Phrasebook

    @classmethod
    def setUpClass(cls):
        cls.enterClassContext(pytest.MonkeyPatch.context()).setattr(tfds_builder, "phrases", FEW)
        cls.EXAMPLE_DIR = cls.enterClassContext(tempfile.TemporaryDirectory())  # nothing is read
        cls.SPLITS = {"train": len(FEW()) - 1500, "validation": 500, "test": 1000}
        super().setUpClass()


def test_the_set_has_the_phrases_in_order_and_is_prepared_unasked_and_once(tmp_path, monkeypatch):
    monkeypatch.setattr(tfds_builder, "phrases", FEW)
    names = ("train", "validation", "test")
    for split, part in zip(names, phrasebook.split(FEW()).values(), strict=True):
        pairs = tfds_corpus("phrasebook", split, "en", str(tmp_path)).pairs()
        assert [tuple(map(bytes.decode, pair)) for pair in pairs] == [
            (phrase.english, phrase.german) for phrase in part
        ]
        monkeypatch.setattr(tfds_builder, "phrases", None)


def test_another_cldr_is_another_version():
    from babel.core import get_cldr_version

    builder = tfds_builder.Phrasebook(data_dir="/nowhere")
    assert get_cldr_version().split(".")[0] == str(builder.version).split(".")[1]
