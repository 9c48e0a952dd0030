"""Documents: segmentation into sentences, long sentences in parts, and unchanged lines."""

import functools
import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_transformer.errors import InputError
from keras_transformer.extensions.documents.markup import tokenize
from keras_transformer.extensions.documents.protection import translate_texts
from keras_transformer.extensions.documents.sentences import segment
from keras_transformer.extensions.documents.spans import find_spans
from keras_transformer.inference.engine import Engine
from keras_transformer.inference.translate import translate_to_text
from tests.builders import old_vocabulary, refuses
from tests.extensions.documents.fakes import fake_engine
from tests.messages import tells

LINE_BREAKS = re.compile(r"[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")
CHINESE_OR_JAPANESE = re.compile(r"[\u3001-\u30ff\u3400-\u9fff\uf900-\uffef\U00020000-\U0003ffff]")

# Arbitrary text, and text with typical parts of documents.
TEXTS = st.text() | st.lists(
    st.sampled_from(
        "a B é Ä 3 17 1990 word Word Mr z.B. U.S. 中 文 , ; : . . . ! ? … 。 ！ । \" ' “ ” „ « » "
        "( ) 「 」 - – • \u200b".split()
        + [" ", " ", " ", "  ", "\t", "\xa0", "\u3000", "\n", "\n", "\r\n", "\r", "\u2028", "\x85"]
    ),
    max_size=60,
).map("".join)


def sentences_of(text: str) -> list[str]:
    return [piece.strip() for piece in segment(text) if piece.strip()]


def translate_document(model: Engine, text: str) -> tuple[str, list[str]]:
    """Returns the translation of the lines of a text, and the remarks."""
    outputs, _, remarks = translate_texts(model, text.split("\n"))
    return "\n".join(outputs), remarks


def words(text: str) -> int:
    return len(text.split())


fake_model = functools.partial(fake_engine, tokens_of=words)


# Sentences with bars between them, which the text does not have.
SPACED = (
    "It rains.|She sleeps!|Does he?|Wait…|No.|We go.",
    "Mr. Smith met Dr. J. R. R. Jones, e.g. on Jan. 5 at No. 10.|He left.",
    "The U.S. Army paid 3.50 for version 2.0 at www.example.com.|Fine.",
    "“Really?” she asked.|“Yes!”|(He did.)|'So.'|It was 1990.|3 left.",
    "“Stop!” he said. then nothing",
    "Er kam z. B. am 3. Mai, d. h. gestern, mit Prof. Dr. Ärmel.|Über Nr. 5?!|Ja.",
    "„Das ist gut.“|Sagte er?|»Ja.«|Das Menü.|Im II. Stock.|Ende",
    "« Oui ! »|M. Dupont est là.|Oui ! dit-il.|Un café.",
    "¡No!|¿Qué?|– Nada.|- Bien.",
    "a man walks . . .|a dog runs in the park .|he sleeps",
    "यह अच्छा है।|वह आया।",
    "أين هو؟|هنا.",
    "Der Umsatz stieg auf 5 Mio. Euro.|Das freut 3 Mrd. Menschen.|Siehe Abb. 4.|Dort steht es.",
    "Die Müller GmbH & Co. KG liefert in die Hauptstr. 5.|Ja.",
    "El Sr. García vive aquí.|Él no.",
    "Он живёт на ул. Ленина.|Там тихо.",
    "Τι κάνεις;|Είμαι καλά.|Εσύ;",
    "שלום לכולם.\u200f|איך אתם מרגישים?|תודה.",
    "Great news! 😀|The bottle holds 17 liters. 👍🏽|It stopped raining.",
    "Great! ❤️|Really?!|So.",
    "გამარჯობა.|როგორ ხარ?|კარგად.",
)
UNSPACED = (
    "今天很好！|我们去吧？|好的。",
    "「こんにちは。」と彼は言った。|はい！！|A。",
    "मैं घर जाता हूँ।|वह सो रही है।|हम खाते हैं।",
    "ខ្ញុំទៅ។|គាត់មក។",
    "税率は３．５％です。|次の版は２。０です。|はい。",
)


@pytest.mark.parametrize("marked", SPACED + UNSPACED)
def test_segment_finds_the_sentences(marked: str) -> None:
    sentences = marked.split("|")
    assert sentences_of(("" if marked in UNSPACED else " ").join(sentences)) == sentences


