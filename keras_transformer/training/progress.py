"""Shows progress to the user, and ends training early: reports, early stopping and signals."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import tensorflow as tf

from keras_transformer.config import TrainingConfig
from keras_transformer.console import duration, info, progress_bar
from keras_transformer.errors import DivergedError, require
from keras_transformer.runs.run_directory import RunDirectory

# Training fails after this number of steps in a row without finite gradients.
MAX_SKIPPED_STEPS = 20


class Progress:
    """Shows the step, the loss, tokens per second and the time left, and logs all metrics.

    A terminal shows a bar. Other outputs get a line for each report. Reports also go to the run,
    with their "step", and to TensorBoard. They are means over all tokens since the last report.
    Logs are read only for a report, because reading waits for the GPU. Without a run, as in a
    worker that is not the chief, nothing is shown or recorded. `before` are the metrics of the
    checkpoint that the run resumes from.
    """

    def __init__(
        self,
        first_step: int,
        config: TrainingConfig,
        run: RunDirectory | None,
        before: Mapping[str, float] | None = None,
    ):
        self._config, self._run = config, run
        self._before, self._start = before or {}, time.monotonic()
        self._recent: list[Mapping[str, Any]] = []
        self._since = time.monotonic()
        # The step is counted here, because reading it from the trainer would wait for a GPU.
        self.step = first_step
        self.tokens = 0.0  # real target tokens trained on
        self.seconds = 0.0  # time in steps

    def __enter__(self) -> Progress:
        if self._run is not None:
            folder = str(self._run.path / "tensorboard")
            self._summaries = tf.summary.create_file_writer(folder)
        self._bar = progress_bar(
            self._config.max_steps,
            "steps",
            initial=self.step,
            # tqdm's own time left would count a validation as a slow step.
            bar_format="step {n_fmt} of {total_fmt} |{bar}|{postfix}",
            unit_scale=False,
            is_shown=self._run is not None,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        if self._run is not None:
            self._summaries.close()

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
        self._show(text)
        self._check_finite([int(logs["skipped"]) for logs in recent])

    def show_loss(self, logs: Mapping[str, Any]) -> None:
        """Shows the loss of a step between two reports, such as the first one, which compiles."""
        if self._run is not None:  # reading waits for the GPU
            self._show(f"loss {float(logs['loss']):.4f}")

    def costs(self) -> dict[str, float]:
        """Returns the cost of the whole run so far."""
        costs = {
            "training_seconds": time.monotonic() - self._start,
            "step_seconds": self.seconds,
            "tokens": self.tokens,
        }
        costs = {name: cost + self._before.get(name, 0.0) for name, cost in costs.items()}
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {**costs, "peak_memory_mb": max(peak_mb, self._before.get("peak_memory_mb", 0.0))}

    def report_validation(self, metrics: Mapping[str, float]) -> None:
        """Reports `val_loss` and other metrics of a validation."""
        self._record(metrics)
        bleu = f", BLEU {metrics['val_bleu']:.2f}" if "val_bleu" in metrics else ""
        self._print(f"validation after step {self.step}: loss {metrics['val_loss']:.4f}{bleu}")

    def _check_finite(self, skipped: Sequence[int]) -> None:
        """Raises an error, given the steps skipped in a row up to each recent step."""
        most = max(skipped)
        if most < MAX_SKIPPED_STEPS:
            return
        last = self.step - len(skipped) + 1 + skipped.index(most)
        source = ""
        if self._run is not None and (checkpoints := self._run.checkpoints()):
            source = f" with init_from={self._run.path}@{checkpoints[-1].path.name}"
        raise DivergedError(
            f"The gradients of {most} steps in a row, from step {last - most + 1} to {last}, were "
            f"not finite. Start a new run{source}, and lower training.learning_rate or set "
            "training.clip_norm."
        )

    def _record(self, metrics: Mapping[str, float]) -> None:
        if self._run is None:
            return
        # JSON cannot represent NaN and infinity.
        numbers = {k: value if math.isfinite(value) else None for k, value in metrics.items()}
        self._run.append_metrics({"step": self.step, **numbers})
        with self._summaries.as_default(step=self.step):
            for name, value in metrics.items():
                tf.summary.scalar(name, value)

    def _show(self, text: str) -> None:
        """Shows a text about the current step in the bar, or in a line."""
        if self._bar.disable:
            self._print(f"step {self.step} of {self._config.max_steps}: {text}")
        else:
            self._bar.set_postfix_str(text)

    def _print(self, line: str) -> None:
        if self._run is not None:
            info(line)


def _means(recent: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the metrics of some steps. The loss is missing if no step had finite gradients."""
    last, taken = recent[-1], [logs for logs in recent if not logs["skipped"]]
    metrics = {name: last[name] for name in ("learning_rate", "loss_scale") if name in last}
    metrics["skipped"] = float(len(recent) - len(taken))
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


