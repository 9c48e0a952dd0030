"""Configuration: settings, validation and JSON."""

import dataclasses
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.config import Config, DecodingConfig, ModelConfig, RunConfig
from keras_transformer.config.model import OtherToolkits, TokenIds
from keras_transformer.errors import InputError
from keras_transformer.presets import preset, presets
from tests import settings_page
from tests.builders import refuses


def test_there_are_at_most_70_settings():
    # The data decide on ids and sizes of the vocabulary: `resolve_config` refuses other values.
    # What only expresses other toolkits is one documented group.
    of_data = {"source_vocab_size", "target_vocab_size", *TokenIds.declarations()}
    names = {name.partition(".")[2] for name in Config.declarations() if "decoding" not in name}
    others = names - of_data - OtherToolkits.declarations().keys()
    assert len(others) + 1 + len(DecodingConfig.declarations()) <= 70


def test_the_page_has_all_settings():
    current = settings_page.PAGE.read_text("utf-8")
    assert settings_page.page() == current, "Run: python -m tests.settings_page"
    assert settings_page.stub() == settings_page.TYPES.read_text("utf-8")


class TestNumParameters:
    def test_smallest_model_counted_by_hand(self):
        model = ModelConfig(
            7, 7, 2, num_encoder_layers=1, num_decoder_layers=1, d_ff=3, num_heads=1
        )
        attention, feed_forward, norm = 4 * (2 * 2), (2 * 3 + 3) + (3 * 2 + 2), 2 * 2
        expected = 7 * 2 + (attention + feed_forward + 2 * norm)
        expected += 2 * attention + feed_forward + 3 * norm
        assert model.num_parameters() == expected

    @pytest.mark.parametrize(
        ("added", "changes"),
        [
            (37_000 * 8, {"tie_embeddings": "target"}),
            (2 * 37_000 * 8, {"tie_embeddings": "none"}),
            (37_000, {"output_bias": True}),
            (3 * 4 * 8, {"attention_bias": True}),  # queries, keys, values, output
            (2 * 2 * 8, {"norm_position": "pre"}),  # the final norm of each stack
            (0, {"norm_position": "pre", "final_norm": False}),
            (2 * 2 * 8, {"final_norm": True}),
            (2 * 2 * 8, {"embedding_norm": True}),  # one for each side
            (3 * (2 * 8 + 1), {"decoder_d_ff": 2048 + 3}),
            (0, {"decoder_num_heads": 8}),  # narrower heads of the same total width
        ],
    )
    def test_variants(self, added, changes):
        paper = ModelConfig(num_encoder_layers=1, num_decoder_layers=1, d_model=8, num_heads=2)
        assert paper.replace(**changes).num_parameters() == paper.num_parameters() + added


# Valid values, as strings of `--set`. For sampling, n_best may be larger than the beam size.
TEXTS = """
training.label_smoothing=0.2 training.max_steps=7 training.weight_decay=0.01
training.freeze=embedding/*,encoder/* training.deterministic=true training.best_metric=bleu
training.bleu_steps=500 training.seed=2147483647 model.scale_embeddings=false
model.attention_window=3 model.norm_position=pre model.final_norm=false decoding.banned=dog|cat
decoding.max_length=7 decoding.min_length=7 decoding.sample=true decoding.n_best=9
decoding.temperature=0 decoding.top_k=10 decoding.top_p=1 decoding.seed=-3 decoding.unknown=replace
""".split()


