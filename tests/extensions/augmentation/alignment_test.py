"""Word alignment: words between spaces and punctuation, and which of them translate each other."""

import random

import pytest

from keras_transformer.extensions.augmentation.alignment import (
    aligned_words,
    learn_lexicon,
    word_ranges,
)

ADJECTIVES = {"small": "kleine", "old": "alte", "red": "rote", "young": "junge", "tired": "müde"}
NOUNS = {"woman": "Frau", "cat": "Katze", "teacher": "Lehrerin", "girl": "Tochter", "cow": "Kuh"}
VERBS = {"sees": "sieht", "finds": "findet", "paints": "malt", "follows": "verfolgt"}
OBJECTS = {"man": "Mann", "dog": "Hund", "boy": "Jungen", "tree": "Baum"}
TIMES = {"today": "heute", "often": "oft", "never": "nie", "tomorrow": "morgen"}


def parallel_text(count):
    """Returns pairs of words, and the links of each pair. The German verb and time move."""
    random_ = random.Random(1)
    pairs, links = [], []
    for _ in range(count):
        adjective, noun, verb, object_, time = (
            random_.choice(sorted(words)) for words in (ADJECTIVES, NOUNS, VERBS, OBJECTS, TIMES)
        )
        subject = "die", ADJECTIVES[adjective], NOUNS[noun]
        start, verb_, end = TIMES[time], VERBS[verb], ("den", OBJECTS[object_])
        if random_.random() < 0.5:
            target = [start, verb_, *subject, *end]
            links.append([(0, 2), (1, 3), (2, 4), (3, 1), (4, 5), (5, 6), (6, 0)])
        else:
            target = ["weil", *subject, start, *end, verb_]
            links.append([(0, 1), (1, 2), (2, 3), (3, 7), (4, 5), (5, 6), (6, 4)])
        pairs.append((["The", adjective, noun, verb, "the", object_, time], target))
    return pairs, links


def test_a_parallel_text_is_aligned():
    pairs, links = parallel_text(200)
    lexicon = learn_lexicon(
        [(" ".join(source), f"{' '.join(target)}.") for source, target in pairs]
    )
    found = [aligned_words(*pair, lexicon) for pair in pairs]
    correct = sum(len({*some} & {*gold}) for some, gold in zip(found, links, strict=True))
    assert correct / sum(map(len, found)) > 0.95, "precision"
    assert correct / sum(map(len, links)) > 0.9, "recall"


def test_equal_words_are_aligned_by_their_positions():
    lexicon = {"the": {"die": 0.5}, "cat": {"katze": 1.0}}
    source, target = "the cat and the dog".split(), "die Katze und die Hündin".split()
    assert aligned_words(source, target, lexicon) == [(0, 0), (1, 1), (3, 3)]


def test_unknown_words_are_aligned_with_their_copies():
    assert aligned_words(["Ask", "Zoë"], ["Fragt", "Zoë"], {"ask": {"frag": 1.0}}) == [(1, 1)]
    assert aligned_words([], ["Zoë"], {}) == []
    assert learn_lexicon([]) == {}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Das (ein) „Test“, don't! 5:30 1,000.50 z.B.", "Das ein Test don't 5:30 1,000.50 z.B"),
        ("see https://a.b/c?d=e or a@b.c &amp; <b>bold</b> {name} -x y_z", "see or y_z"),
        ("我用Python写。", "我 用 Python 写"),
        ("हिन्दी में लिखा।", "हिन्दी में लिखा"),
        ("שָׁלוֹם «l'État» …", "שָׁלוֹם l'État"),
    ],
)  # fmt: skip
def test_words_are_between_spaces_and_punctuation(text, words):
    assert [text[start:end] for start, end in word_ranges(text)] == words.split()


def test_words_are_outside_of_spans():
    assert word_ranges("one two three", [(4, 7)]) == [(0, 3), (8, 13)]
