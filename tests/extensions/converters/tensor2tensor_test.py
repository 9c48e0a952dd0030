"""Models of Tensor2Tensor give its outputs (tests/fixtures/make_tensor2tensor.py)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.extensions.converters import make_options, read_model
from keras_transformer.extensions.converters.converted import ConvertedModel
from keras_transformer.extensions.converters.subword_text import SubwordText
from tests.extensions.converters.engine_outputs import (
    FIXTURES,
    check_probabilities,
    check_translations,
    read_expected,
)
from tests.messages import mentions

MODELS = FIXTURES / "tensor2tensor"
DE_TOK = 8  # the target space of the models


def vocabularies(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.subwords"))


def convert(directory: Path, **options: Any) -> ConvertedModel:
    options = {"target_space": DE_TOK, **options}
    if len(files := vocabularies(directory)) == 2:
        options["source_vocabulary"], options["target_vocabulary"] = map(str, files)
    return read_model(directory, "tensor2tensor", make_options(**options))


@pytest.fixture(name="copy")
def copy_fixture(tmp_path: Path) -> Path:
    """A copy of a model, which tests may change."""
    return Path(shutil.copytree(MODELS / "shared", tmp_path / "model"))


@pytest.mark.parametrize("variant", ["shared", "separate"])
def test_outputs_are_those_of_tensor2tensor(variant: str, tmp_path: Path) -> None:
    model = convert(MODELS / variant)
    config = model.config.model
    assert config.norm_position == ("pre" if variant == "shared" else "post")
    files = vocabularies(MODELS / variant)
    encode = [SubwordText.load(file).encode for file in (files[0], files[-1])]
    subwords = SubwordText.load(files[-1])
    rows = [0, 1, *range(3, len(subwords.subwords) + 1)]
    check_probabilities(model, MODELS / variant, rows, encode)
    check_translations(model, MODELS / variant, tmp_path / "run", encode[0], subwords.decode)


@pytest.mark.parametrize("variant", ["shared", "separate"])
def test_subwords_are_those_of_tensor2tensor(variant: str) -> None:
    pairs, _ = read_expected(MODELS / variant)
    expected = np.load(MODELS / variant / "expected.npz")
    files = vocabularies(MODELS / variant)
    for side, (file, name) in enumerate(
        zip((files[0], files[-1]), ("source_ids", "target_ids"), strict=True)
    ):
        subwords = SubwordText.load(file)
        written = subwords.written()
        for pair, ids in zip(pairs, expected[name], strict=True):
            line = subwords.encode(pair[side])
            found = [written.index(each) for each in line.split(" ")]
            assert [*found, 1] == ids[ids != 0].tolist()  # with the end token
            assert subwords.decode(line) == pair[side]


def test_the_target_space_is_part_of_the_source_embeddings(copy: Path) -> None:
    default = convert(copy, target_space=0).weights
    german = convert(copy).weights
    different = [path for path in default if not np.array_equal(default[path], german[path])]
    assert different == ["source_embedding/embeddings"]
    with pytest.raises(InputError, match=mentions("target_space", 32)):
        convert(copy, target_space=32)
