"""Symbols in training pairs: the same on both sides, well nested, next to aligned words.

The symbols of terms are only in sources.
"""

import random
import re

import hypothesis
import hypothesis.strategies as st

from keras_transformer.extensions.augmentation.symbols import SymbolAugmentation
from keras_transformer.extensions.augmentation.terms import TermAugmentation
from keras_transformer.text.symbols import SPAN_SYMBOLS, TAG_SYMBOLS, TERM_SYMBOLS
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary

WORDS = {"the": "die", "red": "rote", "cat": "Katze", "sleeps": "schläft", "today": "heute"}
LEXICON = {source: {target.lower(): 1.0} for source, target in WORDS.items()}
SYMBOL = re.compile("｟[^｠]*｠")
VOCABULARY = Vocabulary(learn_vocabulary([b'a b "c"'], 40, symbols=["<2de>"]))


AUGMENT = SymbolAugmentation(LEXICON, VOCABULARY)


def augmented(kind, source, target, seeds=50):
    """Returns the changed pairs of many seeds."""
    pair = source, target
    results = (AUGMENT(kind, pair, pair, random.Random(seed)) for seed in range(seeds))
    return [*filter(None, results)]


def is_nested(symbols):
    """Returns True if the pairs of tags are nested like brackets."""
    ends, open_tags = dict(TAG_SYMBOLS), []
    for symbol in symbols:
        if symbol in ends:
            open_tags.append(ends[symbol])
        elif symbol not in SPAN_SYMBOLS and (not open_tags or open_tags.pop() != symbol):
            return False
    return not open_tags


PIECES = st.sampled_from(
    [*WORDS, *WORDS.values(), "Tom", "MP3", "{name}", "https://a.b", "<b>", "｟0｠", "", *"(.„狗"]
)
TEXTS = st.one_of(st.lists(PIECES, min_size=1).map(" ".join), st.text(min_size=1))


@hypothesis.given(TEXTS, TEXTS, st.integers(0, 2**32), st.sampled_from(AUGMENT.kinds))
def test_both_sides_get_the_same_symbols_well_nested(source, target, seed, kind):
    pair = source, target
    changed = AUGMENT(kind, pair, pair, random.Random(seed))
    assert changed == AUGMENT(kind, pair, pair, random.Random(seed))
    if "｟" in source + target:
        assert changed is None
    if changed is not None:
        first, second = map(SYMBOL.findall, changed)
        assert sorted(first) == sorted(second) != []
        assert len({*first}) == len(first), "each of them once"
        known = SPAN_SYMBOLS if kind == "spans" else sum(TAG_SYMBOLS, ())
        assert {*first} <= {*known} and is_nested(first) and is_nested(second)


def test_names_and_spans_are_replaced():
    source, target = "Ask Tom for {file} at https://a.b!", "Frag Tom nach {file} bei https://a.b!"
    replaced = augmented("spans", source, target)
    for pair in replaced:
        copies = [part for part in ("Tom", "{file}", "https://a.b") if part not in pair[0]]
        first, second = (SYMBOL.sub("*", text) for text in pair)
        for part in copies:
            source_now = source.replace(part, "*")
            assert part not in pair[1] and source_now.count("*") == 1
        assert first.count("*") == second.count("*") == len(copies) > 0
    assert {symbol for text, _ in replaced for symbol in SYMBOL.findall(text)} == {*SPAN_SYMBOLS}
    # A text that occurs twice could be exchanged with the other one.
    assert "Tom" in augmented("spans", "Tom and Tom", "Tom und Tom")[0][0]


def test_symbols_are_inserted_next_to_words_that_translate_each_other():
    changed = augmented("spans", "Today sleeps, the cat", "Heute, die Katze schläft", 300)
    places = {tuple(SYMBOL.sub("｟｠", text) for text in pair) for pair in changed}
    assert ("Today sleeps, the ｟｠ cat", "Heute, die ｟｠ Katze schläft") in places
    assert ("Today sleeps ｟｠, the cat", "Heute, die Katze schläft ｟｠") in places
    assert ("｟｠ Today sleeps, the cat", "｟｠ Heute, die Katze schläft") in places
    assert ('Today sleeps, the cat "｟｠"', 'Heute, die Katze "｟｠" schläft') in places


def test_tags_surround_words_and_their_translations():
    phrases = set()
    source, target = "today the red cat sleeps", "die rote Katze schläft heute"
    for pair in augmented("tags", source, target, 300):
        assert [" ".join(SYMBOL.sub("", text).split()) for text in pair] == [source, target]
        for begin, end in TAG_SYMBOLS:
            inside = [re.findall(f"{begin} (.*) {end}", text) for text in pair]
            if all(inside):
                phrases.add(tuple(" ".join(SYMBOL.sub("", text).split()) for (text,) in inside))
    assert ("red cat", "rote Katze") in phrases and ("sleeps", "schläft") in phrases
    assert ("the red cat sleeps", "die rote Katze schläft") in phrases
    assert not any("today" in phrase and "the" in phrase for phrase, _ in phrases)
    for phrase, translation in phrases:
        assert [WORDS[word] for word in phrase.split()] == translation.split()


def test_a_tag_of_the_target_language_stays_first():
    changed = augmented("spans", "<2de> the cat", "die Katze")
    assert changed and all(source.startswith("<2de> ") for source, _ in changed)
    assert any(pair[0].startswith("<2de> ｟") and pair[1].startswith("｟") for pair in changed)


def test_chinese_text_gets_no_spaces():
    assert not any(" " in source for source, _ in augmented("spans", "狗睡觉。", "狗"))


TERM_AUGMENT = TermAugmentation(LEXICON, VOCABULARY)
TERM = re.compile("{} (.*?) {}".format(*TERM_SYMBOLS))


def terms_of(changed, source):
    """Returns the terms of a source that were replaced, with the new texts."""
    others = "(.+?)".join(map(re.escape, TERM.split(changed)[::2]))
    found = re.fullmatch(others, source, re.DOTALL)
    return [*zip(found.groups(), TERM.findall(changed), strict=True)]


@hypothesis.given(TEXTS, TEXTS, TEXTS, st.integers(0, 2**32))
def test_terms_are_replaced_only_in_the_source(source, target, after, seed):
    changed = TERM_AUGMENT("terms", (source, target), ("", after), random.Random(seed))
    if changed is not None:
        terms = terms_of(changed[0], source)
        assert 1 <= len(terms) <= 3 and changed[0].count("｟") == 2 * len(terms)
        assert all(translation in changed[1] for _, translation in terms) and "｟" not in changed[1]


def test_terms_are_phrases_between_content_words_or_get_another_translation():
    pair, following = ("today the cat sleeps", "heute schläft die Katze"), ("a", "Die rote Kuh da")
    found = set()
    for seed in range(300):
        source, target = TERM_AUGMENT("terms", pair, following, random.Random(seed))
        found |= {*terms_of(source, pair[0])}
        assert [*target.split()[2:]] == ["die", "Katze"], "a noun would stand for a noun"
    translations = {"today": "heute", "sleeps": "schläft"}
    known = {*translations.items(), *dict.fromkeys(translations, "rote").items()}
    assert found > known
    assert all(4 <= len(word) <= 9 and {*word} <= {*"dierotekuhda"} for _, word in found - known)
