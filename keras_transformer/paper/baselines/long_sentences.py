"""Text for a question of positions: training on short sentences, tests on longer ones.

A model sees pairs of at most N tokens on either side. It is tested on pairs as long (held out),
on pairs of more than N tokens on both sides, by the tokens of the source, and on two and three
of the short ones after each other, where they have more than N tokens: long, and nothing new.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from keras_transformer.data.corpora.corpus import parallel_files
from keras_transformer.data.preparation.pipeline import PrepareOptions
from keras_transformer.data.preparation.prepare import prepare
from keras_transformer.data.token_store import TokenStore, write_lines
from keras_transformer.errors import InputError
from keras_transformer.evaluation.test_sets import EvaluationSet

Places = npt.NDArray[np.int64]


def prepare_short(data_dir: Path, work_dir: Path, longest: int) -> Path:
    """Prepares the pairs of `data_dir` that have at most `longest` tokens on either side.

    Args:
        data_dir: prepared data, whose vocabulary is kept.
        work_dir: gets the text, and the folder `data`.
        longest: N, the end token included.

    Returns:
        The directory of the data; what was prepared before is left as it is.
    """
    corpora = {}
    for part in ("train", "valid"):
        store, folder = TokenStore(data_dir / part), work_dir / "text" / part
        folder.mkdir(parents=True, exist_ok=True)
        everything = np.arange(len(store))
        write_lines(folder / "source.txt", store.source_lines(everything))
        write_lines(folder / "target.txt", store.target_lines(everything))
        corpora[part] = parallel_files([folder / "source.txt"], [folder / "target.txt"])
    prepared = prepare(
        corpora["train"],
        work_dir / "data",
        PrepareOptions(max_tokens=longest),
        valid_corpora=corpora["valid"],
        vocab_from=data_dir,
    )
    return prepared.directory


def length_tests(data_dir: Path, longest: int, most: int = 500) -> dict[str, EvaluationSet]:
    """Returns tests of sentences that training on at most `longest` tokens has not seen.

    Args:
        data_dir: prepared data; of its training pairs those that are longer are tested on.
        longest: N, the end token included.
        most: pairs of a test.

    Raises:
        InputError: where there is no pair for a test.
    """
    train, valid = TokenStore(data_dir / "train"), TokenStore(data_dir / "valid")
    random = np.random.default_rng(1)
    fewest = np.minimum(train.source_lengths, train.target_lengths)
    width = max(longest // 3, 1)
    bounds = [longest, longest + width, longest + 2 * width, np.iinfo(np.uint32).max]
    tests = {}
    fits = np.maximum(valid.source_lengths, valid.target_lengths) <= longest
    short = random.permutation(np.flatnonzero(fits))
    tests[f"up to {longest}"] = _joined(valid, short[:most, None])
    for low, high in zip(bounds, bounds[1:], strict=False):
        name = f"{low + 1} to {high}" if high < bounds[-1] else f"over {low}"
        lengths = train.source_lengths
        found = np.flatnonzero((fewest > longest) & (lengths > low) & (lengths <= high))
        tests[name] = _joined(train, random.permutation(found)[:most, None])
    for number, name in ((2, "two joined"), (3, "three joined")):
        groups = short[: len(short) // number * number].reshape(-1, number)
        # Each but the last gives its end token away.
        sources, targets = (
            lengths[groups].sum(axis=1) - (number - 1)
            for lengths in (valid.source_lengths.astype(int), valid.target_lengths.astype(int))
        )
        tests[name] = _joined(valid, groups[np.minimum(sources, targets) > longest][:most])
    for name, test in tests.items():
        if not test.references[0]:
            raise InputError(
                f"{data_dir} has no pairs for the test {name!r} of a model that is trained on at "
                f"most {longest} tokens; expected another number of tokens"
            )
    return tests


def _joined(store: TokenStore, places: Places) -> EvaluationSet:
    """A test of the pairs at `places` `[sentences, pairs of each]`, joined by spaces."""

    def text(lines: Sequence[bytes]) -> list[str]:
        rows = np.array([line.decode() for line in lines], object).reshape(places.shape)
        return [" ".join(row) for row in rows]

    flat = places.reshape(-1)
    return EvaluationSet([text(store.target_lines(flat))], text(store.source_lines(flat)))
