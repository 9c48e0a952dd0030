"""Shows and records the progress of training."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.console import duration, progress_bar, say
from keras_transformer.errors import DivergedError, InputError

# Training fails after as many steps in a row without finite gradients.
MAX_SKIPPED_STEPS = 20


class Progress:
    """Shows the step, the loss, tokens per second and the time left, and logs all metrics.

    A terminal shows a bar. Other outputs get a line for each report. Reports also go to `write`,
    with their "step", and to TensorBoard. They are means over all tokens since the last report.
    Logs are read only for a report, because reading waits for the GPU.
    """

    def __init__(
        self,
        first_step: int,
        config: TrainingConfig,
        write: Callable[[Mapping[str, Any]], None],
        tensorboard_directory: Path,
        is_shown: bool = True,
    ):
        self._config = config
        self._write = write
        self._tensorboard_directory = tensorboard_directory
        with self._writing():
            self._summaries = tf.summary.create_file_writer(str(tensorboard_directory))
        self._is_shown = is_shown
        self._recent: list[Mapping[str, Any]] = []
        self._since = time.monotonic()
        # Counted here, because reading it from the trainer would wait for a GPU.
        self.step = first_step
        self.tokens = 0.0  # real target tokens trained on
        self.seconds = 0.0  # spent in steps

    def __enter__(self) -> Progress:
        self._bar = progress_bar(
            self._config.max_steps,
            "steps",
            initial=self.step,
            # tqdm's own time left would count a validation as a slow step.
            bar_format="step {n_fmt} of {total_fmt} |{bar}|{postfix}",
            is_shown=self._is_shown,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.close()
        try:
            with self._writing():
                self._summaries.close()
        except InputError:
            if kind is None:  # do not hide an earlier error
                raise

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError as error:  # TensorFlow writes with ops
            reason = error.message.strip().splitlines()[-1]
            raise InputError(
                f"{self._tensorboard_directory} cannot be written ({reason}). Check its "
                "permissions and free space."
            ) from error

    def restart_clock(self) -> None:
        """Leaves the time until now out of the speed."""
        self._since = time.monotonic()

    def add(self, logs: Mapping[str, Any]) -> None:
        """Adds the logs of a step."""
        self.step += 1
        self._recent.append(logs)
        self._bar.update(1)

    def report(self) -> None:
        """Reports the steps since the last report. `DivergedError`: too many were skipped."""
        if not self._recent:
            return
        recent = [{name: float(log) for name, log in logs.items()} for logs in self._recent]
        self._recent = []
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        tokens = sum(logs["tokens"] for logs in recent)
        self.tokens += tokens
        self.seconds += seconds
        metrics = {**_means(recent), "tokens_per_second": tokens / seconds}
        self._record(metrics)
        time_left = (self._config.max_steps - self.step) * seconds / len(recent)
        loss = f"loss {metrics['loss']:.4f}" if "loss" in metrics else "all gradients not finite"
        text = f"{loss}, {metrics['tokens_per_second']:,.0f} tokens/s, {duration(time_left)} left"
        if self._bar.disable:
            self._print(f"step {self.step} of {self._config.max_steps}: {text}")
        else:
            self._bar.set_postfix_str(text)
        self._check_finite([int(logs["skipped"]) for logs in recent])

    def report_validation(self, metrics: Mapping[str, float]) -> None:
        """Reports `val_loss` and other metrics of a validation."""
        self._record(metrics)
        bleu = f", BLEU {metrics['val_bleu']:.2f}" if "val_bleu" in metrics else ""
        self._print(f"validation after step {self.step}: loss {metrics['val_loss']:.4f}{bleu}")

    def _check_finite(self, skipped: Sequence[int]) -> None:
        """Raises an error, given the steps skipped in a row up to each recent step."""
        most = max(skipped)
        if most >= MAX_SKIPPED_STEPS:
            last = self.step - len(skipped) + 1 + skipped.index(most)
            raise DivergedError(
                f"The gradients of {most} steps in a row, from step {last - most + 1} to {last}, "
                "were not finite."
            )

    def _record(self, metrics: Mapping[str, float]) -> None:
        # JSON cannot represent NaN and infinity.
        numbers = {k: value if math.isfinite(value) else None for k, value in metrics.items()}
        self._write({"step": self.step, **numbers})
        with self._writing(), self._summaries.as_default(step=self.step):
            for name, value in metrics.items():
                tf.summary.scalar(name, value)

    def _print(self, line: str) -> None:
        if self._is_shown:
            say(line)


def _means(recent: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the metrics of some steps. The loss is missing if no step had finite gradients."""
    last = recent[-1]
    metrics = {name: last[name] for name in ("learning_rate", "loss_scale") if name in last}
    metrics["skipped"] = float(sum(logs["skipped"] > 0 for logs in recent))
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
