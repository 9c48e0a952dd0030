"""From parallel text to a directory that training reads: vocabulary, token stores, report."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from keras_transformer import plugins
from keras_transformer.console import progress_bar
from keras_transformer.data.blocks import (
    BlockFiles,
    BlockReader,
    CleanedBlock,
    CleanTask,
    EncodeTask,
    clean_block,
    encode_block,
)
from keras_transformer.data.cleaning import (
    EXAMPLES,
    CleaningOptions,
    CleaningReport,
    count_known,
    find_duplicates,
)
from keras_transformer.data.corpus import Corpus
from keras_transformer.data.token_store import TokenStore, write_index
from keras_transformer.data.workers import run_tasks
from keras_transformer.errors import InputError
from keras_transformer.runs.atomic import atomic_path, work_directory, write_text
from keras_transformer.text.vocabulary import (
    MAX_LINES,
    MAX_UNKNOWN_RATE,
    ModelType,
    Normalization,
    Vocabulary,
    check_learning_options,
    check_symbols,
    learn_vocabulary,
    sample_lines,
)

if TYPE_CHECKING:
    import tensorflow as tf

    from keras_transformer.data.batches import CorpusBatches
    from keras_transformer.text.tokenizer import Tokenizer

__all__ = ["PrepareOptions", "PreparedData", "prepare"]

SPLITS = ("train", "valid")
# Part of the fingerprint: raised whenever the same input would give another result.
_FORMAT = 3
# Raised when the intermediate files of a stage change. Then unfinished work starts again.
_WORK_FORMAT = 5
_WORK = "work"
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
    >>> options.all_symbols(), options.effective_options(learned=False)["max_tokens"]
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

    def effective_options(self, learned: bool) -> dict[str, Any]:
        """Returns the options as JSON values. Options of the vocabulary are included only if it is
        `learned`.
        """
        return {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if learned or name not in LEARNING_OPTIONS
        }


@dataclasses.dataclass
class _Cleaned:
    """The cleaned corpora of a split."""

    blocks: list[CleanedBlock]
    report: CleaningReport
    inputs: list[dict[str, Any]]

    def hold_out(self, options: PrepareOptions) -> None:
        """Draws the pairs that are held out for validation."""
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


class _Preparation:
    """The stages of a preparation. Each stage resumes after a kill."""

    def __init__(self, directory: Path, options: PrepareOptions, num_workers: int) -> None:
        self._directory = directory
        self._options = options
        self._num_workers = num_workers

    def clean(self, split: str, corpora: Sequence[Corpus]) -> _Cleaned:
        """Cleans the corpora of a split, and finds duplicates."""
        work = self._directory / _WORK / split
        report = CleaningReport()
        blocks: list[CleanedBlock] = []
        readers = [BlockReader(corpus) for corpus in corpora]
        tasks = (
            CleanTask(BlockFiles(work, number), block, self._options)
            for number, block in enumerate(itertools.chain.from_iterable(readers))
        )
        results = self._results(clean_block, tasks, f"cleaning {split}", None)
        for number, result in enumerate(results):
            part = CleaningReport.from_dict(result["cleaning"])
            report.add(part)
            blocks.append(CleanedBlock(BlockFiles(work, number), result["corpus"], part.kept))
        inputs = [_describe_input(*pair) for pair in zip(corpora, readers, strict=True)]
        if self._options.drop_duplicates:
            duplicates = find_duplicates([block.files.path("hashes.npy") for block in blocks])
            for block, places in zip(blocks, duplicates, strict=True):
                block.duplicates = places
        _require_pairs(report.kept, split, report)
        return _Cleaned(blocks, report, inputs)

    def continues(self, fingerprint: str) -> bool:
        """Returns whether all files in the directory are made from the input with a fingerprint.

        If they are not, because the input has changed since a kill, they are removed.
        """
        work = self._directory / _WORK
        path = work / "fingerprint"
        if not path.exists() or path.read_text() == fingerprint:
            write_text(path, fingerprint)
            return True
        for split in SPLITS:
            shutil.rmtree(self._directory / split, ignore_errors=True)
            shutil.rmtree(work / split, ignore_errors=True)
        shutil.rmtree(self._directory / "tokenizer", ignore_errors=True)
        path.unlink()  # last, so that a kill before it repeats the removal
        return False

    def vocabulary(self, cleaned: _Cleaned, given: Vocabulary | None) -> Vocabulary:
        """Writes the vocabulary and returns it."""
        directory = self._directory / "tokenizer"
        if not directory.exists():
            with atomic_path(directory) as partial:
                (given or self._learn(cleaned)).save(partial)
        return Vocabulary.load(directory)

    def _learn(self, cleaned: _Cleaned) -> Vocabulary:
        options = self._options

        def model(*sides: str) -> bytes:
            return options.learn(_lines(cleaned.blocks, sides))

        if options.separate_vocabularies:
            return Vocabulary(model("source"), model("target"))
        return Vocabulary(model("source", "target"))

    def encode(self, cleaned: Mapping[str, _Cleaned], vocabulary: Vocabulary) -> dict[str, Any]:
        """Writes both token stores and returns their part of the report."""
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
            for name in ("compared", "rewritten"):
                target[name] = sum(shard["target"][name] for shard in parts)
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
        pairs: int | None,
    ) -> Iterator[dict[str, Any]]:
        with progress_bar(pairs, "pairs", title) as bar:
            for result in run_tasks(stage, tasks, self._num_workers):
                bar.update(result["pairs"])
                yield result


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


@dataclasses.dataclass(frozen=True)
class PreparedData:
    """Prepared data: the result of `prepare`.

    Attributes:
        directory: directory of the data.
        report: content of report.json.
        reused: True if the directory already had the same data.

    Example:
    >>> from keras_transformer.data.corpus import parallel_files
    >>> prepared = prepare(parallel_files(["train.en"], ["train.de"]), "data")
    >>> print(prepared.summary())
    data is ready...
    >>> inputs, labels = next(iter(prepared.train_dataset(batch_tokens=64)))
    >>> sorted(inputs), labels.shape == inputs["target_ids"].shape
    (['source_ids', 'target_ids'], True)
    """

    directory: Path
    report: dict[str, Any] = dataclasses.field(repr=False)  # has hundreds of lines
    reused: bool

    @classmethod
    def open(cls, directory: str | Path) -> PreparedData:
        """Opens data that `prepare` wrote.

        Raises:
            InputError: if the directory does not contain prepared data.
        """
        report = _existing_report(Path(directory))
        if report is None:
            raise InputError(f"{directory} does not contain prepared data. Prepare a corpus first.")
        return cls(Path(directory), report, reused=True)

    def __fspath__(self) -> str:
        return str(self.directory)

    @property
    def tokenizer(self) -> Tokenizer:
        """A new tokenizer with the vocabulary of the data."""
        from keras_transformer.text.tokenizer import Tokenizer  # late: it loads TensorFlow

        return Tokenizer.load(self.directory)

    def train_dataset(self, batch_tokens: int = 4096, seed: int = 1) -> tf.data.Dataset:
        """Returns one epoch of training batches, for `model.fit`. Each pass is the next epoch.

        Sentences of similar lengths share a batch. There are at most 16 batch shapes. Elements are
        `({"source_ids": int32 [B, S], "target_ids": int32 [B, T]}, labels int32 [B, T])`, padded.

        Args:
            batch_tokens: approximate target positions of a batch.
            seed: seed of the order.

        Raises:
            InputError: if `batch_tokens` is below the longest target sentence.
        """
        return self._batches("train", batch_tokens, seed).epochs()

    def valid_dataset(self, batch_tokens: int = 4096) -> tf.data.Dataset:
        """Returns the validation batches, each pair once, in the same order in every pass.

        Args:
            batch_tokens: approximate target positions of a batch. It is raised to the longest
                target sentence.
        """
        longest = int(TokenStore(self.directory / "valid").target_lengths.max(initial=0))
        batches = self._batches("valid", max(batch_tokens, longest), None)
        return batches.dataset(num_steps=batches.steps_per_epoch)

    def _batches(self, split: str, batch_tokens: int, seed: int | None) -> CorpusBatches:
        from keras_transformer.data.batches import CorpusBatches  # late, as above

        vocabulary = Vocabulary.load(self.directory)
        store = TokenStore(self.directory / split)
        return CorpusBatches(store, batch_tokens, seed, vocabulary.pad_id, vocabulary.start_id)

    def summary(self) -> str:
        """Returns a few lines for a person to read."""
        state = "already holds this data" if self.reused else "is ready"
        report = self.report
        vocabulary = report["vocabulary"]
        lines = [
            f"{self.directory} {state}",
            f"vocabulary: {vocabulary['type']}, {vocabulary['source_size']:,} source and "
            f"{vocabulary['target_size']:,} target pieces",
        ]
        for split in ("train", "valid"):
            store = report[split]
            lines.append(
                f"{split}: {store['pairs']:,} pairs, {store['source']['tokens']:,} source and "
                f"{store['target']['tokens']:,} target tokens"
            )
        for split, side in itertools.product(("train", "valid"), ("source", "target")):
            rate = report[split][side]["unknown_rate"]
            if rate > MAX_UNKNOWN_RATE:
                lines.append(
                    f"Warning: {rate:.1%} of the {side} tokens of {split} are not in the "
                    "vocabulary, so the model cannot read or write them. Learn a vocabulary from "
                    "text of this language (without --vocab_from), or set --byte_fallback."
                )
        target = report["train"]["target"]
        if target["rewritten"]:
            example = target["rewritten_examples"][0]
            lines.append(
                f"normalization {vocabulary['normalization']} changes {target['rewritten']:,} of "
                f"{target['compared']:,} training targets, for example {example['before']!r} to "
                f"{example['after']!r}. --normalization=identity keeps the text unchanged."
            )
        for split, cleaning in report["cleaning"].items():
            dropped = ", ".join(f"{n:,} {reason}" for reason, n in cleaning["dropped"].items())
            lines.append(
                f"{split} corpus: {cleaning['read']:,} pairs read, dropped: {dropped or 'none'}"
            )
            if cleaning["bad_utf8_replaced"]:
                lines.append(f"{cleaning['bad_utf8_replaced']:,} lines of it had invalid UTF-8")
        if report["held_out"]:
            dropped = report["held_out"] - report["valid"]["pairs"]
            lines.append(
                f"held out of the training corpus for validation: {report['held_out']:,} pairs"
                + f", and {dropped:,} were dropped as too long" * (dropped > 0)
            )
        if known := report["valid_pairs_in_train"]:
            lines.append(
                f"validation pairs that are also in the training text: {known:,} of "
                f"{report['valid']['pairs']:,}. Scores on them overestimate the quality."
            )
        return "\n".join(lines)


def prepare(
    corpora: Sequence[Corpus],
    output_dir: str | Path,
    options: PrepareOptions | None = None,
    *,
    valid_corpora: Sequence[Corpus] | None = None,
    vocab_from: str | Path | Vocabulary | None = None,
    num_workers: int = 1,
) -> PreparedData:
    """Cleans parallel corpora, learns a vocabulary, and encodes the corpora.

    `output_dir` appears when it is complete, with `tokenizer/`, the token stores `train/` and
    `valid/`, and `report.json`. Until then, a hidden directory next to it has the finished parts.
    If the process is killed, the same call resumes. Memory does not grow with the corpus, because
    text is processed in blocks.

    Args:
        corpora: training corpora. Each is read twice.
        output_dir: a new directory. If it is complete for the same input and options, nothing
            changes.
        options: None for the defaults.
        valid_corpora: validation corpora. By default pairs are held out of `corpora`.
        vocab_from: directory of a tokenizer or of prepared data, a SentencePiece model, or a
            vocabulary; None to learn one. Symbols that it lacks are appended.
        num_workers: number of processes. The result does not depend on it.

    Returns:
        Directory and report.

    Raises:
        InputError: for corpora that cannot be read, an `output_dir` with other files, a vocabulary
            that cannot be learned or read, and if no pairs are left.

    Example:
    >>> from keras_transformer.data.corpus import parallel_files
    >>> corpora = parallel_files(["train.en"], ["train.de"])
    >>> prepare(corpora, "build/small", PrepareOptions(vocab_size=60)).directory
    PosixPath('build/small')
    """
    if not corpora:
        raise InputError("Give a corpus: parallel files, TSV, TMX, or a TFDS translation set.")
    options = options or PrepareOptions()
    output_dir = Path(output_dir)
    seconds: dict[str, float] = {}
    vocabulary = None if vocab_from is None else _given_vocabulary(vocab_from, options)
    corpora_of = {"train": corpora, "valid": valid_corpora or ()}
    corpora_of = {split: group for split, group in corpora_of.items() if group}
    if (existing := _existing_report(output_dir)) is not None:
        inputs = {split: list(map(_read, group)) for split, group in corpora_of.items()}
        return _reuse(output_dir, existing, _fingerprint(inputs, options, vocabulary))
    kinds = {
        split: [
            {"kind": type(corpus).__name__, "sha256": {"name": corpus.name}} for corpus in group
        ]
        for split, group in corpora_of.items()
    }
    key = f"{_fingerprint(kinds, options, vocabulary)} {_WORK_FORMAT}"
    with work_directory(output_dir, key) as directory:
        preparation = _Preparation(directory, options, num_workers)
        with _timed("cleaning", seconds):
            continues = False
            while not continues:
                cleaned = {s: preparation.clean(s, group) for s, group in corpora_of.items()}
                inputs = {split: part.inputs for split, part in cleaned.items()}
                fingerprint = _fingerprint(inputs, options, vocabulary)
                continues = preparation.continues(fingerprint)
            if not valid_corpora:
                cleaned["train"].hold_out(options)
        report: dict[str, Any] = {
            "fingerprint": fingerprint,
            "inputs": inputs,
            "options": options.effective_options(learned=vocabulary is None),
            "vocab_from": str(vocab_from) if isinstance(vocab_from, str | Path) else None,
        }
        with _timed("vocabulary", seconds):
            vocabulary = preparation.vocabulary(cleaned["train"], vocabulary)
        with _timed("encoding", seconds):
            report |= preparation.encode(cleaned, vocabulary)
        report |= {"vocabulary": vocabulary.describe(), "seconds_of_stages": seconds}
        text = json.dumps(report, indent=1, ensure_ascii=False)
        (directory / "report.json").write_text(text + "\n", "utf-8", "backslashreplace")
    plugins.call_all("after_preparation", output_dir)
    return PreparedData(output_dir, json.loads(text), reused=False)


@contextlib.contextmanager
def _timed(stage: str, seconds: dict[str, float]) -> Iterator[None]:
    start = time.monotonic()
    yield
    seconds[stage] = round(time.monotonic() - start, 1)


def _given_vocabulary(directory: str | Path | Vocabulary, options: PrepareOptions) -> Vocabulary:
    if isinstance(directory, Vocabulary):
        return directory
    vocabulary = Vocabulary.load(directory)
    if options.separate_vocabularies and vocabulary.joint:
        raise InputError(
            f"The vocabulary of {directory} is joint, but separate vocabularies were requested."
        )
    if options.source_tag is not None and options.source_tag not in (
        vocabulary.source_symbols() | set(options.symbols or ())
    ):
        tag = options.source_tag
        raise InputError(
            f"The vocabulary of {directory} lacks the token {tag}. Append it with --symbols={tag}: "
            "a model that has the vocabulary can then be trained further with --init_from."
        )
    return vocabulary.with_symbols(options.all_symbols())


def _read(corpus: Corpus) -> dict[str, Any]:
    """Reads a corpus to its end, and describes it."""
    reader = BlockReader(corpus)
    for _ in reader:
        pass
    return _describe_input(corpus, reader)


def _describe_input(corpus: Corpus, reader: BlockReader) -> dict[str, Any]:
    return {
        "name": corpus.name,
        "kind": type(corpus).__name__,
        "blocks": reader.blocks,
        "pairs": reader.pairs,
        "sha256": reader.sha256,
    }


def _fingerprint(
    inputs: dict[str, list[dict[str, Any]]], options: PrepareOptions, given: Vocabulary | None
) -> str:
    parts = {
        "format": _FORMAT,
        "inputs": {
            split: [[entry["kind"], *entry["sha256"].values()] for entry in group]
            for split, group in inputs.items()
        },
        "options": dataclasses.asdict(options),
        "vocabulary": given.fingerprint if given else None,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _existing_report(output_dir: Path) -> dict[str, Any] | None:
    """Returns the report of existing data, or None if the directory is missing or empty."""
    try:
        if not output_dir.exists() or (output_dir.is_dir() and not any(output_dir.iterdir())):
            return None
    except OSError as error:
        raise InputError(
            f"{output_dir} cannot be read ({error.strerror}). Choose a new directory."
        ) from None
    try:
        report = json.loads((output_dir / "report.json").read_bytes())
        if isinstance(report, dict) and "fingerprint" in report:
            return report
    except (OSError, ValueError, TypeError):
        pass
    raise InputError(
        f"{output_dir} exists and does not contain prepared data. Choose a new directory."
    )


def _reuse(output_dir: Path, report: dict[str, Any], fingerprint: str) -> PreparedData:
    if report["fingerprint"] != fingerprint:
        raise InputError(
            f"{output_dir} contains data that was prepared from other input or with other options. "
            "Choose a new directory. If the corpus has grown and a model was trained on this data, "
            f"add --vocab_from={output_dir}, so that keras-transformer train --init_from can train "
            "it further."
        )
    Vocabulary.load(output_dir)
    for split in SPLITS:
        TokenStore(output_dir / split)
    return PreparedData(output_dir, report, reused=True)
