"""The official client of DeepL, and what it does not send."""

import json
from typing import Any
from unittest import mock

import deepl
import httpx
import pytest

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def translator(client: httpx.Client) -> deepl.DeepLClient:
    return deepl.DeepLClient("key", server_url=str(client.base_url), send_platform_info=False)


def test_texts(translator: deepl.DeepLClient) -> None:
    found = translator.translate_text("A house. A wall.", source_lang="EN", target_lang="DE")
    assert (found.text, found.detected_source_lang) == ("Ade housede. Ade wallde.", "EN")
    assert found.billed_characters == 16
    batch = translator.translate_text(["Das Haus", "A wall"], target_lang="EN-US")
    assert [result.text for result in batch] == ["Dasen Hausen", "A wall"]
    assert [result.detected_source_lang for result in batch] == ["DE", "EN"]
    found = translator.translate_text("A house", target_lang="ES")  # too far from English
    assert (found.text, found.detected_source_lang) == ("Afrites housefrites", "DE")


def test_sentences(translator: deepl.DeepLClient) -> None:
    options = {"source_lang": "EN", "target_lang": "DE", "preserve_formatting": True}
    for split, end in (("1", "\n"), ("nonewlines", " "), ("0", " ")):
        found = translator.translate_text("A wall.\nA house", split_sentences=split, **options)
        assert found.text == f"Ade wallde.{end}Ade housede"


def test_a_text_with_tags_as_one_sentence(client: httpx.Client, running: Any) -> None:
    text = {"text": "<p>See <b>{a}</b>. A wall.</p>", "target_lang": "DE", "source_lang": "EN"}
    given = {**text, "tag_handling": "html", "split_sentences": "0"}
    with mock.patch.object(running[0].batcher, "run", wraps=running[0].batcher.run) as run:
        (found,) = client.post("/v2/translate", json=given).json()["translations"]
    assert found["text"] == "<p>Seede <b>{a}</b>. Ade wallde.</p>"
    assert {len(call.args[1]["text"]) for call in run.call_args_list} == {1}


def test_tags_stay_at_their_words(translator: deepl.DeepLClient) -> None:
    options = {"source_lang": "EN", "target_lang": "DE"}
    html = translator.translate_text("<p>A <b>wall</b></p>", tag_handling="html", **options)
    assert html.text == "<p>Ade <b>wallde</b></p>"
    text = '<i>A <x id="1">kept</x> wall</i><b>A</b> <u>tree</u>\nA<br/>house'
    xml = translator.translate_text(text, tag_handling="xml", ignore_tags=["x"], **options).text
    assert xml == '<i>Ade <x id="1">kept</x> wallde</i><b>Ade</b> <u>treede</u>\nAde<br/>housede'


def test_variables_and_urls_survive(translator: deepl.DeepLClient) -> None:
    text = "See {name} at https://example.com/a now"
    found = translator.translate_text(text, source_lang="EN", target_lang="DE")
    assert found.text == "Seede {name} atde https://example.com/a nowde"


def test_glossaries(translator: deepl.DeepLClient) -> None:
    made = translator.create_glossary("walls", "EN", "DE", {"wall": "Wand", "house": "Haus"})
    assert (made.entry_count, made.source_lang, made.ready) == (2, "EN", True)
    found = translator.translate_text("A wall", source_lang="EN", target_lang="DE", glossary=made)
    assert found.text == "Ade Wand"
    assert [glossary.name for glossary in translator.list_glossaries()] == ["walls"]
    assert translator.get_glossary(made.glossary_id).entry_count == 2
    assert translator.get_glossary_entries(made) == {"wall": "Wand", "house": "Haus"}
    translator.delete_glossary(made)
    with pytest.raises(deepl.GlossaryNotFoundException):
        translator.get_glossary(made.glossary_id)
    csv = translator.create_glossary_from_csv("csv", "EN", "DE", 'wall,"Wand, dick"\n')
    assert translator.get_glossary_entries(csv) == {"wall": "Wand, dick"}
    translator.delete_glossary(csv)


