"""Every protected span is in the output exactly once, whatever the model does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from keras_transformer.extensions.documents.markup import text_token, tokenize
from keras_transformer.extensions.documents.protection import translate_tokens, without_entities
from keras_transformer.extensions.documents.spans import find_spans
from keras_transformer.inference.engine import Engine
from keras_transformer.text.symbols import SYMBOLS
from tests.extensions.documents.fakes import ORDERS, fake_engine, reverse

SPANS = (
    "{name} {0} {{x.y}} ${v} %s %1$d %(name)s %% :name @bob #tag https://a.b/c?d=%20 www.x.org "
    "a.b@c.de /usr/bin C:\\a\\b README.md v1.2 1.2.3 snake_case camelCase f() AB-12 👍🏽 ｟0｠ X1 "
    "\\n {n,plural,one{{x}}other{#}}"
).split()
WORDS = "the red dogs it's run café 5:30 17 犬が , . ! ? ( ) - 。 — é Ü".split()
TEXTS = (
    st.lists(st.sampled_from(SPANS) | st.sampled_from(WORDS) | st.text(max_size=3), max_size=60)
    .map(lambda parts: " ".join(" ".join(parts).split()))
    .filter(lambda text: text == text.strip())
)
CHANGES: tuple[Callable[[str], str], ...] = (
    str,
    str.upper,
    str.title,
    lambda text: text[::-1],
    lambda text: "",
    lambda text: text + text,
    lambda text: text.replace(" ", ""),
    lambda text: " ".join(word for word in text.split() if word.isalpha()),
    lambda text: text.replace("{", "").replace("%", "").replace("X", "Y"),
    lambda text: "X1 la X2 {la} :",
    lambda text: f"{{name}} {text} %s #tag",
)
ENGINES = [fake_engine(change) for change in CHANGES] + [
    fake_engine(change, order, limit, aligns)
    for change in (str, str.upper)
    for order in ORDERS
    for limit, aligns in ((10**9, True), (8, True), (8, False))
]
# Models that know the symbols, and may lose, repeat or cross them.
ENGINES += [fake_engine(change, symbols=SYMBOLS) for change in CHANGES]
ENGINES += [fake_engine(str, order, returns_alignments=True, symbols=SYMBOLS) for order in ORDERS]


def spans_in(text: str, *patterns: str) -> Counter[str]:
    return Counter(text[start:end] for start, end in find_spans(text, patterns))


def assert_kept(source: str, output: str, *patterns: str) -> None:
    needed, found = spans_in(source, *patterns), spans_in(output, *patterns)
    assert {text: found[text] for text in needed} == needed, f"{source!r} became {output!r}"


def translated(
    texts: Sequence[str], model: Engine, patterns: Sequence[str] = ()
) -> tuple[list[str], Counter[str]]:
    """Returns the translations of texts without tags, and the numbers of their statuses."""
    tokens = [[text_token(text, has_entities=False)] for text in texts]
    return translate_tokens(model, tokens, patterns, written=without_entities)[:2]


@settings(max_examples=40, deadline=None)
@given(st.lists(TEXTS, max_size=4), st.sampled_from(ENGINES))
@example(["%s :name , the"], ENGINES[6])  # both at the start
@example(["%s :name , the"], ENGINES[47])  # without a space between symbols
@example([":name the"], ENGINES[47])
@example(["X1 。 {0} {name}"], ENGINES[10])  # the first sentence gets a {name}, too
@example(["{name} {name} 犬が {name} {0} :name {name}"], ENGINES[12])  # in two parts
def test_every_span_survives_every_model(texts: list[str], model: Engine) -> None:
    for source, output in zip(texts, translated(texts, model)[0], strict=True):
        assert_kept(source, output)


def one(text: str, model: Engine, *patterns: str) -> tuple[str, str | None]:
    [output], statuses = translated([text], model, patterns)
    return output, next(iter(statuses), None)


def test_the_ways_in_their_order() -> None:
    text = "Hello {name}, you have %d files."
    assert one(text, fake_engine(str.lower)) == ("hello {name}, you have %d files.", "kept")
    # Capitals change %d, but not the stand-in X2.
    assert one(text, fake_engine(str.upper)) == ("HELLO {name}, YOU HAVE %d FILES.", "kept")

    def lose(line: str) -> str:
        return " ".join(word for word in line.split() if word.strip(".,").isalpha())

    assert one(text, fake_engine(lose)) == ("Hello {name} you have files %d.", "appended")
    model = fake_engine(lambda word: word.translate({48 + i: "0" for i in range(10)} | {37: "_"}),
                        reverse, returns_alignments=True)  # fmt: skip
    assert one("give %d red files", model) == ("files %d red give", "aligned")
    assert one("no spans", model) == ("spans no", None)


def test_symbols_of_the_vocabulary_are_the_first_way() -> None:
    raw = 'The <b>red <i>big</i></b> house ("<a>of</a>" {name}), ｟3｠.<br/>'
    line = 'The ｟b0｠ red ｟b1｠ big ｟e1｠｟e0｠ house ("｟b2｠ of ｟e2｠" ｟0｠), ｟1｠.'

    def translation(answer: str) -> str:
        model = fake_engine(lambda text: {line: answer}[text], symbols=SYMBOLS)
        [output], statuses, _ = translate_tokens(model, [tokenize(raw)])
        assert statuses == {"symbols": 1}
        return output

    answer = '｟1｠: ("｟b2｠ von ｟e2｠" ｟0｠) das ｟b0｠ ｟b1｠groß｟e1｠ rot ｟e0｠.'
    assert translation(answer) == '｟3｠: ("<a>von</a>" {name}) das <b><i>groß</i> rot</b>.<br/>'
    # Elements stay nested if the model crosses them.
    answer = "das ｟b0｠ groß ｟b1｠ rot ｟e0｠ Haus ｟e1｠ ｟b2｠ ｟e2｠ von ｟0｠, ｟1｠"
    assert translation(answer) == "das <b>groß <i>rot</i></b> Haus <a>von</a> {name}, ｟3｠ <br/>"
    aligns = fake_engine(returns_alignments=True, symbols=SYMBOLS)  # it gets no pairs
    assert translate_tokens(aligns, [tokenize("a <b>b</b>")])[:2] == (["a <b>b</b>"], {})


def test_other_ways_follow_if_a_symbol_is_lost() -> None:
    model = fake_engine(lambda line: line.upper().replace("｟1｠", ""), symbols=SYMBOLS)
    assert one("a {x} b {y}", model) == ("A {x} B {y}", "kept")
    assert one("a {x} b", model) == ("A {x} B", "symbols")
    many = " ".join(f"w {{{number}}}" for number in range(25))
    assert one(many, fake_engine(str.upper, symbols=SYMBOLS)) == (many.upper(), "symbols")


def test_a_source_of_only_spans_is_copied() -> None:
    model = fake_engine(lambda text: "wrong")
    assert one("{a} – {b}: %s…", model) == ("{a} – {b}: %s…", "kept")
    assert one("…", model) == ("…", None)


def test_200_spans_in_a_sentence() -> None:
    text = " ".join(f"w{number} {{v{number}}}" for number in range(200))
    for model in (fake_engine(str.upper), fake_engine(str, reverse, 30), fake_engine(lambda t: "")):
        assert_kept(text, one(text, model)[0])


def test_spans_longer_than_the_limit() -> None:
    long = "https://example.com/" + "a" * 3000
    text = f"See {long} now, ACME {'x ' * 30}END please."
    pattern = r"ACME [x ]*END"
    output, _ = one(text, fake_engine(str.upper, limit=12), pattern)
    assert_kept(text, output, pattern)
    assert output.startswith(f"SEE {long} NOW,") and output.endswith("PLEASE.")


def test_a_long_branch_of_an_icu_message_is_not_truncated() -> None:
    text = f"{{n, plural, other {{{'many words ' * 20}end}}}}"
    assert one(text, fake_engine(str.upper, limit=9))[0].count("MANY WORDS") == 20


def test_symbols_and_stand_ins_that_a_user_types() -> None:
    text = "｟0｠ X1 {a} x2 ｟0｠ {b} X3"
    assert one(text, fake_engine(str.upper)) == ("｟0｠ X1 {a} X2 ｟0｠ {b} X3", "kept")


def test_branches_of_icu_messages_are_translated() -> None:
    text = "{n, plural, =0 {no files} other {# files of {name} or '{' x}}"
    expected = "{n, plural, =0 {NO FILES} other {# FILES OF {name} OR '{' X}}"
    assert one(text, fake_engine(str.upper)) == (expected, "kept")
    nested = "Now {g, select, a {his {n, plural, one {dog} other {dogs}}} other {it}} ran."
    assert one(nested, fake_engine(str.upper))[0] == (
        "NOW {g, select, a {HIS {n, plural, one {DOG} other {DOGS}}} other {IT}} RAN."
    )
    # An apostrophe, or a brace, that the model writes has no meaning in the message.
    model = fake_engine(lambda text: text.replace("of ", "d'"))
    assert one("{n, plural, other {of {x} now}}", model)[0] == "{n, plural, other {d''{x} now}}"
    output, _ = one("{n, plural, other {two dogs}}", fake_engine(lambda text: "zwei {Hunde"))
    assert output == "{n, plural, other {zwei '{'Hunde}}"


def test_spans_with_line_breaks_are_kept() -> None:
    text = "Hi {n, plural,\n one {a dog}\n other {# dogs}} there"
    output, _ = one(text, fake_engine(str.upper))
    assert output == "HI {n, plural,\n one {A DOG}\n other {# DOGS}} THERE"


def test_tags_for_languages_are_not_a_part_of_the_sentence() -> None:
    model = fake_engine(str, reverse, returns_alignments=True)
    [output], *_ = translate_tokens(model, [tokenize("a <b>b</b>")], tag="<2de>")
    assert output == "<b>b</b> a &lt;2de&gt;"