class TestSettings:
    def test_strings_of_flags_become_the_fields_types(self):
        given = dict(text.split("=") for text in TEXTS)
        found = Config().updated(given).settings()
        for name, text in given.items():
            expected = json.loads(text) if re.fullmatch(r"[-\d.]+|true|false", text) else text
            assert found[name] == expected, name
        unset = dict.fromkeys(("model.attention_window", "decoding.max_length"), "none")
        assert Config().updated(given).updated(unset).decoding.max_length is None

    def test_groups_are_changed_by_the_names_of_their_fields(self):
        model = Config().updated(model__output_bias=True, model__pad_id=9).model
        assert model.other_toolkits.output_bias and model.pad_id == model.token_ids.pad_id == 9
        assert model == Config().model.replace(output_bias=True, pad_id=9)
        assert model == ModelConfig.from_dict({"output_bias": True, "pad_id": 9})

    def test_the_original_is_unchanged_and_frozen(self):
        config = Config()
        config.updated({"model.d_ff": 8, "model.final_norm": True})
        assert config == Config()
        for section in (config, config.model, config.training, config.decoding):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(section, dataclasses.fields(section)[0].name, 1)

    def test_head_dimensions_follow_unless_they_are_chosen(self):
        config = Config().updated({"model.d_model": "128", "model.num_heads": "2"})
        assert (config.model.key_dim, config.model.value_dim) == (64, 64)
        chosen = Config().updated({"model.key_dim": 16}).updated({"model.d_model": 256})
        assert (chosen.model.key_dim, chosen.model.value_dim) == (16, 32)

    def test_decoder_sizes_follow_unless_they_are_chosen(self):
        model = Config().updated(model__num_heads=16, model__d_ff=100).model
        assert model.encoder_sizes == model.decoder_sizes == (6, 16, 32, 32, 100)
        sizes = {"decoder_num_heads": 4, "decoder_d_ff": 50, "key_dim": 10, "num_decoder_layers": 2}
        model = model.replace(**sizes)
        assert model.encoder_sizes == (6, 16, 10, 32, 100)
        assert model.decoder_sizes == (2, 4, 40, 128, 50)


# Invalid values, as strings of `--set`. Each type and each range occurs.
BAD_VALUES = """
training.max_steps=many training.max_steps=1.5 training.max_steps=0 training.epsilon=nan
training.learning_rate=inf training.learning_rate=0 training.label_smoothing=1 training.clip_norm=-1
training.schedule=steep training.seed=2147483648 training.seed=-1 training.warmup_steps=0
training.subword_alpha=0 training.deterministic=1 training.jit_compile=on training.keep_best=-1
model.scale_embeddings=yes model.num_heads=0 model.d_model=-8 model.attention_window=0
model.activation_dropout=1 model.first_position=-1 model.first_position=2097152
model.sinusoid_frequencies=hf model.final_norm=post decoding.beam_size=0
decoding.length_penalty=-0.5 decoding.length_penalty=10.5 decoding.repetition_penalty=0.9
decoding.max_extra_tokens=1099511627776 decoding.sample=yes decoding.temperature=nan
decoding.top_p=0 decoding.top_p=1.1 decoding.seed=1.5 decoding.unknown=true
""".split()

BAD_TYPES = [("training.max_steps", 1.5), ("training.max_steps", None), ("training.freeze", 3)]


@pytest.mark.parametrize(("field", "value"), [*(t.split("=") for t in BAD_VALUES), *BAD_TYPES])
def test_wrong_values_are_named_with_their_field(field, value):
    with pytest.raises(InputError) as error:
        Config().updated({field: value})
    shown = rf"{value}(\.0)?" if re.fullmatch(r"-?\d+", str(value)) else str(value)
    assert re.search(rf"{re.escape(field)} is '?{shown}\b", str(error.value))
    assert "\n" not in str(error.value)


