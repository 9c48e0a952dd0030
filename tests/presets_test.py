"""Presets against the paper's Table 3."""

import subprocess
import sys

import pytest

from keras_transformer.config import Config
from keras_transformer.errors import InputError
from keras_transformer.presets import PRESET_NAMES, TABLE_3, preset, resolve_config
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary
from tests.messages import mentions

# The paper's Table 3 from above: perplexity, BLEU, and millions of parameters where it prints them.
FIGURES = """
4.92 25.8 65
5.29 24.9
5.00 25.5
4.91 25.8
5.01 25.4
5.16 25.1 58
5.01 25.4 60
6.11 23.7 36
5.19 25.3 50
4.88 25.5 80
5.75 24.5 28
4.66 26.0 168
5.12 25.4 53
4.75 26.2 90
5.77 24.6
4.95 25.5
4.67 25.3
5.47 25.7
4.92 25.7
4.33 26.4 213
"""
# In millions; rows that print no count are those of base.
MILLIONS = {
    "B_dk16": 58,
    "B_dk32": 60,
    "C_n2": 36,
    "C_n4": 50,
    "C_n8": 80,
    "C_d256": 28,
    "C_d1024": 168,
    "C_ff1024": 53,
    "C_ff4096": 90,
    "big": 213,
}
LIKE_BASE = ["A_h1", "A_h4", "A_h16", "A_h32", "D_dropout0.0", "D_dropout0.2"]
LIKE_BASE += ["D_smoothing0.0", "D_smoothing0.2"]
OTHERS = ["tiny", "small", "base", "E_learned", "parser", "parser_tiny"]


def _millions(name: str) -> float:
    return preset(name).model.num_parameters() / 1e6


def test_every_row_of_the_paper_is_there():
    assert sorted(PRESET_NAMES) == sorted([*MILLIONS, *LIKE_BASE, *OTHERS])


def test_figures_are_the_papers():
    printed = [[float(figure) for figure in line.split()] for line in FIGURES.split("\n")[1:-1]]
    found = [[figure for figure in row if figure is not None] for row in TABLE_3.values()]
    assert found == printed
    millions = {name: row.millions for name, row in TABLE_3.items() if row.millions}
    assert millions == {"base": 65, **MILLIONS}
    assert [name[0] for name in TABLE_3] == list("bAAAABBCCCCCCCDDDDEb")


def test_base_has_65_million_parameters():
    assert _millions("base") == pytest.approx(65, rel=0.04)


@pytest.mark.parametrize("name", MILLIONS)
def test_difference_from_base_is_the_papers(name):
    margin = 4 if preset(name).model.d_model == 1024 else 1.5
    expected = MILLIONS[name] - 65
    assert _millions(name) - _millions("base") == pytest.approx(expected, abs=margin)


@pytest.mark.parametrize("name", LIKE_BASE)
def test_rows_that_print_no_count_have_bases(name):
    assert preset(name).model.num_parameters() == preset("base").model.num_parameters()


def test_learned_positions_add_one_table_for_each_side():
    added = preset("E_learned").model.num_parameters() - preset("base").model.num_parameters()
    assert added == 2 * 1024 * 512


def test_base_and_big_are_section_5_and_6():
    base, big = preset("base"), preset("big")
    m, t = base.model, base.training
    assert (m.num_encoder_layers, m.num_decoder_layers, m.d_model, m.d_ff) == (6, 6, 512, 2048)
    assert (m.num_heads, m.key_dim, m.value_dim, m.residual_dropout) == (8, 64, 64, 0.1)
    assert (t.beta_1, t.beta_2, t.epsilon, t.warmup_steps) == (0.9, 0.98, 1e-9, 4000)
    assert (t.label_smoothing, t.max_steps) == (0.1, 100_000)
    assert (base.decoding.beam_size, base.decoding.length_penalty) == (4, 0.6)
    assert base.decoding.max_extra_tokens == 50
    m = big.model
    assert (m.num_encoder_layers, m.num_decoder_layers, m.d_model, m.d_ff) == (6, 6, 1024, 4096)
    assert (m.num_heads, m.key_dim, m.residual_dropout) == (16, 64, 0.3)
    assert big.training.max_steps == 300_000