def test_terms_survive_a_pivot(translator: deepl.DeepLClient) -> None:
    made = translator.create_glossary("pivot", "EN", "FR", {"wall": "mur"})
    found = translator.translate_text("A wall", source_lang="EN", target_lang="FR", glossary=made)
    assert found.text == "Adefr mur"
    translator.delete_glossary(made)


def test_languages_and_usage(translator: deepl.DeepLClient) -> None:
    before = translator.get_usage().character.count
    translator.translate_text("A wall", source_lang="EN", target_lang="DE")
    assert translator.get_usage().character.count == before + 6
    assert not translator.get_usage().any_limit_reached
    sources = {language.code: language.name for language in translator.get_source_languages()}
    assert sources == {"DE": "German", "EN": "English", "FR": "French", "IT": "Italian"}
    targets = {t.code: t.supports_formality for t in translator.get_target_languages()}
    assert targets == {**dict.fromkeys(("EN-GB", "EN-US", "ES", "FR", "IT"), False), "DE": True}
    pairs = {(p.source_lang, p.target_lang) for p in translator.get_glossary_languages()}
    assert ("en", "it") in pairs and ("it", "en") not in pairs


def test_formality(translator: deepl.DeepLClient) -> None:
    found = translator.translate_text(
        "A wall", source_lang="EN", target_lang="DE", formality="more"
    )
    assert found.text == "<formal> Ade wallde"  # the engine shows the symbol that it got
    options = {"source_lang": "EN", "target_lang": "FR"}  # its model has no symbols
    assert translator.translate_text("A", formality="prefer_less", **options).text == "Adefr"
    with pytest.raises(deepl.DeepLException, match="formality"):
        translator.translate_text("A", formality="less", **options)


def test_errors(translator: deepl.DeepLClient) -> None:
    for options, message in (
        ({"target_lang": "XX"}, "XX"),
        ({"target_lang": "DE", "source_lang": "XX"}, "XX"),
        ({"target_lang": "EN-US", "source_lang": "IT"}, "not available"),
        ({"target_lang": "DE", "source_lang": "EN", "glossary": "none"}, "Glossary"),
        ({"target_lang": "DE", "split_sentences": "maybe"}, "split_sentences"),
        ({"target_lang": "DE", "formality": "foo"}, "formality"),
    ):
        with pytest.raises(deepl.DeepLException, match=message) as caught:
            translator.translate_text("A wall", **options)
        assert caught.value.http_status_code in (400, 404)


def test_forms_and_a_pivot(client: httpx.Client) -> None:
    form = {"text": ["A wall", "B"], "target_lang": "FR", "source_lang": "EN"}
    for sent in ({"data": form}, {"json": {**form, "split_sentences": None, "formality": None}}):
        found = client.post("/v2/translate", **sent)
        assert [t["text"] for t in found.json()["translations"]] == ["Adefr walldefr", "Bdefr"]
        assert found.headers["x-pivot"] == "de"
    empty = client.post("/v2/translate", data={"target_lang": "DE"})
    message = {"message": "Parameter 'text' not specified."}
    assert (empty.status_code, empty.json()) == (400, message)


def test_invalid_glossaries(client: httpx.Client) -> None:
    given = {"name": "a", "source_lang": "en", "target_lang": "de"}
    invalid = ["wall", "wall,", "a,b\na,c", '"a\tb",c', '"a\nb",c', "a,b\u2028c"]
    for e, f in (*((entries, "csv") for entries in invalid), ("a\tb\x0bc", None), ("a,b", "foo")):
        found = client.post("/v2/glossaries", json={**given, "entries": e, "entries_format": f})
        assert found.status_code == 400 and "entries" in found.json()["message"]
    lone = {**given, "name": "\ud800", "entries": "a\t\ud800"}
    body = json.dumps(lone).encode()  # httpx cannot write it
    made = client.post("/v2/glossaries", content=body, headers=JSON).json()
    assert client.get("/v2/glossaries").json()["glossaries"][-1] == {**made, "name": "?"}
    assert client.delete(f"/v2/glossaries/{made['glossary_id']}").status_code == 204
