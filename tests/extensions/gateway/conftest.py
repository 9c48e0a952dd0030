"""Shared fixtures: a gateway with a few pairs of languages."""

from collections.abc import Iterator

import httpx
import pytest

from keras_transformer.extensions.gateway import translation
from keras_transformer.extensions.gateway.server import Gateway
from tests.extensions.gateway.running_gateway import make_models, running_gateway

PAIRS = ("en-de", "de-fr", "fr-it", "de-en", "it-es")


@pytest.fixture(autouse=True)
def detection(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recognizes languages by a word. `real_test` has the real detector, which takes a second."""

    def detected(text: str, codes: tuple[str, ...]) -> list[translation.Detected]:
        code = "de" if "Haus" in text else "fr" if "maison" in text else "en"
        return [(code, 0.75), *((other, 0.1) for other in codes if other != code)]

    if request.path.stem != "real_test":
        monkeypatch.setattr(translation, "detected_languages", detected)


@pytest.fixture(scope="package")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gateway, httpx.Client]]:
    """A gateway of several pairs."""
    models = make_models(tmp_path_factory.mktemp("gateway") / "models", *PAIRS)
    with running_gateway(models, max_characters=5_000) as gateway:
        yield gateway


@pytest.fixture(scope="package")
def client(running: tuple[Gateway, httpx.Client]) -> httpx.Client:
    """A client of this gateway."""
    return running[1]
