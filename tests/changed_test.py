"""Which tests `bin/test --fast` runs."""

from __future__ import annotations

from tests.changed import ALWAYS, paths_of


def test_a_module_has_its_test_or_those_of_its_folder() -> None:
    assert paths_of([]) == sorted(ALWAYS)
    files = ["keras_transformer/layers/attention.py", "keras_transformer/layers/missing.py"]
    assert {"tests/layers/attention_test.py", "tests/layers"} <= set(paths_of(files))
    assert "tests/docs_test.py" in paths_of(["docs/python.md"])
    assert "tests/presets_test.py" in paths_of(["tests/presets_test.py"])
    assert paths_of(["keras_transformer/presets.py"]) == sorted([*ALWAYS, "tests/presets_test.py"])
