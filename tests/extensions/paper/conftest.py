"""A recipe of animals, and its corpus."""

from pathlib import Path

import pytest

from keras_transformer.extensions.paper.recipe import Recipe
from tests.extensions.paper.recipes import write_corpus, write_recipe


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return Recipe.load(write_recipe(tmp_path_factory.mktemp("recipes")), "animals")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))
