"""A run directory without checkpoints."""

import pytest

from keras_transformer.config import Config
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import learn_vocabulary
from tests.runs.tiny_run import LINES


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(learn_vocabulary(LINES, 40))


@pytest.fixture(scope="module")
def config(tokenizer):
    size = tokenizer.source_vocab_size
    return Config().updated(
        model__source_vocab_size=size, model__target_vocab_size=size,
        training__keep_checkpoints=3, training__keep_best=0, training__checkpoint_steps=1,
    )  # fmt: skip


@pytest.fixture
def run(tmp_path, config, tokenizer):
    (tmp_path / "run").mkdir()  # an empty directory is taken
    return RunDirectory.create(tmp_path / "run", config, tokenizer, "corpus")
