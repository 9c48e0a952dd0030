"""Presets against the paper's Table 3."""

import pytest

from keras_transformer.config import Config
from keras_transformer.config.model import TokenIds
from keras_transformer.extensions.paper.presets import TABLE_3
from keras_transformer.inference import output_limit
from keras_transformer.presets import preset, presets, resolve_config
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary
from tests.builders import refuses

MILLIONS = {name: row["millions"] for name, row in TABLE_3.items() if row["millions"]}


def count_millions(name: str) -> float:
    return preset(name).model.num_parameters() / 1e6


def test_every_row_of_table_3_is_a_preset():
    assert {*presets()} == {*TABLE_3, "tiny", "small", "parser", "parser_tiny"}


@pytest.mark.parametrize("name", MILLIONS)
def test_number_of_parameters_is_that_of_the_paper(name):
    assert count_millions("base") == pytest.approx(65, rel=0.04)
    margin = 4 if preset(name).model.d_model == 1024 else 1.5
    expected = MILLIONS[name] - 65
    assert count_millions(name) - count_millions("base") == pytest.approx(expected, abs=margin)


@pytest.mark.parametrize("name", sorted(TABLE_3.keys() - MILLIONS.keys()))
def test_other_rows_have_as_many_parameters_as_base(name):
    positions = 2 * 1024 * 512 if name == "E_learned" else 0  # one table for each side
    base = preset("base").model.num_parameters()
    assert preset(name).model.num_parameters() == base + positions


def test_base_and_big_are_section_5_and_6():
    base, big = preset("base"), preset("big")
    m, t = base.model, base.training
    assert (m.num_encoder_layers, m.num_decoder_layers, m.d_model, m.d_ff) == (6, 6, 512, 2048)
    assert (m.num_heads, m.key_dim, m.value_dim, m.residual_dropout) == (8, 64, 64, 0.1)
    assert (t.beta_1, t.beta_2, t.epsilon, t.warmup_steps) == (0.9, 0.98, 1e-9, 4000)
    assert (t.label_smoothing, t.max_steps) == (0.1, 100_000)
    assert (base.decoding.beam_size, base.decoding.length_penalty) == (4, 0.6)
    assert output_limit(base.decoding, 30) == 80
    m = big.model
    assert (m.num_encoder_layers, m.num_decoder_layers, m.d_model, m.d_ff) == (6, 6, 1024, 4096)
    assert (m.num_heads, m.key_dim, m.residual_dropout) == (16, 64, 0.3)
    assert big.training.max_steps == 300_000


def test_rows_a_keep_the_computation_constant():
    for heads in (1, 4, 16, 32):
        model = preset(f"A_h{heads}").model
        assert model.num_heads == heads
        assert model.key_dim == model.value_dim == 512 // heads


def test_rows_b_to_e_change_the_fields_in_their_names():
    assert (preset("B_dk16").model.key_dim, preset("B_dk16").model.value_dim) == (16, 64)
    assert (preset("C_d256").model.key_dim, preset("C_d256").model.value_dim) == (32, 32)
    assert (preset("C_d1024").model.key_dim, preset("C_d1024").model.value_dim) == (128, 128)
    assert preset("C_n8").model.num_decoder_layers == 8
    assert preset("D_dropout0.2").model.residual_dropout == 0.2
    assert preset("D_dropout0.0").model.embedding_dropout == 0.0
    assert preset("D_smoothing0.2").training.label_smoothing == 0.2
    assert preset("E_learned").model.positions == "learned"


def test_the_parser_is_section_6_3():
    parser = preset("parser")
    m = parser.model
    assert (m.num_encoder_layers, m.num_decoder_layers, m.d_model) == (4, 4, 1024)
    base = preset("base")  # "all other parameters remained unchanged"
    assert (m.d_ff, m.num_heads, m.norm_position) == (2048, 8, base.model.norm_position)
    assert parser.training.batch_tokens == base.training.batch_tokens
    for name in ("parser", "parser_tiny"):
        d = preset(name).decoding
        assert (d.beam_size, d.length_penalty, d.max_extra_tokens) == (21, 0.3, 300)


LINES = [f"the {a} {b} sees a {a}er {b}".encode() for a in ("red", "big", "old") for b in "xyzü"]


def test_configurations_get_the_sizes_and_ids_of_vocabularies():
    joint = Vocabulary(learn_vocabulary(LINES, 25))
    joint.pad_id, joint.unknown_id, joint.start_id, joint.end_id = 3, 1, 2, 0
    model = resolve_config(Config(), {}, joint).model
    assert model.token_ids == TokenIds(3, 1, 2, 0)
    assert model.source_vocab_size == model.target_vocab_size == joint.source_vocab_size
    assert model.tie_embeddings == "all"
    separate = Vocabulary(learn_vocabulary(LINES, 25), learn_vocabulary(LINES, 22))
    model = resolve_config(Config(), {}, separate).model
    assert (model.source_vocab_size, model.target_vocab_size) == (25, 22)
    assert model.tie_embeddings == "target"
    untied = Config().updated(model__tie_embeddings="none")
    assert resolve_config(untied, {}, separate).model.tie_embeddings == "none"


def test_settings_change_a_preset_but_not_its_vocabulary():
    separate = Vocabulary(learn_vocabulary(LINES, 25), learn_vocabulary(LINES, 22))
    config = resolve_config(preset("tiny"), {"training.seed": "7"}, separate)
    assert config == resolve_config(config, {}, separate)
    assert (config.training.seed, config.model.d_model) == (7, preset("tiny").model.d_model)
    for name, value, facts in (
        ("model.source_vocab_size", 30, ("30", "vocabulary", "25")),
        ("model.pad_id", 9, ("9", "vocabulary", "0")),
        ("model.tie_embeddings", "all", ("all", "joint")),
    ):
        changes = {"preset": config, "settings": {name: value}, "vocabulary": separate}
        refuses(resolve_config, changes, name, *facts)
    refuses(preset, {"name": "huge"}, "huge", "tiny", "small")
