"""What draws hostile texts: Hypothesis and atheris, each in a process of its own."""

from __future__ import annotations

import importlib
import importlib.metadata
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from tests.stress.fuzz import texts
from tests.stress.fuzz.texts import KINDS, Material

ROWS = 7  # hostile ones of a batch; the eighth is a known sentence
_FIRST_RUNS = 2  # of libFuzzer, on nothing, are not counted


class Row(NamedTuple):
    """A hostile text."""

    kind: str
    text: bytes


class Drawn(NamedTuple):
    """What an engine decides of a batch."""

    made: Sequence[tuple[str, int]]  # kinds and seeds: drawing a megabyte would take a minute
    text: bytes  # one that the engine makes itself
    kind: str


def draw(engine: str, batches: int, seed: int, material: Material) -> Iterator[list[Row]]:
    """Yields `batches` times `ROWS` rows.

    Engines repeat themselves, and so each row also gets random numbers of its place alone.

    Args:
        engine: one of `ENGINES`.
        batches: how many.
        seed: decides all of them.
        material: what they are made of.
    """
    seen: set[bytes] = set()
    for number, drawn in enumerate(_each_drawn(engine, batches, seed)):
        rows = [
            Row(kind, texts.make(kind, [own, seed, number, place], material))
            for place, (kind, own) in enumerate(drawn.made)
        ]
        text = drawn.text
        if text in seen:
            text = texts.mutate(np.random.default_rng([seed, number]), text)
        seen.add(drawn.text)
        rows.insert(number % ROWS, Row(drawn.kind, text))
        yield rows


def version(engine: str) -> str:
    """Returns the version of an engine.

    Raises:
        ImportError: where it is not installed.
    """
    importlib.import_module(engine)
    return importlib.metadata.version(engine)


def _each_drawn(engine: str, batches: int, seed: int) -> Iterator[Drawn]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    arguments = (engine, batches, seed, theirs)
    process = context.Process(target=_produce, args=arguments, daemon=True)
    process.start()
    theirs.close()
    try:
        for _ in range(batches):
            yield ours.recv()
    except EOFError as error:
        raise RuntimeError(f"{engine} has ended before {batches:,} batches") from error
    finally:
        process.kill()
        process.join()


def _produce(engine: str, batches: int, seed: int, connection: Connection) -> None:
    ENGINES[engine](batches, seed, connection.send)


def _hypothesis(batches: int, seed: int, send: Callable[[Drawn], None]) -> None:
    import hypothesis
    from hypothesis import strategies as st

    made = st.tuples(st.sampled_from(sorted(KINDS)), st.integers(0, 2**32 - 1))
    any_text = st.text(st.characters(exclude_categories=()))  # surrogates too
    batch = st.builds(
        Drawn,
        st.lists(made, min_size=ROWS - 1, max_size=ROWS - 1),
        st.one_of(st.binary(max_size=200), any_text.map(texts.utf8)),
        st.just("of Hypothesis"),
    )

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=batches,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(batch)
    def each(drawn: Drawn) -> None:
        send(drawn)

    each()


def _atheris(batches: int, seed: int, send: Callable[[Drawn], None]) -> None:
    import atheris

    kinds = sorted(KINDS)

    def each(data: bytes) -> None:
        if len(data) < 2:
            return
        provider: Any = atheris.FuzzedDataProvider(data)
        made = [
            (kinds[provider.ConsumeIntInRange(0, len(kinds) - 1)], provider.ConsumeUInt(4))
            for _ in range(ROWS - 1)
        ]
        size = provider.ConsumeIntInRange(0, 200)
        as_text = provider.ConsumeBool()
        text = texts.utf8(provider.ConsumeUnicode(size)) if as_text else provider.ConsumeBytes(size)
        send(Drawn(made, text, "of atheris"))

    def mutator(data: bytes, max_size: int, number: int) -> bytes:
        """Fills what libFuzzer has mutated up to its full size: zeros would all be one kind."""
        mutated: bytes = atheris.Mutate(data, max_size)
        return (mutated + np.random.default_rng(number).bytes(max_size))[:max_size]

    # TensorFlow is not instrumented: there is no coverage that libFuzzer could follow.
    options = [f"-runs={batches + _FIRST_RUNS}", f"-seed={seed + 1}", "-len_control=0"]
    options += ["-max_len=1024", "-timeout=0", "-rss_limit_mb=0", "-verbosity=0"]
    atheris.Setup([sys.argv[0], *options], each, custom_mutator=mutator)
    atheris.Fuzz()


ENGINES = {"hypothesis": _hypothesis, "atheris": _atheris}
