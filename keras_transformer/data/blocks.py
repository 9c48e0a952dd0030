"""Blocks of a corpus: reading them, cleaning them, and encoding them to token ids.

A block is a sequence of pairs that is cleaned and encoded separately. The ends of blocks depend
only on the text. `clean_block` and `encode_block` may run in another process. Their results appear
when they are complete, and are not computed again after a kill.
"""

from __future__ import annotations

import bisect
import collections
import functools
import hashlib
import itertools
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from keras_transformer.data.augmentation import Augmentation
from keras_transformer.data.cleaning import CleaningReport, CleanPairs, clean, hash_pairs
from keras_transformer.data.corpus import Corpus, ParallelFiles, TsvFile
from keras_transformer.data.data_report import describe_texts
from keras_transformer.data.options import PrepareOptions
from keras_transformer.data.reading import Block, raw_lines, reading_errors
from keras_transformer.data.token_store import write_lines, write_shard
from keras_transformer.errors import InputError
from keras_transformer.runs.atomic import atomic_path, write_text
from keras_transformer.text.vocabulary import Vocabulary

BLOCK_LINES = 2**16
BLOCK_BYTES = 2**23  # the longer side of each pair counts; a longer pair is a block by itself

STORES = ("train", "valid")
AUGMENTED_EXAMPLES = 3  # the report shows this number of each kind
_EXAMPLE_CHARACTERS = 200  # each side of them is cut to this length
# A clean pair goes to one of the stores, or is dropped.
TRAIN, VALID, DUPLICATE = range(3)
Fates: TypeAlias = npt.NDArray[np.uint8]
# A random number in [0, 1), the position of a pair among the clean pairs of a block, and its sides.
SampledPair: TypeAlias = tuple[float, int, bytes, bytes]


def read_blocks(corpus: Corpus | Path, max_lines: int | None = None) -> Iterator[Block]:
    """Yields a corpus block by block. A path is a file in one language, with blocks of one side."""
    if isinstance(corpus, ParallelFiles):
        names: tuple[str, ...] = tuple(map(str, corpus.paths))
        rows: Iterable[tuple[bytes, ...]] = corpus.rows(raw_lines)
    elif isinstance(corpus, Path):
        names, rows = (str(corpus),), zip(raw_lines(corpus), strict=True)
    elif isinstance(corpus, TsvFile) and corpus.columns is None and not corpus.quoted:
        # Its columns are split in other processes, which is faster.
        names, rows = (corpus.name,), zip(raw_lines(corpus.path), strict=True)
    else:
        names, rows = (corpus.name,) * 2, _rows(corpus)
    digests = {name: hashlib.sha256() for name in names}
    line = 1
    for chunk in _chunks(rows, max_lines or BLOCK_LINES):
        texts = tuple(map(b"".join, zip(*chunk, strict=True)))
        for name, text in zip(names, texts, strict=True):
            digests[name].update(text)
        sha256 = {name: digest.hexdigest() for name, digest in digests.items()}
        yield Block(names, line, texts, sha256)
        line += len(chunk)


def _rows(corpus: Corpus) -> Iterator[tuple[bytes, ...]]:
    """Yields the pairs of a corpus, which may be of another package, each text as one line."""
    number = 0
    try:
        for number, pair in enumerate(corpus.pairs(), start=1):
            if number == 1 and [isinstance(text, bytes) for text in pair] != [True, True]:
                kind = type(corpus).__name__
                raise TypeError(f"{kind} yielded {pair!r:.80}. A pair is (bytes, bytes).")
            yield tuple(text.replace(b"\n", b" ") + b"\n" for text in pair)
    except reading_errors() as error:
        raise InputError(f"{corpus.name} cannot be read after line {number} ({error}).") from error


