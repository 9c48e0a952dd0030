"""The prepared data of a run: one corpus or a mixture."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from keras_transformer.config import TrainingConfig
from keras_transformer.data.batches import Batches, parse_mix
from keras_transformer.data.prepare import PreparedData
from keras_transformer.data.token_store import TokenStore
from keras_transformer.errors import InputError
from keras_transformer.runs.checkpoints import writing
from keras_transformer.runs.run_directory import RunDirectory, data_report_name
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import Vocabulary


class TrainingData(NamedTuple):
    """Prepared data of one corpus or several, and its batches.

    Without `weights`, the shares of corpora are their sizes to the power of 1 / `temperature`.
    """

    directories: list[Path]
    tokenizer: Tokenizer
    train: list[TokenStore]
    valid: list[TokenStore]
    weights: list[Fraction] | None
    temperature: float

    @classmethod
    def open(
        cls,
        data_dir: str | Path | Sequence[str | Path],
        mix: str | None = None,
        temperature: float | None = None,
    ) -> TrainingData:
        """Opens prepared data."""
        if isinstance(data_dir, str | Path):
            data_dir = [data_dir]
        directories = [Path(directory) for directory in data_dir]
        tokenizer = Tokenizer.load(directories[0])
        for other in directories:
            found = Vocabulary.load(other).fingerprint
            if found != PreparedData.open(other).report["vocabulary"].get("fingerprint", found):
                raise InputError(
                    f"{other} is damaged: its vocabulary is not the one that was prepared. Prepare "
                    "the data again."
                )
            if found != tokenizer.fingerprint:
                raise InputError(
                    f"{other} has a different vocabulary from {directories[0]}. Prepare it with "
                    f"vocab_from={directories[0]} to mix both."
                )
        if mix is not None and temperature is not None:
            raise InputError(
                f"The mixture is given twice, by mix={mix} and by "
                f"mix_temperature={temperature}. Remove one of them."
            )
        names = [Path(os.path.abspath(directory)).name for directory in directories]
        train = [TokenStore(directory / "train") for directory in directories]
        valid = [TokenStore(directory / "valid") for directory in directories]
        for store in (*train, *valid):
            store.check((tokenizer.source_vocab_size, tokenizer.target_vocab_size))
        return cls(
            directories,
            tokenizer,
            train,
            valid,
            None if mix is None else parse_mix(mix, names),
            1.0 if temperature is None else temperature,
        )

    @property
    def fingerprint(self) -> str:
        """Fingerprint of all training and validation data."""
        both = zip(self.train, self.valid, strict=True)
        parts = [store.fingerprint for stores in both for store in stores]
        if len(parts) > 2:
            parts.append(self._mixture)
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    @property
    def _mixture(self) -> str:
        if self.weights is None:
            return f"temperature {self.temperature}"
        return " ".join(str(weight / sum(self.weights)) for weight in self.weights)

    @property
    def facts(self) -> dict[str, str]:
        """Returns the facts that must be the same on all workers."""
        return {
            "training data": " ".join(store.fingerprint for store in self.train),
            "validation data": " ".join(store.fingerprint for store in self.valid),
            "mixture": self._mixture,
            "vocabulary": self.tokenizer.fingerprint,
        }

    def batches(self, config: TrainingConfig) -> tuple[Batches, Batches]:
        """Returns the training and the validation batches."""
        # Validation sentences may be longer than all training sentences.
        longest = max(int(store.target.lengths.max(initial=0)) for store in self.valid)
        vocabulary = self.tokenizer.vocabulary
        return (
            Batches(
                self.train, config.batch_tokens, config.seed, vocabulary, config.subword_alpha,
                weights=self.weights, temperature=self.temperature, max_shapes=config.batch_shapes,
            ),
            Batches(self.valid, max(config.batch_tokens, longest), None, vocabulary),
        )  # fmt: skip

    def copy_reports(self, run: RunDirectory) -> None:
        """Copies the reports of `prepare` on the data into a run directory."""
        for number, directory in enumerate(self.directories, start=1):
            with writing(run.path):
                shutil.copyfile(directory / "report.json", run.path / data_report_name(number))
