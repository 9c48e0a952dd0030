"""The flags that several commands share, each with one meaning: `tests/cli/flags_test.py`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

from absl import flags

from keras_transformer.config import Schedule
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
    "positions": "sinusoids of a Hugging Face model: Marian's, as in OPUS-MT, or transformers' own",
    "precision": "precision of weights and matrix products",
}

SEED_HELP = "seed of all random numbers"

# Flags that stand for one field of the configuration: name → (field, help).
FIELDS: dict[str, tuple[str, str]] = {
    "max_steps": ("training.max_steps", "total number of training steps"),
    "batch_tokens": ("training.batch_tokens", "target tokens of a batch, including padding"),
    "subword_alpha": (
        "training.subword_alpha",
        "sample new segmentations in each epoch, as in 0.2; none: use the best",
    ),
    "num_microbatches": ("training.num_microbatches", "split batches into parts to save memory"),
    "optimizer": ("training.optimizer", "adam|adamw"),
    "weight_decay": ("training.weight_decay", "weight decay of adamw"),
    "schedule": (
        "training.schedule",
        f"learning rate by step: {'|'.join(get_args(Schedule))}",
    ),
    "learning_rate": ("training.learning_rate", "factor of the schedule noam, peak of the others"),
    "warmup_steps": ("training.warmup_steps", "steps until the peak of the learning rate"),
    "clip_norm": ("training.clip_norm", "maximum global norm of the gradients; 0: no limit"),
    "freeze": ("training.freeze", "weights not to train, as in 'embedding/*,encoder/*'"),
    "ema_decay": (
        "training.ema_decay",
        "decay of the moving average of weights, as in 0.999; 0: none",
    ),
    "checkpoint_steps": (
        "training.checkpoint_steps",
        "steps between checkpoints, which are validated",
    ),
    "keep_checkpoints": ("training.keep_checkpoints", "number of last checkpoints to keep"),
    "keep_best": ("training.keep_best", "number of best checkpoints to keep"),
    "best_metric": ("training.best_metric", "loss|bleu: validation metric of the best checkpoints"),
    "early_stopping": (
        "training.early_stopping",
        "stop after N validations without improvement; 0: never",
    ),
    "bleu_steps": (
        "training.bleu_steps",
        "steps between computations of validation BLEU; 0: never",
    ),
    "bleu_sentences": ("training.bleu_sentences", "validation sentences for BLEU; 0: all"),
    "seed": ("training.seed", SEED_HELP),
    "deterministic": ("training.deterministic", "bit-identical results; slower on a GPU"),
    "mixed_precision": (
        "training.mixed_precision",
        "auto|float32|bfloat16|float16; auto: the fastest",
    ),
    "jit_compile": ("training.jit_compile", "auto|true|false: compile the step with XLA"),
    "beam_size": ("decoding.beam_size", "number of open hypotheses; 1: greedy search"),
    "length_penalty": ("decoding.length_penalty", "exponent alpha of the length penalty"),
    "n_best": ("decoding.n_best", "translations of each sentence, best first"),
    "sample": ("decoding.sample", "sample translations instead of searching"),
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
    """Returns the symbols of --symbols, which is repeatable and accepts lists with commas.

    Example:
    >>> parse_symbols(["<2de>,<2fr>", "<number>"])
    ['<2de>', '<2fr>', '<number>']
    """
    return [symbol for value in values for symbol in value.split(",")]


def define_choice_flag(name: str, *values: str) -> None:
    """Defines a flag of `CHOICES`. The first value is the default."""
    flags.DEFINE_enum(name, values[0], values, CHOICES[name])


def define_seed_flag(default: int) -> None:
    """Defines --seed for commands without a training configuration."""
    flags.DEFINE_integer("seed", default, SEED_HELP)


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
    """Reads `["training.label_smoothing=0.2"]` as `{"training.label_smoothing": "0.2"}`.

    Raises:
        InputError: for an entry without a name or "=", or a field given twice.
    """
    settings: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        name = name.strip()
        if not (equals and name):
            raise InputError(
                f"--set={assignment} is not a setting. Use --set=section.field=value, as in "
                "--set=training.label_smoothing=0.2."
            )
        if name in settings:
            raise InputError(
                f"--set gives {name} twice, as {settings[name]} and as {value.strip()}."
            )
        settings[name] = value.strip()
    return settings


def config_settings() -> dict[str, str]:
    """Returns the settings that the user gave by flags, for `Config.updated`.

    Raises:
        InputError: if --set is malformed or repeats another flag.
    """
    settings = parse_settings(FLAGS.set)
    for name, (field, _) in FIELDS.items():
        value = FLAGS[name].value if name in FLAGS else None
        if value is None:
            continue
        if name in _SWITCHES:
            value = str(value).lower()
        if field in settings:
            raise InputError(
                f"{field} is given twice, by --{name}={value} and by "
                f"--set={field}={settings[field]}. Remove one of them."
            )
        settings[field] = value
    return settings
