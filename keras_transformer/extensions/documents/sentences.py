"""Translates documents: splits them into sentences, and joins the translations."""

from __future__ import annotations

import re
from collections.abc import Sequence

from keras_transformer.errors import InputError
from keras_transformer.inference.batching import token_counts
from keras_transformer.inference.engine import Engine
from keras_transformer.inference.tags import add_tag, split_tags
from keras_transformer.inference.translate import translate_lines

# Patterns in RE2 syntax. RE2 needs linear time and also runs in a TensorFlow graph.
_SPACE = r"[\s\p{Z}]"
_STOP = r"[.!?…։؟۔।॥።。！？｡]"
_FULL_WIDTH_STOP = r"[。！？｡]"
_CLOSING = rf"""(?:["'\p{{Pi}}\p{{Pf}}\p{{Pe}}]|{_SPACE}?»)"""
_OPENING = rf"""(?:["'\p{{Pi}}\p{{Pf}}\p{{Ps}}\p{{Pd}}¿¡•*]{_SPACE}?)"""
_CAPITAL = r"[\p{Lu}\p{Lt}\p{Lo}\p{N}]"  # Lo: the letters of scripts without case

_SENTENCE_END = (
    rf"({_STOP}+{_CLOSING}*)({_SPACE}+{_OPENING}*{_CAPITAL})"
    # Tokenized text has spaces around each stop. It may be lowercase.
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
# These do not end a sentence: an initial, a day of the month, and the abbreviations above.
_NO_SENTENCE_END = (
    rf"(^|[^\p{{L}}\p{{M}}\p{{N}}])(?:((?:\p{{L}}|\p{{N}}{{1,2}}|[IVX]+|{_BEFORE_NAMES})\.)\n"
    rf"|((?:{_BEFORE_NUMBERS})\.)\n({_SPACE}+\p{{N}}))"
)

# Where long sentences are split, in order of preference.
_BREAKS = tuple(map(re.compile, (r"[;:–—]\s|[；：]", r"[,،]\s|[，、]", r"\s")))
# Chinese and Japanese characters. Text has no space after them.
_UNSPACED = re.compile(
    r"[\u3001-\u30ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff9f\U00020000-\U0003ffff]"
)
# Target size of the parts as a fraction of the limit. The margin is needed because equal numbers of
# characters can have different numbers of tokens.
_FILL = 0.8


def segment(text: str) -> list[str]:
    """Splits a text of any language into pieces of one sentence each, using rules.

    Each piece has one sentence and the white space around it, or only white space. The
    concatenated pieces equal the text.

    A sentence ends at the end of its line (`str.splitlines`). It also ends

    - at `.!?…` and similar characters of other scripts, with closing quotes and brackets, before
      white space and the start of a sentence: a capital, a digit, or a letter of a script without
      case, with or without opening quotes;
    - at a full-width stop;
    - at a full stop between spaces.

    It does not end after a single letter, a number of one or two digits, a Roman numeral, or a
    common English, German, French or Spanish abbreviation.

    Known limits:

    - A sentence that continues on the next line is split into two.
    - A sentence is joined to the next one if it ends with a single letter or a small number
      ("vitamin C.", "She is 17."), or if the next one starts with a lowercase letter.
    - An unknown abbreviation before a capital ("Univ. Prof.") ends a sentence.
    - A Chinese or Japanese sentence that ends with a quotation ends only before white space.
    - In Thai and other scripts without stops, each line is one sentence.
    """
    return [piece for line in _segment_lines(text.splitlines(keepends=True)) for piece in line]


def _segment_lines(lines: Sequence[str]) -> list[list[str]]:
    """Returns the pieces of each line; lines may end with a line break."""
    texts = [line.splitlines()[0] for line in lines]
    marked = _mark_ends(texts)
    pieces = []
    for text, line, ends in zip(texts, lines, marked, strict=True):
        *others, last = ends.decode().split("\n")
        pieces.append([*others, last + line[len(text) :]])
    return pieces


def _mark_ends(lines: Sequence[str]) -> list[bytes]:
    """Inserts a line feed after each sentence of `lines`, which have no line feeds."""
    import tensorflow as tf  # late: only documents need it, for RE2's classes of characters

    marked = tf.strings.regex_replace(lines, _SENTENCE_END, r"\1\3\5" + "\n" + r"\2\4\6")
    return list(tf.strings.regex_replace(marked, _NO_SENTENCE_END, r"\1\2\3\4").numpy())


def join_translations(pieces: Sequence[str], translations: Sequence[str]) -> str:
    """Returns the text of the pieces with each sentence replaced by its translation.

    Line breaks and gaps of several spaces are kept. Any other gap becomes one space. There is no
    space after Chinese and Japanese characters, or inside a word that was split. Line breaks in a
    translation become spaces.
    """
    remaining = iter(translations)
    text, gap, last = "", "", ""  # `last` is the sentence before the gap
    for piece in pieces:
        sentence = piece.strip()
        if not sentence:
            gap += piece
            continue
        start = piece.index(sentence)
        gap += piece[:start]
        if last and gap in ("", " "):
            is_joined = _UNSPACED.match(text[-1:]) or not (gap or _UNSPACED.match(last[-1:]))
            gap = "" if is_joined else " "
        text += gap + " ".join(next(remaining).splitlines())
        gap, last = piece[start + len(sentence) :], sentence
    return text + gap


def translate_document(model: Engine, text: str, source_tag: str = "") -> tuple[str, list[str]]:
    """Translates a document and keeps its lines.

    A sentence is translated in parts if it has more tokens than the model accepts, or more than
    the longest training source. Parts end at a semicolon, colon or dash if possible, otherwise at
    a comma, at white space, or within a word.
    """
    if model.n_best > 1:
        raise InputError(
            f"{model.label} returns {model.n_best} translations per sentence, but a document needs "
            "exactly 1 (decoding.n_best)."
        )
    tagged = [split_tags(line, model.symbols) for line in text.splitlines(keepends=True)]
    lines = _segment_lines([line for _, line in tagged])
    sentences = [
        (f"{source_tag} {tag}".strip(), piece)
        for (tag, _), line in zip(tagged, lines, strict=True)
        for piece in line
    ]
    pieces, warnings = _split_long_sentences(model, sentences)
    results = translate_lines(
        model, [add_tag(piece.strip(), tag) for tag, piece in pieces if piece.strip()]
    )
    translations = [best.text for best, *_ in results]
    return join_translations([piece for _, piece in pieces], translations), warnings


def _split_long_sentences(
    model: Engine, pieces: Sequence[tuple[str, str]]
) -> tuple[list[tuple[str, str]], list[str]]:
    """Splits sentences that are too long. Returns (tags, piece) pairs, and warnings."""
    result: list[tuple[str, str]] = []
    warnings: list[str] = []
    line = 1
    sentences = [add_tag(piece.strip(), tag) for tag, piece in pieces if piece.strip()]
    counts = token_counts(model.lengths, sentences)
    numbers = iter(zip(counts["tokens"].tolist(), counts["used"].tolist(), strict=True))
    for tag, piece in pieces:
        sentence = piece.strip()
        start = piece.index(sentence)
        line += piece[:start].count("\n")
        parts = [sentence]
        if sentence:
            tokens, used = next(numbers)
            fitting = min(used, model.max_train_source_length or used)
            if fitting < tokens:
                parts = _parts(model, tag, sentence, tokens, fitting)
                limit = "the longest source in training"
                if fitting == used:
                    limit = "decoding.max_source_tokens"
                warnings.append(
                    f"Line {line} has a sentence of {tokens:,} tokens. It was translated in "
                    f"{len(parts):,} parts of at most {fitting:,} tokens ({limit})."
                )
            elif tokens == 1:  # only the end token
                warnings.append(f"Line {line} has a sentence without tokens, which was left out.")
        split = [piece[:start], *parts, piece[start + len(sentence) :]]
        result += [(tag, part) for part in split]
        line += piece[start:].count("\n")
    return result, warnings


def _parts(model: Engine, tag: str, sentence: str, tokens: int, limit: int) -> list[str]:
    """Splits a sentence into parts of at most `limit` tokens, tag included, or of one character."""
    pieces = _divide(sentence, max(2, round(tokens / (_FILL * limit))))
    if len(pieces) == 1:
        return pieces
    parts = []
    counts = token_counts(model.lengths, [add_tag(piece, tag) for piece in pieces])["tokens"]
    for piece, count in zip(pieces, counts.tolist(), strict=True):
        parts += _parts(model, tag, piece, count, limit) if count > limit else [piece]
    return parts


def _divide(sentence: str, count: int) -> list[str]:
    """Splits a sentence into at least `count` pieces of similar lengths at the best breaks."""
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
