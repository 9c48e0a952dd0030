"""Configuration: settings, validation and JSON."""

import dataclasses
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.config import Config, DecodingConfig, ModelConfig, RunConfig, TrainingConfig
from keras_transformer.errors import InputError
from keras_transformer.presets import preset, presets
from tests.messages import mentions


class TestNumParameters:
    def test_smallest_model_counted_by_hand(self):
        model = ModelConfig(
            source_vocab_size=7,
            target_vocab_size=7,
            num_encoder_layers=1,
            num_decoder_layers=1,
            d_model=2,
            d_ff=3,
            num_heads=1,
        )
        attention, feed_forward, norm = 4 * (2 * 2), (2 * 3 + 3) + (3 * 2 + 2), 2 * 2
        expected = 7 * 2 + (attention + feed_forward + 2 * norm)
        expected += 2 * attention + feed_forward + 3 * norm
        assert model.num_parameters() == expected

    def test_untied_tables_and_biases(self):
        tied = ModelConfig(num_encoder_layers=1, num_decoder_layers=1, d_model=8, num_heads=2)

        def added(**changes):
            return dataclasses.replace(tied, **changes).num_parameters() - tied.num_parameters()

        assert added(tie_embeddings="target") == 37_000 * 8
        assert added(tie_embeddings="none") == 2 * 37_000 * 8
        assert added(output_bias=True) == 37_000
        assert added(attention_bias=True) == 3 * 4 * 8  # queries, keys, values, output
        assert added(norm_position="pre") == 2 * 2 * 8  # the final norm of each stack
        assert added(norm_position="pre", final_norm=False) == 0
        assert added(final_norm=True) == 2 * 2 * 8
        assert added(embedding_norm=True) == 2 * 2 * 8  # one for each side
        assert added(decoder_d_ff=2048 + 3) == 3 * (2 * 8 + 1)
        assert added(decoder_num_heads=8) == 0  # narrower heads of the same total width


# Valid values, as strings of `--set`.
TEXTS = """
training.label_smoothing=0.2 training.max_steps=7 training.num_microbatches=4
training.optimizer=adamw training.weight_decay=0.01 training.freeze=embedding/*,encoder/*
training.ema_decay=0.999 training.deterministic=true training.best_metric=bleu
training.bleu_steps=500 training.early_stopping=3 training.seed=0 model.scale_embeddings=false
model.attention_window=3 model.norm_position=pre model.final_norm=false decoding.length_penalty=1
decoding.max_length=7 decoding.min_length=7 decoding.no_repeat_ngram=3 decoding.banned=dog|cat
decoding.repetition_penalty=1.2 decoding.diversity_penalty=0.5
""".split()
# n_best is larger than the beam size, which sampling does not use.
SAMPLING = """
training.seed=2147483647 decoding.sample=true decoding.n_best=9 decoding.temperature=0
decoding.top_k=10 decoding.top_p=1 decoding.seed=-3
""".split()


