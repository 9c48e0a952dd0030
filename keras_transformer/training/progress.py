"""What a person sees of training, and what is logged of it."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from tqdm import tqdm

from keras_transformer.config import TrainingConfig
from keras_transformer.errors import InputError


class NotFiniteError(ArithmeticError):
    """Too many steps in a row had gradients that were not finite."""


class Progress(keras.callbacks.Callback):
    """Shows step of steps, loss, perplexity, tokens per second and time left, and logs them.

    On a terminal a bar; elsewhere a line every `log_steps` steps. Every
    `log_steps` steps, and at every validation, `write` gets the metrics, means
    over the tokens since the last time, and TensorBoard gets them too. Only then
    are the logs of the steps read: a GPU would wait for each reading.

    Args:
        first_step: number of steps taken before.
        config: how the run is trained.
        write: gets the metrics, with their "step".
        tensorboard_directory: for event files.
        num_programs: how many XLA will compile: one a batch shape and replica.
        is_shown: False where another worker shows the same.

    Raises:
        InputError: where TensorBoard's files cannot be written.
        NotFiniteError: in training, after `max_skipped_steps` steps in a row whose
            gradients were not finite, before anything is made of their interval.
    """

    def __init__(
        self,
        first_step: int,
        config: TrainingConfig,
        write: Callable[[Mapping[str, Any]], None],
        tensorboard_directory: Path,
        num_programs: int,
        is_shown: bool = True,
    ):
        super().__init__()
        self._config = config
        self._write = write
        self._tensorboard_directory = tensorboard_directory
        with self._writing():
            self._summaries = tf.summary.create_file_writer(str(tensorboard_directory))
        self._num_programs = num_programs
        self._is_shown = is_shown
        self._num_compiles = 0
        self._recent: list[Mapping[str, Any]] = []
        self._step = first_step  # counted here: reading the trainer's would wait for a GPU
        self.tokens = 0.0  # real target tokens trained on
        self.seconds = 0.0  # spent in steps

    def __enter__(self) -> Progress:
        self._bar = tqdm(
            total=self._config.max_steps,
            initial=self._step,
            # Without its time left, which would take a validation for a slow step.
            bar_format="step {n_fmt} of {total_fmt} |{bar}|{postfix}",
            disable=not (self._is_shown and sys.stderr.isatty()),
            dynamic_ncols=True,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.close()
        try:
            with self._writing():
                self._summaries.close()
        except InputError:
            if kind is None:  # else what has ended training is what matters
                raise

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError as error:  # TensorFlow writes through ops of its own
            reason = error.message.strip().splitlines()[-1]
            raise InputError(
                f"{self._tensorboard_directory} cannot be written ({reason}); expected a "
                "directory with room"
            ) from error

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._since = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if not self._recent:
            self._first_seconds = time.monotonic() - self._since
        self._step += 1
        self._recent.append(logs)
        self._bar.update(1)
        # At the end of an interval too, so that validation and checkpoints do not count.
        last = batch + 1 == self.params["steps"] or self.model.stop_training
        if last or self._step % self._config.log_steps == 0:
            self._report()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        validation = {k: float(v) for k, v in (logs or {}).items() if k.startswith("val_")}
        if validation:
            self._record(validation)
            bleu = f", BLEU {validation['val_bleu']:.2f}" if "val_bleu" in validation else ""
            self._say(
                f"validation after step {self._step}: loss {validation['val_loss']:.4f}, "
                f"perplexity {validation['val_perplexity']:.2f}, "
                f"token accuracy {100 * validation['val_accuracy']:.1f} %{bleu}"
            )

    def _report(self) -> None:
        recent = [{name: float(log) for name, log in logs.items()} for logs in self._recent]
        self._recent = []
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        tokens = sum(logs["tokens"] for logs in recent)
        self.tokens += tokens
        self.seconds += seconds
        metrics = {**_means(recent), "tokens_per_second": tokens / seconds}
        if self.model.num_compiles:
            metrics["compiles"] = float(self.model.num_compiles)
        self._record(metrics)
        # The first step may have waited for a graph or a compiler, which says nothing of the rest.
        rest = len(recent) - 1
        self._show(metrics, (seconds - self._first_seconds) / rest if rest else seconds)
        self._check_finite([int(logs["skipped"]) for logs in recent])

    def _show(self, metrics: Mapping[str, float], seconds_per_step: float) -> None:
        compiles = int(metrics.get("compiles", 0))
        if compiles > self._num_compiles:
            self._num_compiles = compiles
            self._say(f"XLA compiled {compiles} of {self._num_programs} programs")
        parts = [f"{metrics['tokens_per_second']:,.0f} tokens/s"]
        if "loss" in metrics:
            parts.insert(0, f"loss {metrics['loss']:.4f}, perplexity {metrics['perplexity']:.2f}")
        if metrics["skipped"]:
            parts.append(f"{metrics['skipped']:.0f} steps skipped, their gradients not finite")
        steps_left = self._config.max_steps - self._step
        parts.append(f"{tqdm.format_interval(steps_left * seconds_per_step)} left")
        if self._bar.disable:
            self._say(f"step {self._step} of {self._config.max_steps}: {', '.join(parts)}")
        else:
            self._bar.set_postfix_str(", ".join(parts))

    def _check_finite(self, skipped: Sequence[int]) -> None:
        """`skipped` counts, at each step since the last reading, those skipped in a row."""
        most = max(skipped)
        if most >= self._config.max_skipped_steps:
            last = self._step - len(skipped) + 1 + skipped.index(most)
            raise NotFiniteError(
                f"the gradients of {most} steps in a row, from step {last - most + 1} to {last}, "
                "were not finite"
            )

    def _record(self, metrics: Mapping[str, float]) -> None:
        # JSON has no name for what is no number.
        numbers = {k: value if math.isfinite(value) else None for k, value in metrics.items()}
        self._write({"step": self._step, **numbers})
        with self._writing(), self._summaries.as_default(step=self._step):
            for name, value in metrics.items():
                tf.summary.scalar(name, value)

    def _say(self, line: str) -> None:
        if self._is_shown:
            tqdm.write(line, file=sys.stderr)
            sys.stderr.flush()


def _means(recent: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the metrics of some steps; no loss where the gradients of none were finite."""
    metrics = {
        "learning_rate": recent[-1]["learning_rate"],
        "skipped": float(sum(logs["skipped"] > 0 for logs in recent)),
    }
    if "loss_scale" in recent[-1]:
        metrics["loss_scale"] = recent[-1]["loss_scale"]
    taken = [logs for logs in recent if not logs["skipped"]]
    if not taken:
        return metrics
    tokens = max(sum(logs["tokens"] for logs in taken), 1.0)
    means = {
        name: sum(logs[name] * logs["tokens"] for logs in taken) / tokens
        for name in taken[0]
        if name == "log_perplexity" or name.endswith("loss")
    }
    log_perplexity = means.pop("log_perplexity")
    return {
        **means,
        "perplexity": math.exp(min(log_perplexity, 700.0)),
        "gradient_norm": taken[-1]["gradient_norm"],
        **metrics,
    }
