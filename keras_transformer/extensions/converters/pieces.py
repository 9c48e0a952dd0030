"""SentencePiece models whose ids are the ids of another vocabulary.

Marian has two parts where this package has one: SentencePiece splits a text into pieces, and a
table gives each piece an id. The ids of a SentencePiece model are the places of its pieces. So the
pieces are put into the order of the table, and the text is tokenized inside the graph.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.models.transformer import EXCLUDED_TOKEN_BIAS
from keras_transformer.runs.checkpoints import reading
from keras_transformer.text.model_proto import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    WORD,
    ModelProto,
)
from keras_transformer.text.vocabulary import SPECIAL_PIECES, Vocabulary

_PAD, _UNKNOWN, _START, _END = SPECIAL_PIECES
SPACE = "\u2581"
_SPECIAL_TOKENS = {"<blank>", "<pad>", "<unk>", "<s>", "</s>"}  # in vocabularies of all toolkits
_MIN_KNOWN = 0.5  # of the pieces of a SentencePiece model; models of OPUS-MT have nearly all
_LANGUAGE = re.compile(r">>[^\s<>]+<<")


@dataclasses.dataclass(frozen=True)
class PieceOrder:
    """A vocabulary, and the rows of the original embedding matrices that belong to its ids.

    Attributes:
        vocabulary: the vocabulary.
        source_rows, target_rows: for each id the row of the original matrix; -1 for zeros.
        num_sources, num_targets: numbers of rows of the original matrices.
    """

    vocabulary: Vocabulary
    source_rows: Sequence[int]
    target_rows: Sequence[int]
    num_sources: int
    num_targets: int

    def source_embeddings(self, matrix: np.ndarray) -> np.ndarray:
        """Returns the rows of the source ids of a matrix `[num_sources, d_model]`."""
        return _select(matrix, self.source_rows, self.num_sources)

    def target_embeddings(self, matrix: np.ndarray) -> np.ndarray:
        """Returns the rows of the target ids of a matrix `[num_targets, d_model]`."""
        return _select(matrix, self.target_rows, self.num_targets)

    def output_bias(self, bias: np.ndarray | None) -> np.ndarray:
        """Returns the bias of the target ids, `[V]`.

        Tokens that the original model does not have get a probability of 0.
        """
        column = np.zeros((self.num_targets, 1)) if bias is None else bias.reshape(-1, 1)
        selected = self.target_embeddings(column)[:, 0]
        rows = np.asarray(self.target_rows)
        selected[(rows < 0) | (np.arange(len(rows)) >= self.num_targets)] = EXCLUDED_TOKEN_BIAS
        return selected.astype(np.float32)


def _select(matrix: np.ndarray, rows: Sequence[int], size: int) -> np.ndarray:
    if matrix.ndim != 2 or len(matrix) != size:
        raise InputError(
            f"The vocabulary has {size:,} entries, but the model has embeddings of the shape "
            f"{matrix.shape}. Give the vocabulary of this model."
        )
    zeros = np.zeros((1, matrix.shape[1]), matrix.dtype)
    return np.concatenate([matrix, zeros])[list(rows)]


def read_sentencepiece(file: Path) -> bytes:
    """Returns a serialized SentencePiece model after a check."""
    if not file.is_file():
        raise InputError(
            f"{file} does not exist. The converter needs the SentencePiece models source.spm and "
            "target.spm. Models with subword-nmt BPE cannot be converted."
        )
    with reading(file, "a SentencePiece model"):
        model = file.read_bytes()
        proto = ModelProto.FromString(model)
        pieces = [piece.piece for piece in proto.pieces]
        # They follow the pieces, so they show that the file is complete.
        if not (proto.HasField("trainer_spec") and proto.HasField("normalizer_spec")):
            raise ValueError("its end is missing")
        if not pieces or not all(isinstance(piece, str) for piece in pieces):
            raise ValueError("it has no pieces, or pieces of invalid UTF-8")
    return model


def table_pieces(vocabulary: Vocabulary) -> tuple[list[str], list[str]]:
    """Returns the source and the target pieces by id, as in the tables of Marian and MarianMT.

    A language token such as `>>deu<<` has no mark of a space there. Special pieces have the
    target's names.
    """
    source, target = (
        [
            name if _LANGUAGE.fullmatch(name := piece.removeprefix(SPACE)) else piece
            for piece in each
        ]
        for each in vocabulary.pieces()
    )
    return source, target


def same_pieces(
    source_model: bytes,
    target_model: bytes,
    source_ids: Mapping[str, int],
    target_ids: Mapping[str, int],
    start_id: int,
) -> PieceOrder | None:
    """Returns the vocabulary of two models whose ids are already those of the tables.

    Exports of this package are of this kind. For all others, the result is None.
    """
    is_joint = source_ids is target_ids and source_model == target_model
    try:
        vocabulary = Vocabulary(source_model, None if is_joint else target_model)
    except InputError:  # a special piece is missing
        return None
    source, target = table_pieces(vocabulary)
    tables = [{piece: i for i, piece in enumerate(pieces)} for pieces in (source, target)]
    if tables != [source_ids, target_ids] or vocabulary.start_id != start_id:
        return None
    sources, targets = range(len(source)), range(len(target))
    return PieceOrder(vocabulary, sources, targets, len(sources), len(targets))


def order_pieces(
    source_model: bytes,
    target_model: bytes,
    source_ids: Mapping[str, int],
    target_ids: Mapping[str, int],
    *,
    pad_piece: str | None = None,
    start_row: int = -1,
) -> PieceOrder:
    """Puts the pieces of two SentencePiece models into the order of two tables.

    Ids of the tables stay the same. New ids follow, with the same numbers in both languages:

    * a start piece, and a pad piece if the tables have none;
    * source pieces that the table lacks. Marian reads them as unknown tokens, so they get the
      vector of the unknown token.

    Pieces of the table that a SentencePiece model lacks are marked as unused: no text contains
    them, but they can be generated. There are two exceptions. A language token such as >>deu<<
    becomes a symbol at the start of a word. A single character that SentencePiece does not know
    becomes a piece, because Marian finds it in the table.

    Target pieces that the table lacks are unused too. Marian reads them as unknown tokens in
    training. Here, texts are split into smaller pieces, which are in the table.

    If both languages share one embedding matrix, `target_ids` is the same object as `source_ids`.
    `start_row` is the row of the embeddings for the start token, or -1 for zeros.
    """
    special = {"</s>": _END, "<unk>": _UNKNOWN, **({pad_piece: _PAD} if pad_piece else {})}
    for name in special:
        places = [ids.get(name) for ids in (source_ids, target_ids)]
        if places[0] is None or places[0] != places[1]:
            raise InputError(
                f"The vocabularies give {name} the ids {places[0]} and {places[1]}. Both need the "
                "same id."
            )
    source_table, target_table = (_names_by_id(ids, special) for ids in (source_ids, target_ids))
    source_proto, target_proto = map(ModelProto.FromString, (source_model, target_model))
    _check_belongs("source", source_proto, source_ids)
    _check_belongs("target", target_proto, target_ids)
    source_texts, target_texts = _texts(source_proto), _texts(target_proto)
    missing = [
        text
        for text in source_texts
        if text not in source_ids and not _is_language(text.lstrip(SPACE), source_ids)
    ]

    size = max(len(source_table), len(target_table))
    added = [(_START, start_row)] if pad_piece else [(_PAD, -1), (_START, start_row)]
    unknown = [(text, source_ids["<unk>"]) for text in missing]
    shares_rows = source_ids is target_ids
    source = [*_with_rows(source_table, size), *added, *unknown]
    target = [*_with_rows(target_table, size), *added, *(unknown if shares_rows else [])]

    first = _with_pieces(source_proto, [name for name, _ in source], {*source_texts})
    known_targets = {text for text in target_texts if text in target_ids}
    second = _with_pieces(target_proto, [name for name, _ in target], known_targets)
    joint = shares_rows and first == second
    return PieceOrder(
        Vocabulary(first, None if joint else second),
        source_rows=[row for _, row in source],
        target_rows=[row for _, row in target],
        num_sources=len(source_table),
        num_targets=len(target_table),
    )


def word_model(tokens: Iterable[str]) -> tuple[bytes, dict[str, int]]:
    """Returns a SentencePiece model that splits text only at spaces, and the ids of its pieces.

    It is for vocabularies of words or subwords that another program makes, such as "do@@ g". The
    text must already be tokenized, and translations stay tokenized.
    """
    ids: dict[str, int] = {}
    for i, token in enumerate(tokens):
        if SPACE in token:
            raise InputError(
                f"The vocabulary has {token!r}, which is a piece of SentencePiece. Give the "
                "SentencePiece model of the training data with --source_sentencepiece."
            )
        if token.split() != [token]:
            raise InputError(f"The vocabulary has {token!r}, which is empty or contains a space.")
        piece = token if token in _SPECIAL_TOKENS else SPACE + token
        if ids.setdefault(piece, i) != i:
            raise InputError(f"The vocabulary has {token!r} twice. It is damaged.")
    proto = ModelProto()
    proto.trainer_spec.model_type = WORD
    proto.normalizer_spec.name = "identity"
    for piece in ids:
        kind = UNKNOWN if piece == "<unk>" else CONTROL
        proto.pieces.add(piece=piece, type=NORMAL if piece[0] == SPACE else kind)
    return bytes(proto.SerializeToString(deterministic=True)), ids


def _names_by_id(ids: Mapping[str, int], special: Mapping[str, str]) -> list[str | None]:
    """Returns the pieces of a table by their ids, with our names of the special tokens."""
    size = 1 + max(ids.values(), default=-1)
    if min(ids.values(), default=0) < 0 or size > 2 * len(ids) + 100:
        raise InputError(
            f"The vocabulary has {len(ids):,} entries with ids up to {size - 1:,}. It is damaged."
        )
    names: list[str | None] = [None] * size
    for name, i in ids.items():
        if names[i] is not None:
            raise InputError(f"The vocabulary gives {names[i]} and {name} the same id, {i}.")
        # An ordinary piece must not have the name of an added one.
        names[i] = special.get(name, f"{name}_" if name in SPECIAL_PIECES else name)
    return names


def _is_language(text: str, ids: Mapping[str, int]) -> bool:
    return _LANGUAGE.fullmatch(text) is not None and text in ids


def _filler(i: int) -> str:
    return f"<unused {i}>"


def _with_rows(table: Sequence[str | None], size: int) -> list[tuple[str, int]]:
    """Returns the pieces with the rows of their vectors, and more up to `size` pieces.

    An id without a piece gets no vector, so that it is never generated.
    """
    names = [(_filler(row), -1) if name is None else (name, row) for row, name in enumerate(table)]
    return names + [(_filler(i), -1) for i in range(len(table), size)]


def _check_belongs(side: str, proto: Any, ids: Mapping[str, int]) -> None:
    """Raises an `InputError` if a table has too few of the pieces of a model."""
    pieces = [piece.piece for piece in proto.pieces if piece.type == NORMAL]
    known = sum(piece in ids for piece in pieces)
    if known < _MIN_KNOWN * len(pieces):
        raise InputError(
            f"The vocabulary has only {known:,} of the {len(pieces):,} pieces of the {side}'s "
            "SentencePiece model. Give the SentencePiece model that this model was trained with."
        )


def _texts(proto: Any) -> list[str]:
    """Returns the pieces of a model that a text can contain."""
    return [piece.piece for piece in proto.pieces if piece.type not in (UNKNOWN, CONTROL, UNUSED)]


def _with_pieces(proto: Any, names: Sequence[str], known: Set[str]) -> bytes:
    """Returns a serialized model with other pieces."""
    old = {piece.piece: piece for piece in proto.pieces}
    characters = set("".join(known))
    lowest = min((p.score for p in proto.pieces if p.type == NORMAL), default=0.0)
    types = {_PAD: CONTROL, _UNKNOWN: UNKNOWN, _START: CONTROL, _END: CONTROL}
    used = {""}
    new = ModelProto()
    new.CopyFrom(proto)
    del new.pieces[:]
    for name in names:
        if name in types:
            piece = new.pieces.add(piece=name, type=types[name])
        elif _LANGUAGE.fullmatch(name):
            piece = new.pieces.add(piece=SPACE + name, type=USER_DEFINED)
        elif name in known:
            piece = new.pieces.add()
            piece.CopyFrom(old[name])
        elif len(name) == 1 and name not in characters and name != SPACE:
            # Its score decides nothing, because no other piece contains the character.
            piece = new.pieces.add(piece=name, type=NORMAL, score=lowest)
        else:
            piece = new.pieces.add(piece=name, type=UNUSED)
        while piece.piece in used:  # SentencePiece needs different names
            piece.piece += "_"
        used.add(piece.piece)
    spec = new.trainer_spec
    spec.pad_piece, spec.unk_piece, spec.bos_piece, spec.eos_piece = SPECIAL_PIECES
    # SentencePiece finds the ids by the pieces, but LiteRT's tokenizer reads these fields.
    spec.pad_id, spec.unk_id, spec.bos_id, spec.eos_id = map(names.index, SPECIAL_PIECES)
    return bytes(new.SerializeToString(deterministic=True))
