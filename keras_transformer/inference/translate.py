"""Translates lines of text and test sets with a loaded model."""

from __future__ import annotations

import copy
import itertools
import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_transformer import console, plugins
from keras_transformer.errors import InputError, check_names, require
from keras_transformer.evaluation import metrics
from keras_transformer.evaluation.metrics import Scores
from keras_transformer.inference import (
    EMPTY_SCORE,
    MIN_QUALITY,
    ON_LOW_QUALITY,
    PROBLEMS,
    Status,
    Translation,
    translations_of,
)
from keras_transformer.inference.batching import (
    TokenCounts,
    outputs_by_line,
    source_warnings,
    token_counts,
    unknown_token_remark,
)
from keras_transformer.inference.engine import Engine
from keras_transformer.inference.tags import (
    add_missing_tags,
    add_tag,
    language_tags,
    split_tags,
    two_letters,
)

# The result if the model's logits are NaN, or if all tokens are banned.
NO_TRANSLATION = Translation("", -math.inf)


def translate_lines(
    model: Engine, lines: Sequence[str], split: Mapping[int, str] = {}
) -> list[list[Translation]]:
    """Returns the translations of each line, best first, or `NO_TRANSLATION`.

    `split` has translations from `split_texts`, by the indices of their lines. Their score is 0.
    """
    others = [line for index, line in enumerate(lines) if index not in split]
    if model.fallback[0] == "keep":
        rows = outputs_by_line(
            model.translate, others, max_lines=model.max_batch_lines, threads=model.threads
        )
    else:
        rows = _rows(model, others, [""] * len(others))
    found = (translations_of(r["translations"], r["scores"]) or [NO_TRANSLATION] for r in rows)
    return [[Translation(split[i], 0.0)] if i in split else next(found) for i in range(len(lines))]


def split_texts(
    model: Engine, lines: Sequence[str], document: bool | None, source_tag: str, first_line: int
) -> tuple[dict[int, str], list[str], str]:
    """Translates lines sentence by sentence.

    Returns the translations by index, remarks, and a sentence on how protected spans were kept, if
    there are any.

    With `document`, these are all lines. Otherwise they are the lines with terms of the model's
    glossary or in capitals (`Engine.casing`), and by default (None) also the lines with several
    sentences, if the model was trained on single sentences and returns one translation.
    """
    has_default = document is None and model.single_sentences and plugins.names("text_options")
    if document or has_default or model.glossary is not None or model.casing == "auto":
        translate = plugins.find("text_options", "document").translate
        return translate(model, lines, document, source_tag, first_line)
    return {}, [], ""


def translate_verbose(
    model: Engine,
    lines: Sequence[str],
    prefixes: Sequence[str] | None = None,
    attention: bool = False,
    counts: TokenCounts | None = None,
) -> list[dict[str, Any]]:
    """Translates lines, each with an optional prefix, and returns all details, ready for JSON.

    Each line has `source_tokens` and `translations`, best first. Each translation has `text`,
    `score`, `finished`, `tokens`, `ids`, `alignment` (for each token the index of a source token),
    and on request `attention` (target tokens by source tokens). Models other than LiteRT also
    return `log_prob` (without penalties) and `token_log_probs`. If the model has a quality, each
    translation has its `quality`, and each line the `problems` of the best one, such as `LOOP`.
    """
    if model.translate_verbose is None:
        raise InputError(
            f"{model.label} returns no details of translations and accepts no prefixes. Use the "
            "run directory or a SavedModel."
        )
    prefixes = [""] * len(lines) if prefixes is None else prefixes
    if len(prefixes) != len(lines):
        raise InputError(f"There are {len(lines):,} lines, but {len(prefixes):,} prefixes.")
    counts = token_counts(model.lengths, lines) if counts is None else counts
    rows = _rows(model, lines, prefixes)
    if attention and rows and "attention" not in rows[0]:
        raise InputError(
            f"{model.label} returns no attention. Use the run directory or a SavedModel."
        )
    used = counts["used"].tolist()
    return [_details(row, n, attention) for row, n in zip(rows, used, strict=True)]


