"""Corpora from TensorFlow Datasets: direction, order, and error messages."""

import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf
import tensorflow_datasets as tfds
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_transformer.data.corpus import ParallelFiles
from keras_transformer.errors import InputError
from keras_transformer.extensions.corpora import tfds as tfds_module
from keras_transformer.extensions.corpora.tfds import READER, TfdsCorpus, TfdsOptions, tfds_corpus
from tests.extensions.corpora.prepared_sets import write_set
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
        forth = tfds_corpus(name, "train", source, str(tmp_path))
        back = tfds_corpus(name, "train", target, str(tmp_path))
        there, and_back = list(forth.pairs()), list(back.pairs())
    assert len(there) == len(set(there)) == 5
    assert and_back == [(b, a) for a, b in there] != there
    assert forth.name == f"{name}[train]"
    assert (forth.source_language, forth.target_language) == (source, target)


@pytest.mark.parametrize(("name", "source", "target"), SETS)
def test_sets_of_the_catalogue_by_name_on_disk(tmp_path, name, source, target):
    write_set(name, tmp_path, {"train": PAIRS, "validation": PAIRS[:2]})
    expected = sorted((a.encode(), b.encode()) for a, b in PAIRS)
    corpus = tfds_corpus(name, "train", source, str(tmp_path))
    assert sorted(corpus.pairs()) == expected
    assert list(corpus.pairs()) == list(corpus.pairs())
    back = tfds_corpus(name, "validation", target, str(tmp_path))
    assert sorted(back.pairs()) == sorted((b.encode(), a.encode()) for a, b in PAIRS[:2])


def test_either_side_selects_the_languages(tmp_path):
    write_set(WMT14, tmp_path, {"train": PAIRS[:1]})
    for source, target in (("en", None), (None, "de"), ("en", "de")):
        corpus = tfds_corpus(WMT14, "train", source, str(tmp_path), target_language=target)
        assert list(corpus.pairs()) == [(PAIRS[0][1].encode(), PAIRS[0][0].encode())]


def test_bytes_equal_those_of_the_set_except_line_breaks(tmp_path):
    odd = {
        b"eins\r\nzwei\n\n": b"one\ntwo",
        b"": b"nothing there",
        b"\xff no UTF-8": b"\0",
        b"\xef\xbb\xbfBOM\t": b"\r",
    }
    write_set(WMT14, tmp_path, {"train": odd.items()})
    assert sorted(tfds_corpus(WMT14, "train", "de", str(tmp_path)).pairs()) == sorted(
        [
            (b"eins zwei ", b"one two"),
            (b"", b"nothing there"),
            (b"\xff no UTF-8", b"\0"),
            (b"\xef\xbb\xbfBOM\t", b" "),
        ]
    )


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
        ("opus/de-xx for EMEA", "de", mentions("EMEA", "de-xx", "none")),
    ],
)
def test_errors_name_an_unusable_set(tmp_path, name, language, message):
    with pytest.raises(InputError, match=message) as caught:
        tfds_corpus(name, "train", language, str(tmp_path))
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("tran", mentions("split", "'tran'", "train")),
        ("train[:200%]", mentions("split", "'train[:200%]'")),
        ("train[", mentions("split", "'train[")),
        ("", mentions("split", "''")),
        ("train[5:2]", mentions("split", "'train[5:2]'")),
        ("train[:0]", mentions("split", "'train[:0]'")),
    ],
)
def test_a_missing_split_is_refused_before_anything_is_read(tmp_path, split, message):
    write_set(WMT14, tmp_path, {"train": PAIRS})
    with pytest.raises(InputError, match=message):
        tfds_corpus(WMT14, split, "de", str(tmp_path))


