"""An export runs in a process that has only TensorFlow and tensorflow-text."""

import contextlib
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.export.saved_model import isolated_process
from keras_transformer.export.saved_model.engine import IsolatedSavedModel
from keras_transformer.export.saved_model.exporter import check_scores
from tests.messages import mentions


def test_signatures_with_other_scores_are_refused():
    found = np.ones(2, np.float32)
    check_scores("translate_ids", found, found + 5e-5)
    for difference in (0.01, float("nan")):
        with pytest.raises(InputError, match=mentions("translate_ids", "scores")):
            check_scores("translate_ids", found, found + difference)


def test_an_export_that_needs_more_than_tensorflow_is_refused(tmp_path, monkeypatch):
    # Stand-ins, because `core_alone_test` runs the script with TensorFlow.
    (tmp_path / "tensorflow.py").write_text("class saved_model:\n    load = {}.pop\n")
    (tmp_path / "tensorflow_text.py").touch()
    script, own = tmp_path / "script.py", Path(isolated_process.__file__)
    path = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})"
    script.write_text(own.read_text("utf-8").replace("from __future__ import annotations", path))
    monkeypatch.setattr(isolated_process, "__file__", str(script))
    with (
        contextlib.closing(IsolatedSavedModel(tmp_path)) as engine,
        pytest.raises(RuntimeError, match=r"TensorFlow.*KeyError"),
    ):
        engine.call([])
