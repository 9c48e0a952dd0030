"""The stages of a preparation, over all blocks of all corpora."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from tqdm import tqdm

from keras_transformer.data.corpora.cleaning import CleaningOptions, CleaningReport
from keras_transformer.data.corpora.corpus import Corpus, located
from keras_transformer.data.corpora.duplicates import count_known, find_duplicates
from keras_transformer.data.preparation.report import SideStatistics
from keras_transformer.data.preparation.stages import (
    CleanSource,
    EncodeTask,
    Places,
    clean_block,
    clean_lines,
    clean_tasks,
    encode_block,
    forget,
    hashes_file,
    stored_hashes_file,
)
from keras_transformer.data.preparation.workers import Runner, alone
from keras_transformer.data.token_store import write_index
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
)

SPLITS = ("train", "valid")
# Options that count for nothing where a vocabulary is given; symbols have to be in it.
OF_LEARNING = (
    "vocab_size", "model_type", "byte_fallback", "character_coverage", "normalization",
    "vocabulary_lines",
)  # fmt: skip
_Source = TypeVar("_Source")
_Task = TypeVar("_Task")


@dataclasses.dataclass(frozen=True)
class PrepareOptions(CleaningOptions):
    """How to prepare a corpus: what is dropped, and what else there is to choose.

    `vocab_size` to `symbols` are those of `learn_vocabulary` and count for
    nothing where a vocabulary is given. Pairs with a side of more than `max_tokens`
    tokens (end id counted) are dropped. `valid_pairs` are held out of the training
    corpus where no validation corpus is given (None: 2 % of it, from 1 to 1000).
    """

    vocab_size: int = 8000
    model_type: ModelType = "unigram"
    byte_fallback: bool = False
    separate_vocabularies: bool = False
    character_coverage: float = 1.0
    normalization: Normalization = "nmt_nfkc"
    vocabulary_lines: int = MAX_LINES
    symbols: tuple[str, ...] = ()
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
                raise InputError(f"{name} is {value}; expected {least} or more")
        check_symbols(self.all_symbols(), self.byte_fallback)

    def all_symbols(self) -> tuple[str, ...]:
        """The pieces that stand for themselves, the tag among them."""
        tags = [] if self.source_tag is None else [self.source_tag]
        return tuple(dict.fromkeys([*self.symbols, *tags]))

    def learn(self, lines: Iterable[bytes]) -> bytes:
        """Returns the SentencePiece model that these options ask for, of such lines."""
        return learn_vocabulary(
            lines,
            self.vocab_size,
            model_type=self.model_type,
            byte_fallback=self.byte_fallback,
            seed=self.seed,
            character_coverage=self.character_coverage,
            normalization=self.normalization,
            max_lines=self.vocabulary_lines,
            symbols=self.all_symbols(),
        )

    def in_force(self, learned: bool) -> dict[str, Any]:
        """Returns the options as JSON values; those of learning only where it is `learned`."""
        return {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if learned or name not in OF_LEARNING
        }


@dataclasses.dataclass
class CleanedBlock:
    """What cleaning left of a block: pairs, of which some are duplicates or held out."""

    directory: Path
    name: str
    pairs: int
    duplicates: Places = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    held_out: Places = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))


@dataclasses.dataclass
class Cleaned:
    """The cleaned corpora of a split."""

    blocks: list[CleanedBlock]
    report: CleaningReport

    def hold_out(self, options: PrepareOptions) -> None:
        """Draws the pairs to validate on."""
        sizes = [block.pairs - len(block.duplicates) for block in self.blocks]
        pairs = sum(sizes)
        wanted = options.valid_pairs or min(1000, max(1, pairs // 50))
        if wanted >= pairs:
            raise InputError(
                f"the corpus has {pairs} clean pairs, of which {wanted} should be held out for "
                "validation; expected a larger corpus, fewer valid_pairs, or validation files"
            )
        drawn = np.sort(random.Random(options.seed).sample(range(pairs), wanted))
        first = np.cumsum([0, *sizes])
        ends = np.searchsorted(drawn, first)
        for block, a, b, start in zip(self.blocks, ends, ends[1:], first, strict=False):
            single = np.delete(np.arange(block.pairs), block.duplicates)
            block.held_out = single[drawn[a:b] - start]


class Preparation:
    """The stages, each of which goes on where it was killed."""

    def __init__(self, directory: Path, options: PrepareOptions, runner: Runner) -> None:
        self._directory = directory
        self._options = options
        self._runner = runner

    def clean(
        self, split: str, corpora: Sequence[Corpus], inputs: Sequence[dict[str, Any]]
    ) -> Cleaned:
        """Cleans the corpora of a split, and finds what stands in them more than once."""
        work, options = self._directory / "work" / split, self._options
        fields = dataclasses.fields(CleaningOptions)
        rules = CleaningOptions(**{field.name: getattr(options, field.name) for field in fields})
        first = np.cumsum([0, *(entry["blocks"] for entry in inputs)]).tolist()
        sources = [
            CleanSource(work, corpus, located(corpus), number, rules, entry["sha256"])
            for corpus, number, entry in zip(corpora, first, inputs, strict=False)
        ]
        pairs = sum(entry["pairs"] for entry in inputs)
        report, blocks = CleaningReport(), []
        for result in self._results(clean_block, sources, clean_tasks, f"cleaning {split}", pairs):
            part = CleaningReport.from_dict(result["cleaning"])
            report.add(part)
            blocks.append(CleanedBlock(work, result["name"], part.kept))
        if options.drop_duplicates:
            duplicates = find_duplicates([hashes_file(work, block.name) for block in blocks])
            for block, places in zip(blocks, duplicates, strict=True):
                block.duplicates = places
        _require_pairs(report.kept, split, report)
        return Cleaned(blocks, report)

    def vocabulary(self, cleaned: Cleaned, given: Vocabulary | None) -> Vocabulary:
        """Returns the vocabulary given, or one learned from what is not held out."""
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
        """Writes both token stores and returns their part of the report."""
        stores = {split: self._directory / split for split in SPLITS}
        shards: dict[str, list[tuple[str, dict[str, Any]]]] = {split: [] for split in SPLITS}
        hashes: dict[str, list[Path]] = {split: [] for split in SPLITS}
        # What is held out of the training corpora is to validate on.
        rest = stores["valid"] if len(cleaned) == 1 else None
        for split, part in cleaned.items():
            tasks = [
                EncodeTask(
                    block.directory,
                    block.name,
                    (stores[split], rest),
                    self._directory / "tokenizer",
                    vocabulary.fingerprint,
                    block.held_out,
                    block.duplicates,
                    self._options.max_tokens,
                )
                for block in part.blocks
            ]
            pairs = part.report.kept
            results = self._results(encode_block, tasks, alone, f"encoding {split}", pairs)
            for task, result in zip(tasks, results, strict=True):
                part.report.add(CleaningReport.from_dict(result["cleaning"]))
                shards[split].append((task.name, result["kept"]))
                hashes[split].append(stored_hashes_file(task, "kept"))
                if rest:
                    shards["valid"].append((task.name, result["held_out"]))
                    hashes["valid"].append(stored_hashes_file(task, "held_out"))
                forget(task)
        held_out = sum(len(block.held_out) for block in cleaned["train"].blocks)
        cleaning = {split: part.report.as_dict() for split, part in cleaned.items()}
        report: dict[str, Any] = {
            "held_out": held_out,
            "valid_pairs_in_train": count_known(hashes["valid"], hashes["train"]),
            "cleaning": cleaning,
        }
        for split in SPLITS:
            parts = [(name, shard["pairs"], shard["sha256"]) for name, shard in shards[split]]
            pairs = write_index(stores[split], parts)
            _require_pairs(pairs, split, cleaned.get(split, cleaned["train"]).report)
            sides = zip(*(shard["statistics"] for _, shard in shards[split]), strict=True)
            source, target = (SideStatistics.total(side).describe() for side in sides)
            report[split] = {"pairs": pairs, "source": source, "target": target}
        return report

    def _results(
        self,
        stage: Callable[[_Task], dict[str, Any]],
        sources: Sequence[_Source],
        expand: Callable[[_Source], Iterable[_Task]],
        what: str,
        pairs: int,
    ) -> Iterator[dict[str, Any]]:
        with progress(what, pairs) as bar:
            for result in self._runner(stage, sources, expand):
                bar.update(result["pairs"])
                yield result


def _lines(blocks: Sequence[CleanedBlock], sides: Sequence[str]) -> Iterator[bytes]:
    """Yields the lines to learn a vocabulary from."""
    for block in blocks:
        left_out = {*block.held_out.tolist(), *block.duplicates.tolist()}
        texts = [clean_lines(block.directory, block.name, side) for side in sides]
        for place, lines in enumerate(zip(*texts, strict=True)):
            if place not in left_out:
                yield from lines


def _require_pairs(pairs: int, split: str, report: CleaningReport) -> None:
    if not pairs:
        dropped = ", ".join(f"{n} {reason}" for reason, n in report.dropped.items())
        raise InputError(
            f"no pair is left for {split} of {report.read} read (dropped: {dropped or 'none'}); "
            "expected at least one"
        )


def progress(what: str, pairs: int | None) -> tqdm[Any]:
    """Returns a bar that shows how many pairs are done."""
    # disable=None: only on a terminal.
    return tqdm(desc=what, total=pairs, unit=" pairs", unit_scale=True, disable=None)
