"""Flags that several commands share: paths, and fields of the configuration."""

from __future__ import annotations

from collections.abc import Iterable

from absl import flags

from keras_transformer.errors import InputError

FLAGS = flags.FLAGS
flags.disclaim_key_flags()  # flags defined here count as the calling binary's, for --help

PATHS: dict[str, str] = {
    "data_dir": "prepared data: the --output_dir of bin/prepare.py; of bin/train.py several, A,B",
    "run_dir": "run directory: configuration, tokenizer, checkpoints, metrics",
    "model_dir": "a SavedModel, a LiteRT model, a run, RUN@WEIGHTS, or an ensemble RUN,RUN",
    "output": "file to write; standard output when not given",
}

# Flags that stand for one field of the configuration: name → (field, help).
FIELDS: dict[str, tuple[str, str]] = {
    "max_steps": ("training.max_steps", "training steps in all"),
    "batch_tokens": ("training.batch_tokens", "target tokens of a batch, padding included"),
    "subword_alpha": (
        "training.subword_alpha",
        "draw segmentations anew in every epoch, as in 0.2; none: the best ones",
    ),
    "accumulate_steps": ("training.accumulate_steps", "parts a batch is computed in, for memory"),
    "optimizer": ("training.optimizer", "adam|adamw"),
    "weight_decay": ("training.weight_decay", "that of adamw"),
    "schedule": (
        "training.schedule",
        "learning rate by step: paper|inverse_sqrt|linear|cosine|constant",
    ),
    "learning_rate": ("training.learning_rate", "factor of the schedule paper, peak of others"),
    "warmup_steps": ("training.warmup_steps", "steps in which the learning rate rises"),
    "clip_norm": ("training.clip_norm", "largest global norm of the gradients; 0 does not clip"),
    "freeze": ("training.freeze", "weights not to train, as in 'embedding/*,encoder/*'"),
    "ema_decay": ("training.ema_decay", "moving average of the weights, as in 0.999; 0: none"),
    "checkpoint_steps": ("training.checkpoint_steps", "steps from validation to validation"),
    "keep_checkpoints": ("training.keep_checkpoints", "so many of the last checkpoints stay"),
    "keep_best": ("training.keep_best", "so many of the best checkpoints stay besides"),
    "best_metric": ("training.best_metric", "loss|bleu: what best means, of validation"),
    "early_stopping": (
        "training.early_stopping",
        "end after so many validations without a better one; 0: never",
    ),
    "bleu_steps": ("training.bleu_steps", "steps from BLEU to BLEU of validation; 0: never"),
    "bleu_sentences": ("training.bleu_sentences", "validation sentences for BLEU; 0: all"),
    "seed": ("training.seed", "seed of weights, batches and dropout"),
    "deterministic": ("training.deterministic", "the same bits every time, slower on a GPU"),
    "mixed_precision": (
        "training.mixed_precision",
        "auto|float32|bfloat16|float16; auto takes what is fastest here",
    ),
    "jit_compile": ("training.jit_compile", "auto|true|false: compile the step with XLA"),
    "beam_size": ("decoding.beam_size", "open hypotheses of the search; 1 is greedy"),
    "length_penalty": ("decoding.length_penalty", "exponent alpha of the length penalty"),
    "n_best": ("decoding.n_best", "translations of each sentence, best first"),
    "sample": ("decoding.sample", "draw translations at random in place of searching"),
}
_SWITCHES = ("deterministic", "sample")


def define_path_flags(*names: str, required: bool = False) -> None:
    """Defines some of --data_dir, --run_dir, --model_dir, --output (strings)."""
    for name in names:
        flags.DEFINE_string(name, None, PATHS[name], required=required)


def define_config_flags(*names: str) -> None:
    """Defines --set and the named shortcuts for fields of the configuration.

    The names are "preset" and the keys of `FIELDS`. The values stay strings, but
    for those of switches: `Config.updated` parses them, and says what it expected.
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
                f"--set={assignment} is no setting; expected --set=section.field=value, "
                "as in --set=training.label_smoothing=0.2"
            )
        if name in settings:
            raise InputError(
                f"--set gives {name} twice, as {settings[name]} and {value.strip()}; expected once"
            )
        settings[name] = value.strip()
    return settings


def config_settings() -> dict[str, str]:
    """Returns the settings that the user gave by flags, for `Config.updated`.

    Raises:
        InputError: where --set is malformed or repeats another flag.
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
                f"--set={field}={settings[field]}; expected one of them"
            )
        settings[field] = value
    return settings
