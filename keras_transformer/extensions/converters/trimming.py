"""Smaller vocabularies: a converted model keeps only the tokens of a text or of some languages.

The embeddings are a large part of a multilingual model (43 % of NLLB-600M), and a user needs only
the tokens of some languages. The logits of tokens that are kept do not change.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence, Set
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import regex

from keras_transformer.data.reading import read_lines
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


def keep_text(model: ConvertedModel, path: Path, languages: str | None = None) -> ConvertedModel:
    """Returns the model with the tokens that a text of its languages needs, and logs a report.

    The lines of the text may be of the source and of the target, in any order. With `languages`,
    the model keeps only these, as with `keep_languages`.
    """
    old = model.vocabulary
    codes = {*old.language_ids} if languages is None else _codes_to_keep(old, languages)
    words: Counter[bytes] = Counter()
    # The ids of the source and of the target, in all lines and in those that are not held out.
    used, others = (set[int](), set[int]()), (set[int](), set[int]())
    for number, line in enumerate(read_lines(path), start=1):
        words.update(line.split())
        for side, ids in enumerate(_encode(old, line)):
            used[side].update(ids)
            others[side].update(ids if number % _HELD_OUT else ())
    require(bool(words), f"{path} has only empty lines. Give a text of both languages.")
    _check_words(old, words, path)
    trimmed = _with_tokens(model, used, codes)
    known = [others[0] | others[1]] * 2 if _shares_ids(model) else others
    _report(old, trimmed.vocabulary, known, path)
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


def _check_words(vocabulary: Vocabulary, words: Counter[bytes], path: Path) -> None:
    """Logs the share of words that are unknown in both languages. Raises an error for most."""
    # Words are encoded one by one, because unknown words next to each other are one token.
    unknown = sum(
        count
        for word, count in words.items()
        if all(vocabulary.unknown_id in ids for ids in _encode(vocabulary, word))
    )
    share = unknown / words.total()
    report = f"{100 * share:.1f} % of the words of {path} are unknown to the model."
    require(share <= _MAX_UNKNOWN, f"{report} Tokenize the text like the model's training text.")
    log.info(report)


def _report(old: Vocabulary, new: Vocabulary, known: Sequence[set[int]], path: Path) -> None:
    """Logs how many segmentations of a text change, and how often `known` ids do not suffice."""
    changed = unseen = number = 0
    pieces = [*old.pieces(), *new.pieces()]
    for number, line in enumerate(read_lines(path), start=1):
        rows = [*_encode(old, line), *_encode(new, line)]
        texts = [[side[i] for i in row] for side, row in zip(pieces, rows, strict=True)]
        changed += sum(texts[side] != texts[side + 2] for side in (0, 1))
        if number % _HELD_OUT == 0:
            unseen += not all(ids.issuperset(row) for ids, row in zip(known, rows, strict=False))
    log.info("%d of %s segmentations of the text change.", changed, f"{2 * number:,}")
    if number >= _HELD_OUT:
        log.info(
            "Of every tenth line, %.1f %% need a token that the other lines do not need: expect "
            "this in new text.",
            100 * unseen / (number // _HELD_OUT),
        )


def _encode(vocabulary: Vocabulary, text: bytes) -> tuple[list[int], list[int]]:
    """Returns the ids of a text in the source and in the target."""
    return vocabulary.encode_source([text])[0], vocabulary.encode_target([text])[0]


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
