"""The format of a run on disk.

    config.json       the configurations of model, training and decoding, and the architecture
    data.json         fingerprint of the training data, source of the initial weights
    tokenizer/        SentencePiece models
    checkpoints/      step-00001000/{weights, state, ema}.npz and checkpoint.json, newest last
    averages/         NAME/weights.npz and checkpoint.json, averaged over checkpoints
    selected.json     the weights that evaluation, translation and export use
    metrics.jsonl     one JSON object per line
    tensorboard/      event files
    data_report.json  report of `prepare`; data_report_2.json and so on for further mixed corpora
    report.html       curves, scores, configuration and data; written by `report`

`checkpoints.py` has the format of a checkpoint. Hidden `….unfinished` files are left by a kill and
removed when the run resumes. `damaged-…` checkpoints were set aside and stay.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer.config import RunConfig
from keras_transformer.console import warn
from keras_transformer.errors import InputError, require
from keras_transformer.runs.atomic import (
    atomic_path,
    is_leftover,
    remove,
    remove_leftovers,
    sync_tree,
    write_text,
)
from keras_transformer.runs.checkpoints import (
    Arrays,
    Checkpoint,
    DamagedCheckpointError,
    read_arrays,
    read_checkpoint,
    read_metadata,
    reading,
    write_checkpoint,
    writing,
)

if TYPE_CHECKING:  # preparing data, and the report of it, need no TensorFlow
    from keras_transformer.text.tokenizer import Tokenizer

# Files that a killed creation may leave. config.json is written last.
# Corpora with one sentence per line have up to 2.3 % of lines with several (Multi30k, Tatoeba,
# newstest2013): titles, abbreviations and quotations are counted, too.
_FEW = 0.05
_UNFINISHED = {"checkpoints", "tokenizer", "data.json"}


def data_report_name(number: int) -> str:
    """Returns the file name of the report of a corpus. Corpora are numbered from 1."""
    return "data_report.json" if number == 1 else f"data_report_{number}.json"


class RunDirectory:
    """A run on disk. `init_from` is the source of its initial weights, or None."""

    def __init__(self, path: str | Path, config_type: type[RunConfig] = RunConfig):
        self.path = Path(path)
        config, data = self.path / "config.json", self.path / "data.json"
        for file in (config, data):
            require(
                file.is_file(),
                f"{path} is not a run directory: it lacks {file.name}. Use one that "
                "keras-transformer train has written (run_dir).",
            )
        with reading(config, "JSON"):
            self.config = config_type.from_json(config.read_text(encoding="utf-8"), str(config))
        with reading(data, "JSON"):
            content = dict(json.loads(data.read_text(encoding="utf-8")))
            self.data_fingerprint = str(content["fingerprint"])
            self.init_from: str | None = content.get("init_from")

    @staticmethod
    def is_run(path: str | Path) -> bool:
        """Whether `path` contains a run."""
        return all(os.path.isfile(Path(path) / name) for name in ("config.json", "data.json"))

    @classmethod
    def split_weights(cls, model_dir: str) -> tuple[str, str | None]:
        """Splits `RUN@WEIGHTS` into the run directory and the name of its weights, if given."""
        path, at, name = model_dir.rpartition("@")
        if at and not cls.is_run(model_dir):  # the name of a directory may contain @
            return path, name
        return model_dir, None

    @classmethod
    def create(
        cls,
        path: Path,
        config: RunConfig,
        tokenizer: Tokenizer,
        data_fingerprint: str,
        init_from: str | None = None,
    ) -> RunDirectory:
        """Creates a run directory."""
        if path.exists():
            found = os.listdir(path) if path.is_dir() else [path.name]
            names = {name for name in found if not is_leftover(name)}
            message = f"{path} exists and is not a run directory. Choose a new or empty one."
            require(names <= _UNFINISHED, message)
        with writing(path):
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            tokenizer.save(path / "tokenizer")
            sync_tree(path / "tokenizer")
            data = {"fingerprint": data_fingerprint, "init_from": init_from}
            write_text(path / "data.json", json.dumps(data) + "\n")
        run = cls.__new__(cls)  # nothing has to be read back
        run.path, run.data_fingerprint, run.init_from = path, data_fingerprint, init_from
        run._write_config(config)  # this file is written last: it completes the run
        return run

    def resume(self, config: RunConfig, tokenizer: Tokenizer, data_fingerprint: str) -> None:
        """Continues the run, with a configuration that may differ in some settings."""
        require(
            self.tokenizer().fingerprint == tokenizer.fingerprint,
            f"{self.path} was trained with a vocabulary that is not in the data directory. Use the "
            "data directory of the run. To train the model on other data, prepare it with "
            f"vocab_from={self.path / 'tokenizer'}, and start a new run with "
            f"init_from={self.path}.",
        )
        require(
            self.data_fingerprint == data_fingerprint,
            f"{self.path} was trained on a corpus that is not in the data directory. Use the data "
            "directory and the mixture of the run. If the corpus has grown, start a new run with "
            f"init_from={self.path}.",
        )
        if difference := self.config.forbidden_change(config):
            raise InputError(
                f"{self.path} contains a run with {difference}. Use its configuration, or choose "
                "another run_dir."
            )
        self._write_config(config)

    def _write_config(self, config: RunConfig) -> None:
        self.config = config
        with writing(self.path):
            # Other processes may write exports and other files below a run.
            remove_leftovers(self.path, self.path / "checkpoints", self.path / "averages")
            write_text(self.path / "config.json", config.to_json())

    def tokenizer(self) -> Tokenizer:
        """Returns the run's tokenizer."""
        from keras_transformer.text.tokenizer import Tokenizer

        return Tokenizer.load(self.path / "tokenizer")

    # Checkpoints.

    def checkpoints(self) -> list[Checkpoint]:
        """Returns the complete checkpoints, oldest first."""
        found = (self.path / "checkpoints").glob("step-" + "[0-9]" * 8)
        return sorted(Checkpoint(int(path.name.removeprefix("step-")), path) for path in found)

    def best_checkpoints(self) -> list[Checkpoint]:
        """Returns the validated checkpoints, best first by `training.best_metric`.

        If two are equal, the older one is better.
        """
        by_loss = self.config.training.best_metric == "loss"
        costs = {}
        for checkpoint in self.checkpoints():
            with contextlib.suppress(DamagedCheckpointError):
                metrics = self.read_metrics(checkpoint)
                value = metrics.get("val_loss" if by_loss else "val_bleu", math.nan)
                if math.isfinite(value):
                    costs[checkpoint] = value if by_loss else -value
        return sorted(costs, key=lambda checkpoint: costs[checkpoint])

    def save_checkpoint(
        self,
        step: int,
        weights: Arrays,
        state: Arrays,
        metrics: Mapping[str, float],
        ema: Arrays | None = None,
    ) -> None:
        """Writes a checkpoint, and removes old ones.

        The last `training.keep_checkpoints`, the best `training.keep_best` and the selected
        checkpoint stay. The checkpoint of an interruption does not count once another one follows,
        so averages do not depend on interruptions.
        """
        path = self.path / "checkpoints" / f"step-{step:08d}"
        training = self.config.training
        metadata = {
            "step": step,
            "config": self.config.as_dict(),
            "metrics": dict(metrics),
            "is_regular": step % training.checkpoint_steps == 0 or step == training.max_steps,
        }
        arrays = {"weights": weights, "state": state, **({"ema": ema} if ema else {})}
        with writing(path):
            write_checkpoint(path, metadata, arrays)
            self._remove_old_checkpoints()

    def _remove_old_checkpoints(self) -> None:
        training, selected = self.config.training, self.selected
        checkpoints = self.checkpoints()
        earlier = [saved for saved in checkpoints[:-1] if not self._is_interruption(saved)]
        regular = [*earlier, *checkpoints[-1:]]
        best = [saved for saved in self.best_checkpoints() if saved in regular]
        kept = {
            *regular[-training.keep_checkpoints :],
            *best[: max(training.keep_best, selected == "best")],
        }
        for checkpoint in checkpoints:
            if checkpoint not in kept and checkpoint.path.name != selected:
                remove(checkpoint.path)

    def _is_interruption(self, checkpoint: Checkpoint) -> bool:
        """Returns True if an interruption wrote the checkpoint, between two regular ones."""
        with contextlib.suppress(DamagedCheckpointError):  # `restore` reports it
            is_at_end = checkpoint.step % self.config.training.checkpoint_steps == 0
            return not read_metadata(checkpoint.path).get("is_regular", is_at_end)
        return False

    def restore(self) -> tuple[Checkpoint, dict[str, float], dict[str, Arrays]] | None:
        """Returns the newest intact checkpoint, its metrics and its arrays: the "weights", the
        "state" of the training, and their moving average "ema". None before the first one.

        Newer checkpoints that are damaged are renamed, with a warning.
        """
        damaged: dict[Path, DamagedCheckpointError] = {}
        for checkpoint in reversed(self.checkpoints()):
            try:
                metadata, arrays = read_checkpoint(checkpoint.path)
            except DamagedCheckpointError as error:
                damaged[checkpoint.path] = error
                continue
            for path, reason in damaged.items():
                aside = path.with_name(f"damaged-{path.name}-{uuid.uuid4().hex[:8]}")
                with writing(path):
                    path.rename(aside)
                warn(
                    f"{reason} It was renamed to {aside.name}. The last checkpoint is now step "
                    f"{checkpoint.step}."
                )
            return checkpoint, metadata["metrics"], arrays
        if damaged:  # they keep their names, because a run must not silently start again
            raise InputError(
                f"{self.path / 'checkpoints'} has {len(damaged)} checkpoints, but all are damaged: "
                f"{next(iter(damaged.values()))}"
            )
        return None

    def read_weights(self, checkpoint: Checkpoint) -> Arrays:
        """Returns the weights of a checkpoint."""
        return read_arrays(checkpoint.path, "weights")

    def read_metrics(self, checkpoint: Checkpoint) -> dict[str, float]:
        """Returns the metrics of a checkpoint. Raises the errors of `read_weights`."""
        return dict(read_metadata(checkpoint.path)["metrics"])

    # Which weights are used.

    def save_average(self, name: str, weights: Arrays) -> None:
        """Writes averaged weights and selects them."""
        path = self.path / "averages" / name
        with writing(path):
            write_checkpoint(path, {"name": name}, {"weights": weights})
        self.select(name)

    def select(self, name: str) -> None:
        """Selects the weights for evaluation, export and translation.

        The name is "last" for the newest checkpoint, "ema" for its moving average, "best" for the
        best on validation (its moving average if there is one), "step-00001000" for a checkpoint,
        or that of an average. The first three are looked up when the weights are read.
        """
        self._find(name)
        with writing(self.path / "selected.json"):
            write_text(self.path / "selected.json", json.dumps({"weights": name}) + "\n")

    @property
    def selected(self) -> str:
        """Name of the selected weights. The default is "ema" if the run keeps one, else "last"."""
        file = self.path / "selected.json"
        if not file.exists():
            return "ema" if self.config.training.ema_decay > 0 else "last"
        with reading(file, "JSON"):
            return str(json.loads(file.read_text(encoding="utf-8"))["weights"])

    def named_weights(self, name: str | None = None) -> Arrays:
        """Returns the weights with a name, as in `select`; None for the selected weights."""
        return read_arrays(*self._find(name or self.selected))

    def weights_crc32(self, name: str) -> int:
        """Returns the CRC-32 of the file of the weights with a name, without reading them."""
        path, arrays = self._find(name)
        return int(read_metadata(path)["files"][f"{arrays}.npz"])

    def _find(self, name: str) -> tuple[Path, str]:
        """Returns the directory and the set of arrays of the weights with a name."""
        checkpoints = self.checkpoints()
        require(
            bool(checkpoints) or name not in ("last", "best", "ema"),
            f"{self.path} lacks a checkpoint. Train it for at least training.checkpoint_steps "
            f"({self.config.training.checkpoint_steps}) steps.",
        )
        if name == "last":
            return checkpoints[-1].path, "weights"
        if name == "ema" and self._has_ema(checkpoints[-1]):
            return checkpoints[-1].path, "ema"
        if name == "best" and (best := self.best_checkpoints()):
            return best[0].path, "ema" if self._has_ema(best[0]) else "weights"
        averages = (self.path / "averages").glob("*")
        for path in (*(checkpoint.path for checkpoint in checkpoints), *averages):
            if path.name == name:
                return path, "weights"
        raise InputError(
            f"{self.path} lacks weights named {name!r}. Choose the name of a checkpoint or an "
            f"average, last, best (if one was validated by {self.config.training.best_metric}) or "
            "ema (if training.ema_decay is above 0)."
        )

    @staticmethod
    def _has_ema(checkpoint: Checkpoint) -> bool:
        return "ema.npz" in read_metadata(checkpoint.path)["files"]

    # Metrics.

    def data_reports(self) -> list[Path]:
        """Returns the paths of the reports of `prepare` on the corpora, in order."""
        paths = (self.path / data_report_name(number) for number in itertools.count(1))
        return list(itertools.takewhile(Path.exists, paths))

    @property
    def max_train_source_length(self) -> int | None:
        """Tokens of the longest source in training, including the end token, or None if unknown."""
        return int(max(self._source_statistics("max_length"), default=0)) or None

    @property
    def single_sentences(self) -> bool:
        """Whether few training sources have several sentences. False if unknown."""
        return max(self._source_statistics("several_sentences"), default=1) < _FEW

    def _source_statistics(self, name: str) -> list[float]:
        """Returns a number for the training sources of each corpus, or [] if one is unknown."""
        try:
            reports = [json.loads(path.read_bytes()) for path in self.data_reports()]
            return [float(report["train"]["source"][name]) for report in reports]
        except (OSError, ValueError, KeyError, TypeError):
            return []  # this is harmless: only warnings and the splitting of texts depend on it

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Adds a line to metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        with writing(path), open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(dict(metrics)) + "\n")

    def trim_metrics(self, step: int) -> None:
        """Removes the metrics after `step`, and an incomplete last line."""
        file = self.path / "metrics.jsonl"
        kept: list[str] = []
        if not file.exists():
            return
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                if line.endswith("\n") and json.loads(line)["step"] <= step:
                    kept.append(line)
        with writing(file):
            write_text(file, "".join(kept))


def write_run(path: Path, config: RunConfig, tokenizer: Tokenizer, weights: Arrays) -> None:
    """Writes a model that was not trained here as a new run. It appears only when complete."""
    require(not path.exists(), f"{path} exists. Choose a new directory.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as partial:
            run = RunDirectory.create(partial, config, tokenizer, "unknown")
            run.save_checkpoint(1, weights, {}, {})
    except (InputError, OSError) as error:
        reason = getattr(error.__cause__ or error, "strerror", None) or error
        raise InputError(f"The model cannot be saved as {path} ({reason}).") from error
