"""A model that parses: text or words in, trees in brackets out, in one graph."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.decoding import NEG_INF, SearchInputs, SearchResult
from keras_transformer.errors import InputError
from keras_transformer.extensions.paper.parsing.text_ops import restore_trees, tokenize, words_of
from keras_transformer.extensions.paper.parsing.treebank import require_parser, word_boundaries
from keras_transformer.extensions.paper.parsing.trees import SymbolKind
from keras_transformer.inference import batching, loading
from keras_transformer.inference.engine import KerasEngine
from keras_transformer.inference.translation_module import TranslationModule


@dataclasses.dataclass(frozen=True)
class TreeConstraint:
    """A `decoding.TokenConstraint` that only allows trees.

    A token may come if a tree can continue with it, given the number of leaves of its sentence
    and the maximum number of tokens:

    * a leaf or an opening bracket, while leaves are missing;
    * a closing bracket, if the innermost open bracket is not empty;
    * the end token, if all brackets are closed and no leaf is missing.

    No other token may come, and labels are not checked. If the leaves exceed the maximum, the
    output consists of leaves.

    A prefix must be the beginning of a tree. Bans can leave a tree without a next token, and
    its sentence without a result.

    `opening`, `closing` and `leaves` are the ids of the tokens of each kind.
    """

    opening: Sequence[int]
    closing: Sequence[int]
    leaves: Sequence[int]
    end: int
    vocab_size: int

    @classmethod
    def of(cls, symbols: Sequence[str], end: int, vocab_size: int) -> TreeConstraint:
        """Returns the constraint for a vocabulary, from the symbol of each id, or ""."""
        kinds = [SymbolKind.of(symbol) for symbol in symbols]
        opening, closing, leaves = (
            [i for i, kind in enumerate(kinds) if kind is wanted]
            for wanted in (SymbolKind.OPEN, SymbolKind.CLOSE, SymbolKind.WORD)
        )
        return cls(opening, closing, leaves, end, vocab_size)

    def allowed_tokens(
        self,
        inputs: tf.Tensor | None,
        histories: tf.Tensor,
        length: tf.Tensor,
        max_lengths: tf.Tensor,
    ) -> tf.Tensor:
        """Returns the tokens that may come next; `inputs` are the numbers of leaves, `[rows]`."""
        assert inputs is not None
        # --> [vocab]
        opens, closes, is_leaf, ends = (
            tf.reduce_any(tf.one_hot(list(ids), self.vocab_size, True, False), axis=0)
            for ids in (self.opening, self.closing, self.leaves, [self.end])
        )
        depth_change = tf.cast(opens, tf.int32) - tf.cast(closes, tf.int32)
        is_written = tf.range(tf.shape(histories)[1]) < length
        # --> [rows]
        depth, num_written = (
            tf.reduce_sum(tf.where(is_written, tf.gather(change, histories), 0), axis=1)
            for change in (depth_change, tf.cast(is_leaf, tf.int32))
        )
        last = tf.gather(histories, tf.maximum(length - 1, 0), axis=1)
        is_empty = tf.gather(opens, last) & (length > 0)  # the innermost open bracket
        missing = tf.cast(inputs, tf.int32) - num_written
        # Tokens left after all leaves, closing brackets and the end token. A bracket takes two.
        spare = max_lengths - length - missing - depth - 1
        may_write_leaf = missing > 0
        may_open = may_write_leaf & (spare >= 2)
        may_close = (depth > 0) & ~is_empty
        may_end = (depth == 0) & (missing == 0)
        # --> [rows, vocab]
        return (
            (may_write_leaf[:, None] & is_leaf)
            | (may_open[:, None] & opens)
            | (may_close[:, None] & closes)
            | (may_end[:, None] & ends)
        )


class Parser(tf.Module):
    """Translates sentences to bracket symbols and converts the symbols to trees.

    The search only finds trees with one leaf for each word of the text. If a model lost count,
    all following brackets would be at the wrong words.

    No text and no output of the model fails. The leaves of every tree are exactly the words of the
    text, in their order, including words that were truncated.
    """

    def __init__(self, translator: TranslationModule, model: str = "the model"):
        super().__init__(name="parser")
        self.translator = translator
        tokenizer = translator.tokenizer
        vocabulary = tokenizer.vocabulary
        self._symbols = require_parser(vocabulary, model)
        self._constraint = TreeConstraint.of(
            self._symbols, tokenizer.end_id, tokenizer.target_vocab_size
        )
        self._begins, _ = word_boundaries(vocabulary) or ([], [])

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.string, name="text")],
        autograph=False, jit_compile=False,
    )  # fmt: skip
    def parse(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Parses `text`, UTF-8 strings `[B]`, one sentence each, by the words of `tokenize`."""
        return self._parse_words(words_of(tokenize(text)))

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.string, name="tokens")],
        autograph=False, jit_compile=False,
    )  # fmt: skip
    def parse_tokens(self, tokens: tf.Tensor) -> dict[str, tf.Tensor]:
        """Parses sentences whose words are separated by spaces, UTF-8 strings `[B]`.

        The outputs are `trees`, string `[B, K]`, and `scores`, float32 `[B, K]`, best first, where
        K is `decoding.n_best`, and `truncated`, bool `[B]`. Missing results are empty texts with
        the score -1e9. The first result is a tree, flat if necessary, unless a text has no words.
        """
        return self._parse_words(words_of(tokens))

    def _parse_words(self, words: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        text = tf.strings.reduce_join(words, axis=-1, separator=" ")
        source_ids, _, is_cut = self.translator.source_ids(text)
        # The words of a truncated text are those that start with one of its tokens. The end counts
        # as a word. The words of a complete text cannot be counted in this way, because
        # SentencePiece drops some words completely.
        seen = tf.reduce_sum(tf.gather(tf.cast(self._begins, tf.int32), source_ids), axis=1) - 1
        count = tf.cast(words.row_lengths(), tf.int32)
        leaves = tf.where(is_cut, tf.minimum(seen, count), count)
        inputs = SearchInputs(self.translator.max_lengths(source_ids), constraint_inputs=leaves)
        result = self.parse_ids(source_ids, inputs)
        batch, count, length = tf.unstack(tf.shape(result.ids))
        # --> [batch * count, length]
        trees = restore_trees(
            self._symbols,
            tf.reshape(result.ids, [batch * count, length]),
            tf.reshape(result.lengths, [batch * count]),
            tf.gather(words, tf.range(batch * count) // count),
            self.translator.max_output_tokens,
        )
        trees = tf.reshape(trees, [batch, self.translator.config.n_best])
        is_valid = (result.scores > NEG_INF / 2) | (tf.range(count) == 0)
        return {
            "trees": tf.where(is_valid, trees, ""),
            "scores": result.scores,
            "truncated": is_cut,
        }

    @tf.function(autograph=False, jit_compile=False)
    def parse_ids(self, source_ids: tf.Tensor, inputs: SearchInputs) -> SearchResult:
        """Searches for trees, in a graph that the signatures of an export share.

        The constraint inputs are the number of leaves of each tree, int32 `[B]`.
        """
        return self.translator.translate_ids(source_ids, inputs, constraint=self._constraint)


class ParserModel(NamedTuple):
    """A parser read from disk, with the signatures of `Parser.parse` and `Parser.parse_tokens`."""

    path: str
    parse: Callable[..., dict[str, tf.Tensor]]
    parse_tokens: Callable[..., dict[str, tf.Tensor]]
    owner: Any  # keeps the weights alive


def load_parser(
    model_dir: str | Path, settings: Mapping[str, Any] | None = None, *, precision: str = "float32"
) -> ParserModel:
    """Loads a run, an ensemble of runs, or a SavedModel, with the arguments of `load_model`."""
    model = loading.load_model(model_dir, settings, precision=precision)
    if isinstance(model, KerasEngine):
        parser = Parser(model.module, model.label)
        return ParserModel(model.label, parser.parse, parser.parse_tokens, parser)
    loaded = getattr(model, "loaded", None)
    signatures = getattr(loaded, "signatures", {})
    if "parse" not in signatures:
        raise InputError(
            f"{model.label} lacks the signature parse, so it is not a parser. Export "
            "a run that was trained on data of keras-transformer prepare_trees."
        )
    return ParserModel(model.label, signatures["parse"], signatures["parse_tokens"], loaded)


class ParseResult(NamedTuple):
    """The best tree of a line."""

    tree: str  # the tree in brackets; "" for a line without words
    score: float  # log-probability with penalties; minus infinity if the model found nothing
    truncated: bool


def parse_lines(
    model: ParserModel, lines: Sequence[str], tokens: bool = False
) -> list[ParseResult]:
    """Parses sentences. The results are in the same order."""

    def trees(text: np.ndarray) -> dict[str, tf.Tensor]:
        text = tf.constant(text)
        return model.parse_tokens(tokens=text) if tokens else model.parse(text=text)

    def result_of(row: Mapping[str, Any]) -> ParseResult:
        tree, score = row["trees"][0].decode("utf-8", "replace"), float(row["scores"][0])
        return ParseResult(
            tree, score if score > NEG_INF / 2 else -math.inf, bool(row["truncated"])
        )

    return list(map(result_of, batching.outputs_by_line(trees, lines)))


def remarks(results: Sequence[ParseResult]) -> list[str]:
    """Returns a warning for each line that is empty, was truncated, or was not parsed."""
    sentences = []
    for number, result in enumerate(results, start=1):
        if not result.tree:
            sentences.append(f"Line {number} is empty, and so is its tree.")
        elif result.score == -math.inf:
            sentences.append(
                f"Line {number} has a flat tree: the logits are not finite, or banned tokens leave "
                "no tree."
            )
        elif result.truncated:
            sentences.append(
                f"Line {number} is truncated (decoding.max_source_tokens). The other words have "
                "no constituents."
            )
    return sentences
