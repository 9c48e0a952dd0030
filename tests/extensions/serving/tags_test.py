"""Tags of target languages: a server adds them, and clients know them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keras_transformer.errors import InputError
from keras_transformer.export import export
from keras_transformer.extensions.pages.playground.models import (
    open_playground_model,
)
from keras_transformer.extensions.serving.client import connect, connect_model
from keras_transformer.extensions.serving.models import ServedModel
from keras_transformer.inference.tags import ServedTags
from keras_transformer.runs.run_directory import RunDirectory
from tests.extensions.serving.running_server import Running, running_server
from tests.messages import mentions

SYMBOLS = ("<2de>", "<2fr>", "<number>")


@pytest.fixture(scope="module")
def versions(tagged_run: RunDirectory, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tags") / "tagged"
    return export(tagged_run, folder, ["<2de> a small dog"]).path.parent


@pytest.fixture(scope="module")
def plain(versions: Path) -> Iterator[Running]:
    with running_server(versions) as server:
        yield server


@pytest.fixture(scope="module")
def adding(versions: Path) -> Iterator[Running]:
    with running_server(versions, source_tag="<2de>") as server:
        yield server


@pytest.mark.parametrize(
    ("signature", "name", "others"),
    [("serving_default", "text", {}), ("embed", "text", {}), ("score", "source", {"target": "a"})],
)
def test_a_server_adds_the_tag_to_texts_that_have_none(
    plain: Running, adding: Running, signature: str, name: str, others: dict[str, Any]
) -> None:
    def predictions(server: Running, *texts: str) -> Any:
        rows = [{name: text, **others} for text in texts]
        body = {"signature_name": signature, "instances": rows}
        return server.predict(body).raise_for_status().json()["predictions"]

    sent = "a small dog", "<2fr> a small dog", "<2de> a small dog", ""
    meant = "<2de> a small dog", "<2fr> a small dog", "<2de> a small dog", ""
    assert predictions(adding, *sent) == predictions(plain, *meant)
    assert predictions(plain, *sent) != predictions(plain, *meant)


def test_a_version_without_the_tag_is_not_served(versions: Path) -> None:
    model = ServedModel(versions, "tagged", 1, source_tag="<2it>")
    with pytest.raises(InputError, match=mentions("<2it>", "<2de>, <2fr>", "<number>")):
        asyncio.run(model.start())


def test_clients_know_the_tags(plain: Running, adding: Running) -> None:
    with connect(plain.rest) as client:
        assert client.tags() == ServedTags(SYMBOLS)
        with pytest.warns(UserWarning, match=mentions("1 of 2", "<2de> or <2fr>")):
            translated = client.translate(["a small dog", "<2fr> a small dog"])
        [[alone]] = client.translate(["a small dog"], source_tag="<2fr>")
        [together] = translated[1]
        # A batch of another size is rounded differently, with AMX for example.
        assert alone == together._replace(score=pytest.approx(together.score, rel=1e-5))
        with pytest.raises(InputError, match=mentions("<2it>", "<2de>, <2fr>")):
            client.translate(["a small dog"], source_tag="<2it>")
    with connect(adding.rest) as client:
        assert client.tags() == ServedTags(SYMBOLS, "<2de>")
        client.translate(["a small dog"])  # a warning would be an error
    model = connect_model(adding.rest)
    assert (model.symbols, model.source_tag) == (SYMBOLS, "<2de>")


def test_the_playground_adds_the_tag_or_remarks_that_it_is_missing(
    tagged_run: RunDirectory, plain: Running, adding: Running
) -> None:
    for place in (str(tagged_run.path), plain.rest):
        untagged = open_playground_model(place).translate("a small dog")
        assert any("<2de> or <2fr>" in remark for remark in untagged.remarks)
        model = open_playground_model(place, source_tag="<2fr>")
        translated = model.translate("a small dog")
        assert "<2fr>" in translated.source_tokens and not translated.remarks
        assert "<2fr>" in model.attention("a small dog", "a").source_tokens
        with pytest.raises(InputError, match=mentions("<2it>", "<2de>, <2fr>")):
            open_playground_model(place, source_tag="<2it>")
    assert not open_playground_model(adding.rest).translate("a small dog").remarks