def ends_interval(step: int, config: TrainingConfig) -> bool:
    """Returns whether a run is validated after `step`."""
    return step % config.checkpoint_steps == 0 or step >= config.max_steps


def bleu_is_due(step: int, config: TrainingConfig) -> bool:
    """Returns whether `step` is the first end of an interval after a multiple of `bleu_steps`."""
    if not config.bleu_steps or not ends_interval(step, config):
        return False
    interval_before = (step - 1) // config.checkpoint_steps * config.checkpoint_steps
    return step // config.bleu_steps > interval_before // config.bleu_steps


def compare_with_best(
    step: int, config: TrainingConfig, logs: Mapping[str, float], before: Mapping[str, float]
) -> dict[str, float]:
    """Returns the state of early stopping, a part of the metrics of every checkpoint.

    It is `best_val_loss` or `best_val_bleu`, `best_step`, and the number of validations in a row
    without a better one. `before` are the metrics of the checkpoint before.
    """
    metric = f"val_{config.best_metric}"
    names = (f"best_{metric}", "best_step", "validations_since_best")
    state = {name: before[name] for name in names} if names[0] in before else {}
    if metric not in logs:
        return state
    value, by_loss = logs[metric], metric == "val_loss"
    best, best_step, count = (
        state.values() if state else (math.inf if by_loss else -math.inf, float(step), 0.0)
    )
    if value < best if by_loss else value > best:
        best, best_step, count = value, float(step), -1.0
    return dict(zip(names, (best, best_step, count + 1), strict=True))


def early_stopping_reason(config: TrainingConfig, metrics: Mapping[str, float]) -> str:
    """Returns why validations have ended training, or "" if they have not."""
    metric = f"val_{config.best_metric}"
    count = metrics.get("validations_since_best", 0.0)
    if f"best_{metric}" not in metrics or not 0 < config.early_stopping <= count:
        return ""
    return (
        f"no better {metric} in the last {count:.0f} validations; best "
        f"{metrics[f'best_{metric}']:.4g} at step {metrics['best_step']:.0f}"
    )


def is_finished(step: int, config: TrainingConfig, metrics: Mapping[str, float]) -> bool:
    """True if a run needs no more steps. Everything that ends training asks this function.

    `metrics` are those of the newest checkpoint.
    """
    return step >= config.max_steps or bool(early_stopping_reason(config, metrics))


class StopRequest:
    """A request to end training, by a signal or after `max_minutes`.

    Training ends with a checkpoint after the step. A second Ctrl-C ends it at once.
    """

    def __init__(self, max_minutes: float | None = None):
        minutes = math.inf if max_minutes is None else max_minutes
        require(minutes > 0, f"max_minutes is {minutes}, but it must be more than 0.")
        self._deadline = time.monotonic() + 60 * minutes
        self.interrupted = False

    def handle_signal(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return  # a cluster may send SIGTERM repeatedly, and a terminal SIGHUP after Ctrl-C
        self.interrupted = True
        with contextlib.suppress(OSError):  # after SIGHUP the terminal may be gone
            # print must not be used here, because the signal may have interrupted a print.
            os.write(2, b"\nstopping after this step, with a checkpoint ...\n")

    def __bool__(self) -> bool:
        return self.interrupted or time.monotonic() >= self._deadline
