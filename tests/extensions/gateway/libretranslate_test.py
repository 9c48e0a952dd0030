"""The official client of LibreTranslate, and what it does not send."""

import urllib.error

import httpx
import pytest
from libretranslatepy import LibreTranslateAPI


@pytest.fixture(scope="module")
def api(client: httpx.Client) -> LibreTranslateAPI:
    return LibreTranslateAPI(str(client.base_url))


def test_the_official_client(api: LibreTranslateAPI) -> None:
    assert api.translate("A wall. A house.", "en", "de") == "Ade wallde. Ade housede."
    assert api.translate("Das Haus", "auto", "en") == "Dasen Hausen"
    assert api.detect("Das Haus")[0] == {"confidence": 75, "language": "de"}
    languages = {language["code"]: language for language in api.languages()}
    assert languages["en"]["name"] == "English"
    assert languages["en"]["targets"] == ["de", "en", "fr", "it"]  # es is too far
    assert languages["es"] == {"code": "es", "name": "Spanish", "targets": ["es"]}  # no source
    with pytest.raises(urllib.error.HTTPError, match="400"):
        api.translate("A wall", "en", "xx")


def test_batches_alternatives_and_pivots(client: httpx.Client) -> None:
    given = {"q": ["A wall", "Das Haus"], "source": "auto", "target": "fr", "alternatives": 3}
    found = client.post("/translate", json=given)
    assert found.json() == {
        "translatedText": ["Adefr walldefr", "Dasfr Hausfr"],
        "detectedLanguage": [{"confidence": 75, "language": code} for code in ("en", "de")],
        "alternatives": [["ADEFR WALLDEFR"], ["DASFR HAUSFR"]],
        "pivot": ["de"],
    }
    one = client.post("/translate", json={"q": "A wall", "source": "en", "target": "it"})
    assert one.json() == {"translatedText": "Adefrit walldefrit", "pivot": ["de", "fr"]}
    assert one.headers["x-pivot"] == "de, fr"
    same = client.post("/translate", json={"q": "A wall", "source": "en", "target": "en"})
    assert same.json() == {"translatedText": "A wall"}
    own = client.post("/translate", json={"q": "Das Haus", "source": "auto", "target": "de"})
    assert own.json()["translatedText"] == "Das Haus"


def test_html_that_is_broken(client: httpx.Client) -> None:
    expected = {
        "<p>A <b>wall</b>": "<p>Ade <b>wallde</b>",
        "A wall <b": "Ade wallde &lt;b",
        "</i>A & B": "</i>Ade &amp; Bde",
        "  \n": "  \n",
    }
    given = {"q": [*expected], "source": "en", "target": "de", "format": "html"}
    found = client.post("/translate", json=given)
    assert found.json() == {"translatedText": [*expected.values()]}
    empty = client.post("/translate", json={**given, "q": ""})
    assert empty.status_code == 400 and "missing q" in empty.json()["error"]


def test_files(client: httpx.Client) -> None:
    page = {"file": ("a page.html", b"<p>A <b>wall</b></p>")}
    form = {"source": "auto", "target": "fr"}
    found = client.post("/translate_file", files=page, data=form)
    url = found.json()["translatedFileUrl"]
    assert url.startswith(str(client.base_url)) and found.headers["x-pivot"] == "de"
    file = client.get(url)
    assert file.content == b"<p>Adefr <b>walldefr</b></p>"
    assert "a%20page_fr.html" in file.headers["content-disposition"]
    assert client.get("/download_file/none.txt").status_code == 404
    for name, data in (("a.exe", b"a"), ("a.docx", b"no archive"), ("a.txt", b"\xff\xfe\xff")):
        refused = client.post("/translate_file", files={"file": (name, data)}, data=form)
        assert refused.status_code == 400 and refused.json()["error"]


def test_the_language_of_a_file_is_that_of_its_texts(client: httpx.Client) -> None:
    start = f"<style>{'p {} ' * 500}</style><p>"
    # Spanish is too far from English.
    for text, target, expected in (("Das Haus", "fr", "Dasfr Hausfr"), ("A", "es", "Afrites")):
        page = {"file": ("a.html", f"{start}{text}".encode())}
        form = {"source": "auto", "target": target}
        found = client.post("/translate_file", files=page, data=form).json()["translatedFileUrl"]
        assert client.get(found).text == start + expected


def test_facts(client: httpx.Client) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    settings = client.get("/frontend/settings").json()
    assert settings["charLimit"] == 5_000 and settings["keyRequired"] is False
    assert ".docx" in settings["supportedFilesFormat"]


def test_a_limit_of_characters(client: httpx.Client) -> None:
    found = client.post("/translate", json={"q": "a" * 5_001, "source": "en", "target": "de"})
    message = "Invalid request: request (5001) exceeds text limit (5000)"
    assert (found.status_code, found.json()) == (400, {"error": message})
    many = client.post("/translate", json={"q": [""] * 5_001, "source": "en", "target": "de"})
    assert many.json() == {"error": message}
