"""BLEU over time with a PyTorch that trains in no time: what it is told, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import quality_over_time

from keras_transformer.errors import InputError
from keras_transformer.runs.run_directory import RunDirectory

SETTINGS = {
    "model.norm_position": "pre",
    "training.schedule": "linear",
    "training.max_steps": 300,
    "training.checkpoint_steps": 100,
    "training.keep_checkpoints": 3,
}

# In place of `python -m trainers.torch_trainer SETTINGS`, after a stop behind step 200.
TRAINER = f"""#!{sys.executable}
import json, sys
from pathlib import Path

told = json.loads(sys.argv[3])
with (Path(told["directory"]) / "progress.jsonl").open("a") as file:
    for step in (100, 200, 200, 300):
        row = {{"step": step, "seconds": 1.2 * step, "tokens": 600 * step}}
        row["threads"] = told["threads"]
        file.write(json.dumps(row) + "\\n")
Path(told["directory"], "told.json").write_text(sys.argv[3])
"""


def make_run(path: Path, like: RunDirectory, steps: int = 300, **changes: Any) -> RunDirectory:
    config = like.config.updated({**SETTINGS, **changes})
    run = RunDirectory.create(path, config, like.tokenizer(), "corpus")
    for step in range(100, steps + 1, 100):
        costs = {"training_seconds": 0.6 * step, "tokens": 600.0 * step}
        run.save_checkpoint(step, {}, {}, costs)
    return run


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.attention_dropout": 0.1}, "model.attention_dropout = 0.1; expected 0.0"),
        ({"training.clip_norm": 1.0}, "training.clip_norm = 1.0; expected 0.0"),
        ({"training.accumulate_steps": 2}, "training.accumulate_steps = 2; expected 1"),
        ({"model.norm_position": "post"}, "model.norm_position = 'post'; expected 'pre'"),
        ({"model.embedding_dropout": 0.3}, "model.embedding_dropout = 0.3; expected 0.1"),
        ({"training.subword_alpha": 0.5}, "training.subword_alpha = 0.5; expected None"),
        ({"training.bleu_steps": 100}, "training.bleu_steps = 100; expected 0"),
        ({"training.keep_checkpoints": 2}, "keeps 2 checkpoints; expected all 3"),
    ],
)
def test_a_run_that_pytorch_is_not_trained_as_is_refused(
    run_directory: RunDirectory, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    quality_over_time.check(make_run(tmp_path / "run", run_directory))
    with pytest.raises(InputError, match=message):
        quality_over_time.check(make_run(tmp_path / "other", run_directory, **changes))


def test_the_curve_of_a_run_is_that_of_a_finished_one(
    run_directory: RunDirectory, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="is at step 200; expected a run trained to step 300"):
        quality_over_time.curve_of_ours(make_run(tmp_path / "run", run_directory, steps=200))
    curve = quality_over_time.curve_of_ours(make_run(tmp_path / "finished", run_directory))
    assert [point["step"] for point in curve] == [100, 200, 300]
    assert [point["minutes"] for point in curve] == pytest.approx([1.0, 2.0, 3.0])
    assert [point["tokens_per_second"] for point in curve] == pytest.approx([1000.0] * 3)


def test_pytorch_is_told_what_the_run_was(
    run_directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quality_over_time, "sorted_batches", lambda *_: {"source_0": [[1]]})
    python = tmp_path / "python"
    python.write_text(TRAINER)
    python.chmod(0o755)

    def train(run: RunDirectory, threads: int = 1, torch_python: Path = python) -> Any:
        return quality_over_time.train_theirs(
            tmp_path / "pytorch",
            SimpleNamespace(source_lengths=[1]),
            run,
            "float32",
            torch_python=str(torch_python),
            threads=threads,
        )

    run = make_run(tmp_path / "run", run_directory)
    with pytest.raises(InputError, match="nowhere cannot be run .*expected a Python"):
        train(run, torch_python=tmp_path / "nowhere")
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\nexit 3\n")
    failing.chmod(0o755)
    with pytest.raises(InputError, match="ended with 3; the same command continues it"):
        train(run, torch_python=failing)
    curve = train(run)
    assert [point["step"] for point in curve] == [100, 200, 300]
    assert [point["minutes"] for point in curve] == pytest.approx([2.0, 4.0, 6.0])
    told = json.loads((tmp_path / "pytorch" / "told.json").read_text())
    assert told["sizes"]["d_model"] == run.config.model.d_model
    assert told["dropout"] == run.config.model.residual_dropout
    assert told["max_steps"] == 300 and told["threads"] == 1
    assert Path(told["batches"]).is_file()

    train(run, threads=2)
    other = make_run(tmp_path / "other", run_directory)
    with pytest.raises(InputError, match=r"run = '.*run', .*other has '.*other'; expected another"):
        train(other)
    (tmp_path / "run" / "config.json").write_text(
        run.config.updated({"training.learning_rate": 0.5}).to_json()
    )
    with pytest.raises(InputError, match=r"learning_rate = 1.0, .*run has 0.5; expected another"):
        train(RunDirectory(tmp_path / "run"))


def test_a_run_of_other_data_is_refused(
    run_directory: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quality_over_time, "data_fingerprint", lambda _: "another corpus")
    with pytest.raises(InputError, match="run was trained on other data than data; expected its"):
        quality_over_time.compare(
            make_run(tmp_path / "run", run_directory), Path("data"), tmp_path / "work",
            torch_python="python", threads=1,
        )  # fmt: skip


def test_minutes_to_a_bleu_lie_on_straight_lines() -> None:
    curve = [{"minutes": 2.0, "bleu": 10.0}, {"minutes": 4.0, "bleu": 30.0}]
    minutes = [quality_over_time.first_minutes(curve, bleu) for bleu in (5, 10, 20, 30, 31)]
    assert minutes == [1.0, 2.0, 3.0, 4.0, None]
