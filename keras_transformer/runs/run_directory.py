"""The format of a run on disk.

    config.json       the three configurations, and the architecture that the run is of
    data.json         fingerprint of the corpus that the run is trained on, the version of the
                      order of its batches, and what the run began from
    tokenizer/        SentencePiece models
    checkpoints/      step-00001000/{weights, state, ema}.npz and checkpoint.json, newest last
    averages/         NAME/weights.npz and checkpoint.json, averaged over checkpoints
    selected.json     which weights evaluate, translate and export read
    metrics.jsonl     one JSON object a line
    tensorboard/      event files
    data_report.json  what `prepare` said of the corpus, and data_report_2.json of the next that is
                      mixed; written by training
    report.html       curves, scores, configuration and data on a page; written by `report`

`checkpoints.py` has the format of one checkpoint. A hidden `….unfinished` is what a
kill left; it is removed when the run is continued. A `damaged-…` checkpoint was set
aside and stays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.config import SCHEDULES_OVER_MAX_STEPS, RunConfig
from keras_transformer.errors import InputError
from keras_transformer.runs.atomic import (
    is_leftover,
    remove,
    remove_leftovers,
    sync_tree,
    write_text,
)
from keras_transformer.runs.checkpoints import (
    Arrays,
    Damaged,
    read_arrays,
    read_checkpoint,
    read_facts,
    reading,
    set_aside,
    write_checkpoint,
    writing,
)
from keras_transformer.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

# What may differ when a run is continued: how long and how often, and how a step is computed.
# None of it changes the steps already taken, nor what a coming one is but for rounding and,
# with accumulate_steps as with another number of devices, for which units dropout drops: a run
# has to be able to move to a machine with less memory.
_FREE_TO_CHANGE = frozenset(
    "max_steps checkpoint_steps keep_checkpoints keep_best best_metric early_stopping bleu_steps "
    "bleu_sentences max_skipped_steps log_steps accumulate_steps jit_compile deterministic".split()
)

# What a creation that was killed may leave: config.json comes last.
_UNFINISHED = {"checkpoints", "tokenizer", "data.json"}


class Checkpoint(NamedTuple):
    """A whole checkpoint on disk."""

    step: int
    path: Path


class Restored(NamedTuple):
    """What a checkpoint holds."""

    checkpoint: Checkpoint
    weights: Arrays
    state: Arrays  # of the training: optimizer, counters, loss scale
    ema: Arrays | None
    metrics: dict[str, float]


def data_report_name(number: int) -> str:
    """Returns the file of the corpus of a number, from 1, of those that a run is trained on."""
    return "data_report.json" if number == 1 else f"data_report_{number}.json"


def _write_data(path: Path, fingerprint: str, init_from: str | None, batch_order: int) -> None:
    data = {"fingerprint": fingerprint, "init_from": init_from, "batch_order": batch_order}
    write_text(path / "data.json", json.dumps(data) + "\n")


class RunDirectory:
    """A run on disk.

    Attributes:
        path: its directory.
        config: the three configurations.
        data_fingerprint: that of what it is trained and validated on.
        batch_order: the version of the order of batches that it was begun with.
        init_from: where its first weights came from, or None.

    Args:
        path: an existing run directory.
        config_type: configuration class of the expected architecture; by default any
            registered architecture is accepted.

    Raises:
        InputError: for a missing run, or one of another architecture.
    """

    def __init__(self, path: str | Path, config_type: type[RunConfig] = RunConfig):
        self.path = Path(path)
        if not self.is_run(path):
            missing = next(n for n in ("config.json", "data.json") if not (self.path / n).is_file())
            what = f"no run directory (it has no {missing})" if self.path.exists() else "not there"
            raise InputError(f"{path} is {what}; expected what bin/train.py --run_dir writes")
        config, data = self.path / "config.json", self.path / "data.json"
        with reading(config, "JSON"):
            self.config = config_type.from_json(config.read_text(encoding="utf-8"), str(config))
        with reading(data, "JSON"):
            content = dict(json.loads(data.read_text(encoding="utf-8")))
            self.data_fingerprint = str(content["fingerprint"])
            self.batch_order = int(content.get("batch_order", 1))  # older runs do not say
            self.init_from: str | None = content.get("init_from")

    @staticmethod
    def is_run(path: str | Path) -> bool:
        """Whether `path` holds a run, told by its content."""
        return all(os.path.isfile(Path(path) / name) for name in ("config.json", "data.json"))

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: RunConfig,
        tokenizer: Tokenizer,
        data_fingerprint: str,
        init_from: str | None = None,
        batch_order: int = 1,
    ) -> RunDirectory:
        """Makes a run directory, or opens the one that is there to continue it.

        Args:
            path: a new or empty directory, or that of the same run.
            config: the configuration; some of it may have changed since the run began.
            tokenizer: the tokenizer.
            data_fingerprint: that of what is trained and validated on.
            init_from: where the first weights come from; a run that is continued
                keeps what it began with.
            batch_order: the version of the order of batches, which a run keeps from its first
                checkpoint on.

        Raises:
            InputError: where `path` holds something else, a run of another
                configuration, vocabulary or corpus, or cannot be written.
        """
        path = Path(path)
        if cls.is_run(path):
            run = cls(path, type(config))
            run._check_continues(config, tokenizer, data_fingerprint)
            with writing(path):
                if not run.checkpoints():
                    _write_data(path, run.data_fingerprint, run.init_from, batch_order)
                for folder in (path, path / "checkpoints", path / "averages"):
                    remove_leftovers(folder)
                write_text(path / "config.json", config.to_json())
            return cls(path, type(config))
        with writing(path):
            if path.exists() and not (
                path.is_dir()
                and all(entry.name in _UNFINISHED or is_leftover(entry) for entry in path.iterdir())
            ):
                raise InputError(
                    f"{path} exists and is no run directory; expected a new or empty one"
                )
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            remove_leftovers(path)
            tokenizer.save(path / "tokenizer")
            sync_tree(path / "tokenizer")
            _write_data(path, data_fingerprint, init_from, batch_order)
            write_text(path / "config.json", config.to_json())  # last: it makes the run whole
        return cls(path, type(config))

    def _check_continues(self, config: RunConfig, tokenizer: Tokenizer, fingerprint: str) -> None:
        if self.tokenizer().fingerprint != tokenizer.fingerprint:
            raise InputError(
                f"{self.path} was trained with another vocabulary than the data directory's; "
                "expected the data directory that the run began with"
            )
        if self.data_fingerprint != fingerprint:
            raise InputError(
                f"{self.path} was trained on another corpus than the data directory's; "
                "expected the data directory, and the mixture, that the run began with"
            )
        if difference := _difference(self.config, config):
            raise InputError(
                f"{self.path} holds a run with {difference}; expected the configuration it began "
                "with, or another --run_dir"
            )

    def tokenizer(self) -> Tokenizer:
        """Returns the run's tokenizer."""
        return Tokenizer.load(self.path / "tokenizer")

    # Checkpoints.

    def checkpoints(self) -> list[Checkpoint]:
        """Returns the checkpoints, oldest first; each was whole when it got its name."""
        found = (self.path / "checkpoints").glob("step-" + "[0-9]" * 8)
        return sorted(Checkpoint(int(path.name.removeprefix("step-")), path) for path in found)

    def best_checkpoints(self) -> list[Checkpoint]:
        """Returns the checkpoints with the metric `training.best_metric`, best first.

        That is the lowest `val_loss` or the highest `val_bleu`; of equals, the
        older is the better.
        """
        by_loss = self.config.training.best_metric == "loss"
        costs = {}
        for checkpoint in self.checkpoints():
            with contextlib.suppress(Damaged):
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
        """Writes a checkpoint, and removes those that are not to be kept.

        What stays are the last `training.keep_checkpoints`, the best
        `training.keep_best`, and what is selected. One between two of
        `training.checkpoint_steps`, where the run was stopped, counts for neither once another
        follows: a run that was stopped is to have the averages of one that never was.

        Args:
            step: batches taken so far.
            weights: the model's weights.
            state: all else that the next step depends on.
            metrics: what is known of the weights.
            ema: the weights' moving average.

        Raises:
            InputError: where it cannot be written; what was there is untouched.
        """
        path = self.path / "checkpoints" / f"step-{step:08d}"
        facts = {
            "step": step,
            "seed": self.config.training.seed,
            "data_fingerprint": self.data_fingerprint,
            "config": self.config.as_dict(),
            "metrics": dict(metrics),
        }
        arrays = {"weights": weights, "state": state}
        if ema is not None:
            arrays["ema"] = ema
        try:
            write_checkpoint(path, facts, arrays)
        except OSError as error:
            raise InputError(
                f"{path} could not be written ({error.strerror}); earlier checkpoints are whole"
            ) from error
        with writing(path.parent):
            self._remove_old_checkpoints()

    def _remove_old_checkpoints(self) -> None:
        training, selected = self.config.training, self.selected
        checkpoints = self.checkpoints()
        earlier = [each for each in checkpoints[:-1] if not self._is_of_a_stop(each)]
        regular = [*earlier, *checkpoints[-1:]]
        best = [each for each in self.best_checkpoints() if each in regular]
        kept = {
            *regular[-training.keep_checkpoints :],
            *best[: max(training.keep_best, selected == "best")],
        }
        for checkpoint in checkpoints:
            if checkpoint not in kept and checkpoint.path.name != selected:
                remove(checkpoint.path)

    def _is_of_a_stop(self, checkpoint: Checkpoint) -> bool:
        """Whether it was written between two that the run's configuration asked for then."""
        try:
            training = read_facts(checkpoint.path)["config"]["training"]
            steps, last = training["checkpoint_steps"], training["max_steps"]
        except (Damaged, KeyError):  # `restore` tells it
            return False
        return checkpoint.step % steps != 0 and checkpoint.step != last

    def restore(self) -> Restored | None:
        """Returns the newest whole checkpoint, or None before the first one.

        Newer ones that are damaged get another name, and a warning says why.

        Raises:
            InputError: where checkpoints are there and none is whole, or where the
                newest whole one is of another run.
        """
        damaged: dict[Path, Damaged] = {}
        for checkpoint in reversed(self.checkpoints()):
            try:
                facts, arrays = read_checkpoint(checkpoint.path)
            except Damaged as error:
                damaged[checkpoint.path] = error
                continue
            self._check_is_ours(checkpoint, facts)
            for path, reason in damaged.items():
                with writing(path):
                    aside = set_aside(path)
                log.warning(
                    "%s; it is now %s, and step %d the last", reason, aside.name, checkpoint.step
                )
            return Restored(
                checkpoint, arrays["weights"], arrays["state"], arrays.get("ema"), facts["metrics"]
            )
        if damaged:  # they keep their names: a run must not silently begin again
            raise InputError(
                f"{self.path / 'checkpoints'} has {len(damaged)} checkpoints, none of them whole: "
                f"{next(iter(damaged.values()))}"
            )
        return None

    def _check_is_ours(self, checkpoint: Checkpoint, facts: Mapping[str, Any]) -> None:
        if facts["step"] != checkpoint.step:
            difference: str | None = f"step {facts['step']}"
        elif facts["data_fingerprint"] != self.data_fingerprint:
            difference = "another corpus"
        else:
            its_config = type(self.config).from_json(
                json.dumps(facts["config"]), str(checkpoint.path)
            )
            difference = _difference(its_config, self.config)
        if difference:
            raise InputError(
                f"{checkpoint.path} is of {difference}; expected a checkpoint of this run"
            )

    def read_weights(self, checkpoint: Checkpoint) -> Arrays:
        """Returns a checkpoint's weights.

        Raises:
            InputError: where it is damaged.
        """
        return read_arrays(checkpoint.path, "weights")

    def read_metrics(self, checkpoint: Checkpoint) -> dict[str, float]:
        """Returns the metrics that a checkpoint was written with; raises as `read_weights`."""
        return dict(read_facts(checkpoint.path)["metrics"])

    # Which weights are used.

    def save_average(self, name: str, weights: Arrays) -> None:
        """Writes averaged weights and selects them."""
        path = self.path / "averages" / name
        with writing(path):
            write_checkpoint(path, {"name": name}, {"weights": weights})
        self.select(name)

    def select(self, name: str) -> None:
        """Selects the weights that are evaluated, exported and translated with.

        Args:
            name: "last" for the newest checkpoint, "ema" for its moving average,
                "best" for what validated best (the moving average, where there is
                one), "step-00001000" for a certain checkpoint, or the name of an
                average. The first three mean what is there when they are read.

        Raises:
            InputError: where there is nothing of that name.
        """
        self._find(name)
        with writing(self.path / "selected.json"):
            write_text(self.path / "selected.json", json.dumps({"weights": name}) + "\n")

    @property
    def selected(self) -> str:
        """Name of the selected weights; "ema" where the run keeps one, or "last", by default."""
        file = self.path / "selected.json"
        if not file.exists():
            return "ema" if self.config.training.ema_decay > 0 else "last"
        with reading(file, "JSON"):
            return str(json.loads(file.read_text(encoding="utf-8"))["weights"])

    def selected_weights(self) -> Arrays:
        """Returns the selected weights; raises as `named_weights`."""
        return self.named_weights(self.selected)

    def named_weights(self, name: str) -> Arrays:
        """Returns the weights of a name that can be selected.

        Raises:
            InputError: where there is nothing of that name, or it is damaged.
        """
        return read_arrays(*self._find(name))

    def _find(self, name: str) -> tuple[Path, str]:
        """The directory and the set of arrays that the weights called `name` lie in."""
        checkpoints = self.checkpoints()
        if name in ("last", "best", "ema") and not checkpoints:
            raise InputError(
                f"{self.path} has no checkpoint yet; expected a run trained for at least "
                f"training.checkpoint_steps ({self.config.training.checkpoint_steps}) steps"
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
        metric = self.config.training.best_metric
        expected = {
            "best": f"a checkpoint validated by {metric} (training.best_metric)",
            "ema": "a run with training.ema_decay above 0",
        }.get(name, "last, best, ema, or the name of a checkpoint or an average")
        raise InputError(f"{self.path} has no weights named {name!r}; expected {expected}")

    @staticmethod
    def _has_ema(checkpoint: Checkpoint) -> bool:
        return "ema.npz" in read_facts(checkpoint.path)["files"]

    # Metrics.

    def data_reports(self) -> list[Path]:
        """Returns the files with what `prepare` said of each corpus, in their order."""
        paths = (self.path / data_report_name(number) for number in itertools.count(1))
        return list(itertools.takewhile(Path.exists, paths))

    @property
    def trained_tokens(self) -> int | None:
        """Tokens of the longest source of training, the end token included, where it is known."""
        try:
            reports = [json.loads(path.read_bytes()) for path in self.data_reports()]
            return max(int(report["train"]["source"]["max_length"]) for report in reports)
        except (OSError, ValueError, KeyError, TypeError):
            return None  # nothing but a remark depends on it

    def append_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Adds a line to metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        with writing(path), open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(dict(metrics)) + "\n")

    def trim_metrics(self, step: int) -> None:
        """Drops what was logged after `step`, and what a kill left half written."""
        file = self.path / "metrics.jsonl"
        if not file.exists():
            return
        kept = []
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True):
            try:
                if line.endswith("\n") and json.loads(line)["step"] <= step:
                    kept.append(line)
            except (ValueError, KeyError, TypeError):
                continue
        with writing(file):
            write_text(file, "".join(kept))

    @property
    def tensorboard_directory(self) -> Path:
        return self.path / "tensorboard"


def _difference(old: RunConfig, new: RunConfig) -> str | None:
    """Names the first field that must not differ between two parts of one run, but does."""
    fixed_length = old.training.schedule in SCHEDULES_OVER_MAX_STEPS
    for section in ("model", "training"):
        before, after = getattr(old, section), getattr(new, section)
        for name in (field.name for field in dataclasses.fields(before)):
            free = name in _FREE_TO_CHANGE and not (name == "max_steps" and fixed_length)
            if getattr(before, name) != getattr(after, name) and not free:
                return f"{section}.{name} {getattr(before, name)}, not {getattr(after, name)}"
    return None
