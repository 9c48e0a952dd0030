"""A student and its teacher (Kim and Rush, 2016): exports for CPUs, their quality and speed.

The student is fast because of its shape (many encoder layers, one or two decoder layers; Kasai et
al., 2020), int8 weights, and greedy search, which costs a student less quality than its teacher.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.config import Config
from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics
from keras_transformer.evaluation.test_sets import EvaluationSet
from keras_transformer.export import ExportOptions, export
from keras_transformer.extensions.paper import report
from keras_transformer.extensions.paper.recipe import Scoring
from keras_transformer.inference import loading, translate
from keras_transformer.runs.run_directory import RunDirectory

log = logging.getLogger(__name__)

# The exports of each model: the type of their weights, and changes of the search.
_EXPORTS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "float32": ("float32", {}),
    "int8": ("int8", {}),
    "int8_greedy": ("int8", {"decoding.beam_size": 1, "decoding.n_best": 1}),
}
_SHAPE = ("num_encoder_layers", "num_decoder_layers", "d_model")
_ROUNDS = 3  # rounds in which the models take turns


@dataclasses.dataclass(frozen=True)
class Distillation:
    """Exports a teacher and its students, and compares them.

    `export_teacher` and `compare` are functions of rows.
    """

    teacher: str  # the run, or `RUN@NAME`
    work_dir: Path
    valid: EvaluationSet  # exports are compared with their runs on it
    tests: Mapping[str, EvaluationSet]  # measured texts; if there are none, `valid`
    scoring: Scoring

    def export_teacher(self, directory: Path, max_minutes: float | None) -> dict[str, Any]:
        """Exports the teacher, to translate the training text."""
        import tensorflow as tf

        if tf.config.list_physical_devices("GPU"):
            version = export(self.teacher, directory / "export", self.valid.sources or []).path
            return {"finished": True, "export": str(version.relative_to(self.work_dir))}
        exports = (self._export(name, self.teacher, directory, {}) for name in ("int8", "float32"))
        path = next(facts["export"] for facts in exports if "refused" not in facts)
        return {"finished": True, "export": path}

    def compare(
        self, directory: Path, max_minutes: float | None, trained: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Exports the teacher and a student for CPUs, and measures them on one core.

        `trained` is the record of the row that trained the student.
        """
        student = f"{self.work_dir / trained['row'] / 'run'}@{trained['weights']}"
        search = {"decoding.length_penalty": trained["length_penalty"]}
        rows = []
        for model, run, settings in (
            ("teacher", self.teacher, {}), ("student", student, search)
        ):  # fmt: skip
            for name in _EXPORTS:
                facts = self._export(name, run, directory / model, settings)
                rows.append({"model": model, **facts})
        usable = [row for row in rows if "refused" not in row]
        words = self._measure(usable)
        draw(usable, directory / report.CHART)
        return {"finished": True, "words": words, "models": rows}

    def _export(
        self, name: str, run: str, directory: Path, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Returns the facts of an export. They have `refused` if it loses too much quality."""
        weights, changes = _EXPORTS[name]
        config = RunDirectory(RunDirectory.split_weights(run)[0], Config).config
        shape = config.model.as_dict()
        facts: dict[str, Any] = {
            "weights": weights,
            "beam_size": config.updated({**settings, **changes}).decoding.beam_size,
            **{name: shape[name] for name in _SHAPE},
            "parameters": config.model.num_parameters(),
        }
        options = ExportOptions(
            self.valid.references[0], weights, tokenize=self.scoring.get("tokenize")
        )
        try:
            version = export(
                run, directory / name, self.valid.sources or [], options, format="cpu",
                settings={**settings, **changes},
            ).path  # fmt: skip
        except InputError as error:
            if weights == "float32":
                raise
            log.warning("%s: %s", directory / name, error)
            return {**facts, "refused": str(error)}
        facts["export"] = str(version.relative_to(self.work_dir))
        facts["megabytes"] = round((version / "model.tflite").stat().st_size / 1e6, 1)
        return facts

    def _measure(self, rows: Sequence[dict[str, Any]]) -> int:
        """Adds scores and speeds to the rows, and returns the number of source words.

        The speed is per second of CPU time, because other programs may use the machine.
        """
        tests = self.tests or {"valid": self.valid}
        sources = [line for test in tests.values() for line in test.sources or []]
        words = sum(len(line.split()) for line in sources)
        models = [loading.load_model(self.work_dir / row["export"], threads=1) for row in rows]
        for model in models:  # the first calls are slow
            translate.translate_lines(model, sources[: model.max_batch_lines])
        for _ in range(_ROUNDS):
            for row, model in zip(rows, models, strict=True):
                start = time.process_time()
                results = translate.translate_lines(model, sources)
                seconds = time.process_time() - start
                row.setdefault("seconds", []).append(round(seconds, 6))
                rest = iter([best.text for best, *_ in results])
                row["tests"] = {
                    name: metrics.evaluate(
                        list(itertools.islice(rest, len(test.references[0]))), test, **self.scoring
                    ).fields()
                    for name, test in tests.items()
                }
        for row in rows:
            row["words_per_second"] = round(words / statistics.median(row["seconds"]), 1)
        return words


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the models of `compare` as a table in Markdown."""
    return report.table([
        {
            "model": row["model"],
            "layers": f"{row['num_encoder_layers']} + {row['num_decoder_layers']}",
            "d_model": str(row["d_model"]),
            "weights": row["weights"],
            "beam": str(row["beam_size"]),
            "MB": f"{row['megabytes']:.1f}",
            "words/s": f"{row['words_per_second']:,.0f}",
            **{f"BLEU, {test}": f"{found['bleu']:.2f}" for test, found in row["tests"].items()},
        }
        for row in rows
        if "refused" not in row
    ])  # fmt: skip


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draws BLEU of the first test and words per second of the models of `compare`."""
    test = next(iter(rows[0]["tests"]))
    names = [f"{row['model']}, {row['weights']}, beam {row['beam_size']}" for row in rows]
    values = {
        f"BLEU, {test}": [row["tests"][test]["bleu"] for row in rows],
        "source words per second": [row["words_per_second"] for row in rows],
    }
    report.draw(path, names, {name: {"one core": bars} for name, bars in values.items()})
