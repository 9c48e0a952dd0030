"""A real export behind the gateway, the real detector, and encrypted connections."""

import select
import shutil
import socket
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

import keras_transformer as kt
from keras_transformer.extensions.gateway import translation
from keras_transformer.extensions.gateway.models import open_model
from tests.conftest import PHRASES
from tests.extensions.gateway.running_gateway import make_models, running_gateway
from tests.extensions.serving.running_server import wait_until


def test_an_export_translates_like_a_translator(
    version_of: Callable[[str], Path], tmp_path: Path
) -> None:
    version = version_of("cpu")
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "en-de").symlink_to(version)
    expected = [[found.text for found in best] for best in kt.load(version).translate(PHRASES)]
    assert any(len({*texts}) == 2 for texts in expected)
    with running_gateway(tmp_path / "models", open_model) as (gateway, client):
        given = {"q": PHRASES, "source": "en", "target": "de", "alternatives": 2}
        found = client.post("/translate", json=given).json()
        assert found["translatedText"] == [best for best, _ in expected]
        others = [[other] if other != best else [] for best, other in expected]
        assert found["alternatives"] == others
        (model,) = gateway.model.pairs().values()
        assert model.size >= sum(file.stat().st_size for file in version.rglob("*.tflite"))


def test_languages_of_short_texts() -> None:
    texts = {"de": "Guten Tag", "en": "Good morning", "xx": "12 345"}
    codes = ("de", "en", "xx")  # lingua does not know the last one
    for code, text in texts.items():
        (best, confidence), *_ = translation.detected_languages(text, codes)
        assert (best, confidence > 0.6) == (code, True) or (code, confidence) == ("xx", 0.0)
    assert translation.language_name("no") == "Bokmal"
    assert translation.language_name("xx") == "xx"


def test_short_sentences_among_ten_languages(test_data: Path) -> None:
    codes = ("cs", "de", "en", "es", "fr", "it", "nl", "pl", "pt", "sv")
    with (test_data / "tatoeba" / "deu.txt").open(encoding="utf-8") as file:
        rows = [line.split("\t")[:2] for line in file.read().splitlines()]
    for shortest, longest, share in ((1, 15, 0.75), (16, 25, 0.95), (26, 40, 0.98)):
        for code, side in (("en", 0), ("de", 1)):
            texts = [row[side] for row in rows if shortest <= len(row[side]) <= longest][::100]
            found = [translation.detected_languages(text, codes)[0] for text in texts]
            assert sum(best == code for best, _ in found) >= share * len(texts) >= 24
            assert all(best == code for best, confidence in found if confidence > 0.9)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_encrypted_connections(tmp_path: Path) -> None:
    files = [f"-keyout={tmp_path}/key.pem", f"-out={tmp_path}/cert.pem"]
    arguments = [part for file in files for part in file.split("=")]
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1"
    subprocess.run(
        [*command.split(), "-subj", "/CN=localhost", *arguments], check=True, capture_output=True
    )
    tls = {"tls_certificate": f"{tmp_path}/cert.pem", "tls_key": f"{tmp_path}/key.pem"}
    models = make_models(tmp_path / "models", "en-de")
    with running_gateway(models, max_connections=6, **tls) as (_, client), ExitStack() as stack:
        address = client.base_url.host, client.base_url.port
        silent = [stack.enter_context(socket.create_connection(address)) for _ in range(30)]
        silent[-1].sendall(b"GET /health HTTP/1.1\r\n\r\n")  # without TLS
        assert client.get("/health").json() == {"status": "ok"}
        wait_until(lambda: sum(not select.select([s], [], [], 0)[0] for s in silent) <= 5)
