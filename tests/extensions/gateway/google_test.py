"""The requests and answers of Google's API, version 2."""

import httpx
import pytest

PATH = "/language/translate/v2"


def test_translations(client: httpx.Client) -> None:
    given = {"q": ["A <b>wall</b> & a door"], "source": "en", "target": "de"}
    html = client.post(PATH, json=given)
    text = "Ade <b>wallde</b> &amp; ade doorde"
    assert html.json() == {"data": {"translations": [{"translatedText": text}]}}
    query = [("q", "A"), ("q", "Haus"), ("target", "fr"), ("format", "text"), ("key", "any")]
    assert client.get(PATH, params=query).json()["data"]["translations"] == [
        {"translatedText": "Afr", "detectedSourceLanguage": "de"},
        {"translatedText": "Hausfr", "detectedSourceLanguage": "de"},
    ]
    pivot = client.post(PATH, data={"q": "A", "source": "en", "target": "it"}).json()
    assert pivot["data"]["translations"] == [{"translatedText": "Adefrit", "model": "en-de-fr-it"}]


def test_detections_and_languages(client: httpx.Client) -> None:
    found = client.post(f"{PATH}/detect", json={"q": "Haus"}).json()
    expected = {"language": "de", "confidence": 0.75, "isReliable": False}
    assert found == {"data": {"detections": [[expected]]}}
    codes = client.get(f"{PATH}/languages").json()["data"]["languages"]
    assert [language["language"] for language in codes] == ["de", "en", "es", "fr", "it"]
    assert {"language": "it", "name": "Italian"} in codes


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"q": "A", "target": "xx"}, "Invalid Value: xx"),
        ({"q": "A"}, "Required field is missing: target"),
        ({"target": "de"}, "Required field is missing: q"),
    ],
)
def test_errors(client: httpx.Client, given: dict[str, object], message: str) -> None:
    found = client.post(PATH, json=given)
    error = found.json()["error"]
    assert (found.status_code, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT")
    assert message in error["message"] == error["errors"][0]["message"]