class TestSettings:
    @pytest.mark.parametrize("texts", [TEXTS, SAMPLING])
    def test_strings_of_flags_become_the_fields_types(self, texts):
        given = dict(text.split("=") for text in texts)
        config = Config().updated(given)
        for name, text in given.items():
            section, field = name.split(".")
            try:
                expected = json.loads(text)
            except ValueError:
                expected = text
            assert getattr(getattr(config, section), field) == expected, name

    def test_none_is_the_absence_of_a_value(self):
        model = Config().replace(model__attention_window=3, model__norm_position="pre")
        for field in ("model.attention_window", "model.final_norm", "decoding.max_length"):
            section, name = field.split(".")
            assert getattr(getattr(model.updated({field: "none"}), section), name) is None
        assert model.updated({"model.final_norm": "none"}).model.has_final_norm

    def test_combinations_that_seem_wrong_but_are_not(self):
        Config().updated({"training.optimizer": "adamw", "training.weight_decay": "0"})  # Adam
        Config().updated({"training.best_metric": "loss", "training.bleu_steps": "500"})

    def test_the_original_is_unchanged_and_frozen(self):
        config = Config()
        config.updated({"model.d_ff": 8})
        assert config == Config()
        for section in (config, config.model, config.training, config.decoding):
            field = dataclasses.fields(section)[0].name
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(section, field, 1)

    def test_head_dimensions_follow_unless_they_are_chosen(self):
        config = Config().updated({"model.d_model": "128", "model.num_heads": "2"})
        assert (config.model.key_dim, config.model.value_dim) == (64, 64)
        chosen = Config().updated({"model.key_dim": 16}).updated({"model.d_model": 256})
        assert (chosen.model.key_dim, chosen.model.value_dim) == (16, 32)

    def test_decoder_sizes_follow_unless_they_are_chosen(self):
        model = Config().replace(model__num_heads=16, model__d_ff=100).model
        assert model.encoder_sizes == model.decoder_sizes == (6, 16, 32, 32, 100)
        chosen = {
            "decoder_num_heads": 4,
            "decoder_d_ff": 50,
            "key_dim": 10,
            "num_decoder_layers": 2,
        }
        model = dataclasses.replace(model, **chosen)
        assert model.encoder_sizes == (6, 16, 10, 32, 100)
        assert model.decoder_sizes == (2, 4, 40, 128, 50)

    def test_replace_addresses_sections_by_two_underscores(self):
        config = Config().replace(model__d_ff=16, training__seed=5)
        assert (config.model.d_ff, config.training.seed) == (16, 5)

    @pytest.mark.parametrize("name", presets())
    def test_json_round_trip(self, name):
        config = preset(name).updated({"training.seed": 3, "model.attention_window": 4})
        assert Config.from_json(config.to_json()) == config
        assert RunConfig.from_json(config.to_json()) == config


# Invalid values, as strings of `--set`.
BAD_VALUES = """
training.max_steps=many training.max_steps=1.5 training.max_steps=0 training.epsilon=nan
training.learning_rate=inf training.learning_rate=0 training.label_smoothing=1 training.clip_norm=-1
training.schedule=steep training.seed=2147483648 training.seed=-1 training.warmup_steps=0
training.subword_alpha=0 training.subword_alpha=-1 training.num_microbatches=0
training.num_microbatches=1.5 training.optimizer=sgd training.weight_decay=-0.1
training.ema_decay=1 training.ema_decay=-0.1 training.deterministic=1 training.jit_compile=on
training.checkpoint_steps=0 training.keep_checkpoints=0 training.keep_best=-1
training.best_metric=chrf training.bleu_steps=-1 training.bleu_sentences=-1
training.early_stopping=-1 training.max_skipped_steps=0 training.mixed_precision=int8
model.scale_embeddings=yes model.num_heads=0 model.d_model=-8 model.attention_window=0
model.activation_dropout=1 model.first_position=-1 model.first_position=2097152
model.sinusoid_frequencies=hf model.decoder_num_heads=0 model.decoder_d_ff=0 model.final_norm=post
decoding.beam_size=0 decoding.n_best=0 decoding.length_penalty=-0.5 decoding.coverage_penalty=-1
decoding.diversity_penalty=-1 decoding.repetition_penalty=0.9 decoding.no_repeat_ngram=-1
decoding.min_length=-1 decoding.max_length=0 decoding.max_length=-1 decoding.max_length=2097152
decoding.max_extra_tokens=0 decoding.max_extra_tokens=1099511627776 decoding.max_source_tokens=0
decoding.sample=yes decoding.temperature=-1 decoding.temperature=nan decoding.top_k=-1
decoding.length_penalty_formula=marian decoding.top_p=0 decoding.top_p=1.1 decoding.seed=1.5
""".split()
BAD_TYPES = [
    ("training.max_steps", 1.5),
    ("training.max_steps", True),
    ("training.max_steps", None),
    ("training.freeze", 3),
    ("decoding.banned", 3),
]


