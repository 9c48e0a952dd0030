"""The target vocabulary of a parser.

The vocabulary has one token for each symbol. It is a SentencePiece model, so that prepared data,
runs and exports store it like any other vocabulary. They are recognized as parsers by it.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Sequence
from pathlib import Path

import sentencepiece

from keras_transformer.errors import InputError
from keras_transformer.extensions.paper.parsing.trees import WORD, Does
from keras_transformer.text.model_proto import UNIGRAM, USER_DEFINED, ModelProto
from keras_transformer.text.vocabulary import SPECIAL_PIECES, Vocabulary

_SPACE = "\u2581"  # how SentencePiece writes the space before each symbol


def symbol_model(symbols: Sequence[str]) -> bytes:
    """Returns the serialized SentencePiece model of symbols.

    Text consists of symbols separated by spaces. Pad, unknown, start and end ids are 0, 1, 2 and 3.
    A symbol that is missing in the training data is unknown.
    """
    model = ModelProto.FromString(_model_of_one_character())
    del model.pieces[len(SPECIAL_PIECES) :]
    # Unknown tokens are scored with the normal tokens, so there must be at least one.
    model.pieces.add(piece=_SPACE, score=0.0)
    for symbol in symbols:
        # User-defined pieces are never split, even if segmentations are sampled.
        model.pieces.add(piece=_SPACE + symbol, type=USER_DEFINED)
    model.trainer_spec.model_type = UNIGRAM
    model.normalizer_spec.ClearField("normalization_rule_tsv")  # a temporary path
    return bytes(model.SerializeToString(deterministic=True))


def _model_of_one_character() -> bytes:
    """Returns a model with the special pieces and the normalization of symbols.

    The only rule turns tabs into spaces. Without any rule, tensorflow-text would write a line to
    standard error whenever the model is loaded.
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
    """Returns the symbol of each target id, or ""; None if the vocabulary is not from a
    treebank.
    """
    pieces = ModelProto.FromString(vocabulary.target_model).pieces
    first = len(SPECIAL_PIECES) + 1  # without the space
    symbols = [piece.piece.removeprefix(_SPACE) for piece in pieces[first:]]
    if not symbols or any(piece.type != USER_DEFINED for piece in pieces[first:]):
        return None
    return [""] * first + symbols


def word_boundaries(vocabulary: Vocabulary) -> tuple[list[bool], list[bool]] | None:
    """Returns whether each source id starts a word, and whether each target id stands for one.

    The end token counts as a word. None if the vocabulary is not from a treebank.
    """
    symbols = symbols_by_id(vocabulary)
    if symbols is None:
        return None
    pieces = ModelProto.FromString(vocabulary.source_model).pieces
    begins = [piece.piece.startswith(_SPACE) for piece in pieces]
    begins[vocabulary.end_id] = True
    return begins, [Does.of(symbol) is Does.STAND for symbol in symbols]


def is_parser(vocabulary: Vocabulary) -> bool:
    """Returns True if the vocabulary is from a treebank."""
    return symbols_by_id(vocabulary) is not None


def require_parser(vocabulary: Vocabulary, place: str) -> list[str]:
    """Returns the result of `symbols_by_id`."""
    symbols = symbols_by_id(vocabulary)
    if symbols is None:
        raise InputError(
            f"{place} is not a parser: its target vocabulary has tokens that are not symbols of "
            "trees. Train on data of keras-transformer prepare_trees."
        )
    return symbols
