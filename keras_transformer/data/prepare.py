"""From parallel text to a directory that training reads: vocabulary, token stores, report."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import itertools
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from keras_transformer import plugins
from keras_transformer.console import progress_bar
from keras_transformer.data.blocks import (
    DUPLICATE,
    HELD_OUT,
    STORED,
    Fates,
    clean_block,
    clean_lines,
    encode_block,
    read_blocks,
)
from keras_transformer.data.cleaning import CleaningReport, count_known, find_duplicates
from keras_transformer.data.corpus import Corpus
from keras_transformer.data.data_report import count_rewritten, describe_side, summarize
from keras_transformer.data.options import LEARNING_OPTIONS, PrepareOptions
from keras_transformer.data.reading import Block
from keras_transformer.data.token_store import TokenStore, write_index
from keras_transformer.data.workers import run_tasks
from keras_transformer.errors import InputError, require
from keras_transformer.runs.atomic import atomic_path, work_directory, write_text
from keras_transformer.text.vocabulary import Vocabulary

if TYPE_CHECKING:
    import tensorflow as tf

    from keras_transformer.data.batches import Batches
    from keras_transformer.text.tokenizer import Tokenizer

__all__ = ["PrepareOptions", "PreparedData", "prepare"]

# Part of the fingerprint: raised whenever the same input would give another result.
_FORMAT = 3
# Raised when the intermediate files of a stage change. Then unfinished work starts again.
_WORK_FORMAT = 7
_EXAMPLE_CHARACTERS = 200  # shown of the first validation sources


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
        """Opens data that `prepare` wrote."""
        if (report := _existing_report(Path(directory))) is None:
            raise InputError(f"{directory} does not contain prepared data. Prepare a corpus first.")
        return cls(Path(directory), report, reused=True)

    def __fspath__(self) -> str:
        return str(self.directory)

    @property
    def tokenizer(self) -> Tokenizer:
        """A new tokenizer with the vocabulary of the data."""
        from keras_transformer.text.tokenizer import Tokenizer  # loads TensorFlow

        return Tokenizer.load(self.directory)

    def train_dataset(self, batch_tokens: int = 4096, seed: int = 1) -> tf.data.Dataset:
        """Returns one epoch of training batches, for `model.fit`. Each pass is the next epoch.

        Sentences of similar lengths share a batch. There are at most 16 batch shapes. Elements are
        `({"source_ids": int32 [B, S], "target_ids": int32 [B, T]}, labels int32 [B, T])`, padded.

        Args:
            batch_tokens: approximate target positions of a batch.
            seed: seed of the order.
        """
        return self._batches("train", batch_tokens, seed).epochs()

    def valid_dataset(self, batch_tokens: int = 4096) -> tf.data.Dataset:
        """Returns the validation batches, each pair once, in the same order in every pass.

        Args:
            batch_tokens: approximate target positions of a batch. It is raised to the longest
                target sentence.
        """
        longest = int(TokenStore(self.directory / "valid").target.lengths.max(initial=0))
        batches = self._batches("valid", max(batch_tokens, longest), None)
        return batches.dataset(num_steps=batches.steps_per_epoch)

    def _batches(self, split: str, batch_tokens: int, seed: int | None) -> Batches:
        from keras_transformer.data.batches import Batches  # loads TensorFlow

        stores = [TokenStore(self.directory / split)]
        return Batches(stores, batch_tokens, seed, Vocabulary.load(self.directory))

    def summary(self) -> str:
        """Returns a few lines for a person to read."""
        state = "already holds this data" if self.reused else "is ready"
        return "\n".join([f"{self.directory} {state}", *summarize(self.report)])


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
        corpora: training corpora.
        output_dir: a new directory. If it is complete for the same input and options, nothing
            changes.
        options: None for the defaults.
        valid_corpora: validation corpora. By default pairs are held out of `corpora`.
        vocab_from: directory of a tokenizer or of prepared data, a SentencePiece model, or a
            vocabulary; None to learn one. Symbols that it lacks are appended.
        num_workers: number of processes. The result does not depend on it.

    Example:
    >>> from keras_transformer.data.corpus import parallel_files
    >>> corpora = parallel_files(["train.en"], ["train.de"])
    >>> prepare(corpora, "build/small", PrepareOptions(vocab_size=60)).directory
    PosixPath('build/small')
    """
    kinds = ", ".join(("parallel files", "tsv", *plugins.names("corpora")))
    require(bool(corpora), f"Give a corpus. The formats are {kinds}.")
    options = options or PrepareOptions()
    output_dir = Path(output_dir)
    given = None if vocab_from is None else _given_vocabulary(vocab_from, options)
    corpora_of = {"train": corpora} | ({"valid": valid_corpora} if valid_corpora else {})
    if (report := _existing_report(output_dir)) is not None:
        inputs: dict[str, list[dict[str, Any]]] = {split: [] for split in corpora_of}
        for split, group in corpora_of.items():
            collections.deque(_read(group, inputs[split]), maxlen=0)
        require(
            report["fingerprint"] == _fingerprint(inputs, options, given),
            f"{output_dir} contains data that was prepared from other input or with other options. "
            "Choose a new directory. If the corpus has grown and a model was trained on this data, "
            f"add --vocab_from={output_dir}, so that keras-transformer train --init_from can train "
            "it further.",
        )
        for store in ("train", "valid"):  # they may be damaged
            TokenStore(output_dir / store)
        Vocabulary.load(output_dir)
        return PreparedData(output_dir, report, reused=True)
    names = {split: [corpus.name for corpus in group] for split, group in corpora_of.items()}
    key = f"{_WORK_FORMAT} {names!a} {options!a} {given and given.fingerprint}"
    with work_directory(output_dir, key) as directory:
        times = [time.monotonic()]
        cleaned = {
            split: _read_and_clean(directory / "work" / split, group, options, num_workers)
            for split, group in corpora_of.items()
        }
        inputs = {split: part.inputs for split, part in cleaned.items()}
        fingerprint = _fingerprint(inputs, options, given)
        earlier = directory / "work" / "fingerprint"  # differs if the text was changed after a kill
        if not earlier.exists():
            write_text(earlier, fingerprint)
        require(
            earlier.read_text() == fingerprint,
            "The corpora have changed since this preparation was interrupted, so its files were "
            "removed. Run the same command again.",
        )
        if not valid_corpora:
            _hold_out(cleaned["train"].fates, options)
        times.append(time.monotonic())
        if not (directory / "tokenizer").exists():
            with atomic_path(directory / "tokenizer") as partial:
                (given or _learn(cleaned["train"], options)).save(partial)
        vocabulary = Vocabulary.load(directory)
        times.append(time.monotonic())
        results = _encode(directory, cleaned, vocabulary, options.max_tokens, num_workers)
        times.append(time.monotonic())
        seconds = (round(end - start, 1) for start, end in itertools.pairwise(times))
        stages = dict(zip(("cleaning", "vocabulary", "encoding"), seconds, strict=True))
        report = {
            "fingerprint": fingerprint,
            "inputs": inputs,
            "options": {
                name: value
                for name, value in dataclasses.asdict(options).items()
                if given is None or name not in LEARNING_OPTIONS
            },
            "vocab_from": str(vocab_from) if isinstance(vocab_from, str | Path) else None,
            **results,
            "vocabulary": vocabulary.describe(),
            "seconds_of_stages": stages,
        }
        text = json.dumps(report, indent=1, ensure_ascii=False)
        (directory / "report.json").write_text(text + "\n", "utf-8", "backslashreplace")
    plugins.call_all("after_preparation", output_dir)
    return PreparedData(output_dir, json.loads(text), reused=False)


