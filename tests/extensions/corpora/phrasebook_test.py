import re
from collections import Counter

import pytest

from keras_transformer.extensions.corpora import phrasebook
from keras_transformer.extensions.corpora.phrasebook.slots import slots
from tests.builders import refuses


@pytest.fixture(scope="module")
def corpus():
    return phrasebook.phrases(seed=1)


@pytest.fixture(scope="module")
def parts(corpus):
    return phrasebook.split(corpus, seed=1)


def test_templates_are_different_and_use_every_slot_on_both_sides():
    templates = phrasebook.TEMPLATES
    assert len(templates) >= 300
    for side in zip(*templates, strict=True):
        assert len(set(side)) == len(templates)
    used = set()
    for template in templates:
        english, german = (sorted(re.findall(r"{(\w+)}", side)) for side in template)
        assert english == german != [], template
        assert len({re.sub(r"[^.?!]", "", side[-1]) for side in template}) == 1, template
        used |= {name.rstrip("0123456789") for name in english}
    assert used == set(slots())
    for kind, values in slots().items():
        assert len({english for english, _ in values}) == len(values), kind


# CLDR's values. After the colon: English = German.
VALUES = """
date: March 5 = 5. März
full_date: January 12, 1982 = 12. Januar 1982
time: 5:30 PM = 17:30
time: 12:10 PM = 12:10
hour: 9 AM = 9 Uhr
quarter: 3rd quarter = 3. Quartal
years: 3 days = 3 Tage
years_dative: 3 days = 3 Tagen
years_ago: 2 months ago = vor 2 Monaten
in_years: in 7 years = in 7 Jahren
hours_and_minutes: 2 hours and 15 minutes = 2 Stunden und 15 Minuten
country: South Korea = Südkorea
city: Hong Kong = Hongkong
percent: 2.5% = 2,5 %
amount: $2,500 = 2.500 $
price: €12.50 = 12,50 €
money: 20 Swiss francs = 20 Schweizer Franken
degrees: 20°C = 20 °C
mass: 2.5 kilograms = 2,5 Kilogramm
"""


def test_slots_have_the_values_of_the_cldr():
    for line in VALUES.strip().splitlines():
        kind, _, pair = line.partition(": ")
        assert tuple(pair.split(" = ")) in slots()[kind]


def test_lists_lose_the_serial_comma_and_countries_have_no_article_in_german():
    triples = [pair for pair in slots()["countries"] if ", and " in pair[0]]
    pairs = [pair for pair in slots()["countries"] if "," not in pair[0]]
    assert len(triples) > 1000 and len(pairs) > 1000
    assert all(german.count(",") == 1 and " und " in german for _, german in triples)
    names = {german for _, german in slots()["country"]}
    assert not names & {"Irak", "Iran", "Malta", "Niederlande", "Schweiz", "Türkei", "Ukraine"}


def test_phrases_are_different_plain_and_repeatable(corpus):
    assert 30_000 <= len(corpus) <= 40_000
    assert len({phrase.english for phrase in corpus}) == len(corpus)
    for phrase in corpus:
        for text in phrase[:2]:
            assert not re.search("[\u00a0\u202f\u2009\u00ad{}]|  ", text), text
            assert text == text.strip() and not text[0].islower(), text
    assert phrasebook.phrases(seed=1, per_template=3) == phrasebook.phrases(seed=1, per_template=3)
    assert phrasebook.phrases(seed=1, per_template=3) != phrasebook.phrases(seed=2, per_template=3)


def test_two_values_of_a_kind_differ_and_keep_their_order(corpus):
    found = 0
    for phrase in corpus:
        if phrase.template[0] == "{number} of {number2} answers were correct.":
            first, second = re.findall(r"\d+", phrase.german)
            assert int(first) < int(second)
            found += 1
        if phrase.template[0] == "We drove from {city} to {city2}.":
            matched = re.fullmatch(r"We drove from (.*) to (.*)\.", phrase.english)
            assert matched and matched[1] != matched[2]
            found += 1
    assert found > 150


def test_training_covers_every_template_and_name_and_no_held_out_phrase(parts):
    train, valid, test = ({phrase.english for phrase in part} for part in parts.values())
    assert (len(valid), len(test)) == (500, 1000)
    assert not train & valid and not train & test and not valid & test
    times = Counter(phrase.template for phrase in parts["train"])
    assert min(times[template] for template in phrasebook.TEMPLATES) >= 80
    english = "\n".join(phrase.english for phrase in parts["train"])
    for kind in ("country", "city", "language", "currency", "script", "date", "time"):
        for name, _ in slots()[kind]:
            assert name in english, name


def test_writes_aligned_files_once(tmp_path, monkeypatch):
    few = phrasebook.phrases(per_template=6)  # done in a moment
    monkeypatch.setattr(phrasebook, "phrases", lambda seed: few)
    directory = tmp_path / "new" / "phrases"
    parts = phrasebook.write_corpus(directory)
    names = {f"{part}.{language}" for part in parts for language in ("en", "de")}
    assert {path.name for path in directory.iterdir()} == names
    assert {path.name for path in directory.parent.iterdir()} == {"phrases"}
    english, german = ((directory / f"test.{x}").read_text().split("\n") for x in ("en", "de"))
    assert english.pop() == german.pop() == ""
    assert list(zip(english, german, strict=True)) == [phrase[:2] for phrase in parts["test"]]
    before = {path: path.stat().st_mtime_ns for path in directory.iterdir()}
    phrasebook.write_corpus(directory)
    assert {path: path.stat().st_mtime_ns for path in directory.iterdir()} == before
    changed = directory / "test.de"
    changed.write_text("changed\n")
    refuses(phrasebook.write_corpus, (directory,), "phrases", "other files")
    refuses(phrasebook.write_corpus, (changed,), "test.de", "written", "Not a directory")
    refuses(phrasebook.write_corpus, (changed / "below",), "written", "Not a directory")
    assert changed.read_text() == "changed\n"
