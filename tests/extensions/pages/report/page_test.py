"""The report of a run has the right numbers, before, during and after training."""

from __future__ import annotations

import html
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_transformer.config import Config
from keras_transformer.extensions.pages.report.page import read_history, write_report
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import learn_vocabulary

COSTS = {"tokens": 36_000.0, "step_seconds": 10.0, "training_seconds": 754.0, "peak_memory_mb": 512}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    tokenizer = Tokenizer(learn_vocabulary([b"a small dog runs", b"ein kleiner Hund rennt"], 40))
    size = tokenizer.source_vocab_size
    config = Config().updated(
        {
            "model.source_vocab_size": size,
            "model.target_vocab_size": size,
            "training.max_steps": 400,
        }
    )
    return RunDirectory.create(tmp_path / "first <run>", config, tokenizer, "corpus")


def log(run: RunDirectory, step: int, loss: float, **more: float) -> None:
    run.append_metrics({"step": step, "loss": 2 * loss, "learning_rate": step * 1e-5})
    values = {"val_loss": loss, "val_perplexity": math.exp(loss), **more}
    run.append_metrics({"step": step, **values})
    weights = {"weight": np.zeros(2, np.float32)}
    run.save_checkpoint(step, weights, {}, {**COSTS, **values})


def text_of(run: RunDirectory) -> str:
    """Returns the visible text of the page, with one space between its parts."""
    page = write_report(run.path).read_text("utf-8")
    assert "<script" not in page and "http://localhost" not in page
    visible = re.sub(r"<(style|svg).*?</\1>|<[^>]*>", " ", page, flags=re.S)
    return " ".join(html.unescape(visible).split())


def test_a_finished_run(run: RunDirectory) -> None:
    for step, loss in ((100, 3.5), (200, 2.25), (300, 2.5), (400, 2.75)):
        log(run, step, loss, val_accuracy=1 / loss)
    text = text_of(run)
    for fact in (
        "first <run> Finished after 400 steps.",
        "Validation loss 2.250 best, step 200 last 2.750",
        "Validation perplexity 9.488 best, step 200 last 15.64",
        "Target tokens 36,000 ", "Training time 12.6 min ", "Speed 3,600 tokens/s ",
        f"Parameters {run.config.model.num_parameters():,} ", "Selected weights last ",
        "400 15.64 2.750 0.364 best, last, selected (last)",
    ):  # fmt: skip
        assert fact in text
    page = (run.path / "report.html").read_text("utf-8")
    assert "<svg" in page and ">Loss (label-smoothed)<" in page and ">Gradient norm" not in page
    assert write_report(run.path).read_text("utf-8") == page, "the same run gives the same page"


def test_a_run_before_and_during_training(run: RunDirectory) -> None:
    assert "Not started yet: step 0 of 400. Steps 0" in text_of(run)
    log(run, 100, float("nan"), val_bleu=20.5)
    text = text_of(run)
    assert "Not finished: step 100 of 400." in text
    assert "Validation loss nan last, step 100" in text and "BLEU of the validation set" in text


def test_lines_that_were_cut_off_are_left_out_and_later_lines_count(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines: list[Any] = [{"step": 2, "loss": 1}, {"step": 1, "loss": 3}, {"step": 2, "loss": 4}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3, "lo')
    assert read_history(path) == {"loss": {1: 3.0, 2: 4.0}}
    assert read_history(tmp_path / "missing") == {}


def test_without_matplotlib_the_page_says_what_is_missing(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    log(run, 100, 2.0)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "Curves need the extra plots" in text_of(run)
