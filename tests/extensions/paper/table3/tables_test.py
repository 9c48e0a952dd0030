"""Rows of the paper's Table 3 on other bases, against sizes worked out by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from keras_transformer.config import Config
from keras_transformer.errors import InputError
from keras_transformer.extensions.paper.presets import TABLE_3
from keras_transformer.extensions.paper.table3.tables import (
    Table,
    columns,
    scaled,
    table3,
)
from keras_transformer.presets import preset, resolve_config
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary
from tests.conftest import PHRASES
from tests.messages import mentions

# `tiny` has 4 + 4 layers, d_model 128, d_ff 256, 4 heads of 32 and 3,000 steps.
TINY: dict[str, dict[str, Any]] = {
    "base": {},
    "A_h1": {"h": 1, "d_k": 128, "d_v": 128},  # 4 / 8 is a half, which makes 1
    "A_h4": {"h": 2, "d_k": 64, "d_v": 64},
    "A_h16": {"h": 8, "d_k": 16, "d_v": 16},
    "A_h32": {"h": 16, "d_k": 8, "d_v": 8},
    "B_dk16": {"d_k": 8},
    "B_dk32": {"d_k": 16},
    "C_n2": {"N": 1},  # 4 · 2/6 = 1.33
    "C_n4": {"N": 3},  # 2.67
    "C_n8": {"N": 5},  # 5.33
    "C_d256": {"d_model": 64, "d_k": 16, "d_v": 16},
    "C_d1024": {"d_model": 256, "d_k": 64, "d_v": 64},
    "C_ff1024": {"d_ff": 128},
    "C_ff4096": {"d_ff": 512},
    "D_dropout0.0": {"P_drop": 0.0},
    "D_dropout0.2": {"P_drop": 0.2},
    "D_smoothing0.0": {"eps_ls": 0.0},
    "D_smoothing0.2": {"eps_ls": 0.2},
    "E_learned": {"positions": "learned"},
    "big": {"d_model": 256, "d_ff": 512, "h": 8, "P_drop": 0.3, "steps": 9000},
}


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary(learn_vocabulary((phrase.encode() for phrase in PHRASES), 60))


@pytest.fixture(scope="module")
def tiny(vocabulary: Vocabulary) -> Table:
    return table3("tiny", {}, vocabulary)


def test_every_row_of_the_paper_in_its_order(tiny: Table) -> None:
    assert [row.name for row in tiny.rows] == list(TINY)
    assert [row.same_as for row in tiny.rows] == [None] * len(TINY)
    assert tiny.base is tiny.rows[0]


@pytest.mark.parametrize("name", TINY)
def test_rows_on_tiny(tiny: Table, name: str) -> None:
    base = {
        "N": 4, "d_model": 128, "d_ff": 256, "h": 4, "d_k": 32, "d_v": 32, "P_drop": 0.1,
        "eps_ls": 0.1, "positions": "sinusoidal", "steps": 3000,
    }  # fmt: skip
    [row] = [row for row in tiny.rows if row.name == name]
    assert columns(row.config) == base | TINY[name]
    assert columns(row.original) == columns(preset(name))
    assert row.paper == TABLE_3[name]
    # Everything else is as in base: the budget, the search and the vocabulary.
    changed = {f"model.{k}": getattr(tiny.base.config.model, k) for k in _MODEL_COLUMNS}
    changed["training.label_smoothing"] = 0.1
    changed["training.max_steps"] = 3000
    assert row.config.updated(changed) == tiny.base.config


_MODEL_COLUMNS = (
    "num_encoder_layers num_decoder_layers d_model d_ff num_heads key_dim value_dim "
    "embedding_dropout residual_dropout positions"
).split()


@pytest.mark.parametrize("name", TINY)
def test_on_the_papers_base_they_are_the_papers(name: str) -> None:
    # Big keeps 20 checkpoints to average them, which Table 3 does not.
    expected = preset(name).updated({"training.keep_checkpoints": 5})
    assert scaled(name, preset("base")) == expected


def test_the_base_of_a_sweep_differs_from_the_paper_only_in_size_and_budget(
    tiny: Table, vocabulary: Vocabulary
) -> None:
    model, training = tiny.base.config.model, tiny.base.config.training
    assert (model.norm_position, model.residual_dropout) == ("post", 0.1)
    assert (training.schedule, training.learning_rate) == ("noam", 1.0)
    assert (training.batch_tokens, training.label_smoothing) == (2048, 0.1)
    assert model.target_vocab_size == model.source_vocab_size == vocabulary.target_vocab_size
    papers = table3("base", {}, vocabulary).base.config.training
    assert (papers.max_steps, papers.batch_tokens, papers.warmup_steps) == (100_000, 25_000, 4000)


def test_settings_are_in_all_rows_and_before_the_budget(vocabulary: Vocabulary) -> None:
    settings = {"training.seed": "7", "training.max_steps": "10", "model.norm_position": "pre"}
    rows = table3("tiny", settings, vocabulary).rows
    assert {row.config.training.seed for row in rows} == {7}
    assert {row.config.model.norm_position for row in rows} == {"pre"}
    assert [row.config.training.max_steps for row in rows] == [10] * 19 + [30]


def test_whole_numbers_are_at_least_one_and_halves_are_rounded_up() -> None:
    base = Config().updated({"model.num_encoder_layers": 1, "model.num_decoder_layers": 6})
    assert columns(scaled("C_n2", base))["N"] == "1/2"
    assert columns(scaled("C_n4", base))["N"] == "1/4"
    base = Config().updated({"model.d_model": 60, "model.num_heads": 5, "model.d_ff": 5})
    assert base.model.key_dim == 12
    one, half = scaled("A_h1", base).model, scaled("A_h4", base).model
    assert (one.num_heads, one.key_dim) == (1, 60)  # 5/8
    assert (half.num_heads, half.key_dim, half.value_dim) == (3, 20, 20)  # 5/2
    assert scaled("C_ff1024", base).model.d_ff == 3


def test_equal_rows_are_marked(vocabulary: Vocabulary) -> None:
    settings = {
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "model.d_model": 32,
        "model.num_heads": 2,
        "training.label_smoothing": 0.2,
    }
    rows = {row.name: row for row in table3("tiny", settings, vocabulary).rows}
    same = {name: row.same_as for name, row in rows.items() if row.same_as}
    assert same == {
        "A_h4": "A_h1",  # 2/8 and 2/2 heads
        "C_n2": "base",
        "C_n4": "base",
        "C_n8": "base",
        "D_smoothing0.2": "base",
    }
    assert rows["A_h1"].config.model.key_dim == 32


def test_rules_are_the_papers_ratios(tiny: Table) -> None:
    rules = {row.name: row.rule for row in tiny.rows}
    assert rules["base"] == ""
    assert rules["A_h1"] == "h × 1/8, d_k × 8, d_v × 8"
    assert rules["B_dk16"] == "d_k × 1/4"
    assert rules["C_n8"] == "N × 4/3"
    assert rules["D_smoothing0.0"] == "eps_ls 0.0"
    assert rules["E_learned"] == "positions learned"
    assert rules["big"] == "d_model × 2, d_ff × 2, h × 2, P_drop 0.3, steps × 3"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        # If d_k is not given, it is d_model / h.
        {"model.d_model": 256, "model.key_dim": 32, "model.value_dim": 32},
        {"model.num_heads": 8, "model.key_dim": 32},
    ],
)
def test_settings_turn_the_preset_into_the_row(
    vocabulary: Vocabulary, settings: dict[str, Any]
) -> None:
    table = table3("tiny", settings, vocabulary)
    for row in table.rows:
        made = resolve_config(preset("tiny"), table.settings(row), vocabulary)
        assert dataclasses.asdict(made) == dataclasses.asdict(row.config), row.name


def test_rows_are_chosen_by_name_and_by_group(tiny: Table) -> None:
    def chosen(*names: str) -> list[str]:
        return [row.name for row in tiny.chosen(names)]

    assert chosen() == list(TINY)
    assert chosen("E", "B") == ["base", "B_dk16", "B_dk32", "E_learned"]
    assert chosen("big", "A_h1", "A_h1") == ["base", "A_h1", "big"]
    assert chosen("base") == ["base"]
    with pytest.raises(InputError, match=mentions("Table 3", "A1", "A", "B", "C")):
        chosen("A1")


def test_a_row_that_the_base_cannot_represent_is_an_error(vocabulary: Vocabulary) -> None:
    settings = {"model.d_model": 6, "model.num_heads": 2}
    with pytest.raises(InputError, match=mentions("tiny", "C_d256", "model.d_model")):
        table3("tiny", settings, vocabulary)
    with pytest.raises(InputError, match=mentions("huge", "preset")):
        table3("huge", {}, vocabulary)
    with pytest.raises(InputError, match=mentions("training.steps", "setting")):
        table3("tiny", {"training.steps": 3}, vocabulary)
