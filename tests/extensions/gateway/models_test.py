"""Which models are in memory, routes, and models that cannot be loaded."""

import asyncio
import collections
import concurrent.futures
import json
import logging
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import httpx
import pytest

from keras_transformer.errors import InputError
from keras_transformer.extensions.gateway import Settings, create_gateway
from keras_transformer.inference.engine import Engine
from tests.extensions.gateway.running_gateway import (
    SECONDS,
    make_models,
    open_words,
    running_gateway,
)
from tests.extensions.serving.running_server import wait_until
from tests.messages import mentions


def translated(client: httpx.Client, text: str, source: str, target: str) -> str:
    answer = client.post("/translate", json={"q": text, "source": source, "target": target})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["translatedText"])


class Opened:
    """Opens models, and counts them. The text "slow" waits for `gate`. `seen` has all batches."""

    def __init__(self) -> None:
        self.counts, self.released = collections.Counter[str](), collections.Counter[str]()
        self.gate, self.seen = threading.Event(), list[list[str]]()

    def __call__(self, path: Path, batches_at_once: int) -> Engine:
        self.counts[path.name] += 1
        engine = open_words(path, batches_at_once)
        engine.before = self._before  # type: ignore[attr-defined]
        engine.release_memory = lambda: self.released.update([path.name])
        return engine

    def _before(self, texts: list[str]) -> None:
        self.seen.append(texts)
        assert "slow" not in texts or self.gate.wait(SECONDS)


@pytest.fixture
def models(tmp_path: Path) -> Iterator[Path]:
    """Models of 100 MB, of which none is read."""
    yield make_models(tmp_path / "models", "en-de", "en-fr", "en-it", megabytes=100)


def test_models_are_loaded_when_needed_and_the_least_recently_used_one_leaves(
    models: Path,
) -> None:
    opened = Opened()
    with running_gateway(models, opened, memory_mb=250) as (gateway, client):
        assert not opened.counts
        for target in ("de", "fr", "de", "it", "de"):
            assert translated(client, "A", "en", target) == f"A{target}"
        assert opened.counts == {"en-de": 1, "en-fr": 1, "en-it": 1}
        assert opened.released == {"en-de": 2}  # each time that another was loaded
        assert {m.name for m in gateway.model.pairs().values() if m.loaded} == {"en-de", "en-it"}
        assert translated(client, "Another", "en", "fr") == "Anotherfr"
        assert opened.counts["en-fr"] == 2


def test_idle_models_leave_before_those_in_use_which_end_their_requests(models: Path) -> None:
    opened = Opened()
    with (
        running_gateway(models, opened, memory_mb=250, batches_at_once=2) as (gateway, client),
        concurrent.futures.ThreadPoolExecutor(3) as pool,
    ):
        found = [pool.submit(translated, client, "slow", "en", "de")]
        wait_until(lambda: opened.seen == [["slow"]])
        assert translated(client, "A", "en", "fr") == "Afr"
        assert translated(client, "A", "en", "it") == "Ait"  # instead of en-fr
        found.append(pool.submit(translated, client, "slow", "en", "it"))
        wait_until(lambda: opened.seen.count(["slow"]) == 2)
        german = gateway.model.pairs()["en", "de"]
        found.append(pool.submit(translated, client, "quick", "en", "fr"))
        wait_until(lambda: gateway.model.pairs()["en", "de"] is not german)  # it is to leave
        assert not any(future.done() for future in found)
        opened.gate.set()
        assert [f.result(SECONDS) for f in found] == ["slowde", "slowit", "quickfr"]


def test_nothing_is_lost_or_mixed_up_when_models_take_turns(models: Path) -> None:
    targets = ("de", "fr", "it")
    with (
        running_gateway(models, memory_mb=250, cache_mb=0) as (gateway, client),
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):
        asked = [(f"word{'x' * (i % 7)}", targets[i % 3]) for i in range(90)]
        found = pool.map(lambda pair: translated(client, pair[0], "en", pair[1]), asked)
        assert list(found) == [f"{text}{target}" for text, target in asked]
        sizes = [m.size for m in gateway.model.pairs().values() if m.loaded]
        assert sum(sizes) <= 250 << 20


def test_models_that_cannot_be_loaded_count_as_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    models = make_models(tmp_path / "models", "en-de", "de-fr", "en-fr", "fr-en")
    make_models(models, "fr-it", megabytes=300)  # more than the memory
    (models / "en-fr" / "damaged").touch()
    with running_gateway(models, memory_mb=200) as (_, client):
        assert translated(client, "A", "en", "fr") == "Adefr"  # by the way that is left
        refused = client.post("/translate", json={"q": "A", "source": "fr", "target": "it"})
        assert (refused.status_code, "it is not" in refused.json()["error"]) == (400, True)
        assert "en-fr cannot be loaded" in caplog.text and "300 MB" in caplog.text
        assert str(models) not in refused.text
        (models / "en-fr" / "damaged").unlink()
        wait_until(lambda: translated(client, "A", "en", "fr") == "Afr")


def test_new_models_are_found_and_two_for_a_pair_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "keras_transformer")
    models = make_models(tmp_path / "models", "en-de", "my.en-de", "notes")
    with running_gateway(models) as (gateway, client):
        assert "en-de and my.en-de translate en-de. en-de is used." in caplog.text
        assert list(gateway.model.pairs()) == [("en", "de")]
        make_models(models, "de-pt-BR")
        wait_until(lambda: ("de", "pt-BR") in gateway.model.pairs())
        assert translated(client, "A", "EN_us", "pt") == "Adept"


