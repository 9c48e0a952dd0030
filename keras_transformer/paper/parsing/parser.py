"""A model that parses: text or words in, trees in brackets out, in one graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.decoding import NEG_INF, SearchInputs, SearchResult
from keras_transformer.errors import InputError
from keras_transformer.inference import batching, loading
from keras_transformer.inference.translator import Translator, sample_offsets
from keras_transformer.paper.parsing.linearization import Does
from keras_transformer.paper.parsing.restoration import restored
from keras_transformer.paper.parsing.symbol_vocabulary import require_parser, word_boundaries
from keras_transformer.paper.parsing.tokenization import tokenize, words_of
from keras_transformer.paper.parsing.tree_constraint import TreeConstraint


class Parser(tf.Module):
    """A translator into symbols, whose outputs are restored to trees.

    The search finds trees of as many leaves as the text has words, and nothing else: of a model
    that lost count all brackets behind that word would be in the wrong place.

    No text fails, and no output of the model: the leaves of every tree are exactly the words of
    the text, in their order. Words that the model does not see, as their text is cut, stand in
    the tree all the same.

    Args:
        translator: of a model that was trained on trees.
        place: where it comes from, for what is told to the user.

    Raises:
        InputError: where its target vocabulary is not that of a parser.
    """

    def __init__(self, translator: Translator, place: str = "the model"):
        super().__init__(name="parser")
        self.translator = translator
        tokenizer = translator.tokenizer
        vocabulary = tokenizer.vocabulary
        self._symbols = require_parser(vocabulary, place)
        does = [Does.of(symbol) for symbol in self._symbols]
        ids = {kind: [i for i, each in enumerate(does) if each is kind] for kind in Does}
        self._constraint = TreeConstraint(
            ids[Does.OPEN], ids[Does.CLOSE], ids[Does.STAND], tokenizer.end_id,
            tokenizer.target_vocab_size,
        )  # fmt: skip
        self._begins, _ = word_boundaries(vocabulary) or ([], [])

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.string, name="text")],
        autograph=False, jit_compile=False,
    )  # fmt: skip
    def parse(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """Parses `text`, UTF-8 strings `[B]`, one sentence each, by the words of `tokenize`.

        Returns:
            As `parse_tokens`.
        """
        return self._parsed(words_of(tokenize(text)))

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.string, name="tokens")],
        autograph=False, jit_compile=False,
    )  # fmt: skip
    def parse_tokens(self, tokens: tf.Tensor) -> dict[str, tf.Tensor]:
        """Parses sentences whose words have spaces between them, UTF-8 strings `[B]`.

        Returns:
            `trees`, string `[B, K]`, best first, and their `scores`, float32 `[B, K]`; K is
            `decoding.n_best`. A place that no output of the model fills has an empty text and
            the score -1e9, but the first has a tree always, which is flat then; only a text
            without words has none. `truncated` bool `[B]`: the text was too long, and the model
            has seen its beginning alone.
        """
        return self._parsed(words_of(tokens))

    def _parsed(self, words: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        text = tf.strings.reduce_join(words, axis=-1, separator=" ")
        source_ids, lengths, is_cut = self.translator.cut_source_ids(text)
        # The words of a text that was cut are those that its pieces begin; the end counts as one.
        # Otherwise pieces are no measure: there are words of which SentencePiece leaves nothing.
        seen = tf.reduce_sum(tf.gather(tf.cast(self._begins, tf.int32), source_ids), axis=1) - 1
        count = tf.cast(words.row_lengths(), tf.int32)
        leaves = tf.where(is_cut, tf.minimum(seen, count), count)
        result = self.search_fn(
            source_ids, self.translator.max_lengths(lengths), sample_offsets(text), leaves
        )
        batch, count, length = tf.unstack(tf.shape(result.ids))
        # --> [batch * count, length]
        trees = restored(
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
    def search_fn(
        self, source_ids: tf.Tensor, max_lengths: tf.Tensor, offsets: tf.Tensor, leaves: tf.Tensor
    ) -> SearchResult:
        """Searches for trees, as one function that the signatures of an export share.

        Args:
            source_ids, max_lengths, offsets: the arguments of `Translator.search_fn`.
            leaves: int32 `[B]`, the number of leaves of each tree.
        """
        inputs = SearchInputs(max_lengths, sample_offsets=offsets, constraint_inputs=leaves)
        return self.translator.search_ids(source_ids, inputs, constraint=self._constraint)


class ParserModel(NamedTuple):
    """A parser read from disk.

    Attributes:
        place: where it was read.
        parse: text string `[B]` → as `Parser.parse`.
        parse_tokens: tokens string `[B]` → as `Parser.parse_tokens`.
        owner: what holds the weights.
    """

    place: str
    parse: Callable[..., dict[str, tf.Tensor]]
    parse_tokens: Callable[..., dict[str, tf.Tensor]]
    owner: Any


def load_parser(
    model_dir: str | Path,
    settings: Mapping[str, Any] | None = None,
    *,
    precision: str = "float32",
) -> ParserModel:
    """Reads a run, an ensemble of runs, or a SavedModel; the arguments are `load_model`'s.

    Raises:
        InputError: for what `loading.load_model` refuses, and for a model that is no parser.
    """
    model = loading.load_model(model_dir, settings, precision=precision)
    if isinstance(model.owner, Translator):
        parser = Parser(model.owner, model.place)
        return ParserModel(model.place, parser.parse, parser.parse_tokens, parser)
    signatures = getattr(model.owner, "signatures", {})
    if "parse" not in signatures:
        raise InputError(
            f"{model.place} is no parser, or no SavedModel: it has no signature parse; expected a "
            "run on data of bin/prepare_trees.py, or its SavedModel"
        )
    return ParserModel(model.place, signatures["parse"], signatures["parse_tokens"], model.owner)


class Parsed(NamedTuple):
    """The best tree of a line.

    Attributes:
        tree: in brackets; "" of a line without words.
        score: log P and penalties; minus infinity where the model found nothing.
        truncated: whether the line was too long for the model to see all of it.
    """

    tree: str
    score: float
    truncated: bool


def parse_lines(model: ParserModel, lines: Sequence[str], tokens: bool = False) -> list[Parsed]:
    """Parses sentences; the results are in their order.

    Args:
        model: the parser.
        lines: one sentence each.
        tokens: whether the words of the lines have spaces between them, and nothing else.
    """

    def trees(text: tf.Tensor) -> dict[str, tf.Tensor]:
        return model.parse_tokens(tokens=text) if tokens else model.parse(text=text)

    results: list[Parsed] = [Parsed("", -math.inf, False) for _ in lines]
    for batch, outputs in batching.in_batches(trees, lines):
        for row, index in enumerate(batch):
            score = float(outputs["scores"][row, 0])
            results[index] = Parsed(
                outputs["trees"][row, 0].decode("utf-8", "replace"),
                score if score > NEG_INF / 2 else -math.inf,
                bool(outputs["truncated"][row]),
            )
    return results


def remarks(results: Sequence[Parsed]) -> list[str]:
    """Returns one sentence for each line that is empty, was cut, or was not parsed."""
    sentences = []
    for number, result in enumerate(results, start=1):
        if not result.tree:
            sentences.append(f"line {number} has no words, and its tree is an empty line")
        elif result.score == -math.inf:
            sentences.append(
                f"line {number} has a flat tree: the model's logits are no numbers, or what it may "
                "not say leaves no tree"
            )
        elif result.truncated:
            sentences.append(
                f"line {number} is longer than the model takes (decoding.max_source_tokens); the "
                "words that it has not seen stand in the tree without constituents of their own"
            )
    return sentences
