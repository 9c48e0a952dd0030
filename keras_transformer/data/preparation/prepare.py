"""From parallel text to a directory that training reads: vocabulary, token stores, report."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.data.corpora.corpus import BlockReader, Corpus
from keras_transformer.data.preparation.pipeline import (
    SPLITS,
    Preparation,
    PrepareOptions,
    progress,
)
from keras_transformer.data.preparation.report import summary
from keras_transformer.data.preparation.workers import Runner, Workers
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.runs.atomic import work_directory
from keras_transformer.text.vocabulary import Vocabulary

__all__ = ["PrepareOptions", "PreparedData", "prepare"]

# Part of the fingerprint: raised whenever the same input would give another result.
_FORMAT = 2
# Options that are newer than data people have: with its default one is as if it were not there.
_NEWER = {"drop_repetitive": False}
# Raised whenever what a stage leaves for the next is something else: then work begins anew.
_WORK = 2


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
    vocab_from: str | Path | Vocabulary | None = None,
    runner: Runner | None = None,
) -> PreparedData:
    """Cleans, learns a vocabulary from, and encodes parallel corpora.

    `output_dir` appears only when complete, with `tokenizer/`, the token stores
    `train/` and `valid/`, and `report.json`. What is done already when it is killed stands
    in a hidden directory beside it, from which the same call continues. Memory does not
    grow with the corpus: text is cleaned and encoded block by block.

    Args:
        corpora: to train on; each is read twice.
        output_dir: a new directory, or the result of the same input and options, which
            is then left as it is.
        options: None for the defaults.
        valid_corpora: to validate on; pairs are held out of `corpora` if empty.
        vocab_from: directory whose vocabulary to use, a tokenizer's or prepared data; or the
            vocabulary itself.
        runner: who does the work; None for this process. The result does not depend on it.

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
    seconds: dict[str, float] = {}
    vocabulary = None if vocab_from is None else _given_vocabulary(vocab_from, options)
    existing = _existing_report(output_dir)
    corpora_of = {"train": corpora, "valid": valid_corpora}
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
        preparation = Preparation(directory, options, runner or Workers(1))
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
        raise InputError(f"the vocabulary of {directory} is joint; expected separate vocabularies")
    for symbol in options.all_symbols():
        if symbol not in vocabulary.source_symbols():
            raise InputError(
                f"the vocabulary of {directory} has no piece {symbol}; expected one that was "
                "learned with it among its symbols"
            )
    return vocabulary


def _survey(corpora: Sequence[Corpus]) -> list[dict[str, Any]]:
    """Reads everything once: nothing is done before the lines are known to be aligned."""
    inputs = []
    with progress("reading", None) as bar:
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
            for name, value in dataclasses.asdict(options).items()
            if name not in _NEWER or value != _NEWER[name]
        },
        "vocabulary": given.fingerprint if given else None,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _existing_report(output_dir: Path) -> dict[str, Any] | None:
    """Returns the report of data that is there, or None where there is room for new data."""
    try:
        if not output_dir.exists() or (output_dir.is_dir() and not any(output_dir.iterdir())):
            return None
    except OSError as error:
        raise InputError(
            f"{output_dir} cannot be read ({error.strerror}); expected a new directory"
        ) from None
    try:
        report = json.loads((output_dir / "report.json").read_bytes())
        if isinstance(report, dict) and "fingerprint" in report:
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
    for split in SPLITS:
        TokenStore(output_dir / split)
    return PreparedData(output_dir, report, reused=True)
