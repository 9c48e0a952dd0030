"""The report of a run has correct numbers, and is complete for any content of the files."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from keras_transformer.config import Config
from keras_transformer.data.corpus import ParallelFiles
from keras_transformer.data.prepare import PrepareOptions, prepare
from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics as evaluation
from keras_transformer.extensions.pages.report.history import read_history
from keras_transformer.extensions.pages.report.page import write_report
from keras_transformer.runs.run_directory import RunDirectory
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.vocabulary import learn_vocabulary
from tests.browser import Visit
from tests.html_page import Page
from tests.messages import mentions

# Arithmetic errors in charts.
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning", "error::UserWarning")

COSTS = {"tokens": 36_000.0, "step_seconds": 10.0, "training_seconds": 754.0, "peak_memory_mb": 512}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(learn_vocabulary([b"a small dog runs", b"ein kleiner Hund rennt"], 40))


@pytest.fixture
def run(tmp_path: Path, tokenizer: Tokenizer) -> RunDirectory:
    return make_run(tmp_path / "first run", tokenizer)


def make_run(path: Path, tokenizer: Tokenizer, **settings: Any) -> RunDirectory:
    config = Config().replace(
        **{
            "model__source_vocab_size": tokenizer.source_vocab_size,
            "model__target_vocab_size": tokenizer.source_vocab_size,
            "training__max_steps": 400,
            "training__checkpoint_steps": 100,
            **settings,
        }
    )
    return RunDirectory.create(path, config, tokenizer, "corpus")


def training(step: int, **more: float) -> dict[str, float]:
    loss = 2 + 5 * math.exp(-step / 100)
    return {
        "step": step, "loss": loss, "perplexity": math.exp(loss), "gradient_norm": 1 + 1 / step,
        "learning_rate": step * 1e-5, "tokens_per_second": 3000.0 + step % 7, "skipped": 0.0,
        **more,
    }  # fmt: skip


def validation(step: int, loss: float, **more: float) -> dict[str, float]:
    values = {"loss": loss, "perplexity": math.exp(loss), "accuracy": 1 / loss, **more}
    return {f"val_{name}": value for name, value in values.items()} | {"step": step}


def log(run: RunDirectory, entries: Iterable[dict[str, float]]) -> None:
    for entry in entries:
        run.append_metrics(entry)


def checkpoint(run: RunDirectory, step: int, **metrics: float) -> None:
    weights = {"weight": np.zeros(2, np.float32)}
    run.save_checkpoint(step, weights, {}, {**COSTS, **metrics})


def page_of(run: RunDirectory) -> Page:
    path = write_report(run.path)
    assert path == run.path / "report.html"
    assert not list(run.path.glob(".*.unfinished"))
    page = Page(path.read_text(encoding="utf-8"))
    assert "script" not in page.tags
    return page


def test_finished_run(run: RunDirectory, visit: Visit) -> None:
    log(run, (training(step) for step in range(50, 401, 50)))
    for step, loss in ((100, 3.5), (200, 2.25), (300, 2.5), (400, 2.75)):
        entry = validation(step, loss)
        log(run, [entry])
        checkpoint(run, step, **{k: v for k, v in entry.items() if k != "step"})
    page = page_of(run)
    assert page.text.startswith("first run · training report first run Finished after 400 steps.")
    for fact in (
        "Validation loss 2.250 best, step 200 last 2.750",
        "Validation perplexity 9.488 best, step 200 last 15.64",
        "Validation accuracy 0.444 best, step 200 last 0.364",
        "Steps 400 ", "Target tokens 36,000 ", "Training time 12.6 min ", "Speed 3,600 tokens/s ",
        "Peak memory 512 MB ", f"Parameters {run.config.model.num_parameters():,} ",
        "Selected weights last ",
    ):  # fmt: skip
        assert fact in page.text
    charts = ["Loss", "Perplexity", "Token accuracy", "Learning rate", "Gradient norm", "Speed"]
    assert page.labels == charts and page.tags["svg"] == len(charts)
    assert "BLEU" not in page.text and "Skipped steps" not in page.text
    kept = [row for row in page.rows if row[0] in ("100", "200", "300", "400")]
    assert [(row[0], row[2], row[-1]) for row in kept] == [
        ("100", "3.500", ""),
        ("200", "2.250", "best"),
        ("300", "2.500", ""),
        ("400", "2.750", "last, selected (last)"),
    ]
    assert page_of(run).source == page.source

    # The best validation is above the other points of its curve, since less loss is lower.
    shown = visit.open(run.path / "report.html")
    box = shown.locator("svg[aria-label=Loss]").bounding_box()
    best = shown.locator("svg[aria-label=Loss] .validation .best").bounding_box()
    dots = shown.locator("svg[aria-label=Loss] .validation circle:not(.best)").all()
    heights = [dot.bounding_box()["y"] for dot in dots]
    assert len(heights) == 4 and heights[1] == max(heights)
    assert box["x"] < best["x"] < box["x"] + box["width"] and best["y"] < box["y"] + box["height"]
    assert visit.said == [] and len(visit.requests) == 1


def test_before_the_first_step(run: RunDirectory) -> None:
    page = page_of(run)
    assert "Not started yet: step 0 of 400." in page.text
    assert "Curves" not in page.text and "Data" not in page.text
    assert "Checkpoints None yet." in page.text


def test_validation_bleu_has_its_signature(tmp_path: Path, tokenizer: Tokenizer) -> None:
    run = make_run(
        tmp_path / "run", tokenizer, training__bleu_steps=100, training__bleu_sentences=500
    )
    for step, bleu in ((100, 20.5), (200, 31.25), (300, 30.0)):
        log(run, [training(step), validation(step, 2.0, bleu=bleu)])
    page = page_of(run)
    assert "Not finished: step 300 of 400." in page.text
    assert "Validation BLEU 31.25 best, step 200 last 30.00" in page.text
    signature = evaluation.evaluate(["a"], ["a"]).signature
    assert f"first 500 validation sentences, beam 4, length penalty 0.6: {signature}" in page.text
    assert "BLEU" in page.labels


def test_early_stop(tmp_path: Path, tokenizer: Tokenizer) -> None:
    run = make_run(tmp_path / "run", tokenizer, training__early_stopping=3)
    log(run, [training(200), validation(200, 2.0)])
    checkpoint(run, 200, validations_since_best=2.0)
    assert "Not finished: step 200 of 400." in page_of(run).text
    checkpoint(run, 300, validations_since_best=3.0)
    text = page_of(run).text
    assert "Stopped early at step 300 of 400: 3 validations without a better val_loss." in text


def test_loss_scale_and_skipped_steps(run: RunDirectory) -> None:
    for step in range(10, 401, 10):
        skipped = 3.0 if step in (100, 200) else 0.0
        log(run, [training(step, loss_scale=2.0 ** (15 - step // 40), skipped=skipped)])
    page = page_of(run)
    assert page.labels[-1] == "Loss scale" and "Skipped steps 6 " in page.text
    assert {"100", "1k", "10k"} <= set(page.source.replace("<", ">").split(">"))  # ticks


def test_unreadable_lines_are_counted(run: RunDirectory) -> None:
    path = run.path / "metrics.jsonl"
    log(run, [training(50)])
    good, whole = page_of(run).source, path.read_bytes()
    for alien in (
        b"\n", b'{"step": 60, "lo', b"[1]\n", b"7\n", b"null\n", b'{"loss": 1.0}\n', b"\xff\xfe\n",
        b'{"step": -1, "loss": 1.0}\n', b'{"step": 1.5, "loss": 1.0}\n', b"[" * 100_000 + b"\n",
        b'{"step": "60", "loss": 1.0}\n', b'{"step": true, "loss": 1.0}\n',
        b'{"step": 1' + b"0" * 400 + b"}\n", b'{"step": NaN}\n',
    ):  # fmt: skip
        path.write_bytes(whole + alien)
        history = read_history(path)
        assert history.ignored == 1, alien
        assert history.last_step == 50 and history.series["loss"].values.size == 1
    notice = '\n<p class="notice">1 line of metrics.jsonl could not be read.</p>'
    assert page_of(run).source.replace(notice, "") == good


def test_values_that_are_not_finite(run: RunDirectory) -> None:
    log(run, [training(50), training(100, loss=math.nan), training(150, loss=math.inf)])
    log(run, [validation(50, 3.0), validation(100, math.nan), training(200, loss=1e300)])
    assert "Validation loss 3.000 best, step 50 last nan" in page_of(run).text
    (run.path / "metrics.jsonl").unlink()
    log(run, [training(50, loss=math.nan), validation(50, math.nan)])
    assert "Validation loss nan last, step 50" in page_of(run).text


def test_later_line_of_a_step_counts(run: RunDirectory) -> None:
    log(run, [validation(50, 3.0), validation(100, 2.0), validation(50, 1.0)])
    series = read_history(run.path / "metrics.jsonl").series["val_loss"]
    assert series.steps.tolist() == [50, 100] and series.values.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("count", [1, 7, 299, 300, 301, 1000])
def test_thinned_series_keeps_mean_extremes_and_end(run: RunDirectory, count: int) -> None:
    values = np.random.default_rng(count).normal(size=count)
    log(run, ({"step": 10 * i, "loss": float(v)} for i, v in enumerate(values)))
    thinned = read_history(run.path / "metrics.jsonl").series["loss"].thinned(300)
    assert len(thinned.steps) == min(count, 300)
    assert thinned.steps[-1] == 10 * (count - 1) and (np.diff(thinned.steps) > 0).all()
    assert thinned.low.min() == values.min() and thinned.high.max() == values.max()
    assert (thinned.low <= thinned.mean).all() and (thinned.mean <= thinned.high).all()
    if count <= 300:
        np.testing.assert_array_equal(thinned.mean, values)


def test_long_run_has_a_small_page(run: RunDirectory) -> None:
    random = np.random.default_rng(1)
    lines = (
        json.dumps(training(step, loss=random.normal(3, 1), loss_scale=1.0, skipped=1.0))
        for step in range(50, 1_000_001, 50)
    )
    (run.path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    log(run, (validation(step, random.normal(3, 0.1)) for step in range(1000, 1_000_001, 1000)))
    assert write_report(run.path).stat().st_size < 400_000


def test_names_are_text(tmp_path: Path, tokenizer: Tokenizer) -> None:
    name = "<script>alert('&amp;')<"
    run = make_run(tmp_path / name, tokenizer, training__freeze="<b>&\"'")
    inputs = {"train": [{"name": "<i>corpus", "sha256": "<u>"}]}
    report = {"train": {}, "inputs": inputs, "options": {"<": ">"}}
    (run.path / "data_report.json").write_text(json.dumps(report))
    page = page_of(run)
    assert page.text.startswith(f"{name} · training report {name} ")
    assert ["training", "<i>corpus", "–", "<u>"] in page.rows
    assert ["training.freeze", "<b>&\"'", "none"] in page.rows and "< >" in page.text


def test_configuration_shows_changed_settings(tmp_path: Path, tokenizer: Tokenizer) -> None:
    run = make_run(tmp_path / "run", tokenizer, model__d_model=256, training__deterministic=True)
    page = page_of(run)
    assert ["model.d_model", "256", "512"] in page.rows
    assert ["training.deterministic", "true", "false"] in page.rows
    assert "model.d_ff" not in {row[0] for row in page.rows} and "model.d_ff 2,048 " in page.text


def test_damaged_checkpoint_is_listed(run: RunDirectory) -> None:
    log(run, [training(100)])
    checkpoint(run, 100, val_loss=2.0)
    checkpoint(run, 200, val_loss=3.0)
    for file in (run.checkpoints()[-1].path).glob("*.json"):
        file.write_bytes(b"{")
    page = page_of(run)
    assert ["100", "2.000", "best"] in page.rows
    assert ["200", "–", "last, selected (last), without metrics"] in page.rows
    assert "Target tokens 36,000" in page.text and "step 200 of 400" in page.text


def test_prepared_data_are_shown(run: RunDirectory, tmp_path: Path) -> None:
    source, target = tmp_path / "a.en", tmp_path / "a.de"
    lines = [f"a small dog runs {'very ' * (i % 30)}fast" for i in range(200)]
    source.write_text("\n".join(lines) + "\n")
    target.write_text("\n".join(lines) + "\n")
    options = PrepareOptions(vocab_size=40, max_bytes=5000, valid_pairs=10)
    data = prepare([ParallelFiles(source, target)], tmp_path / "data", options)
    for name in ("data_report.json", "data_report_2.json"):
        assert "Corpus 1" not in page_of(run).text
        shutil.copy(data.directory / "report.json", run.path / name)
    page = page_of(run)
    tokens = f"{data.report['train']['source']['tokens']:,}"
    assert sum(row[:2] == ["training, source", tokens] for row in page.rows) == 2
    assert "Corpus 1" in page.text and "Corpus 2" in page.text
    (run.path / "data_report_2.json").write_text('{"inputs": ')
    assert "data_report_2.json could not be read." in page_of(run).text


def test_page_that_cannot_be_written(run: RunDirectory) -> None:
    (run.path / "report.html").mkdir()
    with pytest.raises(InputError, match=mentions("report.html", "Is a directory")):
        write_report(run.path)
    assert not list(run.path.glob(".*.unfinished"))


# Any content of metrics.jsonl.

METRICS = st.sampled_from(
    "loss val_loss perplexity val_perplexity val_accuracy val_bleu gradient_norm learning_rate "
    "tokens_per_second loss_scale skipped other".split()
)
STEPS = st.integers(0, 1000) | st.integers() | st.floats() | st.text(max_size=2)
NUMBERS = st.floats() | st.integers() | st.floats(0, 10)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@st.composite
def metrics_files(draw: st.DrawFn) -> bytes:
    lines = []
    for _ in range(draw(st.integers(0, 12))):
        entry: Any = {"step": draw(STEPS)}
        entry |= draw(st.dictionaries(METRICS, NUMBERS | JSON, max_size=6))
        line = json.dumps(draw(st.just(entry) | JSON)).encode()
        lines.append(draw(st.just(line) | st.just(line[: len(line) // 2]) | st.binary(max_size=8)))
    return draw(st.sampled_from([b"\n", b"\r\n", b""])).join(lines)


@pytest.fixture(scope="module")
def any_run(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> RunDirectory:
    run = make_run(tmp_path_factory.mktemp("any") / "run", tokenizer)
    checkpoint(run, 100, val_loss=2.0)
    return run


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(content=metrics_files())
def test_any_metrics_give_a_page(any_run: RunDirectory, content: bytes) -> None:
    (any_run.path / "metrics.jsonl").write_bytes(content)
    assert not re.search(r'["M,](nan|-?inf)', page_of(any_run).source)  # coordinates
