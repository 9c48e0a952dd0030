"""Documents: split into sentences, which are translated together, and put together again."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.inference import loading
from keras_transformer.inference import translate as inference
from keras_transformer.inference.batching import token_counts

# Patterns of RE2: linear in the length of any text, and the same inside a graph.
_SPACE = r"[\s\p{Z}]"
_STOP = r"[.!?…։؟۔।॥።。！？｡]"
_FULL_WIDTH_STOP = r"[。！？｡]"
_CLOSING = rf"""(?:["'\p{{Pi}}\p{{Pf}}\p{{Pe}}]|{_SPACE}?»)"""
_OPENING = rf"""(?:["'\p{{Pi}}\p{{Pf}}\p{{Ps}}\p{{Pd}}¿¡•*]{_SPACE}?)"""
_CAPITAL = r"[\p{Lu}\p{Lt}\p{Lo}\p{N}]"  # Lo: the letters of scripts without case

_SENTENCE_END = (
    rf"({_STOP}+{_CLOSING}*)({_SPACE}+{_OPENING}*{_CAPITAL})"
    # A stop alone: text in tokens, which may be in lower case throughout.
    rf"|({_SPACE}\.(?:{_SPACE}\.)*)({_SPACE})"
    rf"|({_FULL_WIDTH_STOP}+)([^。！？｡\"'\p{{Pi}}\p{{Pf}}\p{{Pe}}\s\p{{Z}}])"
)

_BEFORE_NAMES = (
    "Mr Mrs Ms Mx Messrs Dr Prof St Mt Ft Gen Col Maj Capt Lt Sgt Cpl Adm Gov Sen Rep Rev Hon "
    "Mme Mlle Mgr Sra Srta Hr Fr Frl Dipl Ing "
    "vs cf vgl sog bzw ca approx evtl ggf bspw inkl zzgl insb dt engl frz"
).replace(" ", "|")
_BEFORE_NUMBERS = (
    "No Nos no nos Nr Art art Abs Kap Bd Vol vol pp Fig fig Abb Tab Ch ch Sec sec Tel tel "
    "Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Okt Nov Dec Dez"
).replace(" ", "|")
# A sentence goes on after an initial, a day of the month and the like, and these abbreviations.
_NO_SENTENCE_END = (
    rf"(^|[^\p{{L}}\p{{M}}\p{{N}}])(?:((?:\p{{L}}|\p{{N}}{{1,2}}|[IVX]+|{_BEFORE_NAMES})\.)\n"
    rf"|((?:{_BEFORE_NUMBERS})\.)\n({_SPACE}+\p{{N}}))"
)

# Where a sentence that is too long is cut, the best places first.
_BREAKS = tuple(map(re.compile, (r"[;:–—]\s|[；：]", r"[,،]\s|[，、]", r"\s")))
# Characters of Chinese and Japanese, after which no space is written.
_UNSPACED = re.compile(
    r"[\u3001-\u30ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff9f\U00020000-\U0003ffff]"
)
# Tokens are spread unevenly: parts of this much of what fits, on average, mostly fit.
_FILL = 0.8


class Document(NamedTuple):
    """A text as sentences and what stands between them.

    The text is `gaps[0] + sentences[0] + gaps[1] + … + sentences[-1] + gaps[-1]`.

    Attributes:
        sentences: without white space around them, never empty, each within one line.
        gaps: white space, or nothing; one more than there are sentences.
    """

    sentences: list[str]
    gaps: list[str]

    def join(self, translations: Sequence[str]) -> str:
        """Puts a translation in the place of each sentence; all line breaks stay as they are.

        White space of more than one space stays too. Where there was one space
        or none, there is none after Chinese and Japanese characters and one
        after others, but none where a word was cut. Line breaks in a
        translation become spaces.
        """
        lines = [" ".join(translation.splitlines()) for translation in translations]
        rows = zip(self.sentences, self.gaps[1:], lines, strict=True)
        gaps = [self.gaps[0], *(_joint(*row) for row in rows)]
        gaps[-1] = self.gaps[-1]
        return "".join(itertools.chain(*zip(gaps, [*lines, ""], strict=True)))


def _joint(sentence: str, gap: str, translation: str) -> str:
    if gap not in ("", " "):
        return gap
    if _UNSPACED.match(translation[-1:]):
        return ""
    return " " if gap or _UNSPACED.match(sentence[-1:]) else ""


def segment(text: str) -> Document:
    """Splits a text of any language into sentences, by one rule and without a model.

    A sentence ends with its line (`str.splitlines`); at one of `.!?…` and their
    like in other scripts, closing quotes and brackets included, before white
    space and what can begin a sentence: a capital, a digit, or a letter of a
    script without case, with or without opening quotes; at a full-width stop;
    and at a full stop that stands alone. It goes on after a single letter, a
    number of one or two digits, a Roman numeral, and common English, German,
    French and Spanish abbreviations that stand before a name or a number.

    Known limits: a sentence that continues on the next line is two; one that
    ends with a single letter or a small number ("vitamin C.", "She is 17.") or
    is followed by a small letter is joined to the next; other abbreviations
    before capitals ("Univ. Prof.") end a sentence; a Chinese or Japanese quote
    that ends a sentence does so only before white space; Thai and other scripts
    without stops are one sentence a line.
    """
    lines = text.splitlines()
    marked = _mark_ends(tf.constant(lines, tf.string)).numpy()
    pieces: list[str] = []
    for line, whole, ends in zip(lines, text.splitlines(keepends=True), marked, strict=True):
        pieces += [*ends.decode().split("\n"), whole[len(line) :]]
    return _document(pieces)


def _mark_ends(lines: tf.Tensor) -> tf.Tensor:
    """Puts a line feed after the sentences within lines, string `[N]`; none may hold one."""
    marked = tf.strings.regex_replace(lines, _SENTENCE_END, r"\1\3\5" + "\n" + r"\2\4\6")
    return tf.strings.regex_replace(marked, _NO_SENTENCE_END, r"\1\2\3\4")


def _document(pieces: Iterable[str]) -> Document:
    """Moves the white space around sentences, and pieces of nothing else, into the gaps."""
    sentences: list[str] = []
    gaps: list[str] = []
    gap: list[str] = []
    for piece in pieces:
        if sentence := piece.strip():
            start = piece.index(sentence)
            gaps.append("".join([*gap, piece[:start]]))
            sentences.append(sentence)
            gap = [piece[start + len(sentence) :]]
        else:
            gap.append(piece)
    return Document(sentences, [*gaps, "".join(gap)])


def translate(model: loading.LoadedModel, text: str) -> tuple[str, list[str]]:
    """Translates a document, its sentences in batches, and keeps its lines.

    A sentence of more tokens than the model takes, or has seen in training, is
    translated in parts, which end at a semicolon, colon or dash, else at a comma,
    else at white space, else within a word.

    Returns:
        The translated document, and a remark on each sentence that was translated
        in parts or that has nothing to translate.

    Raises:
        InputError: for a model that gives several translations of a sentence.
    """
    if model.n_best > 1:
        raise InputError(
            f"{model.place} gives {model.n_best} translations of each sentence (decoding.n_best); "
            "expected 1 to translate a document"
        )
    document, remarks = _split_long_sentences(model, segment(text))
    results = inference.translate_lines(model, document.sentences)
    return document.join([best.text for best, *_ in results]), remarks


def _split_long_sentences(
    model: loading.LoadedModel, document: Document
) -> tuple[Document, list[str]]:
    """Returns the document in sentences that fit, and what there is to say of them."""
    pieces: list[str] = []
    remarks: list[str] = []
    line = 1
    counts = token_counts(model.lengths, document.sentences)
    for gap, sentence, (tokens, used) in zip(
        document.gaps[:-1], document.sentences, counts, strict=True
    ):
        line += gap.count("\n")
        parts = [sentence]
        fitting = min(used, model.trained_tokens or used)
        if fitting < tokens:
            parts = _parts(model, sentence, tokens, fitting)
            why = (
                "decoding.max_source_tokens"
                if fitting == used
                else "the longest source of training"
            )
            remarks.append(
                f"line {line} has a sentence of {tokens:,} tokens, which was translated in "
                f"{len(parts):,} parts of at most {fitting:,} ({why})"
            )
        elif tokens == 1:  # the end token alone
            remarks.append(f"line {line} has a sentence without a token, which was left out")
        pieces += [gap, *parts]
    return _document([*pieces, document.gaps[-1]]), remarks


def _parts(model: loading.LoadedModel, sentence: str, tokens: int, limit: int) -> list[str]:
    """Returns parts, whose join is the sentence, of at most `limit` tokens or one character."""
    pieces = _divide(sentence, max(2, round(tokens / (_FILL * limit))))
    if len(pieces) == 1:
        return pieces
    parts = []
    for piece, (count, _) in zip(pieces, token_counts(model.lengths, pieces), strict=True):
        parts += _parts(model, piece, count, limit) if count > limit else [piece]
    return parts


def _divide(sentence: str, count: int) -> list[str]:
    """Returns `count` or more pieces of similar lengths that end at the best places."""
    size = -(-len(sentence) // count)
    pieces, start = [], 0
    while len(sentence) - start > size:
        end = _last_break(sentence, start + size // 2, start + size)
        pieces.append(sentence[start:end])
        start = end
    return [*pieces, sentence[start:]]


def _last_break(sentence: str, start: int, end: int) -> int:
    for pattern in _BREAKS:
        if matches := list(pattern.finditer(sentence, start, end)):
            return matches[-1].end()
    return end
