"""Careless writing: which texts change, and what never does."""

import random
from collections import Counter

import hypothesis
import hypothesis.strategies as st
import pytest

from keras_transformer.extensions.augmentation.noise import NoiseAugmentation
from keras_transformer.extensions.documents.spans import find_spans
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary

KINDS = NoiseAugmentation.test_kinds
VOCABULARY = Vocabulary(learn_vocabulary([b"ab"], 40, symbols=["<2de>"]))
AUGMENT = NoiseAugmentation([None, None], VOCABULARY)
PAIR = ("The ticket for {Name} costs 5 euros…", "Die Karte für {Name} kostet 5 Euro.")
NEXT = ("It rains.", "Es regnet.")


@pytest.mark.parametrize(
    "kind, source, target",
    [
        ("upper", "THE TICKET FOR {Name} COSTS 5 EUROS…", "DIE KARTE FÜR {Name} KOSTET 5 EURO."),
        ("title", "The Ticket For {Name} Costs 5 Euros…", "Die Karte Für {Name} Kostet 5 Euro."),
        ("punctuation", PAIR[0][:-1], PAIR[1][:-1]),
        ("spaces", PAIR[0].replace(" ", "  "), PAIR[1]),
        ("lower", "the ticket for {Name} costs 5 euros…", PAIR[1]),
        ("merge", f"{PAIR[0]} It rains.", f"{PAIR[1]} Es regnet."),
    ],
)
def test_each_kind_changes_both_sides_alike(kind, source, target):
    assert AUGMENT(kind, PAIR, NEXT, random.Random(1)) == (source, target)
    tagged = AUGMENT(kind, (f"<2de> {PAIR[0]}", PAIR[1]), (f"<2de> {NEXT[0]}", NEXT[1]), random)
    assert tagged == (f"<2de> {source}", target)


def test_typing_errors_are_in_one_of_eight_long_words_of_the_source():
    letters = "The ticket {ticket} of a man in the old दुनिया".split()
    errors = Counter()
    for seed in range(200):
        source, target = AUGMENT("typos", (" ".join(letters), "Karte"), NEXT, random.Random(seed))
        assert target == "Karte"
        [(old, new)] = [(a, b) for a, b in zip(letters, source.split(), strict=True) if a != b]
        assert old in ("ticket", "दुनिया") and new[0] == old[0]
        assert "न" not in new.replace("नि", ""), "marks stay on their letters"
        errors[len(new) - len(old)] += 1
    assert {*errors} == {-2, -1, 0, 1, 2}, "dropped, swapped and doubled letters"
    doubled = [AUGMENT("typos", ("aaaa", ""), NEXT, random.Random(i))[0] for i in range(9)]
    assert {*doubled} == {"aaa", "aaaaa"}, "equal letters are not swapped"
    source, _ = AUGMENT("typos", (" ".join(["word"] * 40), ""), NEXT, random.Random(1))
    assert 4 <= sum(word != "word" for word in source.split()) <= 5


def test_a_pair_whose_source_a_change_does_not_alter_is_not_counted():
    assert AUGMENT("merge", ("a", "a"), ("<2de> b", "b"), random.Random(1)) is None, "language"
    unchanged = {
        "upper": "5 + 7|我喜欢 iPhone。",
        "title": "أحب|A Dog",
        "spaces": "猫",
        "lower": "a",
    }
    unchanged |= {"typos": "12345 a b|我喜欢猫。", "punctuation": "ฉันรักคุณ|a"}
    for kind, sources in unchanged.items():
        for source in sources.split("|"):
            assert AUGMENT(kind, (source, "I like cats."), NEXT, random.Random(1)) is None, source


def test_turkish_has_a_dotted_and_a_dotless_i():
    languages = NoiseAugmentation.learn([("bu iyi", "it"), ("kırk iki", "it"), ("ışık", "in ı")])
    augment = NoiseAugmentation(languages, VOCABULARY)
    assert augment("upper", ("bu iyi kız", "it"), NEXT, random) == ("BU İYİ KIZ", "IT")
    assert augment("title", ("iyi ısırık", "it"), NEXT, random) == ("İyi Isırık", "It")
    assert augment("lower", ("İyi Isırık", "It"), NEXT, random) == ("iyi ısırık", "It")


@hypothesis.given(st.text(), st.text(), st.sampled_from([*KINDS]), st.integers(0, 9))
def test_spans_survive_and_the_result_depends_only_on_the_arguments(source, target, kind, seed):
    pair = f"{source} {{name}} https://a.b/c", f"{{name}} {target}"
    changed = AUGMENT(kind, pair, NEXT, random.Random(seed)) or pair
    assert changed == (AUGMENT(kind, pair, NEXT, random.Random(seed)) or pair)
    assert changed[0].count("{name}") >= 1 and changed[0].count("https://a.b/c") >= 1
    if kind != "merge":
        kept = [pair[1][a:b] for a, b in find_spans(pair[1])]
        assert all(span in changed[1] for span in kept)


def test_a_noisy_test_set_keeps_tags_and_has_the_same_sources_for_all_references():
    sources = ["<2de> The big house.", "A red car.", "ฉันรักคุณ"]
    references = [["das große Haus.", "rotes Auto.", "Du."], ["ein großes Haus!", "rot", "Du."]]
    assert {*KINDS} - {*NoiseAugmentation.kinds} == {"lower"}, "no training has it"
    for kind in KINDS:
        noisy, texts = NoiseAugmentation.test_set(kind, sources, references, ["<2de>"])
        assert noisy[0].startswith("<2de> ") and [*map(len, (noisy, *texts))] == [3, 3, 3]
        assert noisy != sources or kind == "merge", "languages are not merged"
        again = NoiseAugmentation.test_set(kind, sources, references[:1], ["<2de>"])
        assert again == (noisy, texts[:1])
    assert NoiseAugmentation.test_set("punctuation", sources, references, []) == (
        ["<2de> The big house", "A red car", "ฉันรักคุณ"],
        [["das große Haus", "rotes Auto", "Du."], ["ein großes Haus", "rot", "Du."]],
    )