@pytest.mark.parametrize(
    ("language", "marked"),
    [
        ("en", "He lives on Main St.|It is quiet."),
        ("es", "La Srta. López y Ud. viven en la Avda. América.|Sí."),
        ("pt-BR", "A Sra. Silva.|Sim."),
        ("it", "Il sig. Rossi e l'ing. Verdi.|Ecco."),
        ("nl", "Dhr. Jansen woont bijv. Hier.|Ja."),
        ("fr", "Le Dr. Martin arrive.|Oui."),
        ("es", "Ven con mi.|Sí."),
    ],
)
def test_the_language_selects_the_abbreviations(language: str, marked: str) -> None:
    text = marked.replace("|", " ")
    assert [piece.strip() for piece in segment(text, language)] == marked.split("|")
    model = fake_model(source_language=language, translate="<{}>".format)
    assert translate_document(model, text)[0] == " ".join(f"<{s}>" for s in marked.split("|"))


def test_sentences_stay_in_their_lines() -> None:
    text = "\n  A title\r\n\r\nOne. Two\nthree.\u2028Four\x85\tFive \n \n"
    assert sentences_of(text) == ["A title", "One.", "Two", "three.", "Four", "Five"]


@pytest.mark.parametrize("language", ["en", "de"])
def test_segmentation_of_news(test_data: Path, language: str) -> None:
    """Paragraphs of five sentences from news with one sentence per line."""
    lines = (test_data / "newstest" / f"newstest2013.{language}").read_text().split("\n")
    lines = [line.strip() for line in lines if line.strip()[-1:] in tuple('.!?"”“')]
    lines = lines[: len(lines) // 5 * 5]
    paragraphs = [" ".join(lines[i : i + 5]) for i in range(0, len(lines), 5)]
    wanted, got = spans(lines), spans(sentences_of("\n".join(paragraphs)))
    assert len(wanted & got) / len(wanted) > 0.96  # the others were split, or joined
    assert len(wanted & got) / len(got) > 0.94  # some lines have two sentences


def spans(sentences: Sequence[str]) -> set[tuple[int, int]]:
    """Returns start and end of each sentence, in characters without spaces."""
    sizes = [len("".join(sentence.split())) for sentence in sentences]
    return set(itertools.pairwise(itertools.accumulate(sizes, initial=0)))


@given(TEXTS)
@settings(max_examples=100, deadline=None)
def test_joined_sentences_are_the_text(text: str) -> None:
    assert "".join(segment(text)) == text.rstrip()
    assert not any(LINE_BREAKS.search(sentence) for sentence in sentences_of(text))


@given(TEXTS, st.lists(TEXTS, min_size=1))
@settings(max_examples=60, deadline=None)
def test_number_of_lines_does_not_depend_on_the_translations(
    text: str, translations: list[str]
) -> None:
    model = fake_model(lambda line: translations[len(line) % len(translations)])
    translated, _ = translate_document(model, text)
    assert LINE_BREAKS.findall(translated) == LINE_BREAKS.findall(text)


@pytest.mark.parametrize(
    ("text", "translations", "joined"),
    [
        ("One. Two.\tThree.", ["一。", "二。", "三。"], "一。二。\t三。"),
        ("一。二。\u3000三。", ["One.", "Two.", "Three."], "One. Two.\u3000Three."),
    ],
)
def test_spaces_follow_the_script_of_the_translation(
    text: str, translations: list[str], joined: str
) -> None:
    translation = dict(zip(sentences_of(text), translations, strict=True))
    model = fake_model(translation.__getitem__)
    assert translate_document(model, text)[0] == joined


@pytest.mark.parametrize("text", ["Title\r\n\r\n  One. Two!  Three?\r\n\n- Four", "", " \n\r\n"])
def test_the_layout_stays(text: str) -> None:
    assert translate_document(fake_model(str.upper), text) == (text.upper(), [])


@pytest.mark.parametrize(
    ("tokens", "limit", "text", "expected"),
    [
        (words, 4, "One two three four five", "<One two> <three four> <five>"),
        (len, 5, "abcdefgh", "<abcd><efgh>"),
        (
            words,
            8,
            "Short.\n\nWe came, we saw; he did not see us: they, who had cars, left. Short again.",
            "<Short.>\n\n<We came, we saw;> <he did not see us:> <they, who had cars, left.> "
            "<Short again.>",
        ),
    ],
)
def test_a_long_sentence_is_translated_in_parts(
    tokens: Callable[[str], int], limit: int, text: str, expected: str
) -> None:
    model = fake_model("<{}>".format, limit=limit, tokens_of=tokens)
    translated, [warning] = translate_document(model, text)
    assert translated == expected
    assert tells(warning, "parts", limit, "decoding.max_source_tokens")
    if "\n" in text:
        assert tells(warning, "line 3", "15 tokens", "3 parts")


def test_sentences_that_training_did_not_have() -> None:
    model = fake_model(limit=100, max_train_source_length=5)
    text = "one two three four five six"
    translated, [warning] = translate_document(model, text)
    assert translated == text
    assert tells(warning, "line 1", "7 tokens", "2 parts", 5, "longest source in training")
    assert translate_document(model, "one two three four")[1] == []
    model = fake_model(vocabulary=old_vocabulary())
    _, [warning], _ = translate_to_text(model, ["One.", "10³ liters."], document=True)
    assert tells(warning, "line 2", "10³", "103")
    model = fake_model(tokens_of=lambda text: words(text.strip("\u200b")))
    translated, [warning] = translate_document(model, "One.\n\u200b\n")
    assert tells(warning, "line 2", "without tokens")


@given(TEXTS, st.integers(2, 12), st.sampled_from([len, words]))
@example("000000:@0\x080000", 6, len)
@settings(max_examples=60, deadline=None)
def test_the_identity_restores_the_text_for_any_part_length(
    text: str, limit: int, tokens: Callable[[str], int]
) -> None:
    translated, _ = translate_document(fake_model(limit=limit, tokens_of=tokens, symbols=()), text)
    assert translated.replace(" ", "") == text.replace(" ", "")
    if not CHINESE_OR_JAPANESE.search(text):
        assert translated == text


@pytest.mark.parametrize(
    "unit", ["<a", "<!--", '<a "', "a.", "a@", " ", "\t", "{a,plural,a{", "{a,plural,x{a}"]
)
def test_hostile_text_is_read_or_refused_in_seconds(unit: str) -> None:
    text = unit * (60_000 // len(unit))  # the worst pattern would take days
    for read in (tokenize, find_spans):
        try:
            read(text)
        except InputError as error:
            assert tells(str(error), "60,000 characters", "takes too long")


@pytest.mark.parametrize("unit", ["x", "x ", "x. ", "X. ", "文，", ". ", "(", " "])
def test_a_long_line_is_read_a_few_times_at_most(unit: str) -> None:
    text = unit * (2**14 // len(unit))
    counted = 0

    def tokens(line: str) -> int:
        nonlocal counted
        counted += len(line)
        return len(line)

    assert translate_document(fake_model(limit=64, tokens_of=tokens), text)[0] == text
    # `tokens` is also called once for each translated sentence.
    assert counted <= 5 * len(text)


def test_more_than_one_translation_is_an_error() -> None:
    given = {"model": fake_model(n_best=3), "texts": ["One."]}
    refuses(translate_texts, given, "fake", "3", "1", "document")


def test_each_sentence_of_a_line_has_the_tag_of_the_line() -> None:
    text = "<2de> It rains. She sleeps.\n\nNo tag. At all.\n  <2fr>One. Two.\n<2it> It. Is.\n"
    model = fake_model("[{}]".format, symbols=("<2de>", "<2fr>"))
    assert translate_document(model, text) == (
        "[<2de> It rains.] [<2de> She sleeps.]\n\n[No tag.] [At all.]\n"
        "  [<2fr> One.] [<2fr> Two.]\n[<2it> It.] [Is.]\n",
        [],
    )


def test_each_part_of_a_long_sentence_has_the_tag_and_fits_with_it() -> None:
    model = fake_model("[{}]".format, limit=5)  # without known tags, the form decides
    translated, _ = translate_document(model, ">>deu<< a b c d e f g h i j")
    parts = translated[1:-1].split("] [")
    assert len(parts) > 2 and all(part.startswith(">>deu<< ") for part in parts)
    assert " ".join(part.removeprefix(">>deu<< ") for part in parts) == "a b c d e f g h i j"


@pytest.mark.parametrize(
    "line", ["__0__ One. Two.", "__init__ is it.", "__0__ it", "__de__ it", ">>deu<<"]
)
def test_a_text_that_looks_like_a_tag_is_translated(line: str) -> None:
    model = fake_model("[{}]".format)  # its symbols are unknown
    translated, warnings = translate_document(model, line)
    assert translated == " ".join(f"[{sentence}]" for sentence in sentences_of(line))
    assert warnings == []
