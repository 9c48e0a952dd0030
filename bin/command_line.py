"""Flags that several binaries share, and how every binary starts and fails.

A binary imports this module first (it quiets TensorFlow's log before TensorFlow
is loaded), defines its flags, and ends with `command_line.run(main)`:

    import command_line
    from absl import flags

    command_line.define_path_flags("data_dir", "run_dir", required=True)
    command_line.define_config_flags("preset", "max_steps", "seed")
    flags.DEFINE_boolean("lowercase", False, "score in lower case")

    def main(argv: list[str]) -> None:
        from keras_transformer import experiment  # late: --help stays quick
        experiment.train(flags.FLAGS.data_dir, settings=command_line.config_settings())

    if __name__ == "__main__":
        command_line.run(main)
"""

import logging
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # read when TensorFlow is loaded
try:
    from absl import app, flags
    from absl import logging as absl_logging

    from keras_transformer.errors import InputError
    from keras_transformer.tf_import import load_tensorflow
except ModuleNotFoundError as error:
    if error.name not in ("absl", "keras_transformer"):
        raise
    sys.exit(
        f"error: {error.name} is not installed for {sys.executable}; run bin/quickstart once and "
        "use .venv/bin/python, or run: pip install -e . -c constraints.txt"
    )

if TYPE_CHECKING:
    from keras_transformer.data.preparation.workers import Runner

FLAGS = flags.FLAGS
flags.disclaim_key_flags()  # flags defined here count as the calling binary's, for --help

_PATHS: dict[str, str] = {
    "data_dir": "prepared data: the --output_dir of bin/prepare.py; of bin/train.py several, A,B",
    "run_dir": "run directory: configuration, tokenizer, checkpoints, metrics",
    "model_dir": "a SavedModel, a LiteRT model, a run, RUN@WEIGHTS, or an ensemble RUN,RUN",
    "output": "file to write; standard output when not given",
}

# Flags that stand for one field of the configuration: name → (field, help).
_FIELDS: dict[str, tuple[str, str]] = {
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
        flags.DEFINE_string(name, None, _PATHS[name], required=required)


def define_config_flags(*names: str) -> None:
    """Defines --set and the named shortcuts for fields of the configuration.

    The names are "preset" and the keys of `_FIELDS`. The values stay strings, but
    for those of switches: `Config.updated` parses them, and says what it expected.
    """
    for name in names:
        if name == "preset":
            flags.DEFINE_string("preset", None, "named configuration: tiny, small, base, big, ...")
        elif name in _SWITCHES:
            flags.DEFINE_boolean(name, None, _FIELDS[name][1])
        else:
            flags.DEFINE_string(name, None, _FIELDS[name][1])
    flags.DEFINE_multi_string(
        "set",
        [],
        "any field, as in --set=training.label_smoothing=0.2; repeatable",
    )


def refuse(names: Iterable[str], reason: str) -> None:
    """Raises `InputError` for the first of these flags that was given: it would do nothing.

    Args:
        names: of flags.
        reason: why, and what is expected, as in "without --tfds; expected both, or neither".
    """
    for name in names:
        if FLAGS[name].present:
            raise InputError(f"--{name} has no effect {reason}")


def runner(beam: Sequence[str], workers: int, output_dir: Path) -> "Runner":
    """Returns who does the work: Apache Beam, if it has options, or processes here.

    Raises:
        InputError: for --workers beside options of Apache Beam, and what Beam does not take.
    """
    from keras_transformer.data.preparation.workers import Workers

    if not beam:
        return Workers(workers)
    refuse(["workers"], "beside --beam; expected one of them")
    from keras_transformer.data.preparation.beam_runner import BeamRunner  # late: an extra

    parent = output_dir.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    return BeamRunner(parent, beam)


def read_input(path: str | None) -> bytes:
    """Returns what is in a file, or standard input where there is no path.

    Raises:
        InputError: where it cannot be read.
    """
    if path is None:
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}); expected a text file"
        ) from error


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
    for name, (field, _) in _FIELDS.items():
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


