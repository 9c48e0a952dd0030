"""The examples in docstrings of the search."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name",
    [
        "decoding",
        "decoding.constraints",
        "decoding.interface",
        "decoding.next_token",
        "decoding.penalties",
        "paper.parsing.tree_constraint",
    ],
)
def test_examples_give_what_they_show(name):
    module = importlib.import_module(f"keras_transformer.{name}")
    failed, attempted = doctest.testmod(module)
    assert attempted > 0 and failed == 0
