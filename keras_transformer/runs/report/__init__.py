"""Pages of HTML that need nothing but themselves: what a run reached, what data was prepared."""

from __future__ import annotations

import importlib
from typing import Any

# Loaded when first asked for: the page of a run needs TensorFlow, that of data does not.
_HOMES = {"write_data_page": "data_page", "write_report": "page"}

__all__ = [*_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
