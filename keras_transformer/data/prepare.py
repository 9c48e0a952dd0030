"""From parallel text to a directory that training reads: vocabulary, token stores, report."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import heapq
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
from keras_transformer.data.augmentation import Augmentation, installed
from keras_transformer.data.blocks import (
    AUGMENTED_EXAMPLES,
    DUPLICATE,
    STORES,
    TRAIN,
    VALID,
    Fates,
    SampledPair,
    clean_block,
    encode_block,
    read_blocks,
)
from keras_transformer.data.cleaning import CleaningReport, count_known, find_duplicates
from keras_transformer.data.corpus import Corpus
from keras_transformer.data.data_report import describe_side, summarize
from keras_transformer.data.options import LEARNING_OPTIONS, PrepareOptions
from keras_transformer.data.reading import Block
from keras_transformer.data.token_store import IntArray, TokenStore, write_index
from keras_transformer.data.workers import Workers, run_tasks
from keras_transformer.errors import InputError, check_path, require
from keras_transformer.runs.atomic import atomic_path, work_directory, write_text
from keras_transformer.text.vocabulary import MAX_BYTES, Vocabulary

if TYPE_CHECKING:
    import tensorflow as tf

    from keras_transformer.data.batches import Batches
    from keras_transformer.text.tokenizer import Tokenizer

__all__ = ["PrepareOptions", "PreparedData", "prepare"]

# Part of the fingerprint: raised whenever the same input would give another result.
_FORMAT = 7
# Raise it when the intermediate files of a stage change. Then unfinished work starts again.
_WORK_FORMAT = 13
_LEARNING_PAIRS = 50_000  # from which augmentations learn
_COUNTED_SOURCES = 2_000  # in which sentences are counted
_EXAMPLE_CHARACTERS = 200  # longer validation sources are truncated in the output


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
    report: dict[str, Any] = dataclasses.field(repr=False)  # it has hundreds of lines
    reused: bool

    @classmethod
    def open(cls, directory: str | Path) -> PreparedData:
        """Opens data that `prepare` wrote."""
        directory = Path(check_path(directory, "directory"))
        if (report := _existing_report(directory)) is None:
            raise InputError(f"{directory} does not contain prepared data. Prepare a corpus first.")
        return cls(directory, report, reused=True)

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
    num_workers: Workers = 1,
) -> PreparedData:
    """Cleans parallel corpora, learns a vocabulary, and encodes the corpora.

    `output_dir` appears when it is complete, with `tokenizer/`, the token stores `train/` and
    `valid/`, and `report.json`. Until then, a hidden directory next to it has the finished parts.
    If the process is killed, the same call resumes. Complete data for the same input and options
    are returned unchanged. Memory does not grow with the corpus, because text is processed in
    blocks. The result does not depend on `num_workers`, the number of processes, or the
    `TaskRunner` that does the work on other machines.

    `vocab_from` is a vocabulary, or the path of a tokenizer, of prepared data or of a SentencePiece
    model. Symbols that the vocabulary lacks are appended.
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
        is_same = report["fingerprint"] == _fingerprint(inputs, options, given)
        require(
            is_same or report.get("format") == _FORMAT,
            f"{output_dir} was prepared by an earlier version of this package, which would give "
            "other data today. You can still train on it. Choose a new directory to prepare again.",
        )
        require(
            is_same,
            f"{output_dir} contains data that was prepared from other input or with other options. "
            "Choose a new directory. If the corpus has grown and a model was trained on this data, "
            f"add vocab_from={output_dir}, so that a training with init_from can continue it.",
        )
        for store in ("train", "valid"):  # they may be damaged
            TokenStore(output_dir / store)
        Vocabulary.load(output_dir)
        return PreparedData(output_dir, report, reused=True)
    names = {split: [corpus.name for corpus in group] for split, group in corpora_of.items()}
    key = f"{_WORK_FORMAT} {names!a} {options!a} {given and given.fingerprint}"
    with work_directory(output_dir, key) as directory:
        times = [time.monotonic()]
        learned = directory / "work" / "augmentations.json"
        extensions = installed(options.augment, given)
        learns = given is None and not (directory / "tokenizer").exists()
        learns |= bool(extensions) and not learned.exists()
        cleaned = {
            split: _read_and_clean(
                directory / "work" / split, group, options, num_workers, learns and split == "train"
            )
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
            symbols = [symbol for part in extensions.values() for symbol in part.symbols]
            with atomic_path(directory / "tokenizer") as partial:
                (given or _learn(cleaned["train"], options, symbols)).save(partial)
        vocabulary = Vocabulary.load(directory)
        if extensions and not learned.exists():
            write_text(learned, json.dumps(_learn_augmentations(cleaned["train"], extensions)))
        states = json.loads(learned.read_bytes()) if extensions else {}
        augmentations = [extensions[name](states[name], vocabulary) for name in extensions]
        cleaned["train"].samples.clear()  # they would take memory until the end of the encoding
        times.append(time.monotonic())
        results = _encode(directory, cleaned, vocabulary, options, augmentations, num_workers)
        times.append(time.monotonic())
        seconds = (round(end - start, 1) for start, end in itertools.pairwise(times))
        stages = dict(zip(("cleaning", "vocabulary", "encoding"), seconds, strict=True))
        report = {
            "format": _FORMAT,
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


def language_tag(
    vocab_from: str, source_language: str | None, target_language: str | None
) -> str | None:
    """Returns the `source_tag` for languages of a vocabulary, or None if it has no languages."""
    vocabulary = Vocabulary.load(vocab_from)
    if vocabulary.languages is None:
        return None
    return vocabulary.with_languages(source_language, target_language).language_tag


class _CleanCorpora(NamedTuple):
    """The cleaned corpora of a split.

    Attributes:
        inputs: description of each corpus.
        folders: folder of each block.
        samples: for each block, pairs to learn from.
        ends: int64 `[blocks]`, number of pairs up to the end of each block.
        fates: uint8 `[pairs]`, what happens to each pair.
    """

    inputs: list[dict[str, Any]]
    report: CleaningReport
    folders: list[Path]
    samples: list[list[SampledPair]]
    ends: IntArray
    fates: Fates

    def fates_of_blocks(self) -> list[Fates]:
        """Returns the fates of the pairs of each block."""
        return np.split(self.fates, self.ends[:-1])

    def training_sample(self) -> list[SampledPair]:
        """Returns the sampled pairs that are stored for training."""
        blocks = zip(self.fates_of_blocks(), self.samples, strict=True)
        return [pair for fates, part in blocks for pair in part if fates[pair[1]] == TRAIN]


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
    work: Path, corpora: Sequence[Corpus], options: PrepareOptions, num_workers: Workers,
    learns: bool,
) -> _CleanCorpora:  # fmt: skip
    """Reads and cleans the corpora of a split, finds duplicates, and samples pairs if `learns`."""
    inputs, sizes, samples = list[dict[str, Any]](), list[int](), list[list[SampledPair]]()
    report = CleaningReport()
    share, size = float(learns), np.zeros(2, np.int64)
    vocabularies = 1 + options.separate_vocabularies
    limits = [options.vocabulary_lines * vocabularies, MAX_BYTES * vocabularies]
    blocks = enumerate(_read(corpora, inputs))
    # A worker gets the share from when its task was made, which is at least the final one.
    tasks = ((block, work / f"{number:05d}", options, share) for number, block in blocks)
    work.mkdir(parents=True, exist_ok=True)
    with progress_bar(None, "pairs", f"cleaning {work.name}") as bar:
        for part, sample in run_tasks(clean_block, tasks, num_workers, work):
            report.add(part)
            sizes.append(part["kept"])
            samples.append([pair for pair in sample if pair[0] < share])
            size += _measure(samples[-1:])
            # The sample is a function of all pairs, so it does not depend on the order of blocks.
            while any(size > limits):
                share /= 2
                samples = [[pair for pair in part if pair[0] < share] for part in samples]
                size = _measure(samples)
            bar.update(part["read"])
    _require_pairs(report.kept, work.name, report)
    folders = [work / f"{number:05d}" for number in range(len(sizes))]
    fates = np.full(report.kept, STORES.index(work.name), np.uint8)
    if options.drop_duplicates:
        fates[find_duplicates([folder / "hashes.npy" for folder in folders])] = DUPLICATE
    return _CleanCorpora(inputs, report, folders, samples, np.cumsum(sizes), fates)


def _measure(samples: Sequence[Sequence[SampledPair]]) -> IntArray:
    """Returns the number of lines in samples, and their bytes. A pair has two lines."""
    sizes = [len(source) + len(target) for part in samples for *_, source, target in part]
    return np.array([2 * len(sizes), sum(sizes)])


def _hold_out(fates: Fates, options: PrepareOptions) -> None:
    """Draws the pairs that are held out for validation."""
    single = np.flatnonzero(fates == TRAIN)
    wanted = options.valid_pairs or min(1000, max(1, len(single) // 50))
    require(
        wanted < len(single),
        f"The corpus has {len(single)} clean pairs, which is too few to hold out {wanted} for "
        "validation. Use a larger corpus, fewer valid_pairs, or separate validation files.",
    )
    fates[single[random.Random(options.seed).sample(range(len(single)), wanted)]] = VALID


def _learn(cleaned: _CleanCorpora, options: PrepareOptions, symbols: Sequence[str]) -> Vocabulary:
    """Learns a vocabulary with symbols from the sampled pairs that are stored for training."""
    pairs = [pair for _, _, *pair in cleaned.training_sample()]
    if options.separate_vocabularies:
        return Vocabulary(*(options.learn([p[side] for p in pairs], symbols) for side in (0, 1)))
    return Vocabulary(options.learn([line for pair in pairs for line in pair], symbols))


def _learn_augmentations(
    cleaned: _CleanCorpora, extensions: Mapping[str, type[Augmentation]]
) -> dict[str, Any]:
    """Returns what each augmentation learns from the sampled pairs, as JSON values by name."""
    sample = heapq.nsmallest(_LEARNING_PAIRS, cleaned.training_sample())
    pairs = [(source.decode(), target.decode()) for _, _, source, target in sample]
    # Several extensions may learn the same, such as word alignments.
    learned = {learn: learn(pairs) for learn in {kind.learn for kind in extensions.values()}}
    return {name: learned[extension.learn] for name, extension in extensions.items()}


def _encode(
    directory: Path, cleaned: Mapping[str, _CleanCorpora], vocabulary: Vocabulary,
    options: PrepareOptions, augmentations: Sequence[Augmentation], num_workers: Workers,
) -> dict[str, Any]:  # fmt: skip
    """Writes both token stores, and returns their part of the report."""
    shards: dict[str, list[dict[str, Any]]] = {store: [] for store in STORES}
    kinds = [kind for part in augmentations for kind in part.kinds if options.augment.get(kind)]
    augmented, examples = collections.Counter(dict.fromkeys(kinds, 0)), dict[str, list[Any]]()
    same = directory, vocabulary.fingerprint, options, augmentations
    for split, part in cleaned.items():
        blocks = zip(part.folders, part.fates_of_blocks(), strict=True)
        tasks = ((*block, *same) for block in blocks)
        with progress_bar(part.report.kept, "pairs", f"encoding {split}") as bar:
            for result in run_tasks(encode_block, tasks, num_workers, directory):
                part.report.add(result["cleaning"])
                augmented.update(result["augmented"])
                for name, found in result["augmented_examples"].items():
                    known = examples.setdefault(name, [])
                    known += found[: AUGMENTED_EXAMPLES - len(known)]
                for store, shard in result["shards"].items():
                    shards[store].append(shard)
                bar.update(result["pairs"])
    hashes = [sorted((directory / "work").glob(f"*/*/{store}.npy")) for store in STORES]
    report: dict[str, Any] = {
        "held_out": int((cleaned["train"].fates == VALID).sum()),
        "valid_pairs_in_train": count_known(hashes[VALID], hashes[TRAIN]),
        "cleaning": {split: part.report.as_dict() for split, part in cleaned.items()},
        "augmented": augmented,
        "augmented_examples": examples,
    }
    for split, parts in shards.items():
        pairs = write_index(directory / split, [part["shard"] for part in parts])
        _require_pairs(pairs, split, cleaned.get(split, cleaned["train"]).report)
        store = TokenStore(directory / split)
        report[split] = {
            "pairs": pairs,
            "source": describe_side(store.source.lengths, [part["source"] for part in parts]),
            "target": describe_side(store.target.lengths, [part["target"] for part in parts]),
        }
    train = TokenStore(directory / "train")
    numbers = np.linspace(0, len(train) - 1, _COUNTED_SOURCES).astype(np.int64)
    sources = [line.decode() for line in train.source.lines(numbers)]
    for _, option in plugins.all_of("text_options"):
        report["train"]["source"]["several_sentences"] = option.share_of_several(sources)
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
    vocabulary = Vocabulary.load(check_path(directory, "vocab_from"))
    require(
        not (options.separate_vocabularies and vocabulary.joint),
        f"The vocabulary of {directory} is joint, but separate vocabularies were requested.",
    )
    tag = options.source_tag
    require(
        tag is None or {*tag.split()} <= vocabulary.source_symbols | {*(options.symbols or ())},
        f"The vocabulary of {directory} lacks the token {tag}. Append it with symbols={tag}: a "
        "model that has the vocabulary can then be trained further with init_from.",
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
