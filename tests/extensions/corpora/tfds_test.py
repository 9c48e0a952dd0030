"""Corpora from TensorFlow Datasets: direction, order, and error messages."""

from pathlib import Path
from unittest import mock

import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from hypothesis import example, given
from hypothesis import strategies as st

from keras_transformer.data.corpus import ParallelFiles
from keras_transformer.errors import InputError
from keras_transformer.extensions.corpora import tfds as tfds_module
from keras_transformer.extensions.corpora.tfds import READER, TfdsOptions
from tests.builders import refuses
from tests.messages import mentions

WMT14 = "wmt14_translate/de-en"
SETS = [
    (WMT14, "de", "en"),
    ("wmt16_translate/ro-en", "ro", "en"),
    ("ted_hrlr_translate/aztr_to_en", "az_tr", "en"),
    ("opus/medical", "de", "en"),
]
PAIRS = [(f"{i} Möwen am Meer\u2028.", f"{i} gulls at sea") for i in range(7)]


def tfds_corpus(name, split, source=None, folder=None, **options):
    return READER.read(f"{name}@{split}", TfdsOptions(source, tfds_data_dir=folder, **options))[0]


def write_set(name, data_dir, splits, *, file_format="tfrecord", shards=1):
    """Prepares a set of TFDS with invented texts of each split, and returns its directory.

    The first language comes first.
    """
    builder = tfds_module._builder(name, str(data_dir))
    languages = builder.info.features.keys()
    generators = {
        split: [(i, dict(zip(languages, pair, strict=True))) for i, pair in enumerate(pairs)]
        for split, pairs in splits.items()
    }
    with mock.patch.object(type(builder), "_split_generators", lambda *_: generators):
        builder.download_and_prepare(
            file_format=file_format, download_config=tfds.download.DownloadConfig(num_shards=shards)
        )
    return Path(builder.data_dir)


@pytest.mark.parametrize(("name", "source", "target"), SETS)
def test_sets_of_the_catalogue_by_name_on_disk(tmp_path, name, source, target):
    write_set(name, tmp_path, {"train": PAIRS, "validation": PAIRS[:2]})
    expected = sorted((a.encode(), b.encode()) for a, b in PAIRS)
    corpus = tfds_corpus(name, "train", source, str(tmp_path))
    assert sorted(corpus.pairs()) == expected
    assert list(corpus.pairs()) == list(corpus.pairs())
    back = tfds_corpus(name, "validation", target, str(tmp_path))
    assert sorted(back.pairs()) == sorted((b.encode(), a.encode()) for a, b in PAIRS[:2])


@pytest.fixture(scope="module")
def small_set(tmp_path_factory):
    """A directory with a set, whose texts have unusual bytes."""
    directory = tmp_path_factory.mktemp("small")
    write_set(WMT14, directory, {"train": ODD.items()})
    return str(directory)


ODD = {
    b"eins\r\nzwei\n\n": b"one\ntwo",
    b"": b"nothing there",
    b"\xff no UTF-8": b"\0",
    b"\xef\xbb\xbfBOM\t": b"\r",
}


@pytest.mark.parametrize("source, target", [("en", None), (None, "de"), ("en", "de")])
def test_either_side_selects_the_languages_and_bytes_are_unchanged(small_set, source, target):
    corpus = tfds_corpus(WMT14, "train", source, small_set, target_language=target)
    assert sorted(corpus.pairs()) == [
        (b"\0", b"\xff no UTF-8"),
        (b" ", b"\xef\xbb\xbfBOM\t"),
        (b"nothing there", b""),
        (b"one two", b"eins zwei "),
    ]


@pytest.mark.parametrize(
    ("name", "split", "language", "facts"),
    [
        ("no_such_set/de-en", "train", "de", ("dataset", "no_such_set/de-en", "prepared")),
        ("wmt14_translate/xx-en", "train", "en", ("xx-en", "wmt14_translate/de-en")),
        ("wmt14_translate/de-en:9.9.9", "train", "de", ("9.9.9",)),
        ("wmt14_translate/de-en/x=1", "train", "de", ("unexpected keyword argument 'x'",)),
        ("wmt14_translate", "train", "de", ("parts", "wmt14_translate/de-en")),
        ("huggingface:opus_books/de-en", "train", "de", ("community",)),
        ("imdb_reviews", "train", "de", ("language", "['text']")),
        ("ted_multi_translate", "train", "de", ("language", "['talk_name']")),
        (WMT14, "train", "fr", ("source language", "'fr'", "'de'", "'en'")),
        (WMT14, "train", None, ("source language", "None", "'de'", "'en'")),
        ("opus", "train", "de", ("parts", "opus/medical")),
        ("opus/law", "train", "de", ("prepared", "tfds_download")),
        (WMT14, "tran", "de", ("split", "'tran'", "train")),
        (WMT14, "train[:200%]", "de", ("split", "'train[:200%]'")),
        (WMT14, "", "de", ("split", "''")),
        (WMT14, "train[5:2]", "de", ("split", "'train[5:2]'")),
    ],
)
def test_unusable_sets_are_refused_before_anything_is_read(small_set, name, split, language, facts):
    with pytest.raises(InputError, match=mentions(*facts)) as caught:
        tfds_corpus(name, split, language, small_set)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


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


def test_translate_folder_equals_tfds_in_both_directions(folder):
    (folder / "notes.md").unlink()  # which stops TFDS
    name, builder = f"translate_folder:{folder}", tfds.TranslateFolder(str(folder))
    expected = list(builder.as_dataset(split="train").as_numpy_iterator())
    for source, target in (("en", "de"), ("de", "en")):
        corpus = tfds_corpus(name, "train", source)
        assert corpus == ParallelFiles(*(folder / f"{x}.train.txt" for x in (source, target)))
        assert list(corpus.pairs()) == [(pair[source], pair[target]) for pair in expected]