def _chunks(rows: Iterable[tuple[bytes, ...]], max_lines: int) -> Iterator[list[tuple[bytes, ...]]]:
    chunk: list[tuple[bytes, ...]] = []
    size = 0
    for row in rows:
        longest = max(map(len, row))
        if chunk and (len(chunk) == max_lines or size + longest > BLOCK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(row)
        size += longest
    if chunk:
        yield chunk


def clean_block(
    block: Block, folder: Path, options: PrepareOptions, share: float
) -> tuple[dict[str, Any], list[SampledPair]]:
    """Cleans a block, and writes the clean pairs and their hashes into a new folder.

    Returns the counts, and a random share of the pairs, for learning a vocabulary.
    """
    result = _cleaning_of(folder)
    is_done = result.get("sha256") == block.sha256
    if not is_done:
        report = CleaningReport()
        pairs = clean(block, options, report)
        result = {"corpus": pairs.corpus, "sha256": block.sha256, "cleaning": report.as_dict()}
        # Meanwhile another machine may have done it, because this one was given up.
        if _cleaning_of(folder).get("sha256") != block.sha256:
            with atomic_path(folder) as partial:
                partial.mkdir(parents=True)
                write_lines(partial / "source.txt", pairs.sources)
                write_lines(partial / "target.txt", pairs.targets)
                np.save(partial / "lines.npy", pairs.lines)
                np.save(partial / "hashes.npy", hash_pairs(pairs))
                (partial / "result.json").write_text(json.dumps(result), encoding="utf-8")
    if not share:
        return result["cleaning"], []
    sides = _clean_lines(folder) if is_done else (pairs.sources, pairs.targets)
    random_ = random.Random(f"{options.seed} {folder.name}")
    drawn = ((random_.random(), i, *pair) for i, pair in enumerate(zip(*sides, strict=True)))
    return result["cleaning"], [pair for pair in drawn if pair[0] < share]


def _cleaning_of(folder: Path) -> dict[str, Any]:
    """Returns the result that `clean_block` wrote, or {}."""
    path = folder / "result.json"
    return json.loads(path.read_bytes()) if path.exists() else {}


def _clean_lines(folder: Path) -> Sequence[Sequence[bytes]]:
    """Returns the source lines and the target lines that `clean_block` wrote."""
    texts = ((folder / f"{side}.txt").read_bytes() for side in ("source", "target"))
    return [text.split(b"\n")[:-1] for text in texts]


def encode_block(
    folder: Path, fates: Fates, output_dir: Path, fingerprint: str, options: PrepareOptions,
    augmentations: Sequence[Augmentation],
) -> dict[str, Any]:  # fmt: skip
    """Encodes the block that `clean_block` wrote into `folder`. Writes a shard of each store that
    gets pairs, and the hashes of these pairs. `fingerprint` is that of the vocabulary. Training
    pairs are augmented.
    """
    result_path = folder / "encoded.json"
    if result_path.exists():
        return dict(json.loads(result_path.read_bytes()))
    report = CleaningReport()
    corpus = json.loads((folder / "result.json").read_bytes())["corpus"]
    pairs = CleanPairs(corpus, np.load(folder / "lines.npy"), *_clean_lines(folder))
    single = fates != DUPLICATE
    pairs = pairs.keep(single, "duplicate", report)
    hashes, fates = np.load(folder / "hashes.npy")[single], fates[single]
    vocabulary = _vocabulary(output_dir, fingerprint)
    texts = list(pairs.sources), list(pairs.targets)
    rows = vocabulary.encode_pairs(pairs.sources, pairs.targets)
    lengths = np.array([[*map(len, side)] for side in rows], np.int64)
    # SentencePiece's normalization can leave nothing but the end id.
    has_language = int(vocabulary.languages is not None)
    full = (lengths[0] > 1) & (lengths[1] > 1 + has_language)
    short = lengths.max(axis=0) <= options.max_tokens
    pairs.keep(full, "empty", report)
    pairs.keep(short | ~full, "too_many_tokens", report)
    augmented = collections.Counter[str]()
    examples: dict[str, list[dict[str, list[str]]]] = {}
    chosen = np.flatnonzero(full & short & (fates == TRAIN)).tolist()
    seed = f"augment {options.seed} {folder.name}"
    for i, name, *pair in _augmented(augmentations, options.augment, chosen, texts, seed):
        [new_source], [new_target] = vocabulary.encode_pairs(pair[:1], pair[1:])
        new_ids, old_ids = [new_source, new_target], [side[i] for side in rows]
        new, old = (
            [*itertools.chain(*ids)].count(vocabulary.unknown_id) for ids in (new_ids, old_ids)
        )
        if new <= old and all(1 < len(ids) <= options.max_tokens for ids in new_ids):
            augmented[name] += 1
            if augmented[name] <= AUGMENTED_EXAMPLES:
                both = [side[i] for side in texts], pair
                before, after = ([t.decode()[:_EXAMPLE_CHARACTERS] for t in p] for p in both)
                examples.setdefault(name, []).append({"before": before, "after": after})
            for side in (0, 1):
                texts[side][i], rows[side][i] = pair[side], new_ids[side]
    shards: dict[str, dict[str, Any]] = {}
    for fate, store in enumerate(STORES):
        stored = full & short & (fates == fate)
        if stored.any():
            lines = [list(compress(side, stored)) for side in texts]
            ids = [list(compress(side, stored)) for side in rows]
            sizes = (vocabulary.source_vocab_size, vocabulary.target_vocab_size)
            digests = write_shard(output_dir / store / folder.name, lines, ids, sizes)
            shards[store] = {
                "shard": (folder.name, len(lines[0]), *digests),
                "source": describe_texts("source", lines[0], ids[0], vocabulary),
                "target": describe_texts("target", lines[1], ids[1], vocabulary),
            }
            with atomic_path(folder / f"{store}.npy") as partial, partial.open("wb") as file:
                np.save(file, hashes[stored])
    result = {"pairs": len(single), "cleaning": report.as_dict(), "shards": shards}
    result |= {"augmented": augmented, "augmented_examples": examples}
    write_text(result_path, json.dumps(result))  # written last: it marks a complete block
    for name in ("source.txt", "target.txt", "lines.npy"):  # no longer needed
        (folder / name).unlink(missing_ok=True)  # a machine that was given up may do the same
    return result


def _augmented(
    augmentations: Sequence[Augmentation],
    shares: Mapping[str, float],
    chosen: Sequence[int],
    texts: Sequence[Sequence[bytes]],
    seed: str,
) -> Iterator[tuple[int, str, bytes, bytes]]:
    """Yields the index, the kind of change, and the new sides of each pair that changes.

    The random numbers of a pair depend on its index. The last pair stays as it is.
    """
    of_kind = [(kind, part) for part in augmentations for kind in part.kinds if kind in shares]
    limits = [*itertools.accumulate(shares[kind] for kind, _ in of_kind)]
    draw = random.Random(seed).random
    draws = [draw() for _ in texts[0]]
    for i, after in itertools.pairwise(chosen):
        number = bisect.bisect(limits, draws[i])
        if number < len(of_kind):
            kind, augment = of_kind[number]
            pair, following = ((texts[0][j].decode(), texts[1][j].decode()) for j in (i, after))
            if changed := augment(kind, pair, following, random.Random(f"{seed} {i}")):
                yield i, kind, changed[0].encode(), changed[1].encode()


@functools.lru_cache(maxsize=1)
def _vocabulary(directory: Path, fingerprint: str) -> Vocabulary:
    """Returns the vocabulary. A process loads it again only if it changes."""
    return Vocabulary.load(directory)
