"""The flags that several commands share, each with one meaning: `tests/cli/flags_test.py`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from absl import flags

from keras_transformer.config import flag_fields
from keras_transformer.errors import InputError

FLAGS = flags.FLAGS
flags.disclaim_key_flags()  # --help lists these flags under the calling command

# Paths and addresses: name → help.
PATHS: dict[str, str] = {
    "data_dir": "the --output_dir of keras-transformer prepare; train takes several, A,B",
    "run_dir": "run directory: configuration, tokenizer, checkpoints, metrics",
    "model_dir": "a SavedModel, a LiteRT model, a run, RUN@WEIGHTS, or an ensemble RUN,RUN",
    "output_dir": "directory to write",
    "work_dir": "directory of the results; the same command resumes",
    "source": "source text, one sentence per line",
    "target": "translations of --source, line by line",
    "valid_source": "source text to validate on, one sentence per line",
    "valid_target": "translations of --valid_source, line by line",
    "reference": "reference translations, one per line",
    "hypothesis": "file of translations or trees to score, instead of a model",
    "input": "file to read the text from",
    "output": "file for the output of the model",
    "server": "keras-transformer serve or TF Serving: HOST:PORT/MODEL",
    "ids": "file with the names of the files to use, one per line",
}

# Flags that are neither paths nor fields: name → (type, default, help).
OPTIONS: dict[str, tuple[str, Any, str]] = {
    "tokenize": (
        "string",
        None,
        "sacreBLEU tokenizer for BLEU; none: the text is already tokenized",
    ),
    "lowercase": ("boolean", False, "ignore case in scores"),
    "max_minutes": (
        "float",
        None,
        "minutes after which training stops; the same command resumes",
    ),
    "host": ("string", "127.0.0.1", "address; 0.0.0.0 for all addresses of this machine"),
    "workers": ("integer", None, "number of processes; default: enough to use all cores"),
    "threads": ("integer", None, "cores that a LiteRT model uses; default: all"),
    "init_from": (
        "string",
        None,
        "run with the initial weights: RUN, or RUN@NAME (last, best, ...)",
    ),
    "symbols": ("multi_string", [], "tokens that are never split, such as '<2de>,<2fr>'"),
    "source_tag": ("string", None, "token added before each source sentence, as in '<2de>'"),
    "vocab_size": ("integer", None, "maximum number of tokens to learn"),
    "max_tokens": ("integer", None, "maximum tokens of a sentence"),
    "valid_pairs": (
        "integer",
        None,
        "training pairs to hold out for validation; default: 2 %, at most 1000",
    ),
}
_LIMITS = {"workers": (1, None), "threads": (1, 1024)}

PRECISIONS = ("float32", "bfloat16", "float16", "int8")

# Flags with a choice that depends on the command: name → help.
CHOICES: dict[str, str] = {
    "format": "format of the output",
    "precision": "precision of weights and matrix products",
}

# Flags that stand for one field of the configuration: name → (field, help).
FIELDS: dict[str, tuple[str, str]] = {
    field.name: (name, field.metadata["help"]) for name, field in flag_fields().items()
}
_SWITCHES = ("deterministic", "sample")


def define_path_flags(*names: str, required: bool = False, repeatable: bool = False) -> None:
    """Defines flags of `PATHS`: strings, or lists of strings if they are repeatable."""
    for name in names:
        if repeatable:
            flags.DEFINE_multi_string(name, None, PATHS[name], required=required)
        else:
            flags.DEFINE_string(name, None, PATHS[name], required=required)


def define_option_flags(*names: str, **defaults: Any) -> None:
    """Defines flags of `OPTIONS`. Keyword arguments set defaults."""
    for name in (*names, *defaults):
        kind, default, help_text = OPTIONS[name]
        limits = {}
        if name in _LIMITS:
            lower, upper = _LIMITS[name]
            limits = {"lower_bound": lower, "upper_bound": upper}
        define = getattr(flags, f"DEFINE_{kind}")
        define(name, defaults.get(name, default), help_text, **limits)


def parse_symbols(values: Iterable[str]) -> list[str]:
    """Returns the symbols of --symbols, which is repeatable and accepts lists with commas."""
    return [symbol for value in values for symbol in value.split(",")]


def define_choice_flag(name: str, *values: str) -> None:
    """Defines a flag of `CHOICES`. The first value is the default."""
    flags.DEFINE_enum(name, values[0], values, CHOICES[name])


def define_seed_flag(default: int) -> None:
    """Defines --seed for commands without a training configuration."""
    flags.DEFINE_integer("seed", default, FIELDS["seed"][1])


def define_config_flags(*names: str) -> None:
    """Defines --set and the named shortcuts for fields of the configuration.

    The names are "preset" and the keys of `FIELDS`. The values stay strings, except for switches.
    `Config.updated` parses them and reports errors.
    """
    for name in names:
        if name == "preset":
            flags.DEFINE_string("preset", None, "named configuration: tiny, small, base, big, ...")
        elif name in _SWITCHES:
            flags.DEFINE_boolean(name, None, FIELDS[name][1])
        else:
            flags.DEFINE_string(name, None, FIELDS[name][1])
    flags.DEFINE_multi_string(
        "set",
        [],
        "any field, as in --set=training.label_smoothing=0.2; repeatable",
    )


def parse_settings(assignments: Iterable[str]) -> dict[str, str]:
    """Reads `["training.label_smoothing=0.2"]` as `{"training.label_smoothing": "0.2"}`."""
    settings: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        name = name.strip()
        if not (equals and name):
            raise InputError(
                f"--set={assignment} is not a setting. Use --set=section.field=value, as in "
                "--set=training.label_smoothing=0.2."
            )
        settings[name] = value.strip()
    return settings


def config_settings() -> dict[str, str]:
    """Returns the settings of the flags, for `Config.updated`. --set overrides other flags."""
    settings = {}
    for name, (field, _) in FIELDS.items():
        value = FLAGS[name].value if name in FLAGS else None
        if value is not None:
            settings[field] = str(value).lower() if name in _SWITCHES else value
    return settings | parse_settings(FLAGS.set)
