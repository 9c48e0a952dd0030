"""Finds sentences in another language."""

from keras_transformer.data.cleaning import language_check
from tests.builders import refuses

ENGLISH = b"Two young men are playing football in the park behind the house."
GERMAN = "Zwei junge Männer spielen Fußball im Park hinter dem Haus.".encode()
RUSSIAN = "Двое молодых людей играют в футбол в парке за домом.".encode()


def test_pairs_with_a_side_in_another_language():
    check = language_check("en", "de")
    assert check is language_check("en", "de")
    sources = [ENGLISH, ENGLISH, GERMAN, RUSSIAN, b"Wait!", b"1999 - 2024, 100 % + 23 x 17"]
    targets = [GERMAN, ENGLISH, GERMAN, GERMAN, b"Warte!", b"1999 - 2024, 100 % + 23 x 17"]
    assert list(map(check, sources, targets)) == [True, False, False, False, True, True]


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
    assert all(map(language_check("en", "de"), english, german))


def test_codes_of_regions_and_close_languages():
    serbian = [
        "Moja sestra živi u velikom gradu pored reke.",
        "Kupili smo hleb i mleko u prodavnici na uglu.",
        "Deca se igraju u dvorištu iza škole svakog dana.",
        "Sutra ujutru putujemo kod bake na selo.",
    ]
    norwegian = "Barna leker i hagen bak skolen hver dag."
    portuguese, chinese = (
        "As crianças brincam todos os dias no quintal.",
        "孩子們每天都在學校後面玩。",
    )
    for code, texts in {
        **dict.fromkeys(("sr", "hr", "sr-Latn", "srp", "sh"), serbian),
        **dict.fromkeys(("no", "nb", "nn_NO", "da"), [norwegian]),
        **dict.fromkeys(("zh-TW", "zho"), [chinese]),
        "pt-BR": [portuguese],
    }.items():
        check = language_check("en", code)
        assert all(check(ENGLISH, text.encode()) for text in texts), code
        assert not any(check(ENGLISH, text) for text in (ENGLISH, GERMAN)), code


def test_unknown_languages_are_refused():
    refuses(language_check, ("en", "xx"), "language", "xx", "lingua")


def test_most_of_a_real_corpus_is_in_its_languages(test_data):
    sides = [
        (test_data / f"multi30k/val.{code}").read_bytes().splitlines()[:300]
        for code in ("en", "de")
    ]
    check = language_check("en", "de")
    assert sum(map(check, *sides)) >= 297
    assert sum(map(check, *sides[::-1])) <= 15
