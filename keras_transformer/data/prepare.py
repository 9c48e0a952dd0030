"""From parallel text to a directory that training reads: vocabulary, token stores, report."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import random
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from keras_transformer.data.cleaning import CleaningReport, CleanPair, clean
from keras_transformer.data.corpus import Corpus
from keras_transformer.data.report import describe_store, describe_vocabulary, summary
from keras_transformer.data.token_store import EncodedPair, TokenStore, TokenStoreWriter
from keras_transformer.errors import InputError
from keras_transformer.text.vocabulary import (
    ModelType,
    Normalization,
    Vocabulary,
    check_learning_options,
    learn_vocabulary,
)

# Part of the fingerprint: raised whenever the same input would give another result.
_FORMAT = 1
_BATCH = 8192  # pairs encoded at once: enough for the library's threads


@dataclasses.dataclass(frozen=True)
class PrepareOptions:
    """How to prepare a corpus.

    `vocab_size` to `normalization` are those of `learn_vocabulary` and count for
    nothing where a vocabulary is given. Pairs with a side of more than
    `max_tokens` tokens (end id counted) or `max_bytes` bytes are dropped.
    `valid_pairs` are held out of the training corpus where no validation corpus is
    given (None: 2 % of it, from 1 to 1000).
    """

    vocab_size: int = 8000
    model_type: ModelType = "unigram"
    byte_fallback: bool = False
    separate_vocabularies: bool = False
    character_coverage: float = 1.0
    normalization: Normalization = "nmt_nfkc"
    max_tokens: int = 256
    max_bytes: int = 16_384
    valid_pairs: int | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        check_learning_options(
            self.vocab_size, self.model_type, self.character_coverage, self.normalization
        )
        for name, least in (("max_tokens", 2), ("max_bytes", 1), ("valid_pairs", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"{name} is {value}; expected {least} or more")


@dataclasses.dataclass(frozen=True)
class PreparedData:
    """What `prepare` left: where, its report, and whether it was there before."""

    directory: Path
    report: dict[str, Any]
    reused: bool

    def summary(self) -> str:
        """Returns a few lines for a person to read."""
        state = "already holds this data" if self.reused else "is ready"
        return f"{self.directory} {state}\n{summary(self.report)}"


def prepare(
    corpora: Sequence[Corpus],
    output_dir: str | Path,
    options: PrepareOptions | None = None,
    *,
    valid_corpora: Sequence[Corpus] = (),
    vocab_from: str | Path | None = None,
) -> PreparedData:
    """Cleans, learns a vocabulary from, and encodes parallel corpora.

    `output_dir` appears only when complete, with `tokenizer/`, the token stores
    `train/` and `valid/`, and `report.json`. Each corpus is read three times (four
    with separate vocabularies) rather than held in memory.

    Args:
        corpora: to train on.
        output_dir: a new directory, or the result of the same input and options, which
            is then left as it is.
        options: None for the defaults.
        valid_corpora: to validate on; pairs are held out of `corpora` if empty.
        vocab_from: directory whose vocabulary to use: a tokenizer's, or prepared data.

    Returns:
        Directory and report.

    Raises:
        InputError: for what the corpora refuse, an `output_dir` that holds something
            else, a vocabulary that cannot be learned or read, and for no pair left.
    """
    if not corpora:
        raise InputError("no corpus is given; expected parallel files, or a TFDS translation set")
    options = options or PrepareOptions()
    output_dir = Path(output_dir)
    start = time.monotonic()
    vocabulary = None if vocab_from is None else _given_vocabulary(vocab_from, options)
    existing = _existing_report(output_dir)
    inputs, cleaning = {}, {}
    for name, group in (("train", corpora), ("valid", valid_corpora)):
        if group or name == "train":
            inputs[name], cleaning[name] = _survey(name, group, options.max_bytes)
    report: dict[str, Any] = {
        "fingerprint": _fingerprint(inputs, options, vocabulary),
        "inputs": inputs,
        "options": dataclasses.asdict(options),
        "vocab_from": None if vocab_from is None else str(vocab_from),
    }
    if existing is not None:
        return _reuse(output_dir, existing, report["fingerprint"])
    held_out = set() if valid_corpora else _held_out(cleaning["train"].kept, options)
    with _moved_when_complete(output_dir) as directory:
        if vocabulary is None:
            vocabulary = _learn(corpora, held_out, options)
        vocabulary.save(directory / "tokenizer")
        report["vocabulary"] = describe_vocabulary(vocabulary)
        report["held_out"] = len(held_out)
        report |= _encode(corpora, valid_corpora, held_out, vocabulary, options, directory)
        report["seconds"] = round(time.monotonic() - start, 1)
        text = json.dumps(report, indent=1, ensure_ascii=False)
        (directory / "report.json").write_text(text + "\n", encoding="utf-8")
    return PreparedData(output_dir, report, reused=False)


def _given_vocabulary(directory: str | Path, options: PrepareOptions) -> Vocabulary:
    vocabulary = Vocabulary.load(directory)
    if options.separate_vocabularies and vocabulary.joint:
        raise InputError(f"the vocabulary of {directory} is joint; expected separate vocabularies")
    return vocabulary


def _survey(
    name: str, corpora: Sequence[Corpus], max_bytes: int
) -> tuple[list[dict[str, Any]], CleaningReport]:
    """Reads everything once: nothing is written before all input is known to be good.

    The SHA-256 of a corpus is that of `source TAB target LF` for its pairs, which
    `paste SOURCE TARGET | sha256sum` gives for two files with plain line ends.
    """
    inputs, report = [], CleaningReport()
    for corpus in corpora:
        digest = hashlib.sha256()
        before = report.read
        pairs = _hashed(_progress(corpus, "reading"), digest)
        for _ in clean(corpus.name, pairs, max_bytes, report):
            pass
        inputs.append(
            {
                "name": corpus.name,
                "pairs": report.read - before,
                "sha256": digest.hexdigest(),
            }
        )
    _require_pairs(report.kept, name, report)
    return inputs, report


def _hashed(
    pairs: Iterable[tuple[bytes, bytes]], digest: hashlib._Hash
) -> Iterator[tuple[bytes, bytes]]:
    for source, target in pairs:
        digest.update(b"%b\t%b\n" % (source, target))
        yield source, target


def _progress(corpus: Corpus, what: str) -> Iterable[tuple[bytes, bytes]]:
    # disable=None: only on a terminal.
    return tqdm(corpus.pairs(), desc=what, unit=" pairs", unit_scale=True, disable=None)


def _require_pairs(pairs: int, split: str, report: CleaningReport) -> None:
    if not pairs:
        dropped = ", ".join(f"{n} {reason}" for reason, n in report.dropped.items())
        raise InputError(
            f"no pair is left for {split} of {report.read} read (dropped: {dropped or 'none'}); "
            "expected at least one"
        )


def _fingerprint(
    inputs: dict[str, list[dict[str, Any]]], options: PrepareOptions, given: Vocabulary | None
) -> str:
    parts = {
        "format": _FORMAT,
        "inputs": {name: [entry["sha256"] for entry in group] for name, group in inputs.items()},
        "options": dataclasses.asdict(options),
        "vocabulary": given.fingerprint if given else None,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _existing_report(output_dir: Path) -> dict[str, Any] | None:
    """Returns the report of data that is there, or None where there is room for new data."""
    if not output_dir.exists() or (output_dir.is_dir() and not any(output_dir.iterdir())):
        return None
    try:
        report = json.loads((output_dir / "report.json").read_bytes())
        if "fingerprint" in report:
            return report
    except (OSError, ValueError, TypeError):
        pass
    raise InputError(f"{output_dir} exists and is no prepared data; expected a new directory")


def _reuse(output_dir: Path, report: dict[str, Any], fingerprint: str) -> PreparedData:
    if report["fingerprint"] != fingerprint:
        raise InputError(
            f"{output_dir} holds data prepared from other input or with other options; expected a "
            "new directory"
        )
    Vocabulary.load(output_dir)
    for split in ("train", "valid"):
        TokenStore(output_dir / split)
    return PreparedData(output_dir, report, reused=True)


def _held_out(pairs: int, options: PrepareOptions) -> set[int]:
    """Draws the indices, among the clean pairs, of those to validate on."""
    wanted = options.valid_pairs or min(1000, max(1, pairs // 50))
    if wanted >= pairs:
        raise InputError(
            f"the corpus has {pairs} clean pairs, of which {wanted} should be held out for "
            "validation; expected a larger corpus, fewer valid_pairs, or validation files"
        )
    return set(random.Random(options.seed).sample(range(pairs), wanted))


@contextlib.contextmanager
def _moved_when_complete(output_dir: Path) -> Iterator[Path]:
    """Gives a hidden directory beside `output_dir` that takes its name at the end."""
    directory = output_dir.absolute().parent / f".{output_dir.name}.partial-{os.getpid()}"
    shutil.rmtree(directory, ignore_errors=True)  # of a killed process that had our number
    try:
        directory.mkdir(parents=True)
        yield directory
        directory.rename(output_dir)
    except OSError as error:
        raise InputError(f"{output_dir} cannot be written ({error})") from error
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _clean_pairs(
    corpora: Sequence[Corpus], what: str, max_bytes: int, report: CleaningReport
) -> Iterator[CleanPair]:
    for corpus in corpora:
        yield from clean(corpus.name, _progress(corpus, what), max_bytes, report)


def _learn(corpora: Sequence[Corpus], held_out: set[int], options: PrepareOptions) -> Vocabulary:
    """Learns one vocabulary, or two, from the pairs that are not held out."""

    def model(*sides: str) -> bytes:
        pairs = _clean_pairs(corpora, "vocabulary", options.max_bytes, CleaningReport())
        train = (pair for index, pair in enumerate(pairs) if index not in held_out)
        return learn_vocabulary(
            (getattr(pair, side) for pair in train for side in sides),
            options.vocab_size,
            model_type=options.model_type,
            byte_fallback=options.byte_fallback,
            seed=options.seed,
            character_coverage=options.character_coverage,
            normalization=options.normalization,
        )

    if options.separate_vocabularies:
        return Vocabulary(model("source"), model("target"))
    return Vocabulary(model("source", "target"))


def _encode(
    corpora: Sequence[Corpus],
    valid_corpora: Sequence[Corpus],
    held_out: set[int],
    vocabulary: Vocabulary,
    options: PrepareOptions,
    directory: Path,
) -> dict[str, Any]:
    """Writes both token stores and returns their part of the report."""
    cleaning = {"train": CleaningReport()}
    sizes = (vocabulary.source_vocab_size, vocabulary.target_vocab_size)
    with (
        TokenStoreWriter(directory / "train", *sizes) as train,
        TokenStoreWriter(directory / "valid", *sizes) as valid,
    ):
        for batch in _encoded(corpora, vocabulary, options, cleaning["train"]):
            train.extend([pair for index, pair in batch if index not in held_out])
            valid.extend([pair for index, pair in batch if index in held_out])
        if valid_corpora:
            cleaning["valid"] = CleaningReport()
            for batch in _encoded(valid_corpora, vocabulary, options, cleaning["valid"]):
                valid.extend([pair for _, pair in batch])
    report: dict[str, Any] = {"cleaning": {name: r.as_dict() for name, r in cleaning.items()}}
    for split in ("train", "valid"):
        store = TokenStore(directory / split)
        _require_pairs(len(store), split, cleaning.get(split, cleaning["train"]))
        report[split] = describe_store(store, vocabulary.unknown_id)
    return report


def _encoded(
    corpora: Sequence[Corpus],
    vocabulary: Vocabulary,
    options: PrepareOptions,
    report: CleaningReport,
) -> Iterator[list[tuple[int, EncodedPair]]]:
    """Yields batches of (index among the clean pairs, pair), without what the limits drop."""
    pairs = enumerate(_clean_pairs(corpora, "encoding", options.max_bytes, report))
    while batch := list(itertools.islice(pairs, _BATCH)):
        sources = vocabulary.encode_source([pair.source for _, pair in batch])
        targets = vocabulary.encode_target([pair.target for _, pair in batch])
        kept = []
        for (index, pair), source, target in zip(batch, sources, targets, strict=True):
            # SentencePiece's normalization can leave nothing but the end id.
            if len(source) == 1 or len(target) == 1:
                report.drop("empty", pair)
            elif max(len(source), len(target)) > options.max_tokens:
                report.drop("too_many_tokens", pair)
            else:
                kept.append((index, EncodedPair(pair.source, source, pair.target, target)))
        yield kept
