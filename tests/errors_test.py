"""Error messages name the extra of an optional package."""

import pytest

from keras_transformer.errors import InputError, needs_extra


def test_a_missing_package_is_reported_with_its_extra() -> None:
    with pytest.raises(InputError) as caught, needs_extra("zstd", "x.zst"):
        import not_there  # type: ignore[import-not-found]  # noqa: F401
    message = "x.zst needs the extra zstd (No module named 'not_there')."
    assert str(caught.value) == f"{message} Run: pip install -e '.[zstd]' -c constraints.txt"


def test_defects_of_this_package_are_not_hidden() -> None:
    with pytest.raises(ImportError, match="no_such_name"), needs_extra("a", "b"):
        from keras_transformer.errors import no_such_name  # type: ignore[attr-defined]  # noqa: F401
