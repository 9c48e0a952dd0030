"""From parallel text to a directory that training reads: vocabulary, token stores, report."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer.console import progress_bar
from keras_transformer.data.corpus import BlockReader, Corpus
from keras_transformer.data.pipeline import SPLITS, Preparation, PrepareOptions
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.runs.atomic import work_directory
from keras_transformer.text.vocabulary import MAX_UNKNOWN_RATE, Vocabulary

if TYPE_CHECKING:
    import tensorflow as tf

    from keras_transformer.data.batches import CorpusBatches
    from keras_transformer.text.tokenizer import Tokenizer

__all__ = ["PrepareOptions", "PreparedData", "prepare"]

# Part of the fingerprint: raised whenever the same input would give another result.
_FORMAT = 2
# Options that older data lacks. The default of such an option counts as missing.
_NEWER = {"drop_repetitive": False}
# Raised when the intermediate files of a stage change. Then unfinished work starts again.
_WORK = 4


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
        if rewritten := report["train"]["target"].get("rewritten"):  # missing in older data
            example = report["train"]["target"]["rewritten_examples"][0]
            share = rewritten / report["train"]["pairs"]
            lines.append(
                f"normalization {vocabulary['normalization']} changes {rewritten:,} training "
                f"targets ({share:.2%}), for example {example['before']!r} to "
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
        if known := report.get("valid_pairs_in_train"):  # missing in data of older versions
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
    existing = _existing_report(output_dir)
    corpora_of = {"train": corpora, "valid": valid_corpora or ()}
    with _timed("reading", seconds):
        inputs = {split: _survey(corpora_of[split]) for split in SPLITS if corpora_of[split]}
    report: dict[str, Any] = {
        "fingerprint": _fingerprint(inputs, options, vocabulary),
        "inputs": inputs,
        "options": options.in_force(learned=vocabulary is None),
        "vocab_from": str(vocab_from) if isinstance(vocab_from, str | Path) else None,
    }
    if existing is not None:
        return _reuse(output_dir, existing, report["fingerprint"])
    with work_directory(output_dir, f"{report['fingerprint']} {_WORK}") as directory:
        preparation = Preparation(directory, options, num_workers)
        with _timed("cleaning", seconds):
            cleaned = {
                split: preparation.clean(split, corpora_of[split], group)
                for split, group in inputs.items()
            }
            if not valid_corpora:
                cleaned["train"].hold_out(options)
        with _timed("vocabulary", seconds):
            vocabulary = preparation.vocabulary(cleaned["train"], vocabulary)
        with _timed("encoding", seconds):
            report |= preparation.encode(cleaned, vocabulary)
        report |= {"vocabulary": vocabulary.describe(), "seconds_of_stages": seconds}
        text = json.dumps(report, indent=1, ensure_ascii=False)
        (directory / "report.json").write_text(text + "\n", "utf-8", "backslashreplace")
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


def _survey(corpora: Sequence[Corpus]) -> list[dict[str, Any]]:
    """Reads everything once, so that misaligned corpora are refused before any work."""
    inputs = []
    with progress_bar(None, "pairs", "reading") as bar:
        for corpus in corpora:
            reader, blocks = BlockReader(corpus), 0
            for blocks, block in enumerate(reader, start=1):  # noqa: B007
                bar.update(block.texts[0].count(b"\n"))
            facts = {"name": corpus.name, "kind": type(corpus).__name__, "blocks": blocks}
            inputs.append({**facts, **reader.read._asdict()})
    return inputs


def _fingerprint(
    inputs: dict[str, list[dict[str, Any]]], options: PrepareOptions, given: Vocabulary | None
) -> str:
    parts = {
        "format": _FORMAT,
        "inputs": {
            split: [[entry["kind"], *entry["sha256"].values()] for entry in group]
            for split, group in inputs.items()
        },
        "options": {
            name: value
            for name, value in {
                **dataclasses.asdict(options),
                "symbols": options.symbols or (),  # as existing data records it
            }.items()
            if name not in _NEWER or value != _NEWER[name]
        },
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