def with_details(results: Sequence[Mapping[str, Any]]) -> list[list[Translation]]:
    """Returns the results of `translate_verbose` as translations."""
    found = []
    for line in results:
        common = {name: value for name, value in line.items() if name != "translations"}
        rows = line["translations"]
        translations = [Translation(row["text"], row["score"], common | row) for row in rows]
        found.append(translations or [NO_TRANSLATION])
    return found


def with_fallback(
    model: Engine, on_low_quality: str = "keep", min_quality: float = MIN_QUALITY
) -> Engine:
    """Returns a model whose lines of low quality are not kept: see `_rows`."""
    check_names([on_low_quality], ON_LOW_QUALITY, "a value of on_low_quality")
    require(0 <= min_quality <= 1, f"min_quality is {min_quality}. Use a number from 0 to 1.")
    if on_low_quality != "keep":
        advice = "Use on_low_quality=keep, or an export"
        has_quality = model.has_quality and model.translate_verbose is not None
        require(has_quality, f"{model.label} returns no quality. {advice} made with --quality.")
        can_retry = model.retry is not None or on_low_quality != "retry"
        require(can_retry, f"{model.label} has only one search. {advice} as a SavedModel.")
        require(model.n_best == 1, f"{model.label} needs n_best=1, and not {model.n_best}.")
    else:
        ignored = f"on_low_quality=keep ignores min_quality={min_quality}."
        require(min_quality == MIN_QUALITY, f"{ignored} Use source, or leave it out.")
    model = copy.copy(model)
    model.fallback = on_low_quality, min_quality
    return model


def with_languages(
    model: Engine, source_language: str | None = None, target_language: str | None = None
) -> Engine:
    """Returns a model for other languages than its default ones, if any is given.

    Of a model without tokens for its languages, the source language only selects the rules for
    sentences.
    """
    if source_language is None and target_language is None:
        return model
    model = copy.copy(model)
    defaults = (model.source_tag or "").split()
    if len(defaults) < 2:
        require(
            target_language is None,
            f"target_language is {target_language}, but {model.label} has no languages to choose "
            "from. Leave it out. Tags such as <2de> are given as source_tag.",
        )
        model.source_language = source_language
        return model
    wanted = target_language, source_language
    codes = [tag[2:-2] for tag in language_tags(model.symbols or ())]
    check_names(filter(None, wanted), codes, f"a language of {model.label}")
    tags = [f">>{code}<<" if code else tag for code, tag in zip(wanted, defaults, strict=True)]
    model.source_tag = tag = " ".join(tags)
    model.target_language, model.source_language = (two_letters(tag[2:-2]) for tag in tags)

    def with_tags(function: Any) -> Any:
        def call(text: Any, **others: Any) -> Any:
            return function(text=add_missing_tags(text, tag, model.symbols), **others)

        return function and call

    for name in ("translate", "translate_verbose", "lengths", "retry"):
        setattr(model, name, with_tags(getattr(model, name)))
    return model