def test_lines_of_a_folder_end_only_at_lf(folder):
    (folder / "en.train.txt").write_bytes("one\u2028\ntwo\nthree\n".encode())
    (folder / "de.train.txt").write_bytes(b"eins\nzwei\x0c\ndrei\n")
    (folder / "fr.train.txt").write_text("un\ndeux\ntrois\n")
    name = f"translate_folder:{folder}"
    pairs = tfds_corpus(name, "train", "en", target_language="de").pairs()
    assert [german[:4] for _, german in pairs] == [b"eins", b"zwei", b"drei"]
    corpus = tfds_corpus(name, "train", "en", target_language="fr")
    assert next(corpus.pairs()) == ("one\u2028".encode(), b"un")
    refuses(tfds_corpus, (name, "train", "en"), "target language", "'de'", "'en'", "'fr'")


def test_errors_name_unusable_folders(folder):
    (folder / "empty").mkdir()
    (folder / "de.valid.txt").unlink()
    (folder / "de.train.txt").write_text("eins\n")
    for name, split, facts in (
        ("/no/such/folder", "train", ("/no/such/folder",)),
        (folder, "test", ("split", "'test'")),
        (folder / "empty", "train", ("empty", "LANGUAGE.SPLIT.txt")),
        (folder, "valid", ("valid", "two languages")),
    ):
        refuses(tfds_corpus, (f"translate_folder:{name}", split, "en"), *facts)


def test_a_location_has_a_split(folder):
    (corpus,) = READER.read(f"translate_folder:{folder}@valid", TfdsOptions("en"))
    assert list(corpus.pairs()) == [(b"four", b"vier")]
    refuses(READER.read, (WMT14, TfdsOptions("en")), WMT14, "split", f"{WMT14}@train")


# Preparation of sets.


@given(st.text() | st.from_regex(r"(opus|wmt14_translate)/[a-z]{2}-[a-z]{2}( for [A-Z, ]*)?\n?"))
@example("a:b/c:1.0.0/d=[")
@example("../../etc")
def test_any_name_is_a_set_or_an_input_error(name):
    try:
        tfds_module._text_keys(tfds_module._builder(name, "/no/such/directory"))
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
    corpus = tfds_corpus("my_own_set", "dev", "de", str(tmp_path))
    assert list(corpus.pairs()) == [(b"eins", b"one")]


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
        tfds_corpus("opus/law", "train", "de", str(tmp_path), tfds_download=True)
    assert "\n" not in str(caught.value)


# Files of sets.

GULLS = [(f"{i} Möwen", f"{i} gulls") for i in range(50)]


def pairs(data_dir, split="train"):
    return list(tfds_corpus(WMT14, split, "de", str(data_dir)).pairs())


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_order_and_slices_equal_those_of_tfds(tmp_path, file_format):
    write_set(WMT14, tmp_path / "a", {"train": GULLS}, shards=3)
    directory = write_set(
        WMT14, tmp_path / "b", {"train": GULLS}, file_format=file_format, shards=3
    )
    assert len(list(directory.glob(f"*{file_format}*-of-00003"))) == 3
    splits = ("train", "train[:10%]", "train[3:9]+train[40:]")
    for split in splits:
        in_order = tfds.ReadConfig(interleave_cycle_length=1)
        of_tfds = tfds.load(
            WMT14, split=split, data_dir=str(tmp_path / "a"), download=False, read_config=in_order
        ).as_numpy_iterator()
        assert pairs(tmp_path / "b", split) == [(pair["de"], pair["en"]) for pair in of_tfds]
    assert sorted(pairs(tmp_path / "b")) == sorted((a.encode(), b.encode()) for a, b in GULLS)


@pytest.fixture(params=["tfrecord", "array_record"])
def shard(request, tmp_path):
    """The second of two files of a set. The first one is intact."""
    directory = write_set(WMT14, tmp_path, {"train": GULLS}, file_format=request.param, shards=2)
    return next(directory.glob("*00001-of-00002"))


def test_the_error_names_a_set_with_damaged_files(tmp_path, shard):
    content = shard.read_bytes()
    parts = [content[: int(part * len(content))] for part in (0.0, 0.3, 0.999)]
    for damaged in (*parts, b"\x17" * len(content), None):
        shard.unlink() if damaged is None else shard.write_bytes(damaged)
        refuses(pairs, (tmp_path,), "wmt14_translate", "read")


def test_missing_records_and_records_of_another_set_are_refused(tmp_path):
    directory = write_set(WMT14, tmp_path, {"train": GULLS})
    file = str(next(directory.glob("*00000-of-00001")))
    records = list(tf.data.TFRecordDataset(file).as_numpy_iterator())
    text = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"eins"]))
    other = tf.train.Example(features=tf.train.Features(feature={"de": text}))
    for changed in (records[:-3], [other.SerializeToString()] * len(records)):
        with tf.io.TFRecordWriter(file) as writer:
            for record in changed:
                writer.write(record)
        refuses(pairs, (tmp_path,), "wmt14_translate", "read")


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_an_incomplete_set_is_an_error(tmp_path, content):
    directory = write_set(WMT14, tmp_path, {"train": GULLS[:3]})
    path = directory / "dataset_info.json"
    path.write_text(content) if content else path.unlink()
    refuses(pairs, (tmp_path,), "wmt14_translate")
