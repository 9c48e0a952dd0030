"""The flag --engines: names such as `keras:bfloat16:xla`, and the processes that they start.

A name is ENGINE:PRECISION[:OPTION...]. A number among the options is a number of threads or
replicas, as the benchmark says.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from absl import flags
from command import info
from protocol import EngineChild, SlowStartError, UnavailableError

from keras_transformer.errors import InputError

FLAGS = flags.FLAGS

OURS = ("keras", "litert", "saved_model")
_WITH_TENSORFLOW = ("keras", "saved_model")

# Engine → its precisions and its options; "number" allows a number.
Known = Mapping[str, tuple[Sequence[str], Sequence[str]]]


@dataclasses.dataclass(frozen=True)
class Variant:
    """An engine with a precision and options.

    Example:
        >>> Variant.parse("keras:bfloat16:2", {"keras": (["bfloat16"], ["number"])}).number
        2
    """

    name: str
    engine: str
    precision: str
    options: tuple[str, ...]

    @classmethod
    def parse(cls, name: str, known: Known) -> Variant:
        """Reads a name.

        Args:
            name: as in "keras:bfloat16:2".
            known: the engines of the benchmark.

        Raises:
            ValueError: if the benchmark does not know it.
        """
        engine, _, rest = name.partition(":")
        precision, *options = rest.split(":")
        precisions, known_options = known.get(engine, ((), ()))
        for option in options:
            is_number = option.isdecimal() and int(option) > 0
            if ("number" if is_number else option) not in known_options:
                raise ValueError(f"unknown option {option}")
        if precision not in precisions:
            raise ValueError(f"unknown precision {precision}")
        return cls(name, engine, precision, tuple(options))

    @property
    def is_ours(self) -> bool:
        """True for this package's engines."""
        return self.engine in OURS

    @property
    def number(self) -> int | None:
        """The number among the options."""
        return max((int(option) for option in self.options if option.isdecimal()), default=None)

    def environment(
        self, intraop_threads: int, threads: int, device: str = "cpu"
    ) -> dict[str, str]:
        """Returns the environment variables that set the threads and the device of an engine.

        Args:
            intraop_threads: threads of one operation.
            threads: threads of the process.
            device: "cpu" or "gpu".
        """
        variables = {"CT2_USE_MKL": "1" if "mkl" in self.options else "0"}
        if self.engine in _WITH_TENSORFLOW:
            variables["TF_NUM_INTRAOP_THREADS"] = str(intraop_threads)
            variables["TF_NUM_INTEROP_THREADS"] = str(threads)
            variables.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
            variables["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"  # several engines share a card
            if device == "cpu":
                variables["CUDA_VISIBLE_DEVICES"] = "-1"
        return variables


def define_engines(known: Known, default: Sequence[str]) -> None:
    """Defines the flags --engines, --engine_python, --device and --start_seconds.

    Args:
        known: the engines of the benchmark, with their precisions and options.
        default: what is compared by default.
    """
    flags.DEFINE_list("engines", list(default), "what is compared: ENGINE:PRECISION[:OPTION...]")
    flags.DEFINE_enum("device", "cpu", ["cpu", "gpu"], "device of the engines")
    flags.DEFINE_integer(
        "start_seconds", 3600, "an engine that takes longer to start is left out", lower_bound=1
    )
    flags.DEFINE_list("engine_python", [], "interpreters: ENGINE=PYTHON,...; default: this one")

    def are_known(names: Sequence[str]) -> bool:
        try:
            return bool([Variant.parse(name, known) for name in names])
        except ValueError:
            return False

    flags.register_validator("engines", are_known, f"expected names like {default[0]}")
    flags.register_validator(
        "engine_python",
        lambda texts: all(text.partition("=")[0] in known and "=" in text for text in texts),
        f"expected ENGINE=PYTHON, where ENGINE is one of {', '.join(known)}",
    )


def chosen(known: Known) -> list[Variant]:
    """Returns the variants of the flag --engines."""
    return [Variant.parse(name, known) for name in FLAGS.engines]


def python_of(variant: Variant) -> str:
    """Returns the interpreter of an engine.

    Raises:
        InputError: if --engine_python names a file that does not exist.
    """
    path: str = dict(pair.split("=", 1) for pair in FLAGS.engine_python).get(
        variant.engine, sys.executable
    )
    if not os.access(path, os.X_OK):
        raise InputError(f"--engine_python names {path}, which is not an executable file.")
    return path


Start = Callable[[Variant], EngineChild]


@contextlib.contextmanager
def started(
    variants: Iterable[Variant], start: Start
) -> Iterator[tuple[dict[str, EngineChild], dict[str, str]]]:
    """Starts a process for each variant, and ends all of them with the block.

    A variant is left out if its interpreter lacks a package, or if it takes too long. This is
    printed.

    Args:
        variants: what to start.
        start: starts the process of a variant.

    Yields:
        The processes by the variant's name, and the reasons of those that were left out.
    """
    children: dict[str, EngineChild] = {}
    left_out: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for variant in variants:
            info(f"Starting {variant.name}.")
            try:
                children[variant.name] = stack.enter_context(start(variant))
            except (UnavailableError, SlowStartError) as error:
                info(f"{variant.name} is left out: {error}")
                left_out[variant.name] = str(error)
        if not children:
            raise InputError(f"No engine can run. {' '.join(set(left_out.values()))}")
        yield children, left_out


def grouped(variants: Iterable[Variant]) -> tuple[list[str], dict[str, list[str]]]:
    """Returns the names of our variants, and the names of each peer's variants."""
    own: list[str] = []
    peers: dict[str, list[str]] = {}
    for variant in variants:
        (own if variant.is_ours else peers.setdefault(variant.engine, [])).append(variant.name)
    return own, peers
