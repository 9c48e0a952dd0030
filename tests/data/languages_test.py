"""Finds sentences in another language."""

import pytest

from keras_transformer.data.cleaning import LanguageCheck, normalized_language
from keras_transformer.errors import InputError
from tests.messages import mentions

ENGLISH = b"Two young men are playing football in the park behind the house."
GERMAN = "Zwei junge Männer spielen Fußball im Park hinter dem Haus.".encode()
RUSSIAN = "Двое молодых людей играют в футбол в парке за домом.".encode()


def test_pairs_with_a_side_in_another_language():
    check = LanguageCheck.of(("en", "de"))
    assert check is LanguageCheck.of(("en", "de"))
    sources = [ENGLISH, ENGLISH, GERMAN, RUSSIAN, b"Wait!", b"1999 - 2024, 100 % + 23 x 17"]
    targets = [GERMAN, ENGLISH, GERMAN, GERMAN, b"Warte!", b"1999 - 2024, 100 % + 23 x 17"]
    assert check(sources, targets) == [True, False, False, False, True, True]


def test_names_and_numbers_do_not_count_as_another_language():
    english = [
        b"We export to Austria, Bulgaria and Kenya.",
        b"The shop opens in January, April and October.",
        b"He paid 27 euros to Maria.",
        b"Croatia lost against Senegal.",
    ]
    german = [
        "Wir exportieren nach Österreich, Bulgarien und Kenia.".encode(),
        "Der Laden öffnet im Januar, April und Oktober.".encode(),
        b"Er zahlte Maria 27 Euro.",
        b"Kroatien hat gegen Senegal verloren.",
    ]
    assert all(LanguageCheck.of(("en", "de"))(english, german))


def test_unknown_languages_are_refused():
    with pytest.raises(InputError, match=mentions("language", "xx", "lingua")):
        LanguageCheck("en", "xx")


def test_most_of_a_real_corpus_is_in_its_languages(test_data):
    sides = [
        (test_data / f"multi30k/val.{code}").read_bytes().splitlines()[:300]
        for code in ("en", "de")
    ]
    check = LanguageCheck.of(("en", "de"))
    assert sum(check(*sides)) >= 297
    assert sum(check(*sides[::-1])) <= 15


def test_three_letter_codes_are_those_of_the_unicode_consortium():
    aliases = pytest.importorskip("babel.core").get_global("language_aliases")
    found = {code: normalized_language(code) for code in aliases if len(code) == 3}
    found = {code: language for code, language in found.items() if language != code}
    assert len(found) == 204
    # CLDR merges three languages into others.
    differ = {code for code, language in found.items() if language != aliases[code]}
    assert differ == {"bih", "tgl", "twi"}
    assert [found[code] for code in ("ger", "deu", "fre", "fra", "chi", "zho")] == [
        "de", "de", "fr", "fr", "zh", "zh"
    ]  # fmt: skip
    assert normalized_language("deu-Latn-AT") == "de-latn-at"
    assert normalized_language("English") == "english" and normalized_language("") == ""