class _CleanCorpora(NamedTuple):
    """The cleaned corpora of a split.

    Attributes:
        folders: folder of each block.
        fates: for each block, what happens to its pairs.
        inputs: description of each corpus.
    """

    folders: list[Path]
    fates: list[Fates]
    report: CleaningReport
    inputs: list[dict[str, Any]]


def _read(corpora: Sequence[Corpus], inputs: list[dict[str, Any]]) -> Iterator[Block]:
    """Yields the blocks of corpora, and appends a description of each corpus to `inputs`."""
    for corpus in corpora:
        pairs, sha256 = 0, dict[str, str]()
        for block in read_blocks(corpus):
            pairs, sha256 = pairs + block.texts[0].count(b"\n"), dict(block.sha256)
            yield block
        require(pairs > 0, f"{corpus.name} contains no pair. Leave it out.")
        kind = type(corpus).__name__
        inputs.append({"name": corpus.name, "kind": kind, "pairs": pairs, "sha256": sha256})


def _read_and_clean(
    work: Path, corpora: Sequence[Corpus], options: PrepareOptions, num_workers: int
) -> _CleanCorpora:
    """Reads and cleans the corpora of a split, and finds duplicates."""
    cleaned = _CleanCorpora([], [], CleaningReport(), [])
    blocks = enumerate(_read(corpora, cleaned.inputs))
    tasks = ((block, work / f"{number:05d}", options) for number, block in blocks)
    with progress_bar(None, "pairs", f"cleaning {work.name}") as bar:
        for number, result in enumerate(run_tasks(clean_block, tasks, num_workers)):
            part = result["cleaning"]
            cleaned.report.add(part)
            cleaned.folders.append(work / f"{number:05d}")
            cleaned.fates.append(np.full(part["kept"], STORED, np.uint8))
            bar.update(part["read"])
    if options.drop_duplicates:
        duplicates = find_duplicates([folder / "hashes.npy" for folder in cleaned.folders])
        for fates, positions in zip(cleaned.fates, duplicates, strict=True):
            fates[positions] = DUPLICATE
    _require_pairs(cleaned.report.kept, work.name, cleaned.report)
    return cleaned