def test_data_are_downloaded_only_on_request(tmp_path):
    with pytest.raises(InputError, match=mentions("prepared", "--tfds_download")):
        tfds_corpus(WMT14, "train", "de", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_an_error_names_a_path_that_is_not_a_data_directory(tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(InputError, match=mentions("prepared", f"{file}/")):
        tfds_corpus(WMT14, "train", "de", str(file))


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
    with pytest.raises(InputError, match=mentions("[]", "LANGUAGE.SPLIT.txt")):
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
        "import sys; from keras_transformer.extensions.corpora.tfds import tfds_corpus;"
        f"list(tfds_corpus('translate_folder:{folder}', 'train', 'en').pairs());"
        "sys.exit('tensorflow_datasets' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_location_has_a_split(folder):
    (corpus,) = READER.read(f"translate_folder:{folder}@valid", TfdsOptions("en"))
    assert list(corpus.pairs()) == [(b"four", b"vier")]
    with pytest.raises(InputError, match=mentions(WMT14, "split", f"{WMT14}@train")):
        READER.read(WMT14, TfdsOptions("en"))


# Preparation of sets.

OPUS = "opus/fr-en for EMEA, KDE4"


@settings(deadline=None)  # TFDS loads its modules as they are needed
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
    corpus = tfds_corpus(OPUS, "train", "fr", str(tmp_path / "data"), download=True)
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
        tfds_corpus("opus/law", "train", "de", str(tmp_path), download=True)
    assert "\n" not in str(caught.value)


def test_a_set_that_another_process_prepared_first_is_taken(tmp_path, monkeypatch):
    name = "opus/law"

    def outrun(self, **_):
        monkeypatch.undo()
        write_set(name, tmp_path, {"train": [("eins", "one")]})
        raise OSError("Directory not empty")

    builder = tfds_module._builder(name, str(tmp_path))
    monkeypatch.setattr(type(builder), "download_and_prepare", outrun)
    corpus = tfds_corpus(name, "train", "de", str(tmp_path), download=True)
    assert list(corpus.pairs()) == [(b"eins", b"one")]


def test_leftovers_of_a_kill_are_not_a_set(tmp_path):
    write_set("opus/law", tmp_path / "whole", {"train": [("eins", "one")]})
    whole = tmp_path / "whole/opus/law/0.1.0"
    left = tmp_path / "killed/opus/law/incomplete.ABC123_0.1.0"
    left.parent.mkdir(parents=True)
    whole.rename(left)
    (left / "dataset_info.json").unlink()
    with pytest.raises(InputError, match=mentions("prepared", tmp_path / "killed")):
        tfds_corpus("opus/law", "train", "de", str(tmp_path / "killed"))
    write_set("opus/law", tmp_path / "killed", {"train": [("zwei", "two")]})
    corpus = tfds_corpus("opus/law", "train", "de", str(tmp_path / "killed"))
    assert list(corpus.pairs()) == [(b"zwei", b"two")]


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
    splits = ("train", "train[:10%]", "train[10:45]", "train[90%:]", "train[3:9]+train[40:]")
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


def test_the_error_names_a_missing_file(tmp_path, shard):
    shard.unlink()
    with pytest.raises(InputError, match=mentions("wmt14_translate", tmp_path, "read")) as caught:
        pairs(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("part", [0.0, 0.3, 0.999])
def test_the_error_names_a_truncated_file(tmp_path, shard, part):
    content = shard.read_bytes()
    shard.write_bytes(content[: int(part * len(content))])
    with pytest.raises(InputError, match=mentions("wmt14_translate", "read")):
        pairs(tmp_path)


def test_the_error_names_a_file_with_changed_bytes(tmp_path, shard):
    shard.write_bytes(b"\x17" * shard.stat().st_size)
    with pytest.raises(InputError, match=mentions("wmt14_translate", tmp_path, "read")):
        pairs(tmp_path)


def test_the_error_names_a_file_with_missing_records(tmp_path):
    directory = write_set(WMT14, tmp_path, {"train": GULLS})
    file = next(directory.glob("*00000-of-00001"))
    records = list(tf.data.TFRecordDataset(str(file)).as_numpy_iterator())
    with tf.io.TFRecordWriter(str(file)) as writer:
        for record in records[:-3]:
            writer.write(record)
    with pytest.raises(InputError, match=mentions("wmt14_translate", "read")):
        pairs(tmp_path)


def test_records_of_another_set_are_refused(tmp_path):
    directory = write_set(WMT14, tmp_path, {"train": GULLS})
    file = next(directory.glob("*00000-of-00001"))
    text = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"eins"]))
    example = tf.train.Example(features=tf.train.Features(feature={"de": text}))
    with tf.io.TFRecordWriter(str(file)) as writer:
        for _ in GULLS:
            writer.write(example.SerializeToString())
    with pytest.raises(InputError, match=mentions("wmt14_translate", "read")):
        pairs(tmp_path)


@pytest.mark.parametrize("file", ["dataset_info.json", "features.json"])
@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_an_incomplete_set_is_an_error(tmp_path, file, content):
    directory = write_set(WMT14, tmp_path, {"train": GULLS})
    path = directory / file
    path.write_text(content) if content else path.unlink()
    if file == "features.json":  # the code of TFDS defines the features
        assert len(pairs(tmp_path)) == len(GULLS)
    else:
        with pytest.raises(InputError, match="wmt14_translate"):
            pairs(tmp_path)


def test_a_directory_without_a_set_is_an_error(tmp_path):
    directory = write_set(WMT14, tmp_path, {"train": GULLS})
    for file in directory.iterdir():
        file.unlink()
    with pytest.raises(InputError, match="wmt14_translate"):
        pairs(tmp_path)