def run(main: Callable[[list[str]], int | None], needs_tensorflow: bool = True) -> None:
    """Parses the flags, loads TensorFlow if need be, calls `main(argv)` and exits.

    Exit codes: what `main` returns, or 0; 1 after an `InputError`, whose message
    goes to stderr without a stack trace; 2 for a command line that cannot be
    read; 130 after Ctrl-C, or a SIGTERM that ended training with a checkpoint; 141
    when the reader of standard output is gone, as for any program in a pipe. Other
    exceptions are defects and keep their stack trace.
    """

    def guarded(argv: list[str]) -> int:
        try:
            if needs_tensorflow:
                load_tensorflow()
            code = main(argv)
            sys.stdout.flush()  # a broken pipe shows here, not while Python shuts down
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("\nerror: stopped by Ctrl-C or SIGTERM before the end", file=sys.stderr)
            return 130
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        return code or 0

    app.run(guarded, flags_parser=_parse)


def _parse(argv: list[str]) -> list[str]:
    """Parses the command line; prints help or one sentence and exits where it ends there."""
    options = argv[1 : argv.index("--")] if "--" in argv else argv[1:]
    if {"--help", "-help", "-h", "-?", "--helpshort"} & set(options):
        print(_help())
        sys.exit(0)
    try:
        rest = FLAGS(argv)
        if len(rest) > 1:
            raise flags.Error(f"{rest[1]!r} is no flag; expected --name=value")
        _refuse_empty()
    except (flags.Error, ValueError) as error:  # ValueError: --noflag=value
        message = str(error)
        if message.endswith(_MISSING):  # "flag --x=None: Flag --x must have …"
            message = f"--{message.split('=')[0].partition('--')[2]} is missing"
        print(f"error: {message.rstrip('.')}; --help shows the flags", file=sys.stderr)
        sys.exit(2)
    absl_logging.get_absl_handler().setFormatter(logging.Formatter("%(message)s"))
    if FLAGS["verbosity"].using_default_value:
        absl_logging.set_verbosity(absl_logging.WARNING)  # the libraries'; absl would take INFO
    logging.getLogger("keras_transformer").setLevel(logging.INFO)
    return rest


def _refuse_empty() -> None:
    """Raises `flags.Error` for a flag without a value, as an unset variable of a shell leaves it.

    Fields of the configuration may be empty; what they expect is said where they are read.
    """
    for flag in FLAGS.get_key_flags_for_module(sys.argv[0]):
        if flag.using_default_value or flag.name == "set" or flag.name in _FIELDS:
            continue
        values = flag.value if isinstance(flag.value, list) else [flag.value]
        is_list = isinstance(flag.value, list) and not isinstance(flag, flags.MultiFlag)
        if is_list or flag.name in _PATHS:  # several, with commas between
            values = [part for value in values for part in str(value).split(",")]
        if not values or "" in values:
            raise flags.Error(f"--{flag.name} has an empty value; expected one, or no such flag")


_MISSING = "must have a value other than None."  # how absl words a required flag's absence


def _help() -> str:
    """Returns the binary's docstring and its own flags, a line or two for each."""
    lines = [(sys.modules["__main__"].__doc__ or "").strip(), "", "Flags:"]
    for flag in FLAGS.get_key_flags_for_module(sys.argv[0]):
        name = f"--[no]{flag.name}" if flag.boolean else f"--{flag.name}"
        text = (flag.help or "").split(";\n")[0].replace("\n", " ")  # absl adds a line to lists
        if any(validator.message.endswith(_MISSING) for validator in flag.validators):
            text += " (required)"
        elif flag.default not in (None, False, []):
            text += f" (default: {flag.default})"
        indent = " " * 24
        start = f"  {name:<21} " if len(name) <= 21 else f"  {name}\n{indent}"
        lines.append(start + textwrap.fill(text, 76).replace("\n", "\n" + indent))
    return "\n".join(lines)
