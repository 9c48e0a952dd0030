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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.config import Config
from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics
from keras_transformer.evaluation.test_sets import EvaluationSet
from keras_transformer.export import ExportOptions, export
from keras_transformer.extensions.paper import report
from keras_transformer.extensions.paper.experiment import Trial
from keras_transformer.extensions.paper.recipes.recipe import Scoring
from keras_transformer.inference import loading, translate
from keras_transformer.runs.run_directory import RunDirectory

log = logging.getLogger(__name__)

_GREEDY = {"decoding.beam_size": 1, "decoding.n_best": 1}
# The exports of each model: the type of their weights, and changes of the search.
_EXPORTS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "float32": ("none", {}),
    "int8": ("int8", {}),
    "int8_greedy": ("int8", _GREEDY),
}
_SHAPE = ("num_encoder_layers", "num_decoder_layers", "d_model")
_ROUNDS = 3  # in which the models take turns


@dataclasses.dataclass(frozen=True)
class Distillation:
    """Exports a teacher and its students, and compares them. The methods are functions of trials.

    Attributes:
        teacher: the run, or `RUN@NAME`.
        work_dir: working directory of the recipe.
        valid: the validation text, on which exports are compared with their runs.
        tests: the texts to measure on, by name. Without any, this is the validation text.
        scoring: how translations are scored.
    """

    teacher: str
    work_dir: Path
    valid: EvaluationSet
    tests: Mapping[str, EvaluationSet]
    scoring: Scoring

    def export_teacher(self, directory: Path, max_minutes: float | None) -> dict[str, Any]:
        """Exports the teacher, to translate the training text."""
        import tensorflow as tf

        if tf.config.list_physical_devices("GPU"):
            version = export(self.teacher, directory / "export", self.valid.sources or []).path
            return {"finished": True, "export": str(version.relative_to(self.work_dir))}
        names = ("int8", "float32")
        exports = (self._export(name, self.teacher, directory, {}) for name in names)
        path = next(facts["export"] for facts in exports if "refused" not in facts)
        return {"finished": True, "export": path}

    def comparison(self, seed: str, trained: Mapping[str, Any], facts: Mapping[str, Any]) -> Trial:
        """Returns the trial that compares the student of a seed with the teacher."""
        student = f"{self.work_dir / f'seed-{seed}' / 'run'}@{trained['weights']}"
        search = {"decoding.length_penalty": trained["length_penalty"]}
        return Trial(f"comparison-{seed}", self.compare, (student, search), facts=facts)

    def compare(
        self, directory: Path, max_minutes: float | None, student: str, search: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Exports the teacher and a student for CPUs, and measures them on one core."""
        rows = [
            {"model": model, **self._export(name, run, directory / model, settings)}
            for model, run, settings in (
                ("teacher", self.teacher, {}), ("student", student, search)
            )
            for name in _EXPORTS
        ]  # fmt: skip
        words = self._measure([row for row in rows if "refused" not in row])
        draw(rows, directory / report.CHART)
        return {"finished": True, "words": words, "models": rows}

    def _export(
        self, name: str, run: str, directory: Path, settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Returns the facts of an export. They have `refused` if it loses too much quality."""
        quantization, changes = _EXPORTS[name]
        settings = {**settings, **changes}
        path, _ = RunDirectory.split_weights(run)
        config = RunDirectory(path, Config).config
        shape = config.model.as_dict()
        facts: dict[str, Any] = {
            "weights": quantization.replace("none", "float32"),
            "beam_size": config.updated(settings).decoding.beam_size,
            **{name: shape[name] for name in _SHAPE},
            "parameters": config.model.num_parameters(),
        }
        sources, references = self.valid.sources or [], self.valid.references[0]
        options = ExportOptions(references, quantization, tokenize=self.scoring.get("tokenize"))
        try:
            version = export(
                run, directory / name, sources, options, format="cpu", settings=settings
            ).path
        except InputError as error:
            if quantization == "none":
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
        seconds: list[list[float]] = [[] for _ in rows]
        for model in models:  # the first calls are slow
            translate.translate_lines(model, sources[: model.max_batch_lines])
        for _ in range(_ROUNDS):
            for row, model, times in zip(rows, models, seconds, strict=True):
                start = time.process_time()
                results = translate.translate_lines(model, sources)
                times.append(time.process_time() - start)
                row["tests"] = self._scores(tests, [best.text for best, *_ in results])
        for row, times in zip(rows, seconds, strict=True):
            row["seconds"] = [round(each, 6) for each in times]
            row["words_per_second"] = round(words / statistics.median(times), 1)
        return words

    def _scores(
        self, tests: Mapping[str, EvaluationSet], translations: Sequence[str]
    ) -> dict[str, Any]:
        """Returns the scores of the translations of all tests, one after the other."""
        rest = iter(translations)
        return {
            name: metrics.assess(
                list(itertools.islice(rest, len(test.references[0]))), test, **self.scoring
            ).fields()
            for name, test in tests.items()
        }


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Returns the rows of `compare` as a table in Markdown."""
    usable = [row for row in rows if "refused" not in row]
    tests = list(usable[0]["tests"])
    head = ["model", "layers", "d_model", "weights", "beam", "MB", "words/s", *tests]
    cells = [
        [
            row["model"],
            f"{row['num_encoder_layers']} + {row['num_decoder_layers']}",
            str(row["d_model"]),
            row["weights"],
            str(row["beam_size"]),
            f"{row['megabytes']:.1f}",
            f"{row['words_per_second']:,.0f}",
            *(f"{row['tests'][test]['bleu']:.2f}" for test in tests),
        ]
        for row in usable
    ]
    return report.table(head, cells)


def draw(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Draws BLEU of the first test against words per second."""
    usable = [row for row in rows if "refused" not in row]
    test = next(iter(usable[0]["tests"]))
    series = []
    for model in ("teacher", "student"):
        found = [row for row in usable if row["model"] == model]
        points = [(row["words_per_second"], row["tests"][test]["bleu"]) for row in found]
        texts = [f"{row['weights']}\nbeam {row['beam_size']}" for row in found]
        series.append(report.Series(model, points, texts))
    xlabel = "source words per second on one core"
    report.draw(path, {xlabel: series}, f"BLEU, {test}", log_scale=[xlabel])
