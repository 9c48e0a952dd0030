"""The requests and answers of Google's API, version 2."""

import httpx

PATH = "/language/translate/v2"


def test_translations(client: httpx.Client) -> None:
    given = {"q": ["A <b>wall</b> & a door"], "source": "en", "target": "de"}
    html = client.post(PATH, json=given)
    text = "Ade <b>wallde</b> &amp; ade doorde"
    assert html.json() == {"data": {"translations": [{"translatedText": text}]}}
    query = [("q", "A"), ("q", "Haus"), ("target", "fr"), ("format", "text"), ("key", "any")]
    assert client.get(PATH, params=query).json()["data"]["translations"] == [
        {"translatedText": "Adefr", "detectedSourceLanguage": "en", "model": "en-de-fr"},
        {"translatedText": "Hausfr", "detectedSourceLanguage": "de"},
    ]
    pivot = client.post(PATH, data={"q": "A", "source": "en", "target": "it"}).json()
    assert pivot["data"]["translations"] == [{"translatedText": "Adefrit", "model": "en-de-fr-it"}]


def test_detections_and_languages(client: httpx.Client) -> None:
    found = client.post(f"{PATH}/detect", json={"q": ["Haus", "A"]}).json()["data"]["detections"]
    facts = {"confidence": 0.75, "isReliable": False}
    assert found == [[{"language": code, **facts}] for code in ("de", "en")]
    codes = client.get(f"{PATH}/languages").json()["data"]["languages"]
    assert [language["language"] for language in codes] == ["de", "en", "es", "fr", "it"]
    assert {"language": "it", "name": "Italian"} in codes


def test_errors(client: httpx.Client) -> None:
    for given, message in (
        ({"q": "A", "target": "xx"}, "Invalid Value: xx"),
        ({"q": "A"}, "Required field is missing: target"),
        ({"target": "de"}, "Required field is missing: q"),
    ):
        found = client.post(PATH, json=given)
        error = found.json()["error"]
        assert (found.status_code, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT")
        assert message in error["message"] == error["errors"][0]["message"]
