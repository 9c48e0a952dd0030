"""Keys, rates, sizes, bad requests, and clients that never finish."""

import hashlib
import json
import logging
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import deepl
import httpx
import pytest

from keras_transformer.errors import InputError
from keras_transformer.extensions import gateway as package
from keras_transformer.extensions.gateway import Settings
from keras_transformer.extensions.gateway.server import Gateway
from keras_transformer.extensions.serving import server
from keras_transformer.extensions.serving.tensors import RequestError
from tests.extensions.gateway.running_gateway import SECONDS, make_models, running_gateway
from tests.extensions.serving.running_server import wait_until
from tests.messages import mentions

TEXT = {"q": "A secret", "source": "en", "target": "de"}
GOOGLE = "/language/translate/v2"


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A gateway with two keys and a rate."""
    folder = tmp_path_factory.mktemp("keyed")
    lines = [f"{hashlib.sha256(key).hexdigest()}  {key.decode()[0]}" for key in (b"ours", b"mine")]
    (folder / "keys").write_text("\n".join(["# keys", "", *lines]))
    settings = {"keys": str(folder / "keys"), "requests_per_minute": 200}
    with running_gateway(make_models(folder / "models", "en-de"), **settings) as running:
        yield running[1]


def test_each_protocol_has_its_place_for_a_key_and_its_error(keyed: httpx.Client) -> None:
    google = {"q": "A", "target": "de", "source": "en"}
    deepl_text = {"text": ["A"], "target_lang": "DE", "source_lang": "EN"}

    def status(path: str, **options: Any) -> tuple[int, Any]:
        found = keyed.post(path, **options)
        return found.status_code, found.json()

    missing = {"error": "Please contact the server operator to get an API key"}
    assert status("/translate", json=TEXT) == (400, missing)
    wrong = {"error": "Invalid API key"}
    assert status("/translate", json={**TEXT, "api_key": "theirs"}) == (403, wrong)
    assert status("/translate", data={**TEXT, "api_key": "ours"})[0] == 200
    assert status(GOOGLE, json=google)[0] == 403
    code, body = status(GOOGLE, json=google, params={"key": "theirs"})
    assert (code, body["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert status(GOOGLE, json=google, headers={"x-goog-api-key": "mine"})[0] == 200
    assert status("/v2/translate", json=deepl_text)[0] == 403
    assert keyed.get("/health").status_code == keyed.get("/languages").status_code == 200
    assert keyed.get("/frontend/settings").json()["keyRequired"] is True
    url = str(keyed.base_url)
    with pytest.raises(deepl.AuthorizationException):
        deepl.DeepLClient("theirs", server_url=url).translate_text("A", target_lang="DE")
    mine, ours = (deepl.DeepLClient(key, server_url=url) for key in ("mine", "ours"))
    glossary = mine.create_glossary("mine", "EN", "DE", {"wall": "Wand"})
    assert ours.list_glossaries() == [] and len(mine.list_glossaries()) == 1
    with pytest.raises(deepl.GlossaryNotFoundException):
        ours.delete_glossary(glossary)


@pytest.mark.parametrize(
    ("path", "header"),
    [
        ("/v2/translate", "Authorization: DeepL-Auth-Key theirs"),
        ("/v2/translate", "Accept: */*"),
        (f"{GOOGLE}?key=theirs", "Accept: */*"),
        ("/translate_file?api_key=theirs", "Accept: */*"),
    ],
)
def test_a_wrong_key_is_refused_before_the_body(
    keyed: httpx.Client, path: str, header: str
) -> None:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n{header}\r\n\r\n"
    with socket.create_connection((keyed.base_url.host, keyed.base_url.port), SECONDS) as client:
        for data in (head.encode(), b" " * 99_999 + head.encode()):
            client.sendall(data)
            received = client.recv(9_999)
            assert received.startswith((b"HTTP/1.1 400", b"HTTP/1.1 403"))
            while not received.endswith(b"}"):
                received += client.recv(9_999)


def test_rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepl.http_client, "max_network_retries", 0)
    models = make_models(tmp_path / "models", "en-de")
    with running_gateway(models, requests_per_minute=3) as (gateway, client):
        paths = ["/health"] * 4 + ["/languages"] * 4  # the first one has no limit
        assert [client.get(path).status_code for path in paths] == [200] * 7 + [429]
        refused = client.post("/translate", json=TEXT)
        assert refused.json() == {"error": "Slowdown: 3 per 1 minute"}
        assert refused.headers["retry-after"] == "20"
        with pytest.raises(deepl.TooManyRequestsException):
            deepl.DeepLClient("a", server_url=str(client.base_url)).get_usage()
        gateway.is_stopping = True
        assert client.get("/health").headers["connection"] == "close"


def test_the_official_client_repeats_a_request_that_was_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deepl.http_client._BackoffTimer, "BACKOFF_INITIAL", 0.05)
    models, refused = make_models(tmp_path / "models", "en-de"), list[str]()

    def refuse_first(client: str) -> None:
        if not refused:
            refused.append(client)
            raise RequestError(429, "too early")

    with running_gateway(models) as (gateway, client):
        monkeypatch.setattr(gateway, "_count", refuse_first)
        translator = deepl.DeepLClient("a", server_url=str(client.base_url))
        found = translator.translate_text("A", source_lang="EN", target_lang="DE")
        assert (found.text, len(refused)) == ("Ade", 1)


@pytest.mark.parametrize("path", ["/translate", "/v2/translate", GOOGLE])
@pytest.mark.parametrize(
    ("content", "content_type"),
    [
        (b"{", "application/json"),
        (b"[1]", "application/json"),
        (b"[" * 100_000, "application/json"),
        (b"\xff\xfe", "application/json"),
        (b"", "application/json"),
        (b"--x\r\nno header", "multipart/form-data; boundary=x"),
        (b"q=%ff%fe&text=%ff", "application/x-www-form-urlencoded"),
        (b'{"q": {"a": [1]}, "text": {"a": 1}, "source": "en", "target": 5}', "application/json"),
        (b'{"q": [null], "text": [null], "source": "en", "target": "de"}', "application/json"),
    ],
)
def test_bad_bodies(client: httpx.Client, path: str, content: bytes, content_type: str) -> None:
    found = client.post(path, content=content, headers={"content-type": content_type})
    assert found.status_code == 400
    error = found.json()
    message = error.get("message") or error["error"]
    assert message["message"] if isinstance(message, dict) else message


def test_many_spaces_and_long_numbers(client: httpx.Client) -> None:
    text = {"text": [" " * 4_900 + "A"], "source_lang": "EN", "target_lang": "DE"}
    found = client.post("/v2/translate", json={**text, "split_sentences": "nonewlines"})
    assert found.json()["translations"][0]["text"].strip() == "Ade"
    found = client.post("/translate", json={**TEXT, "alternatives": "9" * 5_000})
    assert found.status_code == 200


def test_a_glossary_with_a_long_name_is_refused(client: httpx.Client) -> None:
    glossary = {"name": "n" * 200_000, "source_lang": "EN", "target_lang": "DE", "entries": "A\tB"}
    assert client.post("/v2/glossaries", json=glossary).status_code == 413


def test_a_lone_surrogate_is_replaced_and_forms_are_utf_8(client: httpx.Client) -> None:
    content = json.dumps({**TEXT, "q": "A \ud800 B"}).encode()
    form = "application/x-www-form-urlencoded"
    curl = "q=groß&source=en&target=de".encode()
    for body, kind, best in ((content, "application/json", "Ade ? Bde"), (curl, form, "großde")):
        found = client.post("/translate", content=body, headers={"content-type": kind})
        assert found.json() == {"translatedText": best}


def test_large_bodies_and_texts(tmp_path: Path) -> None:
    models = make_models(tmp_path / "models", "en-de")
    with running_gateway(models, max_body_bytes=2**20) as (gateway, client):
        for path in ("/translate", "/v2/translate", GOOGLE):
            assert client.post(path, json={**TEXT, "q": "a" * 10 * 2**20}).status_code == 413
        long = {"text": "a" * 200_000, "target_lang": "DE"}
        found = client.post("/v2/translate", data=long)
        assert found.status_code == 413 and "200,000" in found.json()["message"]
        assert client.post("/translate", json=TEXT).status_code == 200
        gateway.files["a"] = bytes(65 << 20)  # more than all files may have
        assert len(client.get("/download_file/a").content) == 65 << 20


def test_unknown_paths_and_methods(client: httpx.Client) -> None:
    assert client.get("/v2/nothing").json()["message"].startswith("Not Found")
    assert client.get("/translate").status_code == 405
    assert client.get("/language/nothing").json()["error"]["code"] == 404
    rebound = client.get("/v2/usage", headers={"host": "evil.example:8501"})
    assert rebound.status_code == 400


def test_clients_that_never_finish_do_not_stop_others(
    running: tuple[Gateway, httpx.Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, client = running
    monkeypatch.setattr(server, "_BODY_SECONDS", 1)
    address = client.base_url.host, client.base_url.port
    start = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    with ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection(address)) for _ in range(200)]
        for connection in silent:
            connection.sendall(start)
        assert client.post("/translate", json=TEXT).json() == {"translatedText": "Ade secretde"}
        assert b" 408 " in silent[0].recv(100)


def test_text_is_never_logged(
    running: tuple[Gateway, httpx.Client], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    gateway, client = running

    async def fail(request: Any) -> Any:
        raise KeyError(request.texts[0])

    with monkeypatch.context() as patch:
        patch.setattr(gateway.translator, "translate", fail)
        found = client.post("/translate", json=TEXT)
    assert found.status_code == 500 and "internal error" in found.json()["error"]
    wait_until(lambda: "KeyError" in caplog.text)
    client.post("/translate", json={**TEXT, "target": "fr"})
    client.post("/translate_file", files={"file": ("a.txt", b"A secret")}, data=TEXT)
    assert "secret" not in caplog.text + "".join(capfd.readouterr())


def test_a_server_for_other_machines_needs_keys(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=mentions("--host=0.0.0.0", "--keys")):
        package.run(Settings(tmp_path, host="0.0.0.0"))


def test_files_of_tls_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=mentions("missing.pem", "--tls_key=None")):
        package.run(Settings(tmp_path, tls_certificate="missing.pem"))


@pytest.mark.parametrize("line", ["my-key", "ab" * 31])
def test_a_file_with_keys_instead_of_hashes_is_refused(tmp_path: Path, line: str) -> None:
    (tmp_path / "keys").write_text(f"# hashes\n{line}\n")
    with pytest.raises(InputError, match=mentions("line 2", "SHA-256")):
        package.create_gateway(Settings(tmp_path, keys=str(tmp_path / "keys")))