# Settings that do not fit together, and the facts of the error message.
BAD_SETTINGS = [
    ("label_smoothing=0.2", "label_smoothing", "setting", "training.label_smoothing"),
    ("train.seed=1", "train.seed", "setting", "training.seed"),
    ("training.best_metric=bleu", "best_metric", "bleu", "training.bleu_steps", "0"),
    ("model.decoder_num_heads=3", "decoder_num_heads", "3", "num_heads", "key_dim", "512"),
    ("model.num_heads=3", "d_model", "512", "model.num_heads", "3"),
    ("model.d_model=9 model.key_dim=3 model.value_dim=3", "d_model", "9", "even"),
    ("model.pad_id=3", "pad_id", "3"),
    ("model.end_id=37000", "end_id", "37000"),
    ("model.source_vocab_size=5", "tie_embeddings", "all", "5", "37000"),
    ("decoding.n_best=5", "n_best", "5", "decoding.beam_size", "4"),
    ("decoding.min_length=5 decoding.max_length=4", "max_length", "4", "decoding.min_length", "5"),
    ("decoding.max_length=2097152", "max_length", "1,048,576", "none"),
    ("decoding.temperature=0", "temperature", "0.0", "decoding.sample"),
    ("decoding.top_k=5", "top_k", "5", "decoding.sample"),
    ("decoding.sample=true decoding.early_stopping=true", "early_stopping", "True", "sample"),
]


@pytest.mark.parametrize(("texts", "facts"), [(texts, facts) for texts, *facts in BAD_SETTINGS])
def test_wrong_combinations_name_all_fields(texts, facts):
    refuses(Config().updated, {"settings": dict(text.split("=") for text in texts.split())}, *facts)


class TestJSON:
    @pytest.mark.parametrize("name", presets())
    def test_round_trip(self, name):
        config = preset(name).updated({"training.seed": 3, "model.attention_window": 4})
        assert Config.from_json(config.to_json()) == config
        assert RunConfig.from_json(config.to_json()) == config

    @pytest.mark.parametrize(
        ("content", "facts"),
        [
            ({"model": {"width": 3}}, ("model.width", "setting")),
            ({"model": {"d_ff": []}}, ("model.d_ff", "[]")),
            ({"model": {"activation": []}}, ("model.activation", "relu")),
            ({"architecture": "gru", "model": {"units": 3}}, ("gru", "transformer")),
            ({"architecture": [7]}, ("architecture", "[7]", "transformer")),
        ],
    )
    def test_wrong_content_names_the_file(self, content, facts):
        arguments = {"text": json.dumps(content), "label": "run/config.json"}
        refuses(Config.from_json, arguments, "run/config.json", *facts)

    def test_the_architecture_of_an_extension_is_refused_without_it(self):
        refuses(RunConfig.from_json, {"text": '{"architecture": "x"}'}, "x", "transformer")

    @pytest.mark.parametrize(
        ("old", "facts"),
        [
            ({"training.optimizer": "adam", "training.max_skipped_steps": 20}, None),
            ({"training.r_drop": 0.0, "training.bleu_tokenize": None}, None),
            ({"decoding.max_source_bytes": 16_384, "decoding.allow_unknown": False}, None),
            ({"decoding.allow_unknown": True}, ("decoding.allow_unknown", "version that wrote")),
            ({"training.r_drop": 5.0}, ("training.r_drop", "version that wrote")),
            ({"model.relu_dropout": 0.1}, ("model.relu_dropout", "train again")),
        ],
    )
    def test_removed_fields_of_earlier_versions_must_be_neutral(self, old, facts):
        content = Config().as_dict()
        for name, value in old.items():
            section, _, field = name.partition(".")
            content[section][field] = value
        del content["model"]["mask_source_end"], content["architecture"]
        if facts is None:
            assert Config.from_json(json.dumps(content)) == Config()
        else:
            arguments = {"text": json.dumps(content), "label": "config.json"}
            refuses(Config.from_json, arguments, "config.json", *facts)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(name=st.sampled_from([*Config.declarations()]), value=_JSON)
@settings(max_examples=100)
def test_any_value_of_any_field_is_taken_or_is_an_input_error(name, value):
    section, field = name.split(".")
    try:
        config = Config.from_json(json.dumps({section: {field: value}}))
    except InputError:
        return
    assert Config.from_json(config.to_json()) == config


@pytest.mark.parametrize(("stored", "read"), [(False, "none"), (True, "next")])
def test_a_model_of_an_older_run_is_read(stored: bool, read: str) -> None:
    values = {**ModelConfig().as_dict(), "guided_alignment": stored}
    assert ModelConfig.from_dict(values).guided_alignment == read
