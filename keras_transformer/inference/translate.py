"""Lines of text translated by a model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_text  # noqa: F401  a SavedModel needs its ops

from keras_transformer.decoding import NEG_INF
from keras_transformer.errors import InputError
from keras_transformer.inference import Translation, translations_of
from keras_transformer.inference.batching import in_batches, token_counts
from keras_transformer.inference.loading import LoadedModel

# Of a model whose logits are no numbers, or that may not say anything.
NO_TRANSLATION = Translation("", -math.inf)


def translate_lines(model: LoadedModel, lines: Sequence[str]) -> list[list[Translation]]:
    """Translates lines; each result, in their order, is best first and never empty."""
    results: list[list[Translation]] = [[] for _ in lines]
    for batch, outputs in in_batches(model.translate, lines):
        for index, row, row_scores in zip(
            batch, outputs["translations"], outputs["scores"], strict=True
        ):
            results[index] = translations_of(row, row_scores) or [NO_TRANSLATION]
    return results


def translate_in_detail(
    model: LoadedModel,
    lines: Sequence[str],
    prefixes: Sequence[str] | None = None,
    attention: bool = False,
) -> list[dict[str, Any]]:
    """Translates lines and returns what is known of each translation, ready for JSON.

    Args:
        model: with `in_detail`.
        lines: what is translated.
        prefixes: as many texts, which the translations begin with; may be empty.
        attention: also return the whole attention, target tokens by source tokens.

    Returns:
        For each line `source_tokens` and `translations`, best first, each with its `text`,
        `score`, `log_prob` (before the penalties), `finished`, `tokens`, `ids`,
        `token_log_probs` and `alignment` (the index of a source token for each token).

    Raises:
        InputError: for another number of prefixes, or a model that cannot tell.
    """
    if model.in_detail is None:
        raise InputError(
            f"{model.place} tells no details of translations and takes no prefixes, as LiteRT "
            "models and older exports; expected the run directory or a new SavedModel"
        )
    prefixes = [""] * len(lines) if prefixes is None else prefixes
    if len(prefixes) != len(lines):
        raise InputError(
            f"there are {len(lines):,} lines and {len(prefixes):,} prefixes; expected a prefix for "
            "each line"
        )
    source_lengths = [used for _, used in token_counts(model.lengths, lines)]
    results: list[dict[str, Any]] = [{} for _ in lines]
    for batch, outputs in in_batches(model.in_detail, lines, prefix=prefixes):
        for row, index in enumerate(batch):
            fields = {name: field[row] for name, field in outputs.items()}
            results[index] = _details(fields, source_lengths[index], attention)
    return results


def _details(
    fields: Mapping[str, np.ndarray], source_length: int, attention: bool
) -> dict[str, Any]:
    """What `translate_in_detail` returns of one line."""
    translations = []
    for i in range(len(fields["scores"])):
        if fields["scores"][i] <= NEG_INF / 2:
            continue
        length = int(fields["lengths"][i])
        translation = {
            "text": fields["translations"][i].decode("utf-8", "replace"),
            "score": round(float(fields["scores"][i]), 6),
            "log_prob": round(float(fields["log_probs"][i]), 6),
            "finished": bool(fields["finished"][i]),
            "tokens": [piece.decode() for piece in fields["tokens"][i][:length]],
            "ids": fields["ids"][i][:length].tolist(),
            "token_log_probs": _rounded(fields["token_log_probs"][i][:length], 6),
            "alignment": fields["alignments"][i][:length].tolist(),
        }
        if attention:
            weights = fields["attention"][i][:length, :source_length]
            translation["attention"] = _rounded(weights, 4)
        translations.append(translation)
    source = [piece.decode() for piece in fields["source_tokens"][:source_length]]
    return {"source_tokens": source, "translations": translations}


def _rounded(values: np.ndarray, decimals: int) -> Any:
    # In float64: the digits of a rounded float32 go on.
    return values.astype(np.float64).round(decimals).tolist()


def remarks(
    model: LoadedModel,
    lines: Sequence[str],
    results: Sequence[Sequence[Translation]] = (),
    prefixes: Sequence[str] = (),
) -> list[str]:
    """Returns one sentence for each line that is empty, cut, or longer than any of training.

    And, where the results and prefixes are given, for each without a translation, or whose
    translation does not begin with its prefix.
    """
    sentences = [
        f"line {number} has no translation: the model's logits are no numbers, or it may not say "
        "anything"
        for number, result in enumerate(results, start=1)
        if result[0] == NO_TRANSLATION
    ]
    pairs = enumerate(zip(results, prefixes, strict=False), start=1)
    sentences += [
        f"line {number} has a prefix that its translation does not begin with ({prefix[:40]!r}): "
        "it has signs that the vocabulary has not, or is longer than the translation may be"
        for number, (result, prefix) in pairs
        if not result[0].text.startswith(" ".join(prefix.split()))
    ]
    for number, (tokens, used) in enumerate(token_counts(model.lengths, lines), start=1):
        if tokens == 1:  # the end token alone
            sentences.append(f"line {number} is empty, and so is its translation")
        elif used < tokens:
            sentences.append(
                f"line {number} has {tokens:,} tokens; the first {used:,} were translated "
                "(decoding.max_source_tokens)"
            )
        elif tokens > (model.trained_tokens or tokens):
            sentences.append(
                f"line {number} has {tokens:,} tokens, but the longest source of training "
                f"{model.trained_tokens:,}; it was translated as it is"
            )
    return sentences


def decode_lines(data: bytes, name: str) -> list[str]:
    r"""Returns the lines of `data`, which end at \n alone, without a CR before it and a BOM.

    Raises:
        InputError: for a line that is no UTF-8; `name` is named.
    """
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not lines[-1]:
        lines.pop()  # what follows the last line's end is no line
    decoded = []
    for number, line in enumerate(lines, start=1):
        try:
            decoded.append(line.removesuffix(b"\r").decode())
        except UnicodeDecodeError as error:
            raise InputError(
                f"{name}, line {number}: byte 0x{line[error.start]:02x} at byte {error.start} of "
                f"the line is not UTF-8 ({error.reason}); expected UTF-8 text"
            ) from None
    return decoded


def translate_to_text(
    model: LoadedModel,
    lines: Sequence[str],
    *,
    as_json: bool = False,
    prefixes: Sequence[str] | None = None,
    attention: bool = False,
) -> tuple[str, list[str]]:
    """Translates lines; returns the text of an output file, and the remarks on them.

    Example: `text, remarks = translate_to_text(model, ["A dog sleeps."], as_json=True)`

    Args:
        model: with `in_detail` for JSON, prefixes and attention.
        lines: the sentences.
        as_json: one JSON object a line, with the fields of `translate_in_detail`; otherwise the
            lines of `format_translations`.
        prefixes: a text for each line, which its translations begin with; may be empty.
        attention: also write the whole attention into the JSON.

    Raises:
        InputError: for another number of prefixes, or a model without `in_detail`.
    """
    if not as_json and prefixes is None:
        results = translate_lines(model, lines)
        return format_translations(model, results), remarks(model, lines, results)
    details = translate_in_detail(model, lines, prefixes, attention)
    results = [
        [Translation(t["text"], t["score"]) for t in detail["translations"]] or [NO_TRANSLATION]
        for detail in details
    ]
    if as_json:
        text = "".join(json.dumps(detail, ensure_ascii=False) + "\n" for detail in details)
    else:
        text = format_translations(model, results)
    return text, remarks(model, lines, results, prefixes or [])


def format_translations(model: LoadedModel, results: Sequence[Sequence[Translation]]) -> str:
    """Returns one line a result, or as Moses writes n-best lists: `index ||| text ||| score`.

    The index counts the input's lines from 0.
    """
    if model.n_best == 1:
        return "".join(f"{best.text}\n" for best, *_ in results)
    return "".join(
        f"{index} ||| {translation.text} ||| {translation.score:.4f}\n"
        for index, result in enumerate(results)
        for translation in result
    )
