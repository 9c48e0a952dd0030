"""Smaller vocabularies: a converted model keeps only the tokens of a text or of some languages.

The embeddings are a large part of a multilingual model (43 % of NLLB-600M), and a user needs only
the tokens of some languages. The logits of tokens that are kept do not change.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from itertools import combinations, compress
from pathlib import Path
from typing import Any

import numpy as np
import regex

from keras_transformer.data.reading import read_text
from keras_transformer.errors import InputError, check_names, needs_extra, require
from keras_transformer.extensions.converters.source import ConvertedModel, make_model
from keras_transformer.text.model_proto import BPE, NORMAL, UNUSED, ModelProto
from keras_transformer.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)

_HELD_OUT = 10  # each line of this number is like new text
_MAX_UNKNOWN = 0.5  # share of words; a text that is not tokenized for the model has more
# The axis of the tokens in the matrices of the source, and in all others.
_AXES = (
    {"source_embedding/embeddings": 0},
    {
        "embedding/embeddings": 0,
        "target_embedding/embeddings": 0,
        "output_projection/kernel": 1,
        "output_projection/bias": 0,
    },
)
# Codes that stand for several scripts of Unicode. Characters of no script are in all texts.
_SCRIPTS = {"Hans": "Hani", "Hant": "Hani", "Jpan": "Hani Hira Kana", "Kore": "Hang Hani"}
_NO_SCRIPT = "Zyyy Zinh"


def keep_text(
    model: ConvertedModel, path: str | Path, languages: str | None = None
) -> ConvertedModel:
    """Returns the model with the tokens that a text of its languages needs, and logs a report.

    The lines of the text may be of the source and of the target, in any order. With `languages`,
    the model keeps only these, as with `keep_languages`.
    """
    old = model.vocabulary
    codes = {*old.language_ids} if languages is None else _codes_to_keep(old, languages)
    lines = [line.encode() for line in read_text(path)]
    if not any(line.strip() for line in lines):
        raise InputError(f"{path} has only empty lines. Give a text of both languages.")
    _check_words(old, lines, path)
    # Rows of ids, for the source and for the target.
    rows = [old.encode_source(lines), old.encode_target(lines)]
    trimmed = _with_tokens(model, [*map(_union, rows)], codes)
    pairs = zip(_texts(old, lines), _texts(trimmed.vocabulary, lines), strict=True)
    changed = sum(one != other for one, other in pairs)
    log.info("%d of %s segmentations of the text change.", changed, f"{2 * len(lines):,}")
    sign = 1 if _shares_ids(model) else -1  # tells ids of the target from equal ids of the source
    _report_new_tokens([[*a, *(sign * i for i in b)] for a, b in zip(*rows, strict=True)])
    return trimmed


def keep_languages(model: ConvertedModel, languages: str) -> ConvertedModel:
    """Returns the model without the tokens of other languages and scripts, and logs a report.

    It keeps its default languages, and those of `languages`, as in "deu_Latn,eng_Latn". A text in
    their scripts has the same tokens as before. Single characters of all scripts are kept, so that
    a name in another script does not become unknown.
    """
    codes = _codes_to_keep(model.vocabulary, languages)
    scripts = " ".join([_NO_SCRIPT, *map(_scripts, codes)]).split()
    pattern = regex.compile("[" + "".join(rf"\p{{{name}}}" for name in scripts) + "]*|.")
    used = [
        {i for i, p in enumerate(proto.pieces) if p.type == NORMAL and pattern.fullmatch(p.piece)}
        for proto in _protos(model.vocabulary)
    ]
    return _with_tokens(model, used, codes)


def _codes_to_keep(vocabulary: Vocabulary, languages: str) -> set[str]:
    """Returns the default languages and the given ones, as in "deu_Latn,eng_Latn"."""
    if vocabulary.languages is None:
        raise InputError(f"keep_languages is {languages}, but the model has no languages.")
    codes = languages.split(",")
    check_names(codes, [*vocabulary.language_ids], "a language of the model (keep_languages)")
    return {*codes, *vocabulary.languages}


def _scripts(code: str) -> str:
    """Returns the scripts of a language: "Latn" of deu_Latn, and the likely ones of de or de_DE."""
    language, _, script = code.partition("_")
    if len(script) != 4:  # a region, or nothing
        with needs_extra("convert", "keep_languages"):
            from babel.core import get_global
        likely = get_global("likely_subtags").get(language)
        if likely is None:
            raise InputError(f"The script of {code} is unknown. Keep a text of it (keep_text).")
        script = likely.split("_")[1]
    return _SCRIPTS.get(script, script)


def _shares_ids(model: ConvertedModel) -> bool:
    """Returns whether a token must have the same id in the source and in the target."""
    vocabulary, tying = model.vocabulary, model.config.model.tie_embeddings
    return vocabulary.joint or tying == "all" or vocabulary.languages is not None


def _protos(vocabulary: Vocabulary) -> list[Any]:
    """Returns the parsed SentencePiece models of the source and of the target."""
    return [ModelProto.FromString(m) for m in (vocabulary.source_model, vocabulary.target_model)]


def _with_tokens(
    model: ConvertedModel, used: Sequence[Set[int]], codes: Set[str]
) -> ConvertedModel:
    """Returns the model with the tokens that a text with some ids needs, and some languages."""
    old = model.vocabulary
    protos = _protos(old)
    needed = [_needed_ids(*side) for side in zip(protos, used, strict=True)]
    if _shares_ids(model):
        needed = [needed[0] | needed[1]] * 2
    special = [old.pad_id, old.unknown_id, old.start_id, old.end_id]  # on both sides equal
    dropped = {*special, *(i for code, i in old.language_ids.items() if code not in codes)}
    kept = [[*special, *sorted(ids - dropped)] for ids in needed]
    models = [_with_ids(*side) for side in zip(protos, kept, strict=True)]
    new = Vocabulary(models[0], None if old.joint else models[1])
    weights = dict(model.weights)
    for ids, axes in zip(kept, _AXES, strict=True):
        for name in axes.keys() & weights.keys():
            weights[name] = np.take(weights[name], ids, axes[name])
    sizes = f"{new.target_vocab_size:,}", f"{old.target_vocab_size:,}"
    log.info("Kept %s of %s target tokens.", *sizes)
    if old.language_ids:
        log.info("Kept %d of %d languages.", len(new.language_ids), len(old.language_ids))
    return make_model(model.config, weights, new)


def _check_words(vocabulary: Vocabulary, lines: Sequence[bytes], path: str | Path) -> None:
    """Logs the share of words that are unknown in both languages. Raises an error for most."""
    # Words are encoded one by one, because unknown words next to each other are one token.
    words = Counter(word for line in lines for word in line.split())
    sides = vocabulary.encode_source([*words]), vocabulary.encode_target([*words])
    is_unknown = [
        all(vocabulary.unknown_id in ids for ids in both) for both in zip(*sides, strict=True)
    ]
    share = sum(compress(words.values(), is_unknown)) / words.total()
    report = f"{100 * share:.1f} % of the words of {path} are unknown to the model."
    require(share <= _MAX_UNKNOWN, f"{report} Tokenize the text like the model's training text.")
    log.info(report)


def _report_new_tokens(rows: Sequence[Sequence[int]]) -> None:
    """Logs how often lines need tokens that other lines do not need."""
    held = rows[_HELD_OUT - 1 :: _HELD_OUT]
    others = _union(row for i, row in enumerate(rows, 1) if i % _HELD_OUT)
    if held:
        log.info(
            "Of every tenth line, %.1f %% need a token that the other lines do not need: expect "
            "this in new text.",
            100 * sum(not others.issuperset(row) for row in held) / len(held),
        )


def _union(rows: Iterable[Iterable[int]]) -> set[int]:
    return {i for row in rows for i in row}


def _texts(vocabulary: Vocabulary, lines: Sequence[bytes]) -> list[list[str]]:
    """Returns the pieces of each line in the source, and then in the target."""
    rows = (vocabulary.encode_source(lines), vocabulary.encode_target(lines))
    sides = zip(vocabulary.pieces(), rows, strict=True)
    return [[pieces[i] for i in row] for pieces, side in sides for row in side]


def _needed_ids(proto: ModelProto, used: Set[int]) -> set[int]:
    """Returns the ids that a text uses, and those without which it would be split differently."""
    texts = {proto.pieces[i].piece for i in used}
    parts = {character for text in texts for character in text}
    if proto.trainer_spec.model_type == BPE:  # longer pieces are merged from shorter ones
        parts |= {text[i:j] for text in texts for i, j in combinations(range(len(text) + 1), 2)}
    return {
        i
        for i, piece in enumerate(proto.pieces)
        if i in used or piece.type not in (NORMAL, UNUSED) or piece.piece in parts
    }


def _with_ids(proto: ModelProto, ids: Sequence[int]) -> bytes:
    """Returns a serialized model with only these pieces. The first four are the special ones."""
    new = ModelProto()
    new.CopyFrom(proto)
    del new.pieces[:]
    new.pieces.extend(proto.pieces[i] for i in ids)
    spec = new.trainer_spec
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = range(4)
    return bytes(new.SerializeToString(deterministic=True))