def test_a_folder_without_a_model_has_no_languages(models: Path) -> None:
    (models / "en-nl").mkdir()
    (models / "en-it" / "manifest.json").unlink()
    opened = Opened()
    with running_gateway(models, opened, poll_seconds=60) as (gateway, client):
        assert gateway.model.languages() == ["de", "en", "fr"]
        shutil.rmtree(models / "en-de")  # the server does not know it yet
        refused = client.post("/translate", json={"q": "A", "source": "en", "target": "de"})
        assert (refused.status_code, opened.counts) == (400, {})


def test_a_model_is_loaded_again_after_errors_that_may_pass(models: Path) -> None:
    opened = mock.Mock(side_effect=[MemoryError, OSError, open_words(models / "en-de", 1)])
    request = {"q": "A", "source": "en", "target": "de"}
    with running_gateway(models, opened) as (_, client):
        wait_until(lambda: client.post("/translate", json=request).status_code == 200)
    assert opened.call_count == 3


def test_the_languages_of_a_manifest_count(tmp_path: Path) -> None:
    models = make_models(tmp_path / "models", "en-de")
    facts = '{"format_version": 1, "format": "litert", "files": {}, "languages": ["cs", "sk"]}'
    (models / "en-de" / "manifest.json").write_text(facts)
    with running_gateway(models) as (gateway, _):
        assert list(gateway.model.pairs()) == [("cs", "sk")]


def test_a_folder_without_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=mentions(str(tmp_path), "en-de")):
        asyncio.run(create_gateway(Settings(tmp_path)).model.start())


def test_sentences_are_cached_by_model(tmp_path: Path) -> None:
    opened = Opened()
    models = make_models(tmp_path / "models", "en-de", "en-fr")
    with running_gateway(models, opened) as (gateway, client):
        for _ in range(2):
            assert translated(client, "One. Two.", "en", "de") == "Onede. Twode."
        assert sorted(sum(opened.seen, [])) == ["One.", "Two."]
        assert translated(client, "One.", "en", "fr") == "Onefr."
        assert opened.seen[-1] == ["One."]  # each model has seen it
        for number in range(50):
            translated(client, f"{'long ' * 100}{number}", "en", "de")
        assert gateway.translator._cache.currsize <= gateway.settings.cache_mb << 20
    with running_gateway(models, opened, cache_mb=0) as (_, client):
        opened.seen.clear()
        for _ in range(2):
            translated(client, "A.", "en", "de")
        assert opened.seen == [["A."], ["A."]]


def test_requests_share_batches_and_a_quiet_pair_does_not_wait_for_a_busy_one(
    tmp_path: Path,
) -> None:
    opened, models = Opened(), make_models(tmp_path / "models", "en-de", "en-fr")
    with (
        running_gateway(models, opened, max_batch_size=2, cache_mb=0) as (gateway, client),
        concurrent.futures.ThreadPoolExecutor(20) as pool,
    ):
        busy = [pool.submit(translated, client, "slow", "en", "de")]
        wait_until(lambda: len(opened.seen) == 1)
        busy += [pool.submit(translated, client, f"b{'x' * i}", "en", "de") for i in range(8)]
        wait_until(lambda: gateway.batcher.waiting_rows == 8)
        assert translated(client, "quiet", "en", "fr") == "quietfr"
        opened.gate.set()
        assert [future.result(SECONDS) for future in busy][0] == "slowde"
    assert sorted(map(len, opened.seen)) == [1, 1, 2, 2, 2, 2]  # four batches of two requests


def test_a_bad_manifest_and_no_models_at_all(tmp_path: Path) -> None:
    models = make_models(tmp_path / "models", "en-de", "de-fr")
    manifest = models / "de-fr" / "manifest.json"
    facts = json.loads(manifest.read_bytes())
    manifest.write_text(json.dumps({**facts, "languages": "de,fr"}))
    with running_gateway(models) as (gateway, client):
        assert list(gateway.model.pairs()) == [("en", "de")]
        shutil.rmtree(models / "en-de")
        wait_until(lambda: not gateway.model.pairs())
        assert client.get("/frontend/settings").status_code == 200


def test_a_region_that_only_the_other_side_has(tmp_path: Path) -> None:
    with running_gateway(make_models(tmp_path, "en-pt-BR", "pt-en")) as (_, client):
        for source, target in (("pt-BR", "en"), ("pt-PT", "en"), ("en-US", "pt-BR")):
            request = {"q": "A", "source": source, "target": target}
            assert client.post("/translate", json=request).status_code == 200


@pytest.mark.parametrize("max_queue", [100, 10_000])
def test_a_pair_that_hangs_leaves_room_for_others(tmp_path: Path, max_queue: int) -> None:
    opened, models = Opened(), make_models(tmp_path / "models", "en-de", "en-fr")
    body = b"q=slow&source=en&target=de"
    head = f"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    request = f"{head}Content-Type: application/x-www-form-urlencoded\r\n\r\n".encode() + body
    with running_gateway(models, opened, cache_mb=0, max_queue=max_queue) as (gateway, client):
        address = client.base_url.host, client.base_url.port
        hanging = [socket.create_connection(address) for _ in range(600)]
        for connection in hanging:
            connection.sendall(request)
        wait_until(lambda: gateway.batcher.waiting_rows >= 100)
        assert translated(client, "quick", "en", "fr") == "quickfr"
        assert 100 < gateway.model._users.total() <= 512
        for connection in hanging:
            connection.close()
        wait_until(lambda: not gateway.batcher.waiting_rows)  # nobody waits for the answers
        opened.gate.set()
