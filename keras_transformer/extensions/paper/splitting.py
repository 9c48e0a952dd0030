"""Splits a corpus into parts without common source sentences."""

from __future__ import annotations

import contextlib
import hashlib
import heapq
from collections.abc import Mapping
from pathlib import Path

from keras_transformer.data.corpus import Corpus, ParallelFiles
from keras_transformer.errors import InputError
from keras_transformer.runs.atomic import atomic_path

TRAIN = "train"


def split_by_source(
    corpus: Corpus, output_dir: str | Path, held_out: Mapping[str, int]
) -> dict[str, ParallelFiles]:
    """Splits a corpus into parts without common source sentences.

    A held-out part has the given number of different source sentences, each with the first of its
    translations. The choice and the order depend only on SHA-256. All other pairs are "train", in
    their original order and without duplicates.

    The files are replaced atomically, because another process may be reading them.
    """
    part_of = _choose(corpus, held_out)
    output_dir = Path(output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    files = {
        part: ParallelFiles(output_dir / f"{part}.source", output_dir / f"{part}.target")
        for part in (TRAIN, *held_out)
    }
    first: dict[int, tuple[bytes, bytes]] = {}  # pair of each source that is held out
    seen: set[bytes] = set()  # of the others, 16 bytes each
    with contextlib.ExitStack() as stack:
        out = {
            part: [
                stack.enter_context(stack.enter_context(atomic_path(path)).open("wb"))
                for path in pair.paths
            ]
            for part, pair in files.items()
        }

        def write(part: str, *pair: bytes) -> None:
            for file, line in zip(out[part], pair, strict=True):
                file.write(line + b"\n")

        for source, target in corpus.pairs():
            if (digest := _digest(source)) in part_of:
                first.setdefault(digest, (source, target))
                continue
            pair = hashlib.sha256(source + b"\t" + target).digest()[:16]
            if pair not in seen:
                seen.add(pair)
                write(TRAIN, source, target)
        for digest, part in part_of.items():
            write(part, *first[digest])
    if not seen:
        raise InputError(
            f"{corpus.name} has no sources left for training: all are held out "
            f"({', '.join(held_out)}). Hold out fewer, or use a larger corpus."
        )
    return files


def _choose(corpus: Corpus, held_out: Mapping[str, int]) -> dict[int, str]:
    """Returns the part of each held-out source, by its digest."""
    wanted = sum(held_out.values())
    # The sources with the smallest digests are held out. Only their digests are in memory.
    smallest: list[int] = []  # a heap of them, negative, so that the largest is on top
    known: set[int] = set()
    for source, _ in corpus.pairs():
        digest = _digest(source)
        if digest in known or (len(smallest) == wanted and digest > -smallest[0]):
            continue
        known.add(digest)
        heapq.heappush(smallest, -digest)
        if len(smallest) > wanted:
            known.remove(-heapq.heappop(smallest))
    if len(smallest) < wanted:
        raise InputError(
            f"{corpus.name} has {len(smallest):,} different sources, which is too few to hold out "
            f"{wanted:,} ({', '.join(held_out)}). Hold out fewer, or use a larger corpus."
        )
    parts = (part for part, count in held_out.items() for _ in range(count))
    return dict(zip(sorted(known), parts, strict=True))


def _digest(source: bytes) -> int:
    return int.from_bytes(hashlib.sha256(source).digest()[:16], "big")
