"""SentencePiece models whose ids are the ids of another vocabulary.

Marian has two parts where this package has one: SentencePiece splits a text into pieces, and a
table gives each piece an id. The ids of a SentencePiece model are the indices of its pieces. So the
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
from keras_transformer.runs.checkpoints import Arrays, reading
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
_SPECIAL_TOKENS = {"<blank>", "<pad>", "<unk>", "<s>", "</s>"}  # names of all toolkits
_MIN_KNOWN = 0.5  # share of a SentencePiece model's pieces; OPUS-MT's is nearly 1
_LANGUAGE = re.compile(r">>[^\s<>]+<<")


@dataclasses.dataclass(frozen=True)
class PieceOrder:
    """A vocabulary, and the rows of the original embedding matrices that belong to its ids."""

    vocabulary: Vocabulary
    source_rows: Sequence[int]  # the row of each id; -1 for zeros
    target_rows: Sequence[int]
    num_sources: int  # rows of the original matrix
    num_targets: int

    def weights(
        self,
        source: np.ndarray,
        target: np.ndarray | None = None,
        output: np.ndarray | None = None,
        bias: np.ndarray | None = None,
    ) -> Arrays:
        """Returns the embeddings and the output layer with the rows of the new ids.

        Matrices are `[num_sources, d_model]` or `[num_targets, d_model]`. Without `target`, both
        sides have `source`; without `output`, the output shares the embeddings. Tokens that the
        original model does not have get a probability of 0.
        """
        side = "embedding" if target is None else "source_embedding"
        embeddings = _select(source, self.source_rows, self.num_sources)
        arrays: Arrays = {f"{side}/embeddings": embeddings}
        if target is not None:
            target = _select(target, self.target_rows, self.num_targets)
            arrays["target_embedding/embeddings"] = target
        if output is not None:
            output = _select(output, self.target_rows, self.num_targets)
            arrays["output_projection/kernel"] = output.T
        column = np.zeros((self.num_targets, 1)) if bias is None else bias.reshape(-1, 1)
        biases = _select(column, self.target_rows, self.num_targets)[:, 0]
        rows = np.asarray(self.target_rows)
        biases[(rows < 0) | (np.arange(len(rows)) >= self.num_targets)] = EXCLUDED_TOKEN_BIAS
        arrays["output_projection/bias"] = biases.astype(np.float32)
        return arrays


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
            f"{file} does not exist. The converter needs this SentencePiece model. Models with "
            "subword-nmt BPE cannot be converted."
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
        if len({*pieces}) < len(pieces):
            raise ValueError("it has a piece twice")
    return model


def table_pieces(vocabulary: Vocabulary) -> tuple[list[str], list[str]]:
    """Returns the source and the target pieces by id, as in the tables of Marian and MarianMT.

    A language token such as `>>deu<<` has no mark of a space there. Special pieces have the
    target's names.
    """
    source, target = (
        [name if _LANGUAGE.fullmatch(name := p.removeprefix(SPACE)) else p for p in pieces]
        for pieces in vocabulary.pieces()
    )
    return source, target


def same_pieces(
    models: Sequence[bytes],
    source_ids: Mapping[str, int],
    target_ids: Mapping[str, int],
    start_id: int,
) -> PieceOrder | None:
    """Returns the vocabulary of two models whose ids are already those of the tables.

    Exports of this package are of this kind. For all others, the result is None.
    """
    source_model, target_model = models
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
    models: Sequence[bytes],
    source_ids: Mapping[str, int],
    target_ids: Mapping[str, int],
    *,
    pad_piece: str | None = None,
    start_row: int = -1,
    symbols: Set[str] = frozenset(),
    controls: Set[str] = frozenset(),
) -> PieceOrder:
    """Puts the pieces of two SentencePiece models into the order of two tables.

    Ids of the tables stay the same. New ids follow, with the same numbers in both languages:

    * a start piece, and a pad piece if the tables have none;
    * source pieces that the table lacks. Marian reads them as unknown tokens, so they get the
      vector of the unknown token.

    Pieces of the table that a SentencePiece model lacks are marked as unused: no text contains
    them, but they can be generated. There are two exceptions. A language token such as >>deu<<, and
    each of `symbols`, becomes a symbol at the start of a word. A single character that
    SentencePiece does not know becomes a piece, because Marian finds it in the table.

    `controls` are no text of a translation. Symbols among them are symbols only in the source.

    Target pieces that the table lacks are unused too. Marian reads them as unknown tokens in
    training. Here, texts are split into smaller pieces, which are in the table.

    If both languages share one embedding matrix, `target_ids` is the same object as `source_ids`.
    `start_row` is the row of the embeddings for the start token, or -1 for zeros.
    """
    special = {"</s>": _END, "<unk>": _UNKNOWN, **({pad_piece: _PAD} if pad_piece else {})}
    for name in special:
        source_id, target_id = source_ids.get(name), target_ids.get(name)
        if source_id is None or source_id != target_id:
            raise InputError(
                f"The vocabularies give {name} the ids {source_id} and {target_id}. Both need the "
                "same id."
            )
    source_table, target_table = (_names_by_id(ids, special) for ids in (source_ids, target_ids))
    source_proto, source_texts = _parse("source", models[0], source_ids)
    target_proto, target_texts = _parse("target", models[1], target_ids)

    size = max(len(source_table), len(target_table))
    added = [(_START, start_row)] if pad_piece else [(_PAD, -1), (_START, start_row)]
    # A language token in the SentencePiece model may have a mark of a space, unlike the table.
    symbols = {*symbols, *filter(_LANGUAGE.fullmatch, {**source_ids, **target_ids})}
    known = source_ids.keys() | {SPACE + piece for piece in symbols & source_ids.keys()}
    unknown = [(text, source_ids["<unk>"]) for text in source_texts if text not in known]
    shares_rows = source_ids is target_ids
    source = [*_with_rows(source_table, size), *added, *unknown]
    target = [*_with_rows(target_table, size), *added, *(unknown if shares_rows else [])]

    names, others = [name for name, _ in source], controls - symbols
    first = _with_pieces(source_proto, names, {*source_texts}, symbols, others)
    names = [name for name, _ in target]
    known_targets = {text for text in target_texts if text in target_ids}
    second = _with_pieces(target_proto, names, known_targets, symbols, controls)
    joint = shares_rows and first == second
    return PieceOrder(
        Vocabulary(first, None if joint else second),
        source_rows=[row for _, row in source],
        target_rows=[row for _, row in target],
        num_sources=len(source_table),
        num_targets=len(target_table),
    )


def piece_ids(pieces: Iterable[str]) -> dict[str, int]:
    """Returns the id of each piece of a list, which is its index."""
    ids: dict[str, int] = {}
    for i, piece in enumerate(pieces):
        if ids.setdefault(piece, i) != i:
            raise InputError(f"The vocabulary has {piece!r} twice. It is damaged.")
    return ids


def word_model(tokens: Iterable[str]) -> tuple[bytes, dict[str, int]]:
    """Returns a SentencePiece model that splits text only at spaces, and the ids of its pieces.

    It is for vocabularies of words or subwords that another program makes, such as "do@@ g". The
    text must already be tokenized, and translations stay tokenized.
    """
    proto = ModelProto()
    proto.trainer_spec.model_type = WORD
    proto.normalizer_spec.name = "identity"
    for token in tokens:
        if SPACE in token:
            raise InputError(
                f"The vocabulary has {token!r}, which is a piece of SentencePiece. Give the "
                "SentencePiece model of the training data as source_sentencepiece."
            )
        if token.split() != [token]:
            raise InputError(f"The vocabulary has {token!r}, which is empty or contains a space.")
        if token in _SPECIAL_TOKENS:
            proto.pieces.add(piece=token, type=UNKNOWN if token == "<unk>" else CONTROL)
        else:
            proto.pieces.add(piece=SPACE + token, type=NORMAL)
    ids = piece_ids(piece.piece for piece in proto.pieces)
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


def _with_rows(table: Sequence[str | None], size: int) -> list[tuple[str, int]]:
    """Returns `size` pieces with the rows of their vectors.

    An id without a piece gets no vector, so that it is never generated.
    """
    names = [*table, *[None] * (size - len(table))]
    return [(f"<unused {i}>", -1) if name is None else (name, i) for i, name in enumerate(names)]


def _parse(side: str, model: bytes, ids: Mapping[str, int]) -> tuple[Any, list[str]]:
    """Returns a SentencePiece model, and its pieces that a text can contain.

    Raises an `InputError` if a table has too few of its pieces.
    """
    proto = ModelProto.FromString(model)
    normal = [piece.piece for piece in proto.pieces if piece.type == NORMAL]
    known = sum(piece in ids for piece in normal)
    if known < _MIN_KNOWN * len(normal):
        raise InputError(
            f"The vocabulary has only {known:,} of the {len(normal):,} pieces of the {side}'s "
            "SentencePiece model. Give the SentencePiece model that this model was trained with."
        )
    special = (UNKNOWN, CONTROL, UNUSED)
    return proto, [piece.piece for piece in proto.pieces if piece.type not in special]


def _with_pieces(
    proto: Any, names: Sequence[str], known: Set[str], symbols: Set[str], controls: Set[str]
) -> bytes:
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
        elif name in symbols:
            kind = CONTROL if name in controls else USER_DEFINED
            piece = new.pieces.add(piece=SPACE + name, type=kind)
        elif name in controls:
            piece = new.pieces.add(piece=name, type=CONTROL)
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
