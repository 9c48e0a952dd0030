"""The reports of runs and of prepared data have the right numbers."""

import html
import json
import math
import re
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from keras_transformer import plugins
from keras_transformer.config import Config
from keras_transformer.data.cleaning import DropReason
from keras_transformer.data.corpus import ParallelFiles
from keras_transformer.data.prepare import PrepareOptions, prepare
from keras_transformer.errors import InputError
from keras_transformer.extensions.pages import report
from keras_transformer.extensions.pages.page import number, percent
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import learn_vocabulary
from tests.conftest import PHRASES
from tests.messages import tells

COSTS = {"tokens": 36_000.0, "step_seconds": 10.0, "training_seconds": 754.0, "peak_memory_mb": 512}


CURVES = report._curves  # which conftest.py replaces


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.setattr(report, "_curves", CURVES)
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
    return visible(report.write_report(run))


def visible(page: Path) -> str:
    text = page.read_text("utf-8")
    assert "<script" not in text and "http://localhost" not in text
    text = re.sub(r"<(style|svg).*?</\1>|<[^>]*>", " ", text, flags=re.S)
    return " ".join(html.unescape(text).split())


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
    assert report.write_report(run).read_text("utf-8") == page, "the same run gives the same page"


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
    assert report.read_history(path) == {"loss": {1: 3.0, 2: 4.0}}
    assert report.read_history(tmp_path / "missing") == {}


@pytest.mark.parametrize("missing", ["matplotlib", "jinja2"])
def test_without_its_packages_a_report_is_left_out_with_one_sentence(
    missing: str, run: RunDirectory, monkeypatch: Any, caplog: Any
) -> None:
    log(run, 100, 2.0)
    for name in [name for name in sys.modules if ".extensions.pages." in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    plugins.call_all("after_training", run)
    [record] = caplog.records
    assert tells(record.getMessage(), "'report'", "needs the extra plots", missing, "pip install")
    assert not (run.path / "report.html").exists()


def test_the_numbers_of_prepared_data(tmp_path: Path) -> None:
    sides = (["", "x\x01y & <b>", *PHRASES[:3]], ["nichts", "ⅷ", *PHRASES[3:]])
    for name, lines in zip(("a.en", "a.de"), sides, strict=True):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    rules = PrepareOptions(vocab_size=320, byte_fallback=True, valid_pairs=1, augment={"upper": 1})
    prepare([ParallelFiles(tmp_path / "a.en", tmp_path / "a.de")], tmp_path / "data", rules)
    text = visible(report.write_data_page(tmp_path / "data"))
    for fact in (
        "Training pairs 3 ", "Validation pairs 1 ", "1 of 5 pairs read",
        "The validation pairs are held out of the training corpus.",
        "5 pairs read, 4 kept.", "empty 1 20.00 % a side is empty", "empty: 1 of 1",
        "vocab_size 320 8000", "1 control characters became spaces.",
        "upper: 2 of 2", f"{PHRASES[1]} {PHRASES[1].upper()} {PHRASES[4]}",
        "Training: 1 targets", "Ⅷ VIII", "SHA-256 begins with",
    ):  # fmt: skip
        assert fact in text, fact
    wrong = dict.fromkeys(("train", "valid"), dict.fromkeys(("source", "target"), {}))
    for content in ("{", "[]", '{"step": 1}', json.dumps(wrong)):
        (tmp_path / "report.json").write_text(content)
        with pytest.raises(InputError, match="report.json"):
            report.write_data_page(tmp_path)


def test_reasons_and_formats() -> None:
    assert set(report.REASONS) == set(get_args(DropReason))
    formatted = [number(value) for value in (12345, 2.71345, 43.21345, None)]
    assert formatted == ["12,345", "2.713", "43.21", "–"]
    shares = [percent(value, 1).split() for value in (0.12345, 0.0, 1e-9)]
    assert shares == [["12.35", "%"], ["0", "%"], ["<", "0.001", "%"]]
