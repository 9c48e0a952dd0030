"""Headless Chromium for tests of web pages, driven by Playwright.

The browser is $KERAS_TRANSFORMER_TEST_BROWSER, or `chromium` or `google-chrome` on the PATH.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

_VARIABLE = "KERAS_TRANSFORMER_TEST_BROWSER"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> str:
    """Returns the path of the browser, or skips the test."""
    found = os.environ.get(_VARIABLE) or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip(
            "Chromium is not on the PATH (Debian: apt-get install chromium), and "
            f"{_VARIABLE} names none; pages are tested where there is one"
        )
    return found


@contextlib.contextmanager
def launched_browser() -> Iterator[Any]:
    """Yields a Playwright `Browser` with a new profile, or skips the test."""
    program = find_browser()
    from playwright.sync_api import sync_playwright

    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=program, args=["--no-sandbox"]) as browser,
    ):
        yield browser
