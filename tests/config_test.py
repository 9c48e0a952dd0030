"""Settings, validation, JSON."""

import dataclasses
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.config import Config, DecodingConfig, ModelConfig, RunConfig, TrainingConfig
from keras_transformer.errors import InputError
from keras_transformer.presets import PRESET_NAMES, preset


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
        assert added(norm_position="pre") == 2 * 2 * 8  # a last norm of each stack


class TestSettings:
    def test_strings_of_flags_become_the_fields_types(self):
        config = Config().updated(
            {
                "training.label_smoothing": "0.2",
                "training.max_steps": "7",
                "model.scale_embeddings": "false",
                "model.attention_window": "3",
                "model.norm_position": "pre",
                "decoding.length_penalty": "1",
            }
        )
        assert config.training.label_smoothing == 0.2
        assert config.training.max_steps == 7
        assert config.model.scale_embeddings is False
        assert config.model.attention_window == 3
        assert config.model.norm_position == "pre"
        assert config.decoding.length_penalty == 1.0
        assert config.updated({"model.attention_window": "none"}).model.attention_window is None

    def test_the_original_is_left_alone_and_frozen(self):
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

    def test_replace_addresses_sections_by_two_underscores(self):
        config = Config().replace(model__d_ff=16, training__seed=5)
        assert (config.model.d_ff, config.training.seed) == (16, 5)

    @pytest.mark.parametrize("name", PRESET_NAMES)
    def test_json_gives_back_the_same(self, name):
        config = preset(name).updated({"training.seed": 3, "model.attention_window": 4})
        assert Config.from_json(config.to_json()) == config