@pytest.mark.parametrize(
    ("field", "value"), [*(each.split("=") for each in BAD_VALUES), *BAD_TYPES]
)
def test_wrong_values_are_named_with_their_field(field, value):
    with pytest.raises(InputError) as error:
        Config().updated({field: value})
    shown = rf"{value}(\.0)?" if re.fullmatch(r"-?\d+", str(value)) else str(value)
    assert re.search(rf"{re.escape(field)} is '?{shown}\b", str(error.value))
    assert "\n" not in str(error.value)


# Settings that do not fit together, and the facts of the error message.
BAD_SETTINGS = {
    "label_smoothing=0.2": mentions("label_smoothing", "setting", "model.NAME"),
    "train.seed=1": mentions("train.seed", "setting"),
    "training.smoothing=1": mentions("training.smoothing", "label_smoothing"),
    "training.schedule=steep": mentions("schedule", "steep", "noam", "inverse_sqrt"),
    "training.subword_alpha=0": mentions("subword_alpha", "0.0", "0", "none"),
    "training.weight_decay=0.1": mentions("weight_decay", "0.1", "training.optimizer", "adam"),
    "training.best_metric=bleu": mentions("best_metric", "bleu", "training.bleu_steps", "0"),
    "model.decoder_num_heads=3": mentions(
        "model.decoder_num_heads", "3", "model.num_heads", "model.key_dim", "512"
    ),
    "model.positions=learned model.first_position=2": mentions(
        "model.first_position", "2", "learned"
    ),
    "model.num_heads=3": mentions("d_model", "512", "model.num_heads", "3"),
    "model.d_model=9 model.key_dim=3 model.value_dim=3": mentions("d_model", "9", "even"),
    "model.pad_id=3": mentions("pad_id", "3"),
    "model.end_id=37000": mentions("end_id", "37000"),
    "model.source_vocab_size=5": mentions("tie_embeddings", "all", "5", "37000"),
    "decoding.n_best=5": mentions("n_best", "5", "decoding.beam_size", "4"),
    "decoding.min_length=5 decoding.max_length=4": mentions(
        "max_length", "4", "decoding.min_length", "5"
    ),
    "decoding.max_length=2097152": mentions("max_length", "1,048,576", "none"),
    "decoding.beam_size=1 decoding.diversity_penalty=1": mentions(
        "diversity_penalty", "1.0", "decoding.beam_size", "1"
    ),
    "decoding.temperature=0": mentions("temperature", "0.0", "decoding.sample"),
    "decoding.top_k=5": mentions("top_k", "5", "decoding.sample"),
    "decoding.top_p=0.9": mentions("top_p", "0.9", "decoding.sample"),
    **{
        f"decoding.sample=true decoding.{name}={text}": mentions(
            name, value, "decoding.sample", "true"
        )
        for name, text, value in (
            ("coverage_penalty", "0.2", "0.2"),
            ("diversity_penalty", "0.5", "0.5"),
            ("early_stopping", "true", "True"),
        )
    },
}


@pytest.mark.parametrize("wrong", BAD_SETTINGS)
def test_wrong_combinations_name_all_fields(wrong):
    with pytest.raises(InputError, match=BAD_SETTINGS[wrong]) as error:
        Config().updated(dict(text.split("=") for text in wrong.split()))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("section", [ModelConfig, TrainingConfig, DecodingConfig])
