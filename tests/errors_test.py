"""Error messages name the extra of an optional package."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from keras_transformer import errors
from keras_transformer.errors import MissingExtra, install_command, needs_extra


def test_a_missing_package_is_reported_with_its_extra() -> None:
    with pytest.raises(MissingExtra) as caught, needs_extra("zstd", "x.zst"):
        import not_there  # type: ignore[import-not-found]  # noqa: F401
    assert str(caught.value) == (
        "x.zst needs the extra zstd (No module named 'not_there'). Run: "
        "pip install -e '.[zstd]' -c constraints.txt"
    )


def test_a_namespace_of_another_package_counts_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    namespace = ModuleType("namespace_here")
    namespace.__path__ = []
    monkeypatch.setitem(sys.modules, "namespace_here", namespace)
    with pytest.raises(MissingExtra, match="cannot import name 'part'"), needs_extra("a", "b"):
        from namespace_here import part  # type: ignore[import-not-found]  # noqa: F401


def test_defects_of_this_package_are_not_hidden() -> None:
    with pytest.raises(ImportError, match="no_such_name"), needs_extra("a", "b"):
        from keras_transformer.errors import no_such_name  # type: ignore[attr-defined]  # noqa: F401


def test_the_command_outside_a_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "keras_transformer" / "errors.py"))
    assert install_command("tmx") == "pip install 'keras-transformer-mt[tmx]'"
    assert install_command() == "pip install keras-transformer-mt"
