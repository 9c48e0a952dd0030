"""Models of fairseq give its outputs (tests/fixtures/make_fairseq.py)."""

from __future__ import annotations

import pickle
import random
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.extensions.converters import make_options, read_model
from keras_transformer.extensions.converters.converted import ConvertedModel
from keras_transformer.extensions.converters.torch_files import (
    Inert,
    read_torch_file,
)
from tests.extensions.converters.engine_outputs import (
    FIXTURES,
    check_probabilities,
    check_translations,
)
from tests.messages import mentions

MODELS = FIXTURES / "fairseq"
VARIANTS = ["sentencepiece", "words"]
FILE = "checkpoint_best.pt"


def convert(directory: Path, **options: Any) -> ConvertedModel:
    names = ["source_sentencepiece", "target_sentencepiece"]
    paths = [str(path) for path in sorted(directory.glob("*.model"))]
    return read_model(
        directory, "fairseq", make_options(**{**dict(zip(names, paths, strict=False)), **options})
    )


@pytest.fixture(name="copy")
def copy_fixture(tmp_path: Path) -> Path:
    """A copy of a model, which tests may change."""
    return Path(shutil.copytree(MODELS / "sentencepiece", tmp_path / "model"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_are_those_of_fairseq(variant: str, tmp_path: Path) -> None:
    model = convert(MODELS / variant)
    config = model.config
    assert config.model.positions == ("learned" if variant == "words" else "sinusoidal")
    assert config.decoding.length_penalty_formula == "power"
    assert read_torch_file(MODELS / variant / FILE).keys() >= {"model", "extra_state"}
    with np.load(MODELS / variant / "expected.npz") as expected:
        rows = range(expected["logits"].shape[-1])
    check_probabilities(model, MODELS / variant, rows)
    words = tokens if variant == "words" else None
    check_translations(model, MODELS / variant, tmp_path / "run", decode=words)


def tokens(text: str) -> list[str]:
    """Returns the words of a text as fairseq writes them."""
    return text.replace("\u2047", "<unk>").split()


def test_both_formats_of_pytorch_are_read() -> None:
    assert zipfile.is_zipfile(MODELS / "sentencepiece" / FILE)
    assert not zipfile.is_zipfile(MODELS / "words" / FILE)


def test_code_in_a_checkpoint_does_not_run(tmp_path: Path) -> None:
    class Exploit:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "executed",)

    path = tmp_path / "model.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"args": Exploit()}))
    assert isinstance(read_torch_file(path)["args"], Inert)
    assert not (tmp_path / "executed").exists()


def test_the_dictionaries_are_options(copy: Path) -> None:
    expected = convert(copy).vocabulary.fingerprint
    for old, new in (("en", "source"), ("de", "target")):
        (copy / f"dict.{old}.txt").rename(copy / f"{new}.txt")
    with pytest.raises(InputError, match=mentions("dict.en.txt", "--source_vocabulary")):
        convert(copy)
    given = {f"{side}_vocabulary": str(copy / f"{side}.txt") for side in ("source", "target")}
    assert convert(copy, **given).vocabulary.fingerprint == expected


@pytest.mark.parametrize(("variant", "is_joint"), [("words", True), ("sentencepiece", False)])
def test_one_dictionary_is_enough_only_for_shared_embeddings(
    variant: str, is_joint: bool, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(MODELS / variant, tmp_path / "model"))
    expected = convert(copy)
    assert (expected.config.model.tie_embeddings == "all") == is_joint
    (copy / "dict.de.txt").unlink()
    if is_joint:
        assert convert(copy).vocabulary.fingerprint == expected.vocabulary.fingerprint
    else:
        with pytest.raises(InputError, match=mentions(copy, "dict.de.txt", "--target_vocabulary")):
            convert(copy)


@pytest.mark.parametrize(
    ("old", "new", "facts"),
    [
        (b"transformer", b"lightconv__", ["architecture", "lightconv__"]),
        (b"relu", b"tanh", ["activation_fn", "tanh"]),
        (b"encoder_layers", b"encoder_lay_rs", [FILE, "encoder_layers"]),
        (b"fc1", b"fc9", ["lacks", "fc1"]),
        (b"FloatStorage", b"QInt8Storage", [FILE, "storage"]),
    ],
)
def test_checkpoints_of_other_models_are_refused(
    copy: Path, old: bytes, new: bytes, facts: list[str]
) -> None:
    with zipfile.ZipFile(copy / FILE) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(copy / FILE, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content.replace(old, new) if name.endswith(".pkl") else content)
    with pytest.raises(InputError, match=mentions(*facts)):
        convert(copy)


@pytest.mark.parametrize("variant", VARIANTS)
def test_damaged_checkpoints_are_refused_or_read(variant: str, tmp_path: Path) -> None:
    content, path = (MODELS / variant / FILE).read_bytes(), tmp_path / FILE
    generator = random.Random(5)
    refused = 0
    for i in range(300):
        place = generator.randrange(6_000 if i % 2 else len(content))
        byte = bytes([generator.randrange(256)])
        damaged = content[:place] + byte + content[place + 1 :] if i % 3 else content[:place]
        path.write_bytes(damaged)
        try:
            read_torch_file(path)  # a changed weight is not noticed in the old format
        except InputError as error:
            assert FILE in str(error)
            refused += 1
    assert refused > 100