def test_constructors_check_too(section):
    field = dataclasses.fields(section)[0].name
    with pytest.raises(InputError, match=mentions(field, "x")):
        section(**{field: "x"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", mentions("run/config.json", "JSON")),
        ("[1]", mentions("run/config.json", "configuration")),
        ('{"model": 3}', mentions("run/config.json", "configuration")),
        ('{"model": {"width": 3}}', mentions("run/config.json", "model.width", "setting")),
        ('{"model": {"d_ff": []}}', mentions("run/config.json", "model.d_ff")),
        ('{"model": {"activation": []}}', mentions("run/config.json", "model.activation", "relu")),
        (
            '{"architecture": "gru", "model": {"units": 3}}',
            mentions("run/config.json", "architecture", "gru", "transformer"),
        ),
        ('{"architecture": [7]}', mentions("architecture", "[7]", "transformer")),
    ],
)
def test_wrong_json_names_the_file(text, message):
    with pytest.raises(InputError, match=message):
        Config.from_json(text, "run/config.json")


@pytest.mark.parametrize("architecture", ["perceptron", [7]])
def test_the_error_for_an_unregistered_architecture_has_advice(architecture):
    text = json.dumps({"architecture": architecture, "model": {}})
    message = f"run/config.json has the architecture {architecture!r}, which is not registered. "
    with pytest.raises(InputError, match=re.escape(message) + "Import the module"):
        RunConfig.from_json(text, "run/config.json")


def test_a_config_of_an_earlier_version_loads_with_the_renamed_fields():
    old = json.loads(Config().to_json())
    for section, name, earlier, value in (
        ("training", "num_microbatches", "accumulate_steps", 4),
        ("training", "auxiliary_loss_weight", "guided_alignment", 0.3),
        ("model", "activation_dropout", "relu_dropout", 0.1),
    ):
        del old[section][name]
        old[section][earlier] = value
    old["training"]["schedule"] = "paper"
    config = Config.from_json(json.dumps(old))
    assert config.training.num_microbatches == 4
    assert config.training.auxiliary_loss_weight == 0.3
    assert config.training.schedule == "noam"
    assert config.model.activation_dropout == 0.1


def test_a_config_without_the_newest_fields_has_the_models_of_earlier_versions():
    config = Config().updated({"model.norm_position": "pre"})
    old = json.loads(config.to_json())
    newest = "decoder_d_ff decoder_num_heads sinusoid_frequencies first_position embedding_norm"
    for name in [*newest.split(), "final_norm", "mask_source_end"]:
        del old["model"][name]
    assert Config.from_json(json.dumps(old)) == config
    assert config.model.has_final_norm and not config.model.embedding_norm


def test_runs_with_retired_fields_load_unless_they_used_them():
    old = json.loads(Config().to_json())
    old["training"]["r_drop"] = 0.0
    assert Config.from_json(json.dumps(old)) == Config()
    old["training"]["r_drop"] = 5.0
    with pytest.raises(InputError, match=mentions("config.json", "training.r_drop", "5.0")):
        Config.from_json(json.dumps(old), "run/config.json")
    with pytest.raises(InputError, match=mentions("training.r_drop", "setting")):
        Config().updated({"training.r_drop": 0.0})


def test_configurations_name_their_architecture():
    assert json.loads(Config().to_json())["architecture"] == "transformer"
    # Runs that are older than the field are Transformers.
    assert Config.from_json(json.dumps(dataclasses.asdict(Config()))) == Config()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
_FIELD = st.sampled_from(
    [
        f"{section.name}.{field.name}"
        for section in dataclasses.fields(Config)
        for field in dataclasses.fields(getattr(Config(), section.name))
    ]
)


@given(name=_FIELD, value=_JSON)
@settings(max_examples=100, deadline=None)
def test_any_value_of_any_field_is_taken_or_is_an_input_error(name, value):
    section, field = name.split(".")
    text = json.dumps({section: {field: value}})
    try:
        config = Config.from_json(text)
    except InputError:
        return
    assert Config.from_json(config.to_json()) == config


@given(text=st.text(max_size=30) | _JSON.map(json.dumps))
@settings(max_examples=100, deadline=None)
def test_any_text_is_a_configuration_or_an_input_error(text):
    try:
        config = Config.from_json(text)
    except InputError:
        return
    assert isinstance(config, Config)
