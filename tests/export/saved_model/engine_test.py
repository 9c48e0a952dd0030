"""An export runs in a process that has only TensorFlow and tensorflow-text."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from keras_transformer.errors import InputError
from keras_transformer.export.saved_model import fresh_process
from keras_transformer.export.saved_model.engine import SavedModelEngine
from keras_transformer.export.saved_model.exporter import EXPORTER, check_scores
from keras_transformer.inference import loading
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES
from tests.messages import mentions


def test_the_answers_are_those_of_the_run(exported_run: Path, run_directory: RunDirectory) -> None:
    translator = loading.load_translator(run_directory, {"decoding.n_best": 2})
    with contextlib.closing(SavedModelEngine(exported_run / "1")) as engine:
        assert engine.tokenize([]) == [] and engine.tokenize([""]) == [[3]]
        assert len(engine.tokenize(PHRASES * 20)) == len(PHRASES) * 20  # more than one call
        EXPORTER.compare_signatures(translator, engine, PHRASES)
        found = engine.translate(["a"])[0].scores
    with pytest.raises(InputError, match=mentions("translate_ids", "scores")):
        check_scores("translate_ids", found, found + 0.01)
    with pytest.raises(InputError, match=mentions("translate_ids", "scores")):
        check_scores("translate_ids", found, found * float("nan"))


def test_an_export_that_needs_more_than_tensorflow_is_refused(
    exported_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        contextlib.closing(SavedModelEngine(tmp_path)) as engine,
        pytest.raises(RuntimeError, match=mentions("TensorFlow", "tensorflow-text", "OSError")),
    ):
        engine.tokenize(["a"])
    # The package must not be imported.
    script, own = tmp_path / "script.py", Path(fresh_process.__file__)
    package = own.parents[3]
    changed = own.read_text("utf-8").replace(
        "from __future__ import annotations",
        f"import sys\nsys.path.insert(0, {str(package)!r})\nimport keras_transformer.errors",
    )
    script.write_text(changed)
    monkeypatch.setattr(fresh_process, "__file__", str(script))
    with (
        contextlib.closing(SavedModelEngine(exported_run / "1")) as engine,
        pytest.raises(RuntimeError, match=r"keras_transformer.*TensorFlow"),
    ):
        engine.tokenize(["a"])
