"""The stages of a preparation, over all blocks of all corpora."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from keras_transformer.console import progress_bar
from keras_transformer.data.cleaning import (
    EXAMPLES,
    CleaningOptions,
    CleaningReport,
)
from keras_transformer.data.corpus import BlockReader, Corpus, located
from keras_transformer.data.duplicates import count_known, find_duplicates
from keras_transformer.data.stages import (
    BlockFiles,
    CleanedBlock,
    CleanTask,
    EncodeTask,
    clean_block,
    encode_block,
)
from keras_transformer.data.token_store import TokenStore, write_index
from keras_transformer.data.workers import run_tasks
from keras_transformer.errors import InputError
from keras_transformer.runs.atomic import atomic_path
from keras_transformer.text.vocabulary import (
    MAX_LINES,
    ModelType,
    Normalization,
    Vocabulary,
    check_learning_options,
    check_symbols,
    learn_vocabulary,
    sample_lines,
)

SPLITS = ("train", "valid")
_EXAMPLE_CHARACTERS = 200
# Options that are ignored if a vocabulary is given. Missing symbols are appended to it.
LEARNING_OPTIONS = (
    "vocab_size", "model_type", "byte_fallback", "character_coverage", "normalization",
    "vocabulary_lines",
)  # fmt: skip
_HISTOGRAM_STEP = 16
_Task = TypeVar("_Task")


@dataclasses.dataclass(frozen=True)
class PrepareOptions(CleaningOptions):
    """Options of a preparation.

    If a vocabulary is given, the options for learning one are ignored. A vocabulary from a
    directory gets the symbols that it lacks, and must be separate if `separate_vocabularies` is
    True.

    Attributes:
        vocab_size, model_type, byte_fallback, character_coverage, normalization, symbols: see
            `learn_vocabulary`.
        separate_vocabularies: learns a vocabulary for each language, instead of a joint one.
        vocabulary_lines: largest number of lines that a vocabulary is learned from.
        max_tokens: drops pairs if a side has more tokens, including the end token.
        valid_pairs: number of pairs to hold out of the training corpora if there are no validation
            corpora. None for 2 %, but at least 1 and at most 1000.
        seed: seed of the held-out pairs, and of the lines that a vocabulary is learned from.

    Example:
    >>> options = PrepareOptions(vocab_size=60, symbols=("<2de>",), max_tokens=100)
    >>> options.all_symbols(), options.in_force(learned=False)["max_tokens"]
    (('<2de>',), 100)
    """

    vocab_size: int = 8000
    model_type: ModelType = "unigram"
    byte_fallback: bool = False
    separate_vocabularies: bool = False
    character_coverage: float = 1.0
    normalization: Normalization = "nmt_nfkc"
    vocabulary_lines: int = MAX_LINES
    symbols: tuple[str, ...] | None = None
    max_tokens: int = 256
    valid_pairs: int | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_learning_options(
            self.vocab_size, self.model_type, self.character_coverage, self.normalization
        )
        for name, least in (("max_tokens", 2), ("valid_pairs", 1), ("vocabulary_lines", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} is {value}, but it must be at least {least}.")
        check_symbols(self.all_symbols(), self.byte_fallback)

    def all_symbols(self) -> tuple[str, ...]:
        """The symbols, including the tag."""
        tags = [] if self.source_tag is None else [self.source_tag]
        return tuple(dict.fromkeys([*(self.symbols or ()), *tags]))

    def learn(self, lines: Iterable[bytes]) -> bytes:
        """Learns a SentencePiece model from lines with these options, and returns it."""
        return learn_vocabulary(
            sample_lines(lines, self.vocabulary_lines, self.seed),
            self.vocab_size,
            model_type=self.model_type,
            byte_fallback=self.byte_fallback,
            character_coverage=self.character_coverage,
            normalization=self.normalization,
            symbols=self.all_symbols(),
        )

    def in_force(self, learned: bool) -> dict[str, Any]:
        """Returns the options as JSON values. Options of the vocabulary are included only if it is
        `learned`.
        """
        return {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if learned or name not in LEARNING_OPTIONS
        }


@dataclasses.dataclass
class Cleaned:
    """The cleaned corpora of a split.

    Example:
    >>> block = CleanedBlock(BlockFiles(Path("work"), 0), "train.en + train.de", pairs=100)
    >>> cleaned = Cleaned([block], CleaningReport(read=100))
    >>> cleaned.hold_out(PrepareOptions(valid_pairs=5))
    >>> len(block.held_out)
    5
    """

    blocks: list[CleanedBlock]
    report: CleaningReport

    def hold_out(self, options: PrepareOptions) -> None:
        """Draws the pairs that are held out for validation.

        Args:
            options: `valid_pairs` is their number, and `seed` is the seed.

        Raises:
            InputError: if no pairs would be left for training.
        """
        sizes = [block.pairs - len(block.duplicates) for block in self.blocks]
        pairs = sum(sizes)
        wanted = options.valid_pairs or min(1000, max(1, pairs // 50))
        if wanted >= pairs:
            raise InputError(
                f"The corpus has {pairs} clean pairs, which is too few to hold out {wanted} for "
                "validation. Use a larger corpus, fewer valid_pairs, or separate validation files."
            )
        drawn = np.sort(random.Random(options.seed).sample(range(pairs), wanted))
        first = np.cumsum([0, *sizes])
        ends = np.searchsorted(drawn, first)
        for block, a, b, start in zip(self.blocks, ends, ends[1:], first, strict=False):
            single = np.delete(np.arange(block.pairs), block.duplicates)
            block.held_out = single[drawn[a:b] - start]


class Preparation:
    """The stages of a preparation. Each stage resumes after a kill.

    Args:
        directory: unfinished directory that the results are written to.
        options: options of the preparation.
        num_workers: number of processes.

    Example:
    >>> from keras_transformer.data.corpus import BlockReader, parallel_files
    >>> corpora = parallel_files(["train.en"], ["train.de"])
    >>> reader = BlockReader(corpora[0])
    >>> blocks = list(reader)  # reads the corpus for the first time
    >>> preparation = Preparation(Path("new"), PrepareOptions(), num_workers=1)
    >>> preparation.clean("train", corpora, [reader.read._asdict()]).report.kept
    3
    """

    def __init__(self, directory: Path, options: PrepareOptions, num_workers: int) -> None:
        self._directory = directory
        self._options = options
        self._num_workers = num_workers

    def clean(
        self, split: str, corpora: Sequence[Corpus], inputs: Sequence[dict[str, Any]]
    ) -> Cleaned:
        """Cleans the corpora of a split, and finds duplicates.

        Args:
            split: "train" or "valid".
            corpora: the corpora.
            inputs: for each corpus, its number of pairs and SHA-256 at the first reading.

        Raises:
            InputError: if a corpus has changed since then, or if no pairs are left.
        """
        work = self._directory / "work" / split
        report = CleaningReport()
        blocks: list[CleanedBlock] = []
        tasks = _clean_tasks(work, corpora, inputs, self._options)
        pairs = sum(entry["pairs"] for entry in inputs)
        for number, result in enumerate(
            self._results(clean_block, tasks, f"cleaning {split}", pairs)
        ):
            part = CleaningReport.from_dict(result["cleaning"])
            report.add(part)
            blocks.append(CleanedBlock(BlockFiles(work, number), result["corpus"], part.kept))
        if self._options.drop_duplicates:
            duplicates = find_duplicates([block.files.path("hashes.npy") for block in blocks])
            for block, places in zip(blocks, duplicates, strict=True):
                block.duplicates = places
        _require_pairs(report.kept, split, report)
        return Cleaned(blocks, report)

    def vocabulary(self, cleaned: Cleaned, given: Vocabulary | None) -> Vocabulary:
        """Writes the vocabulary and returns it.

        Args:
            cleaned: the training pairs.
            given: the vocabulary, or None to learn one from the training pairs.

        Raises:
            InputError: if a vocabulary cannot be learned.
        """
        directory = self._directory / "tokenizer"
        if not directory.exists():
            with atomic_path(directory) as partial:
                (given or self._learn(cleaned)).save(partial)
        return Vocabulary.load(directory)

    def _learn(self, cleaned: Cleaned) -> Vocabulary:
        options = self._options

        def model(*sides: str) -> bytes:
            return options.learn(_lines(cleaned.blocks, sides))

        if options.separate_vocabularies:
            return Vocabulary(model("source"), model("target"))
        return Vocabulary(model("source", "target"))

    def encode(self, cleaned: Mapping[str, Cleaned], vocabulary: Vocabulary) -> dict[str, Any]:
        """Writes both token stores and returns their part of the report.

        Args:
            cleaned: the cleaned corpora of each split. Without "valid", the pairs held out of
                "train" are the validation set.
            vocabulary: the vocabulary.

        Raises:
            InputError: if no pairs are left for a split.
        """
        shards: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
        hashes: dict[str, list[Path]] = {split: [] for split in SPLITS}
        for split, part in cleaned.items():
            options = (self._directory, split, vocabulary.fingerprint, self._options.max_tokens)
            tasks = [EncodeTask(block, *options) for block in part.blocks]
            results = self._results(encode_block, tasks, f"encoding {split}", part.report.kept)
            for block, result in zip(part.blocks, results, strict=True):
                part.report.add(CleaningReport.from_dict(result["cleaning"]))
                for store, shard in result["shards"].items():
                    shards[store].append(shard)
                    hashes[store].append(block.files.path(f"{store}_hashes.npy"))
                block.files.remove_clean_text()
        report: dict[str, Any] = {
            "held_out": sum(len(block.held_out) for block in cleaned["train"].blocks),
            "valid_pairs_in_train": count_known(hashes["valid"], hashes["train"]),
            "cleaning": {split: part.report.as_dict() for split, part in cleaned.items()},
        }
        for split, parts in shards.items():
            index = [(shard["name"], shard["pairs"], shard["sha256"]) for shard in parts]
            pairs = write_index(self._directory / split, index)
            _require_pairs(pairs, split, cleaned.get(split, cleaned["train"]).report)
            source, target = (
                _describe([shard[s] for shard in parts]) for s in ("source", "target")
            )
            report[split] = {"pairs": pairs, "source": source, "target": target}
            target["rewritten"] = sum(shard["target"]["rewritten"] for shard in parts)
            examples = (e for shard in parts for e in shard["target"]["rewritten_examples"])
            target["rewritten_examples"] = list(itertools.islice(examples, EXAMPLES))
        store = TokenStore(self._directory / "valid")
        first = store.source_lines(np.arange(len(store))[:3])
        report["examples"] = [line.decode()[:_EXAMPLE_CHARACTERS] for line in first]
        return report

    def _results(
        self,
        stage: Callable[[_Task], dict[str, Any]],
        tasks: Iterable[_Task],
        title: str,
        pairs: int,
    ) -> Iterator[dict[str, Any]]:
        with progress_bar(pairs, "pairs", title) as bar:
            for result in run_tasks(stage, tasks, self._num_workers):
                bar.update(result["pairs"])
                yield result


def _clean_tasks(
    work: Path,
    corpora: Sequence[Corpus],
    inputs: Sequence[dict[str, Any]],
    options: PrepareOptions,
) -> Iterator[CleanTask]:
    """Yields a task for each block of all corpora, and checks that no corpus has changed."""
    numbers = itertools.count()
    for corpus, entry in zip(corpora, inputs, strict=True):
        # Other processes need absolute paths, but messages show the paths that the user gave.
        reader = BlockReader(located(corpus), named=corpus)
        for block in reader:
            yield CleanTask(BlockFiles(work, next(numbers)), block, options)
        if reader.read.sha256 != entry["sha256"]:
            raise InputError(
                f"{corpus.name} changed while it was being read. Start again when it is complete."
            )


def _lines(blocks: Sequence[CleanedBlock], sides: Sequence[str]) -> Iterator[bytes]:
    """Yields the lines to learn a vocabulary from."""
    for block in blocks:
        left_out = {*block.held_out.tolist(), *block.duplicates.tolist()}
        texts = [block.files.clean_lines(side) for side in sides]
        for place, lines in enumerate(zip(*texts, strict=True)):
            if place not in left_out:
                yield from lines


def _require_pairs(pairs: int, split: str, report: CleaningReport) -> None:
    if not pairs:
        dropped = ", ".join(f"{n} {reason}" for reason, n in report.dropped.items())
        raise InputError(
            f"No pair is left for {split}: {report.read} were read (dropped: {dropped or 'none'})."
        )


def _describe(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the report of one side of a store from the counts of its shards."""
    lengths = itertools.zip_longest(*(part["lengths"] for part in parts), fillvalue=0)
    counts = np.array([sum(same) for same in lengths])  # sentences with 0, 1, 2, … tokens
    tokens = int(counts @ np.arange(len(counts)))
    unknown = sum(part["unknown"] for part in parts)
    return {
        "tokens": tokens,
        "unknown": unknown,
        "unknown_rate": unknown / tokens,
        "mean_length": round(tokens / int(counts.sum()), 2),
        "max_length": len(counts) - 1,
        # Sentences per range of lengths: {"1-16": 12, "17-32": 30, ...}.
        "length_histogram": {
            f"{least}-{least + _HISTOGRAM_STEP - 1}": int(
                counts[least : least + _HISTOGRAM_STEP].sum()
            )
            for least in range(1, len(counts), _HISTOGRAM_STEP)
        },
    }