def _rows(model: Engine, lines: Sequence[str], prefixes: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the outputs of `Engine.translate_verbose` for each line, after the fallback.

    A translation is low if its quality is, or if it has one of the `PROBLEMS`. Then its text is
    that of the source or empty, or it is the better one of two searches.
    """
    options: Any = {"max_lines": model.max_batch_lines, "threads": model.threads}
    assert model.translate_verbose is not None
    rows = outputs_by_line(model.translate_verbose, lines, prefix=prefixes, **options)
    action, least = model.fallback
    low = [i for i, row in enumerate(rows) if action != "keep" and _rank(row) < least]
    if action == "retry" and model.retry is not None:
        texts = [[column[i] for i in low] for column in (lines, prefixes)]
        again = outputs_by_line(model.retry, texts[0], prefix=texts[1], **options)
        for index, row in zip(low, again, strict=True):
            rows[index] = max(rows[index], row, key=_rank)
    else:
        for index in low:
            text = split_tags(lines[index], model.symbols)[1] if action == "source" else ""
            rows[index]["translations"] = np.array([text.encode()], object)
            # It has no tokens, and is there even if no hypothesis was found.
            rows[index] |= dict.fromkeys(("lengths", "scores", "log_probs", "finished"), [0])
    return rows


def _rank(row: Mapping[str, Any]) -> float:
    """Returns the quality of a line's best translation, and less than 0 if it has a problem."""
    return float(row["quality"][0]) - bool(_problems(row))


def _problems(row: Mapping[str, Any]) -> list[str | None]:
    """Returns the names of what may be wrong with a line's best translation."""
    return [flag.name for flag in Status(int(row["status"])) & PROBLEMS]


def _details(
    fields: Mapping[str, np.ndarray], source_length: int, attention: bool
) -> dict[str, Any]:
    translations = []
    for i in range(len(fields["scores"])):
        if fields["scores"][i] <= EMPTY_SCORE:
            continue
        length = int(fields["lengths"][i])
        translation = {
            "text": fields["translations"][i].decode("utf-8", "replace"),
            "score": round(float(fields["scores"][i]), 6),
            "finished": bool(fields["finished"][i]),
            "tokens": [piece.decode() for piece in fields["tokens"][i][:length]],
            "ids": fields["ids"][i][:length].tolist(),
            "alignment": fields["alignments"][i][:length].tolist(),
        }
        if "quality" in fields:
            translation["quality"] = round(float(fields["quality"][i]), 4)
        if "token_log_probs" in fields:
            translation["log_prob"] = round(float(fields["log_probs"][i]), 6)
            translation["token_log_probs"] = _rounded(fields["token_log_probs"][i][:length], 6)
        if attention:
            weights = fields["attention"][i][:length, :source_length]
            translation["attention"] = _rounded(weights, 4)
        translations.append(translation)
    source = [piece.decode() for piece in fields["source_tokens"][:source_length]]
    found = {"problems": _problems(fields)} if "quality" in fields else {}
    return {"source_tokens": source, **found, "translations": translations}


def _rounded(values: np.ndarray, decimals: int) -> Any:
    # A rounded float32 would print many digits.
    return values.astype(np.float64).round(decimals).tolist()


def translation_warnings(
    model: Engine,
    counts: TokenCounts,
    results: Sequence[Sequence[Translation]],
    prefixes: Sequence[str] | None = None,
    first_line: int = 1,
) -> list[str]:
    """Returns warnings about lines, and about translations that are missing or without prefix."""
    warnings = []
    for number, (best, *_) in enumerate(results, first_line):
        prefix = prefixes[number - first_line] if prefixes else ""
        if best == NO_TRANSLATION:
            warnings.append(
                f"Line {number} has no translation: the model's logits are NaN, or all tokens are "
                "banned."
            )
        elif not best.text.startswith(" ".join(prefix.split())):
            warnings.append(
                f"The translation of line {number} does not begin with its prefix "
                f"({prefix[:40]!r}). The prefix has characters that are not in the vocabulary, or "
                "is too long."
            )
    return warnings + source_warnings(counts, model.max_train_source_length, first_line)


def changed_numbers(model: Engine, lines: Sequence[str]) -> list[tuple[int, str]]:
    """Returns the indices of lines, and remarks about their numbers that a vocabulary changes.

    Old vocabularies read 10³ as 103.
    """
    numbers = [
        (index, word)
        for index, line in enumerate(lines)
        for word in line.split()
        if not word.isascii() and any(map(str.isdecimal, word))
    ]
    if not numbers or model.vocabulary is None:
        return []
    from keras_transformer.text.charsmap import kept_characters  # imported here: it takes 0.3 s

    numbers = [(index, word) for index, word in numbers if not kept_characters().isdisjoint(word)]
    changed = model.vocabulary.rewritten("source", [word for _, word in numbers])
    remark = (
        "the vocabulary of this model reads {!r} as {!r}. One that is prepared now keeps it "
        "(normalization=nfkc_numbers)."
    )
    return [(numbers[i][0], remark.format(numbers[i][1], text)) for i, text in changed.items()]


def translate_to_text(
    model: Engine,
    lines: Sequence[str],
    *,
    source_tag: str = "",
    document: bool | None = False,
    format: str = "text",
    prefixes: Sequence[str] | None = None,
    attention: bool = False,
    first_line: int = 1,
) -> tuple[str, list[str], str | None]:
    """Translates lines into the text of a file.

    The format is "text", "moses" (see `format_translations`) or "jsonl". JSON objects have the
    fields of `translate_verbose`. `document` is as in `split_texts`. Warnings and n-best lists
    count lines from `first_line`. Returns the text, warnings about lines, and a remark about
    unknown tokens.
    """
    is_plain = format == "text" and prefixes is None
    split, warnings = dict[int, str](), list[str]()
    if is_plain:
        split, warnings, ways = split_texts(model, lines, document, source_tag, first_line)
        if document and ways:
            console.info(ways)
    lines = [add_tag(line, source_tag) for line in lines]
    counts = token_counts(model.lengths, lines)
    unknown = unknown_token_remark(counts, range(first_line, sys.maxsize))
    counts["tokens"][[*split]] = 0  # there are already warnings about them
    if is_plain:
        results = translate_lines(model, lines, split)
    else:
        details = translate_verbose(model, lines, prefixes, attention, counts)
        results = with_details(details)
    if format == "jsonl":
        text = "".join(json.dumps(detail, ensure_ascii=False) + "\n" for detail in details)
    else:
        text = format_translations(model, results, first_line, with_alignment=format == "moses")
    warnings += translation_warnings(model, counts, results, prefixes, first_line)
    warnings += [f"Line {first_line + i}: {what}" for i, what in changed_numbers(model, lines)]
    return text, warnings, unknown


def format_translations(
    model: Engine,
    results: Sequence[Sequence[Translation]],
    first_line: int = 1,
    with_alignment: bool = False,
) -> str:
    """Returns one line per result, or n-best lists in the format of Moses.

    A line of an n-best list is `index ||| text ||| score`. Indices start at 0. With alignments,
    ` ||| 0-0 1-2` is added to all lines.
    """
    lines = []
    for index, result in enumerate(results, start=first_line - 1):
        for translation in result[: model.n_best]:
            fields = [translation.text]
            if model.n_best > 1:
                fields = [str(index), translation.text, f"{translation.score:.4f}"]
            if with_alignment:
                fields.append(word_alignment(translation))
            lines.append(" ||| ".join(fields) + "\n")
    return "".join(lines)


def word_alignment(translation: Translation) -> str:
    """Returns which words of the source and the translation are aligned, as in "0-0 1-2".

    Words are separated by spaces, and are counted from 0. The details of the translation are those
    of `with_details`.
    """
    details = translation.details
    if details is None:  # there is no translation
        return ""
    # The language of a translation and the two of its source are not words.
    first = len(language_tags(token.removeprefix("▁") for token in details["tokens"][:1]))
    source = _word_numbers(details["source_tokens"][2 * first : -1])  # without the end token
    target = _word_numbers(details["tokens"][first : -1 if details["finished"] else None])
    pairs = zip(details["alignment"][first:], target, strict=False)
    links = {(source[i - 2 * first], j) for i, j in pairs if 0 <= i - 2 * first < len(source)}
    return " ".join(f"{i}-{j}" for i, j in sorted(links))


def _word_numbers(pieces: Sequence[str]) -> list[int]:
    """Returns the index of the word that each piece belongs to."""
    begins = (int(index > 0 and piece.startswith("▁")) for index, piece in enumerate(pieces))
    return list(itertools.accumulate(begins))


class Evaluation(NamedTuple):
    """A translated test set, and the scores of the translations."""

    scores: Scores
    hypotheses: list[str]


def evaluate(
    model: Engine,
    sources: Sequence[str],
    references: Sequence[str],
    *,
    tokenize: str | None = None,
    lowercase: bool = False,
) -> Evaluation:
    """Translates `sources` and scores the best translations against `references`.

    `tokenize` is sacreBLEU's tokenizer for BLEU; None for `metrics.choose_tokenizer`.
    """
    if len(sources) != len(references):
        raise InputError(
            f"The source has {len(sources):,} lines, but the reference has {len(references):,}."
        )
    metrics.evaluate(references[:1], references[:1], tokenize=tokenize, lowercase=lowercase)
    hypotheses = [best.text for best, *_ in translate_lines(model, sources)]
    scores = metrics.evaluate(
        hypotheses,
        references,
        tokenize=tokenize,
        lowercase=lowercase,
        normalize=None if model.vocabulary is None else model.vocabulary.normalized_target,
    )
    return Evaluation(scores, hypotheses)