def _hold_out(fates: Sequence[Fates], options: PrepareOptions) -> None:
    """Draws the pairs that are held out for validation."""
    pairs = sum(int((block == STORED).sum()) for block in fates)
    wanted = options.valid_pairs or min(1000, max(1, pairs // 50))
    require(
        wanted < pairs,
        f"The corpus has {pairs} clean pairs, which is too few to hold out {wanted} for "
        "validation. Use a larger corpus, fewer valid_pairs, or separate validation files.",
    )
    drawn = np.sort(random.Random(options.seed).sample(range(pairs), wanted))
    for block in fates:
        single = np.flatnonzero(block == STORED)
        block[single[drawn[(drawn >= 0) & (drawn < len(single))]]] = HELD_OUT
        drawn -= len(single)


def _learn(cleaned: _CleanCorpora, options: PrepareOptions) -> Vocabulary:
    """Learns a vocabulary from the pairs that are stored for training."""

    def lines(*sides: str) -> Iterator[bytes]:
        for folder, fates in zip(cleaned.folders, cleaned.fates, strict=True):
            texts = zip(*(clean_lines(folder, side) for side in sides), strict=True)
            for pair in itertools.compress(texts, fates == STORED):
                yield from pair

    if options.separate_vocabularies:
        return Vocabulary(options.learn(lines("source")), options.learn(lines("target")))
    return Vocabulary(options.learn(lines("source", "target")))


def _encode(
    directory: Path, cleaned: Mapping[str, _CleanCorpora], vocabulary: Vocabulary, max_tokens: int,
    num_workers: int,
) -> dict[str, Any]:  # fmt: skip
    """Writes both token stores, and returns their part of the report."""
    shards: dict[str, list[dict[str, Any]]] = {"train": [], "valid": []}
    hashes: dict[str, list[Path]] = {"train": [], "valid": []}
    for split, part in cleaned.items():
        shared = (directory, split, vocabulary.fingerprint, max_tokens)
        blocks = list(zip(part.folders, part.fates, strict=True))
        results = run_tasks(encode_block, ((*block, *shared) for block in blocks), num_workers)
        with progress_bar(part.report.kept, "pairs", f"encoding {split}") as bar:
            for (folder, fates), result in zip(blocks, results, strict=True):
                part.report.add(result["cleaning"])
                for store, shard in result["shards"].items():
                    shards[store].append(shard)
                    hashes[store].append(folder / f"{store}.npy")
                bar.update(len(fates))
    report: dict[str, Any] = {
        "held_out": sum(int((fates == HELD_OUT).sum()) for fates in cleaned["train"].fates),
        "valid_pairs_in_train": count_known(hashes["valid"], hashes["train"]),
        "cleaning": {split: part.report.as_dict() for split, part in cleaned.items()},
    }
    for split, parts in shards.items():
        pairs = write_index(directory / split, [part["shard"] for part in parts])
        _require_pairs(pairs, split, cleaned.get(split, cleaned["train"]).report)
        store = TokenStore(directory / split)
        source, target = (sum(part["unknown"][side] for part in parts) for side in (0, 1))
        report[split] = {
            "pairs": pairs,
            "source": describe_side(store.source, source)
            | count_rewritten(store.source, "source", vocabulary),
            "target": describe_side(store.target, target)
            | count_rewritten(store.target, "target", vocabulary),
        }
    first = store.source.lines(np.arange(min(3, len(store))))  # validation pairs
    report["examples"] = [line.decode()[:_EXAMPLE_CHARACTERS] for line in first]
    return report


def _require_pairs(pairs: int, split: str, report: CleaningReport) -> None:
    dropped = ", ".join(f"{n} {reason}" for reason, n in report.dropped.items()) or "none"
    message = f"No pair is left for {split}: {report.read} were read (dropped: {dropped})."
    require(pairs > 0, message)


def _given_vocabulary(directory: str | Path | Vocabulary, options: PrepareOptions) -> Vocabulary:
    if isinstance(directory, Vocabulary):
        return directory
    vocabulary = Vocabulary.load(directory)
    require(
        not (options.separate_vocabularies and vocabulary.joint),
        f"The vocabulary of {directory} is joint, but separate vocabularies were requested.",
    )
    tag = options.source_tag
    require(
        tag is None or tag in vocabulary.source_symbols() | set(options.symbols or ()),
        f"The vocabulary of {directory} lacks the token {tag}. Append it with --symbols={tag}: a "
        "model that has the vocabulary can then be trained further with --init_from.",
    )
    return vocabulary.with_symbols(options.all_symbols())


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
        report = json.loads((output_dir / "report.json").read_bytes())
        if "fingerprint" in report and "cleaning" in report:
            return dict(report)
        reason = "its report.json describes something else"
    except (OSError, ValueError, TypeError) as error:
        reason = str(error)
    raise InputError(
        f"{output_dir} exists and is not prepared data ({reason}). Choose a new directory."
    )
