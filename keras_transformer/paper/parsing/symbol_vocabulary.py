"""The target vocabulary of a parser: one piece for each symbol, and nothing else.

It is a SentencePiece model, so that prepared data, runs and exports hold it as they hold any
other. By it they are known as parsers.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from pathlib import Path

import sentencepiece

from keras_transformer.errors import InputError
from keras_transformer.paper.parsing.linearization import WORD, Does
from keras_transformer.text.model_proto import UNIGRAM, USER_DEFINED, ModelProto
from keras_transformer.text.vocabulary import SPECIAL_PIECES, Vocabulary

_SPACE = "\u2581"  # as SentencePiece writes the space before each symbol


def symbol_model(symbols: Sequence[str]) -> bytes:
    """Returns the serialized SentencePiece model of symbols.

    Text is symbols with a space between. Pad, unknown, start and end ids are 0, 1, 2 and 3; a
    symbol that is not there, as of a label that training never saw, is unknown.
    """
    model = ModelProto.FromString(_model_of_one_character())
    del model.pieces[len(SPECIAL_PIECES) :]
    # What is unknown is scored by the pieces that are normal, of which there has to be one.
    model.pieces.add(piece=_SPACE, score=0.0)
    for symbol in symbols:
        # User-defined: a symbol is never split, nor is another segmentation of it ever drawn.
        model.pieces.add(piece=_SPACE + symbol, type=USER_DEFINED)
    model.trainer_spec.model_type = UNIGRAM
    model.normalizer_spec.ClearField("normalization_rule_tsv")  # a path of this moment
    return bytes(model.SerializeToString(deterministic=True))


def _model_of_one_character() -> bytes:
    """Returns a model whose special pieces and normalization are those of symbols.

    Text stays as it is, but for tabs, which become spaces: of a model without any rule
    tensorflow-text writes a line to standard error whenever it is loaded.
    """
    model = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        rules = Path(folder) / "rules.tsv"
        rules.write_text("09\t20\n")
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([WORD]),
            model_writer=model,
            model_type="char",
            vocab_size=len(SPECIAL_PIECES) + 2,
            normalization_rule_tsv=str(rules),
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            minloglevel=2,
        )
    return model.getvalue()


def symbols_by_id(vocabulary: Vocabulary) -> list[str] | None:
    """Returns for each target id its symbol, or "" where it has none; None if it is no parser's."""
    pieces = ModelProto.FromString(vocabulary.target_model).pieces
    first = len(SPECIAL_PIECES) + 1  # behind the space
    symbols = [piece.piece.removeprefix(_SPACE) for piece in pieces[first:]]
    if not symbols or any(piece.type != USER_DEFINED for piece in pieces[first:]):
        return None
    return [""] * first + symbols


def word_boundaries(vocabulary: Vocabulary) -> tuple[list[bool], list[bool]] | None:
    """Returns what tells which word of its source a symbol stands for; None if it is no parser's.

    That is for each source id whether a word begins with it (the end token counts as a word), and
    for each target id whether it stands for a word.
    """
    symbols = symbols_by_id(vocabulary)
    if symbols is None:
        return None
    pieces = ModelProto.FromString(vocabulary.source_model).pieces
    begins = [piece.piece.startswith(_SPACE) for piece in pieces]
    begins[vocabulary.end_id] = True
    return begins, [Does.of(symbol) is Does.STAND for symbol in symbols]


def is_parser(vocabulary: Vocabulary) -> bool:
    """Whether a model of this vocabulary parses."""
    return symbols_by_id(vocabulary) is not None


def require_parser(vocabulary: Vocabulary, place: str) -> list[str]:
    """Returns what `symbols_by_id` does.

    Raises:
        InputError: where it is no parser's; `place` is named.
    """
    symbols = symbols_by_id(vocabulary)
    if symbols is None:
        raise InputError(
            f"{place} is no parser: its target vocabulary has other pieces than the symbols of "
            "trees; expected a model of data that bin/prepare_trees.py has prepared"
        )
    return symbols
