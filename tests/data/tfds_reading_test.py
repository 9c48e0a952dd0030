"""Reads files of prepared TFDS sets: all formats, in the order of TFDS, and damaged files."""

import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from keras_transformer.errors import InputError
from keras_transformer.extensions.corpora import tfds_sets
from keras_transformer.extensions.corpora.tfds_corpus import TfdsCorpus
from tests.data.prepared_sets import write_set
from tests.messages import mentions

NAME = "wmt14_translate/de-en"
PAIRS = [(f"{i} Möwen", f"{i} gulls") for i in range(50)]


def pairs(data_dir, split="train"):
    return list(TfdsCorpus(NAME, split, "de", str(data_dir)).pairs())


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(tfds_sets, "_BATCH", 8)


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_order_and_slices_equal_those_of_tfds(tmp_path, small_batches, file_format):
    write_set(NAME, tmp_path / "a", {"train": PAIRS}, shards=3)
    directory = write_set(NAME, tmp_path / "b", {"train": PAIRS}, file_format=file_format, shards=3)
    assert len(list(directory.glob(f"*{file_format}*-of-00003"))) == 3
    for split in ("train", "train[:10%]", "train[10:45]", "train[90%:]", "train[3:9]+train[40:]"):
        in_order = tfds.ReadConfig(interleave_cycle_length=1)
        of_tfds = tfds.load(
            NAME, split=split, data_dir=str(tmp_path / "a"), download=False, read_config=in_order
        ).as_numpy_iterator()
        assert pairs(tmp_path / "b", split) == [(pair["de"], pair["en"]) for pair in of_tfds]
    assert sorted(pairs(tmp_path / "b")) == sorted((a.encode(), b.encode()) for a, b in PAIRS)


@pytest.fixture(params=["tfrecord", "array_record"])
def shard(request, tmp_path):
    """The second of two files of a set. The first one is intact."""
    directory = write_set(NAME, tmp_path, {"train": PAIRS}, file_format=request.param, shards=2)
    return next(directory.glob("*00001-of-00002"))


def test_the_error_names_a_missing_file(tmp_path, shard):
    shard.unlink()
    with pytest.raises(InputError, match=mentions(shard.name, "read")) as caught:
        pairs(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.999])
def test_the_error_names_a_truncated_file(tmp_path, shard, part):
    content = shard.read_bytes()
    shard.write_bytes(content[: int(part * len(content))])
    with pytest.raises(InputError, match=mentions(shard.name) + "(?=.*(read|pairs))"):
        pairs(tmp_path)


def test_the_error_names_a_file_with_changed_bytes(tmp_path, shard):
    shard.write_bytes(b"\x17" * shard.stat().st_size)
    with pytest.raises(InputError, match=mentions(shard.name, "read")):
        pairs(tmp_path)


def test_the_error_names_a_file_with_missing_records(tmp_path):
    directory = write_set(NAME, tmp_path, {"train": PAIRS})
    file = next(directory.glob("*00000-of-00001"))
    records = list(tf.data.TFRecordDataset(str(file)).as_numpy_iterator())
    with tf.io.TFRecordWriter(str(file)) as writer:
        for record in records[:-3]:
            writer.write(record)
    with pytest.raises(InputError, match=mentions(file.name, "3", "pairs")):
        pairs(tmp_path)


def test_records_of_another_set_are_refused(tmp_path):
    directory = write_set(NAME, tmp_path, {"train": PAIRS})
    file = next(directory.glob("*00000-of-00001"))
    text = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"eins"]))
    example = tf.train.Example(features=tf.train.Features(feature={"de": text}))
    with tf.io.TFRecordWriter(str(file)) as writer:
        for _ in PAIRS:
            writer.write(example.SerializeToString())
    with pytest.raises(InputError, match=mentions(file.name, "Feature: en")):
        pairs(tmp_path)


@pytest.mark.parametrize("file", ["dataset_info.json", "features.json"])
@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_an_incomplete_set_is_an_error(tmp_path, file, content):
    directory = write_set(NAME, tmp_path, {"train": PAIRS})
    path = directory / file
    path.write_text(content) if content else path.unlink()
    if file == "features.json":  # the code of TFDS defines the features
        assert len(pairs(tmp_path)) == len(PAIRS)
    else:
        with pytest.raises(InputError, match="wmt14_translate"):
            pairs(tmp_path)


def test_a_directory_without_a_set_is_an_error(tmp_path):
    directory = write_set(NAME, tmp_path, {"train": PAIRS})
    for file in directory.iterdir():
        file.unlink()
    with pytest.raises(InputError, match="wmt14_translate"):
        pairs(tmp_path)
