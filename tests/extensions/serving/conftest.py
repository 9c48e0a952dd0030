"""Shared fixtures for serving: a small model and its server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.extensions.serving.reversing_model import NAME, write_version
from tests.extensions.serving.running_server import Running, running_server


@pytest.fixture(scope="session")
def reversing_version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A version of the model that reverses text. Copy it to change it."""
    return write_version(tmp_path_factory.mktemp("served") / NAME / "1")


@pytest.fixture(scope="session")
def running(reversing_version: Path) -> Iterator[Running]:
    """A server of this model that computes one batch at a time, without a batch timeout."""
    options = {"batches_at_once": 1, "batch_timeout_ms": 0.0, "max_batch_size": 8, "max_queue": 100}
    with running_server(reversing_version.parent, **options) as server:
        yield server