# (settings, what the one sentence has to name)
BAD_SETTINGS = [
    ({"label_smoothing": "0.2"}, "'label_smoothing' is no setting; expected model.NAME"),
    ({"training.": "1"}, "'training.' is no setting"),
    ({"train.seed": "1"}, "'train.seed' is no setting"),
    ({"training.smoothing": "1"}, "'training.smoothing' is no setting; the fields.*label_smooth"),
    ({"training.max_steps": "many"}, "max_steps is 'many'; expected a whole number"),
    ({"training.max_steps": "1.5"}, "max_steps is '1.5'; expected a whole number"),
    ({"training.max_steps": 1.5}, "max_steps is 1.5; expected a whole number"),
    ({"training.max_steps": True}, "max_steps is True; expected a whole number"),
    ({"training.max_steps": None}, "max_steps is None; expected a whole number"),
    ({"training.max_steps": "0"}, "max_steps is 0; expected more than 0"),
    ({"training.epsilon": "nan"}, "epsilon is 'nan'; expected a finite number"),
    ({"training.learning_rate": "inf"}, "learning_rate is 'inf'; expected a finite number"),
    ({"training.learning_rate": "0"}, "learning_rate is 0.0; expected more than 0"),
    ({"training.label_smoothing": "1"}, "label_smoothing is 1.0; expected 0 <= value < 1"),
    ({"training.clip_norm": "-1"}, "clip_norm is -1.0; expected 0 or more"),
    ({"training.schedule": "steep"}, "schedule is 'steep'; expected one of paper, inverse_sqrt"),
    ({"training.seed": 2**31}, "training.seed is 2147483648; expected less than 2147483648"),
    ({"training.seed": -1}, "training.seed is -1; expected 0 or more"),
    ({"training.warmup_steps": 0}, "warmup_steps is 0; expected 1 or more for the schedule paper"),
    ({"training.subword_alpha": "0"}, "subword_alpha is 0.0; expected more than 0, or none"),
    ({"training.subword_alpha": "-1"}, "subword_alpha is -1.0; expected more than 0, or none"),
    ({"training.accumulate_steps": "0"}, "accumulate_steps is 0; expected more than 0"),
    ({"training.accumulate_steps": "1.5"}, "accumulate_steps is '1.5'; expected a whole number"),
    ({"training.optimizer": "sgd"}, "optimizer is 'sgd'; expected one of adam, adamw"),
    ({"training.weight_decay": "0.1"}, "weight_decay is 0.1, but training.optimizer is adam;"),
    (
        {"training.optimizer": "adamw", "training.weight_decay": "-0.1"},
        "weight_decay is -0.1; expected 0 or more",
    ),
    ({"training.freeze": 3}, "freeze is 3; expected text"),
    ({"training.ema_decay": "1"}, "ema_decay is 1.0; expected 0 <= value < 1"),
    ({"training.ema_decay": "-0.1"}, "ema_decay is -0.1; expected 0 <= value < 1"),
    ({"training.deterministic": "1"}, "deterministic is '1'; expected true or false"),
    ({"training.jit_compile": "on"}, "jit_compile is 'on'; expected one of auto, true, false"),
    ({"training.checkpoint_steps": "0"}, "checkpoint_steps is 0; expected more than 0"),
    ({"training.keep_checkpoints": "0"}, "keep_checkpoints is 0; expected more than 0"),
    ({"training.keep_best": "-1"}, "keep_best is -1; expected 0 or more"),
    ({"training.best_metric": "chrf"}, "best_metric is 'chrf'; expected one of loss, bleu"),
    ({"training.best_metric": "bleu"}, "best_metric is bleu, but training.bleu_steps is 0;"),
    ({"training.bleu_steps": "-1"}, "bleu_steps is -1; expected 0 or more"),
    ({"training.bleu_sentences": "-1"}, "bleu_sentences is -1; expected 0 or more"),
    ({"training.early_stopping": "-1"}, "early_stopping is -1; expected 0 or more"),
    ({"training.max_skipped_steps": "0"}, "max_skipped_steps is 0; expected more than 0"),
    ({"training.mixed_precision": "int8"}, "'int8'; expected one of auto, float32, bfloat16"),
    ({"model.scale_embeddings": "yes"}, "scale_embeddings is 'yes'; expected true or false"),
    ({"model.num_heads": "3"}, "d_model is 512, not a multiple of model.num_heads .3."),
    ({"model.num_heads": "0"}, "num_heads"),
    ({"model.d_model": "-8"}, "d_model is -8; expected more than 0"),
    ({"model.d_model": "9", "model.key_dim": 3, "model.value_dim": 3}, "need an even number"),
    ({"model.attention_window": "0"}, "attention_window is 0; expected more than 0, or none"),
    ({"model.relu_dropout": "1"}, "relu_dropout is 1.0; expected 0 <= rate < 1"),
    ({"model.pad_id": "3"}, "expected four different ids"),
    ({"model.end_id": "37000"}, "expected four different ids below 37000"),
    ({"model.source_vocab_size": "5"}, "tie_embeddings is all, but .* 5 and 37000 pieces"),
    ({"decoding.beam_size": "0"}, "decoding.beam_size is 0; expected at least 1"),
    ({"decoding.n_best": "0"}, "decoding.n_best is 0; expected at least 1"),
    ({"decoding.n_best": "5"}, r"n_best is 5; expected at most decoding.beam_size \(4\)"),
    ({"decoding.length_penalty": "-0.5"}, "length_penalty is -0.5; expected at least 0"),
    ({"decoding.coverage_penalty": "-1"}, "coverage_penalty is -1.0; expected at least 0"),
    ({"decoding.diversity_penalty": "-1"}, "diversity_penalty is -1.0; expected at least 0"),
    ({"decoding.repetition_penalty": "0.9"}, "repetition_penalty is 0.9; expected at least 1"),
    ({"decoding.no_repeat_ngram": "-1"}, "no_repeat_ngram is -1; expected at least 0"),
    ({"decoding.min_length": "-1"}, "min_length is -1; expected at least 0"),
    ({"decoding.max_length": "0"}, "max_length is 0; expected at least 1"),
    ({"decoding.max_length": "-1"}, "max_length is -1; expected at least 1"),
    (
        {"decoding.min_length": "5", "decoding.max_length": "4"},
        r"max_length is 4; expected at least decoding.min_length \(5\)",
    ),
    ({"decoding.max_extra_tokens": str(2**40)}, "expected at most 1,048,576"),
    ({"decoding.max_length": str(2**21)}, "expected at most 1,048,576, or none"),
    (
        {"decoding.beam_size": "1", "decoding.diversity_penalty": "1"},
        "diversity_penalty is 1.0, and decoding.beam_size is 1; expected a beam",
    ),
    ({"decoding.max_extra_tokens": "0"}, "max_extra_tokens is 0; expected at least 1"),
    ({"decoding.max_source_tokens": "0"}, "max_source_tokens is 0; expected at least 1"),
    ({"decoding.sample": "yes"}, "sample is 'yes'; expected true or false"),
    ({"decoding.temperature": "-1"}, "temperature is -1.0; expected at least 0"),
    ({"decoding.temperature": "nan"}, "temperature is 'nan'; expected a finite number"),
    ({"decoding.top_k": "-1"}, "top_k is -1; expected at least 0"),
    ({"decoding.top_p": "0"}, "top_p is 0.0; expected above 0, at most 1"),
    ({"decoding.top_p": "1.1"}, "top_p is 1.1; expected above 0, at most 1"),
    ({"decoding.temperature": "0"}, "temperature is 0.0, and nothing is drawn; expected decoding."),
    ({"decoding.top_k": "5"}, "top_k is 5, and nothing is drawn; expected decoding.sample=true"),
    ({"decoding.top_p": "0.9"}, "top_p is 0.9, and nothing is drawn; expected decoding.sample"),
    (
        {"decoding.sample": "true", "decoding.coverage_penalty": "0.2"},
        "coverage_penalty is 0.2, and decoding.sample is true; expected one of them",
    ),
    (
        {"decoding.sample": "true", "decoding.diversity_penalty": "0.5"},
        "diversity_penalty is 0.5, and decoding.sample is true; expected one of them",
    ),
    ({"decoding.banned": 3}, "banned is 3; expected text"),
    ({"decoding.seed": "1.5"}, "seed is '1.5'; expected a whole number"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD_SETTINGS)
def test_wrong_settings_are_named_in_one_sentence(wrong, message):
    with pytest.raises(InputError, match=message) as error:
        Config().updated(wrong)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("seed", [0, 2**31 - 1])
def test_the_smallest_and_the_largest_seed_are_taken(seed):
    assert Config().updated({"training.seed": seed}).training.seed == seed


def test_the_settings_of_the_training_engine_are_taken_from_strings():
    training = (
        Config()
        .updated(
            {
                "training.accumulate_steps": "4",
                "training.optimizer": "adamw",
                "training.weight_decay": "0.01",
                "training.freeze": "embedding/*, encoder/*",
                "training.ema_decay": "0.999",
                "training.deterministic": "true",
                "training.best_metric": "bleu",
                "training.bleu_steps": "500",
                "training.early_stopping": "3",
            }
        )
        .training
    )
    assert (training.accumulate_steps, training.early_stopping) == (4, 3)
    assert (training.optimizer, training.weight_decay) == ("adamw", 0.01)
    assert (training.freeze, training.ema_decay) == ("embedding/*, encoder/*", 0.999)
    assert (training.best_metric, training.bleu_steps) == ("bleu", 500)
    assert training.deterministic is True
    # AdamW without decay is Adam; and every metric can be the best where it is computed.
    Config().updated({"training.optimizer": "adamw", "training.weight_decay": "0"})
    Config().updated({"training.best_metric": "loss", "training.bleu_steps": "500"})


def test_the_settings_of_the_search_are_taken_from_strings():
    searched = Config().updated(
        {
            "decoding.max_length": "7",
            "decoding.min_length": "7",
            "decoding.no_repeat_ngram": "3",
            "decoding.repetition_penalty": "1.2",
            "decoding.banned": "a dog|cat",
            "decoding.diversity_penalty": "0.5",
        }
    )
    assert (searched.decoding.min_length, searched.decoding.max_length) == (7, 7)
    assert (searched.decoding.no_repeat_ngram, searched.decoding.banned) == (3, "a dog|cat")
    assert (searched.decoding.repetition_penalty, searched.decoding.diversity_penalty) == (1.2, 0.5)
    assert searched.updated({"decoding.max_length": "none"}).decoding.max_length is None
    drawn = Config().updated(
        {
            "decoding.sample": "true",
            "decoding.n_best": "9",  # more than the beam, which nothing is searched with
            "decoding.temperature": "0",
            "decoding.top_k": "10",
            "decoding.top_p": "1",
            "decoding.seed": "-3",
        }
    )
    assert drawn.decoding.sample is True
    assert (drawn.decoding.n_best, drawn.decoding.temperature, drawn.decoding.seed) == (9, 0.0, -3)


@pytest.mark.parametrize("section", [ModelConfig, TrainingConfig, DecodingConfig])
def test_constructors_check_too(section):
    field = dataclasses.fields(section)[0].name
    with pytest.raises(InputError, match=f"{field} is 'x'; expected a whole number"):
        section(**{field: "x"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "run/config.json is no JSON"),
        ("[1]", "run/config.json is no configuration; expected an object"),
        ('{"model": 3}', "run/config.json is no configuration"),
        ('{"model": {"width": 3}}', "run/config.json: 'model.width' is no setting"),
        ('{"model": {"d_ff": []}}', "run/config.json: model.d_ff is .*whole number"),
        ('{"model": {"activation": []}}', "run/config.json: .*expected one of relu"),
        (
            '{"architecture": "gru", "model": {"units": 3}}',
            "run/config.json is of the architecture 'gru'; expected 'transformer'",
        ),
        ('{"architecture": [7]}', r"is of the architecture \[7\]; expected 'transformer'"),
    ],
)
def test_wrong_json_names_the_file(text, message):
    with pytest.raises(InputError, match=message):
        Config.from_json(text, "run/config.json")


@pytest.mark.parametrize("architecture", ["perceptron", [7]])
def test_an_unregistered_architecture_is_refused_with_what_to_import(architecture):
    text = json.dumps({"architecture": architecture, "model": {}})
    message = f"run/config.json has the architecture {architecture!r}, which is not registered. "
    with pytest.raises(InputError, match=re.escape(message) + ".*keras_transformer.paper"):
        RunConfig.from_json(text, "run/config.json")


def test_the_architecture_decides_the_class_of_a_configuration():
    config = Config().replace(model__d_model=64)
    assert RunConfig.from_json(config.to_json()) == config


def test_a_configuration_says_of_which_architecture_it_is():
    assert json.loads(Config().to_json())["architecture"] == "transformer"
    # Runs that are older than any other architecture do not.
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
