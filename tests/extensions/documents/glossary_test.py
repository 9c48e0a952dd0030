"""Glossaries: which terms are found, and their translations in every output."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from keras_transformer.extensions.documents import translate_file, with_options
from keras_transformer.extensions.documents.glossary import Glossary
from keras_transformer.extensions.documents.protection import translate_texts
from keras_transformer.extensions.serving import engines
from keras_transformer.extensions.serving.tensors import RequestError
from keras_transformer.inference.engine import Engine
from keras_transformer.inference.translate import split_texts, with_fallback
from keras_transformer.text.symbols import SYMBOLS, TERM_SYMBOLS
from tests.builders import refuses
from tests.extensions.documents.casing_test import letters
from tests.extensions.documents.fakes import fake_engine, reverse
from tests.messages import tells

TERMS = {"the wall": "Wand", "Wall Street": "Börse", "big dog": "Hund", "us": "uns", "US": "USA"}
TERMS |= {"IT": "EDV", "5": "fünf", "don": "Don", "driver's café": "Bar", "C++": "C-plus"}
TERMS |= {"{x}": "nie", "sum": "{n, plural, one {a} other {b}}", "猫": "Katze"}
TERMS["コーヒー"] = "Kaffee"


FOUND: dict[str, dict[str, str]] = {
    "on the wall": {"the wall": "Wand"},
    "The wall, THE WALL": {"The wall": "Wand", "THE WALL": "WAND"},
    "the Wall Street": {"the Wall": "Wand"},
    "a Wall street, walls": {"Wall street": "Börse"},
    "big  dog, big, dog": {"big  dog": "Hund"},
    "us, US, Us": {"us": "uns", "US": "USA", "Us": "Uns"},
    "It, IT": {"IT": "EDV"},
    "5, 5.50, 1/5, e5, don't, o'don, don": {"5": "fünf", "don": "Don"},
    "driver’s cafe\u0301": {"driver’s cafe\u0301": "Bar"},
    "l'us, dell’US; the wall's": {"us": "uns", "US": "USA", "the wall": "Wand"},
    "C++ and C": {"C++": "C-plus"},
    "黒猫です、コーヒーshop": {"猫": "Katze", "コーヒー": "Kaffee"},
}
# Languages, terms, and the words of a text with their translations, or "" if none is wanted.
FORMS: list[tuple[str, dict[str, str], dict[str, str]]] = [
    ("en de", {"iPad": "iPhone", "ab": "die U-Bahn"}, {"IPAD": "iPhone", "Ab": "Die U-Bahn"}),
    ("en de", {"hi": "hallo {x}", "ab": "die U-Bahn"}, {"HI": "hallo {x}", "AB": "DIE U-BAHN"}),
    ("en-GB ka", {"a": "ა", "b": "ß", "c": "iki"}, {"A": "ა", "B": "Ss", "C": "Iki"}),
    ("en tr-TR", {"ab": "iki ı", "isi": "a"}, {"AB": "İKİ I", "Ab": "İki ı", "ISI": "A"}),
    ("az en", {"ışık": "b", "isi": "a"}, {"IŞIK": "B", "Işık": "B", "ISI": "", "İSİ": "A"}),
    ("de en", {"Seeweg": "a", "weg": "b"}, {"See\xadweg": "a", "\u202bWeg\u202c": "", "Weg": "B"}),
    ("uk en", {"п'ять": "a", "E-Mail": "b"}, {"п’ять": "a", "пʼять": "a", "E\u2011mail": "b"}),
    ("ja en", {"ガム": "b"}, {"ｶﾞﾑ": "b"}),
    ("th en", {"ที": "Zeit"}, {"ที่นี่": ""}),  # another syllable
    ("en de", {"Polish": "a", "polish": "b"}, {"Polish": "a", "polish": "b", "POLISH": "A"}),
]
CASES = [("en de", TERMS, text, found) for text, found in FOUND.items()]
CASES += [(languages, terms, " ".join(words), words) for languages, terms, words in FORMS]


@pytest.mark.parametrize(("languages", "terms", "text", "found"), CASES)
def test_the_longest_term_is_found_as_words_in_any_case_and_form(
    languages: str, terms: dict[str, str], text: str, found: dict[str, str]
) -> None:
    source, target = languages.split()
    ranges = Glossary(terms, source, target).find(text)
    assert {text[a:b]: new for a, b, new in ranges} == {a: new for a, new in found.items() if new}


@hypothesis.example("Àຸ")
@hypothesis.given(st.text(st.characters(categories=["L", "M", "N"], exclude_characters="ı")))
def test_a_term_is_found_at_its_place_in_every_form(word: str) -> None:
    glossary = Glossary({f"x{word}y".lower(): "z"})
    nfd = unicodedata.normalize("NFD", f"x{word}y")
    for form in (nfd, unicodedata.normalize("NFC", nfd), nfd.upper(), nfd.casefold()):
        assert [place for *place, _ in glossary.find(f"İß {form} ﬁ")] == [[3, 3 + len(form)]]


def test_invalid_glossaries_are_refused() -> None:
    refuses(with_options, (fake_engine(str), 5), "5", "mapping")
    refuses(Glossary, ([("a", "b"), ("a",)],), "Term 2", "pairs", "('a',)")
    refuses(Glossary, ({"a": "\u200b"},), "empty", "'a'")
    refuses(Glossary, ({"猫" + "!" * 50: "a"},), "51 words", "50")
    refuses(Glossary, ({1: "a"},), "pairs", "1")
    refuses(with_options, (fake_engine(str, n_best=2), {"a": "b"}), "2 translations", "needs 1")
    for first, second in (("café", "cafe\u0301"), ("it's", "it’s"), ("a b", "a  b")):
        refuses(Glossary, ([(first, "b"), (second, "c")],), "Term 2", "two translations", "'c'")
        assert Glossary([("a", first), ("a", second)]).find("a") == [(0, 1, first)]


TBX = """<tbx xmlns="urn:iso:std:iso:30042:ed-2"><text><body><conceptEntry id="1">
<langSec xml:lang="de"><termSec><term>Mauer</term></termSec>
<termSec><term>Wand</term><termNote>preferredTerm-admn-sts</termNote></termSec></langSec>
<langSec xml:lang="en-GB"><termSec><term>the <hi>wall</hi></term></termSec>
<termSec><term>hedge</term></termSec></langSec></conceptEntry>
<conceptEntry id="2"><langSec xml:lang="de"><termSec><term>Tür</term></termSec></langSec>
</conceptEntry></body></text></tbx>"""


def test_files_are_tables_or_tbx(tmp_path: Path) -> None:
    path = tmp_path / "terms.tsv"
    path.write_text('"the ""wall"\tWand\t"\n\n"big" dog\t5"\n')
    assert Glossary(path).find('the "wall "big" dog') == [(0, 9, "Wand"), (10, 19, '5"')]
    path.write_text("the wall\tWand\nbig dog\n")
    refuses(Glossary, (path,), "terms.tsv, line 2", "tab")
    path.write_text("a\tb\n\na\tc\n")
    refuses(Glossary, (path,), "terms.tsv, line 3", "two translations", "'b'", "'c'")
    path = tmp_path / "terms.tbx"
    path.write_text(TBX)
    assert Glossary(path, "en").find("the wall hedge") == [(0, 8, "Wand"), (9, 14, "Wand")]
    assert Glossary(path, "de-AT", "en").find("Mauer") == [(0, 5, "the wall")]
    model = fake_engine(str, target_language="fr")
    refuses(with_options, (model, path), "de, en-GB", "unknown", "--source_language", "fr")
    refuses(Glossary, (path, "en", "fr"), "de, en-GB", "en", "fr")
    old = TBX.replace("conceptEntry", "termEntry").replace("langSec", "langSet")
    path.write_text(old.replace("termSec", "tig"))
    assert Glossary(path, "en").find("the wall") == [(0, 8, "Wand")]
    path.write_text(TBX.replace('"2"><langSec xml:lang="de"', '"2"><langSec xml:lang="fr"'))
    refuses(Glossary, (path, "de"), "de, en-GB, fr", "two")
    empty = '<langSec xml:lang="en-GB"><term/></langSec></conceptEntry></body>'
    path.write_text(TBX.replace("</conceptEntry></body>", empty))
    refuses(Glossary, (path, "en"), "terms.tbx, line 6", "concept 2", "empty", "'Tür'")
    path.write_text(TBX.replace(' id="2"', "").replace("</conceptEntry></body>", empty))
    refuses(Glossary, (path, "en"), "line 6", "without an id")
    path.write_text(TBX[:-9])
    refuses(Glossary, (path,), "terms.tbx", "TBX")


WORDS = st.sampled_from([*TERMS, "dog", "wall", "WALL", "{x}", "https://a.b", "<b>", "</b>", "."])


@hypothesis.given(st.lists(WORDS, min_size=1).map(" ".join), st.integers(0, 2))
def test_each_term_is_in_the_output_with_every_model(text: str, kind: int) -> None:
    models = (
        fake_engine(lambda line: f"x {line.swapcase()}"),
        fake_engine(lambda line: line.upper(), symbols=SYMBOLS),
        fake_engine(str.upper, order=lambda size: [*range(size)][::-1], returns_alignments=True),
    )
    model = with_options(models[kind], {**TERMS, "dog": "Wand"})
    [output], *_ = translate_texts(model, [text])
    plain = [word for word in text.split() if word not in ("<b>", "</b>")]
    expected = model.glossary.find(" ".join(plain), [])
    found = [translation for *_, translation in expected if translation != "nie"]
    for translation in {*found}:
        assert output.count(translation) == found.count(translation), (text, output)
    assert output.count("{x}") == text.count("{x}"), "spans are not terms"
    soft = fake_engine(lambda line: re.sub("｟t.｠ ?", "", line).swapcase(), symbols=TERM_SYMBOLS)
    [output], *_ = translate_texts(with_options(soft, [(t, t) for t in TERMS], "soft"), [text])
    assert letters(output) == letters(text) and output.count("{x}") == text.count("{x}")


def test_only_lines_with_terms_are_translated_like_documents() -> None:
    model = with_options(fake_engine(str.upper, single_sentences=True), TERMS)
    lines = ["big <b>dog</b>", "a/big dog/", "A dog. Two dogs.", "the wall"]
    assert split_texts(model, lines, False, "", 1)[0] == {0: "<b>Hund</b>", 3: "Wand"}
    assert {*split_texts(model, lines, None, "", 1)[0]} == {0, 2, 3}
    # A term is not a part of a longer word.
    model = with_options(fake_engine(lambda line: line.replace("Wand", "Wandfarbe")), {"a": "Wand"})
    assert translate_texts(model, ["a x a"])[0] == ["Wand x Wand"]


def test_files_and_servers_have_glossaries(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<p>a <b>big dog</b></p>")
    model: Engine = fake_engine(str.upper)
    translate_file(model, tmp_path / "a.html", tmp_path / "b.html", glossary=TERMS)
    assert (tmp_path / "b.html").read_text() == "<p>A <b>Hund</b></p>"
    (tmp_path / "terms.tsv").write_text("big dog\tHund\n")
    version = engines.Version(model, engines._text_signatures(model))
    version = engines.with_sentences(version, None, glossary=str(tmp_path / "terms.tsv"))
    outputs = version.signatures["serving_default"].call({"text": np.array([b"big dog"], object)})
    assert outputs["translations"].tolist() == [[b"Hund"]]
    asked = engines.with_glossary(version, {"cat": "Katze"}, None).signatures["serving_default"]
    outputs = asked.call({"text": np.array([b"big dog", b"a cat, big dog", b"it"], object)})
    assert outputs["translations"].tolist() == [[b"Hund"], [b"A Katze, BIG DOG"], [b"IT"]]
    for glossary, terms, fact in (
        (str(tmp_path / "terms.tsv"), None, "object"),
        (None, "soft", "object"),
        (dict.fromkeys(map(str, range(1001)), "Katze"), None, "1,000 terms"),
        ({"cat": "\ud800"}, None, "Unicode"),
    ):
        with pytest.raises(RequestError, match=fact):
            engines.with_glossary(version, glossary, terms)
    refuses(with_options, (model, str(tmp_path / "none.tsv")), "none.tsv")


def test_soft_terms_are_found_by_the_stems_of_their_words() -> None:
    terms = {"traffic jam": "Stau", "wall": "Wand", "walls": "Wände", "US": "USA"}
    text = "Traffic jams, WALLS, wall’s, walled, US, Us"
    exact = {"WALLS": "Wände", "wall": "Wand", "US": "USA"}
    found = {"Traffic jams": "Stau", "walled": "Wand", **exact}
    for language, expected in (("en-GB", found), (None, exact)):
        ranges = Glossary(terms, language, is_soft=True).find(text)
        assert {text[start:end]: translation for start, end, translation in ranges} == expected
    assert [*Glossary(terms, "en").find("traffic jams")] == [], "hard terms have one form"
    assert Glossary({"bilen": "car"}, "nb", is_soft=True).find("bilene") == [(0, 6, "car")]


def test_a_model_gets_soft_terms_in_its_source() -> None:
    lines = list[str]()
    knows: Any = {"symbols": (*SYMBOLS, *TERM_SYMBOLS), "source_language": "en"}
    model = fake_engine(lambda line: lines.append(line) or "die Mauer ｟0｠", **knows)
    model = with_options(model, {"wall": "Mauer"}, "soft")
    outputs, *_ = split_texts(model, ["the walls {x}", "WALLS ARE {x}"], False, "", 1)
    assert outputs == {0: "die Mauer {x}", 1: "DIE MAUER {x}"}
    assert lines == ["the ｟t0｠ Mauer ｟t1｠ ｟0｠", "｟t0｠ Mauer ｟t1｠ are ｟0｠"]
    # A word that translates any part of the term belongs to it, and symbols are left out.
    model = fake_engine(str, reverse, returns_alignments=True, **knows)
    model = with_options(model, {"big wall": "Mauer"}, "soft")
    output = translate_texts(model, ["the <b>big wall</b> {x}"])[0]
    assert output == ["<b>Mauer</b> the {x}"]
    short = with_options(fake_engine(str.upper, limit=6, **knows), {"wall": "Mauer"}, "soft")
    assert translate_texts(short, ["the wall of it"])[0] == ["THE WALL OF IT"], "too long"


@pytest.mark.parametrize("terms", ["hard", "soft"])
def test_a_sentence_of_low_quality_or_without_a_translation_stays_as_it_is(terms: str) -> None:
    text = "A <b>bad  wall</b> {x}. BAD WALLS ARE HERE. A bad {n, plural, other {dog}}. Its wall."
    knows: Any = {"symbols": (*SYMBOLS, *TERM_SYMBOLS), "source_language": "en"}
    empty = fake_engine(lambda line: "" if "bad" in line.lower() else line, **knows)
    knows |= {"has_quality": True, "returns_alignments": True}
    low = fake_engine(lambda word: word.replace("dog", "Hund"), **knows)
    for model, count in ((with_fallback(low, "source"), 0), (empty, 3)):
        model = with_options(model, {"wall": "Mauer"}, terms)
        outputs, _, remarks = translate_texts(model, ["", text])
        assert outputs[1] == text.replace("Its wall", "Its Mauer")
        assert len(remarks) == count and all(tells(r, "line 2", "nothing", "bad") for r in remarks)
    model = with_options(with_fallback(low, "empty"), {"wall": "Mauer"}, terms)
    for document, expected in ((None, ""), (True, outputs[1])):
        assert split_texts(model, [text], document, "", 1)[:2] == ({0: expected}, [])


def test_a_term_neither_ends_a_sentence_nor_is_split() -> None:
    lines = list[str]()
    model = fake_engine(lambda line: lines.append(line) or line, symbols=SYMBOLS)
    model = with_options(model, {"Dr": "Doktor", "Wow! Inc": "Wau"})
    translate_texts(model, ["I saw Dr. Miller. He left Wow! Inc at 5."])
    assert lines == ["I saw ｟0｠. Miller.", "He left ｟0｠ at 5."]


def test_models_that_were_not_trained_for_soft_terms_get_hard_ones(capsys: Any) -> None:
    model = with_options(fake_engine(str.upper), {"wall": "Mauer"}, "soft")
    assert translate_texts(model, ["the wall, walls"])[0] == ["THE Mauer, WALLS"]
    assert tells(capsys.readouterr().err, "fake", "terms:0.4", "exactly")
    refuses(with_options, (model, None, "soft"), "terms=soft", "glossary")
    refuses(with_options, (model, {"a": "b"}, "hart"), "'hart'", "soft")
