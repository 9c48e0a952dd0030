"""Shortlists of Marian: `pymarian` has written the fixture, and `fxtranslate` has used it."""

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import plugins
from keras_transformer.extensions.converters import read_model, trimming, write_run
from keras_transformer.extensions.shortlist import marian
from keras_transformer.inference.loading import load_translator
from tests.builders import refuses
from tests.damage import at_random
from tests.extensions.converters.toolkits import FIXTURES

NAME = "lex.12.5.ende.s2t.bin"
FIREFOX = FIXTURES / "firefox"
RESULTS: dict[str, str] = json.loads((FIREFOX / "lex.12.5.ende.json").read_text("utf-8"))
WITHOUT: dict[str, str] = json.loads((FIREFOX / "results.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("firefox") / "run"
    write_run(read_model(FIREFOX, "marian"), path)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return Path(shutil.copy(FIREFOX / NAME, tmp_path))


def test_translations_with_a_shortlist_are_firefoxs(run: Path) -> None:
    option = plugins.find("export_options", "shortlist")
    shortlist = option.learn(str(run), None, str(FIREFOX / NAME))
    assert shortlist.describe() == {"frequent": 12, "translations": 6}
    translator = load_translator(run).with_options(shortlist=shortlist)
    compared = []
    for text in RESULTS:
        source_ids, *_ = translator.source_ids(tf.constant([text]))
        # Firefox adds tokens to the others, up to a multiple of 8.
        if len(np.unique(shortlist(source_ids))) % 8 == 0:
            compared.append(text)
    found = translator.texts(translator.translate_to_ids(tf.constant(compared)))[:, 0]
    assert [text.decode() for text in found.numpy()] == [RESULTS[text] for text in compared]
    assert len(compared) == 6 and all(RESULTS[text] != WITHOUT[text] for text in compared)


def test_only_a_joint_vocabulary_copies_tokens(run: Path, tmp_path: Path) -> None:
    joint = marian.read_shortlist(FIREFOX / NAME, run).translations.numpy()
    assert joint[:48, 0].tolist() == [*range(48)]
    assert (joint[48:] == 0).all()  # the pad and the start token, which Marian does not have
    folder = shutil.copytree(run, tmp_path / "run") / "tokenizer"
    shutil.copy(folder / "joint.model", folder / "source.model")
    (folder / "joint.model").rename(folder / "target.model")
    separate = marian.read_shortlist(FIREFOX / NAME, folder.parent).translations
    np.testing.assert_array_equal(separate, joint[:, 1:])


def test_a_smaller_vocabulary_has_other_ids(tmp_path: Path) -> None:
    model, text = read_model(FIREFOX, "marian"), tmp_path / "text"
    pieces = model.vocabulary.pieces()[0]  # between the special ones at both ends
    text.write_text("\n".join(pieces[2:-2]).replace("▁", " "), "utf-8")
    kept = trimming.keep_text(model, text)
    assert {*kept.vocabulary.pieces()[0]} == {*pieces}  # it drops nothing, and the sizes fit
    write_run(kept, tmp_path / "kept")
    refuses(marian.read_shortlist, (FIREFOX / NAME, tmp_path / "kept"), NAME, 48, 0, "keep_text")


# Offsets of numbers in the file, their new values, and facts of the message.
BAD: dict[str, tuple[int, int, list[object]]] = {
    "another format": (0, 1, ["format"]),
    "checksum": (8, 1, ["checksum"]),
    "few translations": (24, 2, [5, "translations"]),
    "number of offsets": (32, 2**63, ["header", "bytes"]),
    "number of translations": (40, 2**60, ["header", "bytes"]),
    "first offset": (48, 1, ["offsets"]),
    "an offset": (48 + 8 * 9, 2**63 + 5, ["offsets"]),
    "a token": (48 + 8 * 49, 2**31, [f"{2**31:,}", 48]),
}


@pytest.mark.parametrize("name", BAD)
def test_headers_that_do_not_fit_are_named(name: str, file: Path, run: Path) -> None:
    offset, number, facts = BAD[name]
    content = bytearray(file.read_bytes())
    struct.pack_into("<Q", content, offset, number)
    if name != "checksum":
        struct.pack_into("<Q", content, 8, marian._checksum(bytes(content)))
    file.write_bytes(content)
    refuses(marian.read_shortlist, (file, run), NAME, *facts)


def test_damaged_files_are_refused(file: Path, run: Path) -> None:
    refuses(marian.read_shortlist, (file.with_name("50x"), run), "50x", "does not exist", "number")
    original, refused = file.read_bytes(), 0
    for _ in at_random(file):
        if file.read_bytes() != original:
            refuses(marian.read_shortlist, (file, run), NAME, "damaged")
            refused += 1
    assert refused > 30
