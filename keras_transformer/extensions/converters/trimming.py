"""Smaller vocabularies: a converted model keeps only the tokens that a text needs.

The embeddings are a large part of a multilingual model (43 % of NLLB-600M), and a user needs only
the tokens of some languages. The logits of tokens that are kept do not change.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence, Set
from itertools import combinations
from pathlib import Path

import numpy as np

from keras_transformer.data.reading import read_text
from keras_transformer.errors import InputError
from keras_transformer.extensions.converters.source import ConvertedModel, make_model
from keras_transformer.text.model_proto import BPE, NORMAL, UNUSED, ModelProto
from keras_transformer.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)

_HELD_OUT = 10  # each line of this number is like new text
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


def keep_text(model: ConvertedModel, path: str | Path) -> ConvertedModel:
    """Returns the model with the tokens that a text of its languages needs, and logs a report.

    The lines of the text may be of the source and of the target, in any order.
    """
    lines = [line.encode() for line in read_text(path)]
    if not any(line.strip() for line in lines):
        raise InputError(f"{path} has only empty lines. Give a text of both languages.")
    old = model.vocabulary
    # Rows of ids, for the source and for the target.
    rows = [old.encode_source(lines), old.encode_target(lines)]
    if is_shared := old.joint or model.config.model.tie_embeddings == "all":
        rows = [[a + b for a, b in zip(*rows, strict=True)]] * 2
    protos = [ModelProto.FromString(m) for m in (old.source_model, old.target_model)]
    needed = [_needed_ids(*side) for side in zip(protos, map(_union, rows), strict=True)]
    if is_shared:
        needed = [needed[0] | needed[1]] * 2
    special = [old.pad_id, old.unknown_id, old.start_id, old.end_id]  # on both sides equal
    kept = [[*special, *sorted(ids - {*special})] for ids in needed]
    models = [_with_ids(*side) for side in zip(protos, kept, strict=True)]
    new = Vocabulary(models[0], None if old.joint else models[1])
    weights = dict(model.weights)
    for ids, axes in zip(kept, _AXES, strict=True):
        for name in axes.keys() & weights.keys():
            weights[name] = np.take(weights[name], ids, axes[name])
    pairs = zip(_texts(old, lines), _texts(new, lines), strict=True)
    log.info(
        "Kept %s of %s target tokens. %d of %s segmentations of the text change.",
        f"{new.target_vocab_size:,}", f"{old.target_vocab_size:,}",
        sum(one != other for one, other in pairs), f"{2 * len(lines):,}",
    )  # fmt: skip
    sign = 1 if is_shared else -1  # tells ids of the target from equal ids of the source
    _report_new_tokens([[*a, *(sign * i for i in b)] for a, b in zip(*rows, strict=True)])
    return make_model(model.config, weights, new)


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