def test_rows_a_keep_the_computation_constant():
    for heads in (1, 4, 16, 32):
        model = preset(f"A_h{heads}").model
        assert model.num_heads == heads
        assert model.key_dim == model.value_dim == 512 // heads


def test_rows_b_to_e_change_what_they_name():
    assert (preset("B_dk16").model.key_dim, preset("B_dk16").model.value_dim) == (16, 64)
    assert (preset("C_d256").model.key_dim, preset("C_d256").model.value_dim) == (32, 32)
    assert (preset("C_d1024").model.key_dim, preset("C_d1024").model.value_dim) == (128, 128)
    assert preset("C_n8").model.num_decoder_layers == 8
    assert preset("D_dropout0.2").model.residual_dropout == 0.2
    assert preset("D_dropout0.0").model.embedding_dropout == 0.0
    assert preset("D_smoothing0.2").training.label_smoothing == 0.2
    assert preset("E_learned").model.positions == "learned"


def test_tiny_and_small():
    tiny, small = preset("tiny").model, preset("small").model
    assert (tiny.num_encoder_layers, tiny.num_decoder_layers) == (4, 4)
    assert (tiny.d_model, tiny.d_ff, tiny.num_heads, tiny.key_dim) == (128, 256, 4, 32)
    assert (small.num_encoder_layers, small.num_decoder_layers) == (3, 3)
    assert (small.d_model, small.d_ff, small.num_heads, small.key_dim) == (256, 1024, 4, 64)


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


def test_unknown_preset_names_the_choices():
    with pytest.raises(InputError, match=mentions("huge", "preset", "tiny", "small")):
        preset("huge")


def test_printed_table_and_no_tensorflow():
    command = [sys.executable, "-X", "importtime", "-m", "keras_transformer.presets"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {line.split()[-1] for line in process.stderr.splitlines()}
    assert "dataclasses" in imported and not {"tensorflow", "keras"} & imported
    header, *rows = process.stdout.splitlines()
    assert header.split()[0] == "name"
    assert tuple(row.split()[0] for row in rows) == PRESET_NAMES
    column = header.split().index("params_M")
    printed = {row.split()[0]: float(row.split()[column]) for row in rows}
    assert printed == {name: round(_millions(name), 1) for name in PRESET_NAMES}


LINES = [f"the {a} {b} sees a {a}er {b}".encode() for a in ("red", "big", "old") for b in "xyzü"]


def test_a_configuration_gets_sizes_and_ids_of_one_vocabulary_and_of_two():
    joint = Vocabulary(learn_vocabulary(LINES, 25))
    joint.pad_id, joint.unknown_id, joint.start_id, joint.end_id = 3, 1, 2, 0
    model = resolve_config(Config(), {}, joint).model
    assert (model.pad_id, model.unknown_id, model.start_id, model.end_id) == (3, 1, 2, 0)
    assert model.source_vocab_size == model.target_vocab_size == joint.source_vocab_size
    assert model.tie_embeddings == "all"
    separate = Vocabulary(learn_vocabulary(LINES, 25), learn_vocabulary(LINES, 22))
    model = resolve_config(Config(), {}, separate).model
    assert (model.source_vocab_size, model.target_vocab_size) == (25, 22)
    assert model.tie_embeddings == "target"
    untied = Config().replace(model__tie_embeddings="none")
    assert resolve_config(untied, {}, separate).model.tie_embeddings == "none"


def test_settings_change_a_preset_but_not_its_vocabulary():
    separate = Vocabulary(learn_vocabulary(LINES, 25), learn_vocabulary(LINES, 22))
    config = resolve_config(preset("tiny"), {"training.seed": "7"}, separate)
    assert config == resolve_config(config, {}, separate)
    assert (config.training.seed, config.model.d_model) == (7, preset("tiny").model.d_model)
    for settings, message in (
        ({"model.source_vocab_size": 30}, "source_vocab_size is 30, and of the data's vocabulary"),
        ({"model.pad_id": 9}, "model.pad_id is 9, and of the data's vocabulary it is 0"),
    ):
        with pytest.raises(InputError, match=message):
            resolve_config(preset("tiny"), settings, separate)
