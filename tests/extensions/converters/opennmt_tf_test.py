"""Models of OpenNMT-tf give the outputs of OpenNMT-tf (tests/fixtures/make_opennmt_tf.py)."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.extensions.converters import make_options, read_model
from keras_transformer.extensions.converters.converted import ConvertedModel
from tests.extensions.converters.engine_outputs import (
    FIXTURES,
    check_probabilities,
    check_translations,
)
from tests.messages import mentions

MODELS = FIXTURES / "opennmt_tf"
VARIANTS = ["separate", "shared"]
_WEIGHTS = "ckpt-1.data-00000-of-00001"


def convert(directory: Path, **options: Any) -> ConvertedModel:
    options = {**sentencepiece(directory), **options}
    return read_model(directory, "opennmt_tf", make_options(**options))


def sentencepiece(directory: Path) -> dict[str, str]:
    paths = [str(path) for path in sorted(directory.glob("*.model"))]
    return dict(zip(["source_sentencepiece", "target_sentencepiece"], paths, strict=False))


@pytest.fixture(name="copy")
def copy_fixture(tmp_path: Path) -> Path:
    """A copy of a model, which tests may change."""
    return Path(shutil.copytree(MODELS / "separate", tmp_path / "model"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_are_those_of_opennmt_tf(variant: str, tmp_path: Path) -> None:
    model = convert(MODELS / variant)
    config = model.config.model
    assert config.norm_position == ("pre" if variant == "separate" else "post")
    assert config.other_toolkits.attention_bias == (variant == "separate")
    assert config.other_toolkits.mask_source_end == (variant == "separate")
    rows = config.target_vocab_size - 1  # the start token is an additional one
    check_probabilities(model, MODELS / variant, [0, 1, 2, *range(4, rows), 3])
    check_translations(model, MODELS / variant, tmp_path / "run")


def test_the_search_is_that_of_the_configuration(copy: Path) -> None:
    data = (copy / "data.yml").read_text()
    (copy / "data.yml").write_text(data.replace("beam_width: 1", "length_penalty: 0.2"))
    assert convert(copy).config.decoding.beam_size == 4  # OpenNMT-tf's default
    assert convert(copy).config.decoding.length_penalty == 0.2


def test_the_number_of_heads_is_an_option_without_a_description(copy: Path) -> None:
    (copy / "model_description.py").unlink()
    with pytest.raises(InputError, match=mentions("model_description.py", "--num_heads")):
        convert(copy)
    assert convert(copy, num_heads=4).config.model.num_heads == 4


@pytest.mark.parametrize(
    ("description", "heads"),
    [
        ('from opennmt import models\nmodel = lambda: models.get_model_from_catalog("%s")\n', 8),
        ("import opennmt\nmodel = opennmt.models.TransformerTiny\nmodel()\n", 2),
    ],
)
def test_the_number_of_heads_is_that_of_the_catalog(
    copy: Path, description: str, heads: int
) -> None:
    (copy / "model_description.py").write_text(description.replace("%s", "TransformerBase"))
    assert convert(copy).config.model.num_heads == heads


def test_the_description_is_not_executed(copy: Path) -> None:
    path = copy / "model_description.py"
    path.write_text(f"open({str(copy / 'executed')!r}, 'w')\n{path.read_text()}")
    convert(copy)
    assert not (copy / "executed").exists()


def test_pieces_need_their_sentencepiece_model(copy: Path) -> None:
    with pytest.raises(InputError, match=mentions("piece", "--source_sentencepiece")):
        convert(copy, source_sentencepiece=None, target_sentencepiece=None)
    with pytest.raises(InputError, match=mentions("SentencePiece", "data.yml")):
        convert(copy, target_sentencepiece=str(copy / "data.yml"))


def test_a_directory_without_a_checkpoint_is_refused(copy: Path) -> None:
    (copy / "checkpoint").unlink()
    with pytest.raises(InputError, match=mentions(copy, "checkpoint")):
        convert(copy)
    model = convert(MODELS / "separate")
    by_file = read_model(
        copy / "ckpt-1.index",
        "opennmt_tf",
        make_options(**sentencepiece(copy)),
    )
    assert by_file.weights.keys() == model.weights.keys()


@pytest.mark.parametrize(
    "content", [b"", b"ckpt-1", b"\x00\xff\n\x01", b"model_checkpoint_path: 3"]
)
def test_a_damaged_checkpoint_file_is_refused(copy: Path, content: bytes) -> None:
    (copy / "checkpoint").write_bytes(content)
    with pytest.raises(InputError, match=mentions(copy, "checkpoint")) as caught:
        convert(copy)
    assert str(caught.value).isprintable()


def test_averaged_weights_are_in_a_subdirectory(copy: Path) -> None:
    expected = convert(copy).weights
    (copy / "avg").mkdir()
    for file in [copy / "checkpoint", *copy.glob("ckpt-*")]:
        file.rename(copy / "avg" / file.name)
    model = read_model(copy / "avg", "opennmt_tf", make_options(**sentencepiece(copy)))
    assert all(np.array_equal(model.weights[path], expected[path]) for path in expected)


def test_damaged_checkpoints_are_refused_or_complete(copy: Path) -> None:
    generator, whole, refused = random.Random(3), convert(copy).weights, 0
    for name in ("ckpt-1.index", _WEIGHTS):
        content = (copy / name).read_bytes()
        damaged = [content[: len(content) // 2], b""]
        for _ in range(4):
            place = generator.randrange(len(content))
            flipped = bytes([content[place] ^ 0xFF])
            damaged.append(content[:place] + flipped + content[place + 1 :])
        for each in damaged:
            (copy / name).write_bytes(each)
            try:
                found = convert(copy).weights
            except InputError as error:
                assert "ckpt-1" in str(error)
                refused += 1
            else:  # a byte that no weight depends on
                assert all(np.array_equal(found[path], whole[path]) for path in whole)
        (copy / name).write_bytes(content)
    assert refused >= 8
