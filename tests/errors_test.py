"""Error messages name the extra of an optional package."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from keras_transformer import errors
from keras_transformer.errors import InputError, needs_extra


@pytest.mark.parametrize(
    ("is_clone", "command"),
    [
        (True, "pip install -e '.[zstd]' -c constraints.txt"),
        (False, "pip install 'keras-transformer-mt[zstd]'"),
    ],
)
def test_a_missing_package_is_reported_with_its_extra(
    is_clone: bool, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_clone:
        monkeypatch.setattr(errors, "__file__", str(tmp_path / "keras_transformer" / "errors.py"))
    with pytest.raises(InputError) as caught, needs_extra("zstd", "x.zst"):
        import not_there  # type: ignore[import-not-found]  # noqa: F401
    message = "x.zst needs the extra zstd (No module named 'not_there')."
    assert str(caught.value) == f"{message} Run: {command}"


def test_a_namespace_of_another_package_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = ModuleType("namespace_here")
    namespace.__path__ = []
    monkeypatch.setitem(sys.modules, "namespace_here", namespace)
    with pytest.raises(InputError, match="cannot import name 'part'"), needs_extra("a", "b"):
        from namespace_here import part  # type: ignore[import-not-found]  # noqa: F401


def test_defects_of_this_package_are_not_hidden() -> None:
    with pytest.raises(ImportError, match="no_such_name"), needs_extra("a", "b"):
        from keras_transformer.errors import no_such_name  # type: ignore[attr-defined]  # noqa: F401
