"""Text in capitals: translated like other text, and written in capitals again."""

from __future__ import annotations

import unicodedata
from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.extensions.documents import translate_file, with_options
from keras_transformer.extensions.documents.casing import is_in_capitals
from keras_transformer.extensions.documents.protection import translate_texts
from keras_transformer.inference.translate import split_texts
from keras_transformer.text.symbols import SYMBOLS
from tests.builders import refuses
from tests.extensions.documents.fakes import fake_engine, reverse
from tests.extensions.documents.protection_test import CHANGES, TEXTS, assert_kept, spans_in


def test_short_words_and_other_scripts_are_not_text_in_capitals() -> None:
    found = "DO NOT ENTER!|ΜΗΝ ΠΕΡΝΆΤΕ|HAUPTSTRAßE|SHE RAN OFF TO THE SEA|E\u0301COLE FERME\u0301E"
    others = "NATO|USA!|US, UK, EU, USA|The NATO COUNTRIES|东京 MICROSOFT WINDOWS|5:30 – 17|"
    texts = f"{found}|{others}".split("|")
    assert [text for text in texts if is_in_capitals(text)] == found.split("|")


def test_models_get_sentence_case() -> None:
    for languages, text, line, output in (
        ("", "“THE RED DOG”, ÉCOLE", "“The red dog”, école", None),
        ("", "DIE STRAẞE IN BERLIN", "Die straße in berlin", "DIE STRASSE IN BERLIN"),
        ("en de", "SO I SAY I'M TIRED", "So I say I'm tired", None),
        ("en de", "HI, THE TAXI TO DELHI", "Hi, the taxi to delhi", None),
        ("it en", "TUTTI I GIORNI", "Tutti i giorni", None),
        ("tr tr-TR", "İKİ KIRMIZI IŞIK", "İki kırmızı ışık", None),
        ("", "Ο ΛΌΓΟΣ ΤΟΥ ΘΕΟΎ", "Ο λόγος του θεού", None),
    ):
        lines = list[str]()
        model = fake_engine(lambda line, seen=lines: seen.append(line) or f"{line} 1")
        model.source_language, model.target_language = languages.split() or (None, None)
        assert translate_texts(model, [text])[0] == [f"{output or text} 1"] and lines == [line]


def test_each_sentence_has_its_own_case_and_kept_text_does_not_change() -> None:
    text = "İSTANBUL STRAẞE.\nA red dog. DO NOT ENTER. USA!"
    assert translate_texts(fake_engine(), [text])[0] == [text], "the model leaves it as it is"
    found, *_ = translate_texts(fake_engine(lambda line: f"die {line}"), [text])
    assert found == ["DIE İSTANBUL STRASSE.\ndie A red dog. DIE DO NOT ENTER. die USA!"]


def test_terms_and_tags_keep_their_letters() -> None:
    model = fake_engine(str, reverse, returns_alignments=True)
    model = with_options(model, {"fare": "Fahrpreis", "US": "USa"})
    found, *_ = translate_texts(model, ["THE <b>RED</b> FARE, US DOLLARS"])
    assert found == ["DOLLARS USa FAHRPREIS, <b>RED</b> THE"]


def test_only_lines_in_capitals_become_documents(tmp_path: Path) -> None:
    model = fake_engine(lambda line: line.replace("red", "rot"), symbols=["<2de>"])
    lines = ["<2de> THE RED TRAINS, {dog}", "the red dog", "USA"]
    assert split_texts(model, lines, False, "", 1)[0] == {}
    auto = with_options(model, casing="auto")
    assert split_texts(auto, lines, False, "", 1)[0] == {0: "<2DE> THE ROT TRAINS, {dog}"}
    (tmp_path / "a.txt").write_text("THE RED TRAIN\n")
    for casing, word in ((None, "ROT"), ("keep", "RED")):
        translate_file(model, tmp_path / "a.txt", tmp_path / "b.txt", casing=casing, overwrite=True)
        assert (tmp_path / "b.txt").read_text() == f"THE {word} TRAIN\n"
    refuses(with_options, (model, None, None, "upper"), "casing", "'upper'", "auto")


def letters(text: str) -> Counter[str]:
    return Counter(filter(str.isalnum, unicodedata.normalize("NFKD", text).casefold()))


ENGINES = [fake_engine(change, symbols=known) for change in CHANGES for known in (None, SYMBOLS)]


@settings(max_examples=20, deadline=None)
@given(TEXTS, st.sampled_from(ENGINES))
def test_no_span_and_no_word_in_capitals_is_lost(text, model):
    words = (word if spans_in(word) else word.upper() for word in text.split())
    text = f"LETTERS IN CAPITALS {' '.join(words)}"
    [output], *_ = translate_texts(model, [text])
    assert_kept(text, output)
    [output], *_ = translate_texts(fake_engine(str.swapcase), [text])
    assert letters(output) == letters(text), (text, output)
