"""FSMT models give the outputs of transformers (tests/fixtures/make_fsmt.py)."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from keras_transformer.errors import InputError
from keras_transformer.extensions.converters import read_model
from tests.damage import replace
from tests.extensions.converters.engine_outputs import (
    FIXTURES,
    check_probabilities,
    check_translations,
)
from tests.messages import mentions

MODEL = FIXTURES / "fsmt"


def test_outputs_are_those_of_transformers(tmp_path: Path) -> None:
    model = read_model(MODEL, "fsmt")
    vocab_size = len(json.loads((MODEL / "vocab-tgt.json").read_text(encoding="utf-8")))
    check_probabilities(model, MODEL, range(vocab_size))
    model = dataclasses.replace(model, config=model.config.updated({"decoding.max_length": 11}))
    check_translations(model, MODEL, tmp_path / "run", decode=tokens)


def tokens(text: str) -> list[str]:
    return text.replace("\u2047", "<unk>").split()


def test_the_search_is_that_of_the_model(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(MODEL, tmp_path / "model"))
    file = copy / "generation_config.json"
    replace(file, '"num_beams": 5', '"num_beams": 3, "no_repeat_ngram_size": 2')
    replace(file, '"max_length": 200', '"max_length": 30')
    replace(file, '"length_penalty": 1.0', '"length_penalty": 0.6')
    found = read_model(copy, "fsmt").config.decoding
    assert (found.beam_size, found.no_repeat_ngram, found.max_length) == (3, 2, 29)
    assert (found.length_penalty, found.length_penalty_formula) == (0.6, "power")

    # An old model has the options in config.json, and the class has defaults.
    file.unlink()
    replace(copy / "config.json", '"max_length": 200', '"no_repeat_ngram_size": 3')
    replace(copy / "config.json", '"num_beams": 5,', "")
    found = read_model(copy, "fsmt").config.decoding
    assert (found.beam_size, found.no_repeat_ngram, found.max_length) == (5, 3, 199)

    file.write_bytes(b"")
    with pytest.raises(InputError, match=mentions("generation_config.json", "JSON")):
        read_model(copy, "fsmt")
