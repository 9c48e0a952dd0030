"""What an export finds, in a process of its own, against what the run finds."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.decoding import NEG_INF
from keras_transformer.errors import InputError
from keras_transformer.export import fresh_process
from keras_transformer.export.extra_signatures import ExtraSignatures
from keras_transformer.inference.batching import batches
from keras_transformer.inference.translator import Translator

_TIE = 1e-4  # scores as close as this may change places from one machine to another
_MOST_TIES = 0.01  # of the sentences; of a trained model there is hardly one
_SIGNATURES = ("serving_default", "translate", "translate_ids")


class Comparison(NamedTuple):
    """An export that translates as the run does."""

    ties: list[str]  # sentences with other tokens of the same score, told apart by rounding
    translations: list[str]  # the best of each sentence


class Found(NamedTuple):
    """What a search found for a batch."""

    ids: np.ndarray  # int32 [B, K, length]
    lengths: np.ndarray  # int32 [B, K]
    scores: np.ndarray  # float32 [B, K]

    def tokens(self, row: int) -> list[list[int]]:
        """Returns the tokens of each hypothesis of a sentence."""
        pairs = zip(self.ids[row], self.lengths[row], strict=True)
        return [hypothesis[:length].tolist() for hypothesis, length in pairs]


def compare(
    translator: Translator,
    path: Path,
    sentences: Sequence[str],
    extra: ExtraSignatures | None = None,
) -> Comparison:
    """Translates all sentences by both, in the same batches.

    Args:
        translator: the run's.
        path: the SavedModel, which is moved elsewhere and made read-only meanwhile.
        sentences: what is translated.
        extra: signatures of the export that are compared too.

    Raises:
        InputError: for the first sentence whose scores differ by more than rounding, or
            which the run finds no translation of.
        RuntimeError: where the SavedModel needs more than TensorFlow and tensorflow-text.
    """
    todo = batches(sentences)
    texts = [[sentences[i] for i in batch] for batch in todo]
    asked = {
        "batches": texts,
        "length_penalty": translator.config.length_penalty,
        "extra_signatures": {} if extra is None else dict(extra.compared),
    }
    with _started(path, asked) as process:
        results = [translator.search(tf.constant(batch)) for batch in texts]
        served, theirs = process.wait()
    ours = [Found(*(r.numpy() for r in (one.ids, one.lengths, one.scores))) for one in results]
    found = [translator.texts(one)[:, 0].numpy() for one in results]
    translations, ties = [""] * len(sentences), {}
    for batch, own, other, best in zip(todo, ours, theirs, found, strict=True):
        for row, index in enumerate(batch):
            translations[index] = best[row].decode("utf-8", "replace")
            tie = difference(own, other, row, f"sentence {index + 1}", sentences[index])
            if tie:
                ties[index] = tie
    expected = dict.fromkeys(served, ours[0].scores)
    if extra is not None:
        for name in extra.compared:
            outputs = extra.functions[name](tf.constant(texts[0]))
            expected[name] = outputs["scores"].numpy()
    for name, scores in served.items():
        if name == "translate_ids" and translator.config.sample:
            continue  # what it draws for ids is not what is drawn for their text
        # Written so that a score that is no number fails.
        if not np.all(np.abs(scores - expected[name]) < _TIE):
            raise InputError(
                f"the signature {name} gives other scores than the search within it; expected the "
                "same, so nothing was exported"
            )
    check_ties([*ties.values()], len(sentences))
    return Comparison([ties[index] for index in sorted(ties)], translations)


def check_ties(ties: Sequence[str], sentences: int) -> None:
    """Raises InputError where so many sentences have ties that it can be no rounding."""
    if len(ties) > max(1, _MOST_TIES * sentences):
        raise InputError(
            f"{len(ties):,} of {sentences:,} sentences have other tokens of the same score; "
            f"expected at most {_MOST_TIES:.0%}, so nothing was exported"
        )


def difference(own: Found, other: Found, row: int, name: str, sentence: str) -> str | None:
    """Compares what run and export have found for one sentence.

    Returns:
        What is said of a tie, or None where all is the same.

    Raises:
        InputError: for other scores, or where the run finds no translation.
    """
    scores, other_scores = own.scores[row], other.scores[row]
    if sentence.strip() and scores[0] <= NEG_INF / 2:
        raise InputError(
            f"the run finds no translation of {name} ({sentence[:60]!r}); expected a model whose "
            "weights are finite numbers, so nothing was exported"
        )
    # Written so that a score that is no number fails.
    same = np.abs(scores - other_scores) < _TIE
    if not np.all(same):
        place = int(np.argmin(same))
        raise InputError(
            f"the export translates {name} ({sentence[:60]!r}) with the score "
            f"{other_scores[place]:.5f}, the run with {scores[place]:.5f}; expected the same "
            "translations, so nothing was exported"
        )
    if own.tokens(row) != other.tokens(row):
        return f"{name}: {sentence[:60]!r}, score {scores[0]:.5f}"
    return None


class _Process:
    """Another process that searches for translations of the same batches.

    Args:
        model: the SavedModel.
        asked: the content of the file BATCHES of `fresh_process`.
        folder: for temporary files.
    """

    def __init__(self, model: Path, asked: Mapping[str, Any], folder: Path):
        self._found, given = folder / "found.npz", folder / "batches.json"
        self._log = folder / "log"
        self._count = len(asked["batches"])
        self._names = (*_SIGNATURES, *asked["extra_signatures"])
        given.write_text(json.dumps(asked), encoding="utf-8")
        script = [sys.executable, "-I", fresh_process.__file__]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*script, str(model), str(given), str(self._found)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def wait(self) -> tuple[dict[str, np.ndarray], list[Found]]:
        """Returns each signature's scores of the first batch, and what was found for all."""
        if self._process.wait():
            lines = self._log.read_text("utf-8", "replace").strip().splitlines()
            raise RuntimeError(
                "the export does not work where only TensorFlow and tensorflow-text are loaded: "
                + (lines[-1] if lines else f"exit code {self._process.returncode}")
            )
        with np.load(self._found) as arrays:
            found = [
                Found(*(arrays[f"{name}_{number}"] for name in Found._fields))
                for number in range(self._count)
            ]
            return {name: arrays[name] for name in self._names}, found

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def _started(path: Path, asked: Mapping[str, Any]) -> Iterator[_Process]:
    """Starts the process on the SavedModel, which is elsewhere and read-only within the block."""
    moved = path.with_name(f"{path.name}-moved")
    path.rename(moved)
    paths = [moved, *moved.rglob("*")]
    modes = {each: each.stat().st_mode for each in paths}
    try:
        for each, mode in modes.items():
            os.chmod(each, mode & ~0o222)
        with tempfile.TemporaryDirectory() as folder:
            process = _Process(moved, asked, Path(folder))
            try:
                yield process
            finally:
                process.stop()
    finally:
        for each, mode in modes.items():
            os.chmod(each, mode)
        moved.rename(path)
