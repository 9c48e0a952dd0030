"""The TFDS builder of Multi30k, on local files instead of the downloads."""

import gzip

import pytest
import tensorflow_datasets as tfds

from keras_transformer.extensions.corpora import multi30k
from tests.extensions.corpora.tfds_test import tfds_corpus

# Sentences per file. All numbers differ, so that a test notices swapped splits.
LENGTHS = dict(zip(multi30k._SPLITS.values(), (7, 3, 4, 5, 2, 6), strict=True))


def sentence(part, language, i):
    return f"{part} {i} in {language}: eine Möwe\u2028am Meer ."


@pytest.fixture
def downloads(tmp_path, monkeypatch):
    """Serves local files by local URLs, with their checksums, which TFDS checks."""
    root = f"{tmp_path}/served/"
    (tmp_path / "served").mkdir()
    infos = {}
    for published in multi30k.Multi30k.url_infos:
        url = root + published.rsplit("/", 1)[1]
        part, language, _ = published.rsplit("/", 1)[1].split(".")
        text = "".join(sentence(part, language, i) + "\n" for i in range(LENGTHS[part]))
        with open(url, "wb") as file:
            file.write(gzip.compress(text.encode()))
        infos[url] = tfds.download.checksums.compute_url_info(url)
    monkeypatch.setattr(multi30k, "_RAW", root)
    monkeypatch.setattr(multi30k.Multi30k, "url_infos", infos)
    return infos


@pytest.mark.parametrize("config", ["de-en", "de-fr"])
def test_every_split_of_a_pair_of_languages(downloads, tmp_path, config):
    data_dir, (source, target) = str(tmp_path / "data"), config.split("-")
    for split, part in multi30k._SPLITS.items():  # downloaded once, in the order of the files
        corpus = tfds_corpus(f"multi30k/{config}", split, source, data_dir, tfds_download=True)
        assert list(corpus.pairs()) == [
            (sentence(part, source, i).encode(), sentence(part, target, i).encode())
            for i in range(LENGTHS[part])
        ]


def test_a_file_that_differs_from_its_checksum_is_refused(downloads, tmp_path):
    url = next(url for url in downloads if url.endswith("val.en.gz"))
    with open(url, "ab") as file:
        file.write(gzip.compress(b"one more\n"))
    builder = tfds.builder("multi30k/de-en", data_dir=str(tmp_path / "data"))
    with pytest.raises(Exception, match="val.en.gz"):
        builder.download_and_prepare()
    assert not builder.is_prepared()


def test_published_files_are_public_and_all_have_checksums():
    infos = multi30k.Multi30k.url_infos
    assert len({info.checksum for info in infos.values()}) == len(infos) == 18
    for url, info in infos.items():
        assert url.startswith("https://raw.githubusercontent.com/multi30k/dataset/")
        assert len(bytes.fromhex(info.checksum)) == 32 and info.size > 8000
