"""The flags that several commands share, each with one meaning: `tests/cli/main_test.py`."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from absl import flags

from keras_transformer import plugins
from keras_transformer.config import Config, DecodingConfig, TrainingConfig
from keras_transformer.data.workers import Workers, choose_workers
from keras_transformer.errors import InputError
from keras_transformer.inference import MIN_QUALITY, ON_LOW_QUALITY, PRECISIONS, Languages

FLAGS = flags.FLAGS
flags.disclaim_key_flags()  # --help lists these flags under the calling command

# Paths and addresses: name → help.
PATHS: dict[str, str] = {
    "data_dir": "the --output_dir of keras-transformer prepare; train takes several, A,B",
    "run_dir": "run directory: configuration, tokenizer, checkpoints, metrics",
    "model_dir": "an export, a run, RUN@WEIGHTS, an ensemble RUN,RUN, or a server HOST:PORT",
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
    "ids": "file with the names of the files to use, one per line",
}

# Flags with files that are only read. They can be addresses.
TEXTS = {"tsv", "valid_tsv", "glossary", "vocab_from", *PATHS}
TEXTS -= {"output", "output_dir", "work_dir", "run_dir"}
# Machines of a cluster copy these themselves, or it is the cluster.
SHARED = {"data_dir", "model_dir", *plugins.names("task_runners")}
TEXTS -= SHARED

# Flags that are neither paths nor fields: name → (type, help). Commands may set defaults.
OPTIONS: dict[str, tuple[str, str]] = {
    "tokenize": ("string", "sacreBLEU tokenizer for BLEU; none: the text is already tokenized"),
    "lowercase": ("boolean", "ignore case in scores"),
    "max_minutes": ("float", "minutes after which training stops; the same command resumes"),
    "host": ("string", "address; 0.0.0.0 for all addresses of this machine"),
    "workers": ("integer", "number of processes; default: enough to use all cores"),
    "skip_lost_blocks": ("boolean", "on a cluster: leave out a block that kills three workers"),
    "threads": ("integer", "cores of a model that needs no TensorFlow; default: all"),
    "init_from": ("string", "run with the initial weights: RUN, or RUN@NAME (last, best, ...)"),
    "symbols": ("multi_string", "tokens that are never split, such as '<2de>,<2fr>'"),
    "source_language": ("string", "language of the text, as in de"),
    "target_language": ("string", "language of the translations, if the model has several"),
    "glossary": ("string", "file of terms and their translations, see above"),
    "terms": ("string", "hard: exact terms, the default; soft: the model may change their endings"),
    "casing": ("string", "auto: translate text in capitals like other text; keep: as it is"),
    "check_languages": ("list", "drop pairs that are not in these languages, as in en,de"),
    "source_tag": ("string", "token added before each source sentence, as in '<2de>'"),
    "vocab_size": ("integer", "maximum number of tokens to learn"),
    "max_tokens": ("integer", "maximum tokens of a sentence"),
    "seed": ("integer", Config.declarations()["training.seed"].metadata["help"]),
    "valid_pairs": ("integer", "pairs to hold out for validation; default: 2 %, at most 1000"),
}
_DEFAULTS = {"lowercase": False, "skip_lost_blocks": False, "host": "127.0.0.1", "symbols": []}

# If two fields have one name, such as early_stopping, the field of training has a flag.
_TYPES = typing.get_type_hints(DecodingConfig) | typing.get_type_hints(TrainingConfig)


def _choices(hint: Any) -> list[str]:
    """Returns the choices of a setting, such as ["loss|bleu"]; none for other types."""
    return ["|".join(map(str, typing.get_args(hint)))] if typing.get_origin(hint) is Literal else []


# Flags that stand for one field of the configuration: name → (field, help).
FIELDS: dict[str, tuple[str, str]] = {
    field.name: (name, ": ".join([field.metadata["help"], *_choices(_TYPES[field.name])]))
    for name, field in Config.declarations().items()
    if field.metadata["flag"]
}


def define_path_flags(*names: str, required: bool = False, repeatable: bool = False) -> None:
    """Defines flags of `PATHS`: strings, or lists of strings if they are repeatable."""
    for name in names:
        define = flags.DEFINE_multi_string if repeatable else flags.DEFINE_string
        define(name, None, PATHS[name], required=required)


def define_option_flags(*names: str, **defaults: Any) -> None:
    """Defines flags of `OPTIONS`. Keyword arguments set defaults."""
    for name in (*names, *defaults):
        kind, help_text = OPTIONS[name]
        at_least_1 = {"lower_bound": 1} if name in ("workers", "threads") else {}
        default = defaults.get(name, _DEFAULTS.get(name))
        getattr(flags, f"DEFINE_{kind}")(name, default, help_text, **at_least_1)


def define_cluster_flags() -> None:
    """Defines a flag with an address for each task runner."""
    for name, runner in plugins.all_of("task_runners"):
        flags.DEFINE_string(name, None, runner.help)


def workers() -> Workers | None:
    """Returns the task runner of the flags, or the number of processes, or None."""
    num_workers = FLAGS.workers if "workers" in FLAGS else None
    return choose_workers(num_workers, values_of(plugins.names("task_runners")))


def languages() -> Languages:
    """Returns --source_language and --target_language."""
    return FLAGS.source_language, FLAGS.target_language


def define_flag(name: str, default: Any, help: str) -> None:
    """Defines a flag of the type of its default; without a default, a string."""
    kinds = {bool: "boolean", int: "integer", float: "float"}
    getattr(flags, f"DEFINE_{kinds.get(type(default), 'string')}")(name, default, help)


def define_option_class_flags(options: Any, helps: Mapping[str, str] | None = None) -> None:
    """Defines a flag for each field of a dataclass that has none yet, by the type of its default.

    `helps` has the help of the fields to define. By default, fields have it as metadata.
    """
    for field in dataclasses.fields(options):
        if field.name not in FLAGS and (helps is None or field.name in helps):
            help_text = field.metadata["help"] if helps is None else helps[field.name]
            define_flag(field.name, field.default, help_text)


def values_of(names: Iterable[str]) -> dict[str, Any]:
    """Returns the values of flags by their names."""
    return {name: FLAGS[name].value for name in names}


def values_of_rules(names: Iterable[str]) -> dict[str, Any]:
    """Returns the values of flags of `PrepareOptions`, with the types of its fields."""
    values = values_of(names)
    values["max_length_ratio"] = values["max_length_ratio"] or None
    values["check_languages"] = values["check_languages"] and tuple(values["check_languages"])
    return values


def parse_symbols(values: Iterable[str]) -> list[str]:
    """Returns the symbols of --symbols, which is repeatable and accepts lists with commas."""
    return [symbol for value in values for symbol in value.split(",")]


def define_format_flag(*formats: str) -> None:
    """Defines --format. The first format is the default."""
    flags.DEFINE_enum("format", formats[0], formats, "format of the output")


def define_precision_flag() -> None:
    """Defines --precision of a run."""
    flags.DEFINE_enum("precision", PRECISIONS[0], PRECISIONS, "number format")


def define_quality_flags() -> None:
    """Defines the flags for translations of low quality."""
    low_help = "what replaces bad translations"
    flags.DEFINE_enum("on_low_quality", "keep", ON_LOW_QUALITY, low_help)
    flags.DEFINE_float("min_quality", MIN_QUALITY, "a lower quality is low, from 0 to 1")


def define_config_flags(*names: str) -> None:
    """Defines --set and the named shortcuts for fields of the configuration.

    The names are "preset" and the keys of `FIELDS`. Values that are not boolean stay strings:
    `Config.updated` parses them and reports errors.
    """
    preset_help = "named configuration: tiny, small, base, big, ..."
    for name in names:
        define = flags.DEFINE_boolean if _TYPES.get(name) is bool else flags.DEFINE_string
        define(name, None, preset_help if name == "preset" else FIELDS[name][1])
    help_text = "any field, as in --set=training.label_smoothing=0.2; repeatable"
    flags.DEFINE_multi_string("set", [], help_text)


def parse_settings(assignments: Iterable[str]) -> dict[str, str]:
    """Reads `["training.label_smoothing=0.2"]` as `{"training.label_smoothing": "0.2"}`."""
    settings: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not (equals and name.strip()):
            raise InputError(
                f"--set={assignment} is not a setting. Use --set=section.field=value, as in "
                "--set=training.label_smoothing=0.2."
            )
        settings[name.strip()] = value.strip()
    return settings


def config_settings() -> dict[str, Any]:
    """Returns the settings of the flags, for `Config.updated`. --set overrides other flags."""
    settings: dict[str, Any] = {
        field: FLAGS[name].value
        for name, (field, _) in FIELDS.items()
        if name in FLAGS and FLAGS[name].value is not None
    }
    return settings | parse_settings(FLAGS.set)
