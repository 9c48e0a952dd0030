"""Definition of the search in NumPy and float64, and step functions that are tables of scores.

A hypothesis is a node of the tree of all prefixes, and a table is an array over nodes. The
reference computes which tokens may follow a prefix, and the value of each. It is slow and simple.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from keras_transformer import decoding
from keras_transformer.config import DecodingConfig
from keras_transformer.decoding import (
    NEG_INF,
    SearchInputs,
    SearchResult,
    SpecialIds,
    StepDecoder,
)
from keras_transformer.decoding.interface import rows_per_sentence

Tokens = tuple[int, ...]

PAD, UNKNOWN, START, END, A, B = range(6)
IDS = SpecialIds(START, END, PAD)
VOCAB, LENGTH, SOURCE = 6, 5, 3
NODES = sum(VOCAB**length for length in range(LENGTH))
# Only 4 of 6 tokens are generated, 3 of them ordinary: there are 9 * 4 candidates of length 3.
EXHAUSTIVE_BEAMS = {3: 36, 4: 108, 5: 324}


def node(prefix: Iterable[int]) -> int:
    """Returns the unique number of a prefix, 0 for the empty one."""
    return functools.reduce(lambda number, token: number * VOCAB + token + 1, prefix, 0)


DETAILS = {"outputs": ("token_log_probs", "alignment")}
ALL_OUTPUTS = {"outputs": ("token_log_probs", "alignment", "attention")}

# --- Tables and the step functions that read them -------------------------------------------


class Tables(NamedTuple):
    """The results of a step function for every prefix of every sentence."""

    logits: NDArray[Any]  # float32 [sentence, node, vocab], of the next token
    attention: NDArray[Any]  # float32 [sentence, node, source]
    source_mask: NDArray[Any]  # bool [sentence, source]

    def __getitem__(self, sentences: Any) -> Tables:
        return Tables(*(field[sentences] for field in tuple(self)))


def random_tables(seed: int, sentences: int, scale: float = 2.0) -> Tables:
    random = np.random.default_rng(seed)
    logits = scale * random.standard_normal((sentences, NODES, VOCAB))
    return _with_attention(random, logits)


def tied_tables(seed: int, sentences: int) -> Tables:
    """Log-probabilities of few values whose sums are exact, so that many are equal."""
    random = np.random.default_rng(seed)
    return _with_attention(random, -random.integers(1, 17, (sentences, NODES, VOCAB)) / 4)


def _with_attention(random: np.random.Generator, logits: NDArray[Any]) -> Tables:
    sentences = len(logits)
    attention = random.exponential(size=(sentences, NODES, SOURCE)) ** 3
    attention /= attention.sum(-1, keepdims=True)
    lengths = random.integers(1, SOURCE + 1, (sentences, 1))
    mask = np.arange(SOURCE) < lengths
    return Tables(logits.astype(np.float32), attention.astype(np.float32), mask)


def step_of(tables: Tables) -> decoding.StepFn:
    """Returns a step function that gets the prefix only from the cache."""
    logits = tf.convert_to_tensor(tables.logits)
    attention = tf.convert_to_tensor(tables.attention)

    def step(ids: tf.Tensor, position: tf.Tensor, cache: Any) -> tuple[tf.Tensor, Any, tf.Tensor]:
        nodes = tf.where(position == 0, 0, cache["node"] * VOCAB + ids + 1)
        at = tf.stack([cache["sentence"][0], nodes], axis=-1)
        cache = {"node": nodes, "sentence": cache["sentence"]}
        return tf.gather_nd(logits, at), cache, tf.gather_nd(attention, at)

    return step


class Rules(NamedTuple):
    """All settings of a search."""

    config: DecodingConfig
    banned: tuple[Tokens, ...] = ()
    ids: SpecialIds = IDS


def search(
    tables: Tables,
    max_lengths: Any,
    rules: Rules | DecodingConfig,
    *,
    step: decoding.StepFn | None = None,
    decoder_type: type[StepDecoder] = StepDecoder,
    vocab_size: int = VOCAB,
    **arguments: Any,
) -> SearchResult:
    """Calls `decoding.search` with tables.

    Args:
        tables, max_lengths, rules: of the sentences.
        step, decoder_type, vocab_size: replace the defaults, which use the tables.
        **arguments: `returns_log_probs`, `scored_tokens`, other arguments of `search`, and fields
            of `SearchInputs`.
    """
    if isinstance(rules, DecodingConfig):
        rules = Rules(rules)
    max_lengths = tf.convert_to_tensor(max_lengths, tf.int32)

    def given(names: Iterable[str]) -> dict[str, Any]:
        return {name: arguments.pop(name) for name in names if name in arguments}

    beam = rows_per_sentence(rules.config)
    sentences = tf.repeat(tf.range(tf.shape(max_lengths)[0]), beam)
    decoder = decoder_type(
        step or step_of(tables),
        {"node": tf.zeros_like(sentences), "sentence": [sentences]},
        vocab_size,
        beam,
        **given(["returns_log_probs", "scored_tokens"]),
    )
    others = given(["outputs", "constraint", "max_steps"])
    inputs = SearchInputs(max_lengths, source_mask=tables.source_mask, **arguments)
    return decoding.search(decoder, inputs, rules.config, rules.ids, banned=rules.banned, **others)


# --- The definition ----------------------------------------------------------------------------


def log_softmax(logits: NDArray[Any]) -> NDArray[Any]:
    """Returns float64, NaN in rows without a distribution."""
    logits = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):
        shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def penalized(log_prob: Any, length: Any, config: DecodingConfig) -> Any:
    base = length if config.length_penalty_formula == "power" else (5 + length) / 6
    return log_prob / base**config.length_penalty


def ordinary(prefix: Iterable[int], ids: SpecialIds = IDS) -> Tokens:
    """Returns the tokens that a prefix forces: those before the first special or unknown id."""
    tokens = list(prefix)
    ends = [n for n, token in enumerate(tokens) if not 0 <= token < VOCAB or token in ids]
    return tuple(tokens[: min(ends, default=len(tokens))])


def factor(rules: Rules, prefix: Tokens, tokens: Tokens, token: int) -> float | None:
    """Returns the factor of the log-probability of `token` after `tokens`, None if forbidden."""
    config, banned, ids = rules
    if len(tokens) < len(prefix):
        return 1.0 if token == prefix[len(tokens)] else None
    output = (*tokens, token)
    n = config.no_repeat_ngram
    forbidden = (
        (token in (ids.start, ids.pad) and token != ids.end)
        or (token == ids.end and len(output) < config.min_length)
        or any(output[-len(phrase) :] == phrase for phrase in banned)
        or (n and any(output[i : i + n] == output[-n:] for i in range(len(output) - n)))
    )
    if forbidden:
        return None
    return config.repetition_penalty if token in tokens else 1.0


class Outputs(NamedTuple):
    """All complete outputs of a sentence, for any table."""

    tokens: list[Tokens]
    nodes: NDArray[Any]  # int [output, LENGTH]: of the prefix before each token
    ids: NDArray[Any]  # int [output, LENGTH]
    factors: NDArray[Any]  # float64 [output, LENGTH], 0 after the output
    lengths: NDArray[Any]  # int [output]

    def scores(
        self, tables: Tables, sentence: int, config: DecodingConfig, normalized: bool = False
    ) -> dict[Tokens, tuple[float, float]]:
        """Score and log-probability of each possible output."""
        logits = tables.logits[sentence]
        log_probs = logits.astype(np.float64) if normalized else log_softmax(logits)
        own = np.where(self.factors > 0, log_probs[self.nodes, self.ids], 0.0)
        with np.errstate(invalid="ignore"):
            scores = penalized((own * self.factors).sum(-1), self.lengths, config)
        sums = own.sum(-1)
        return {
            tokens: (float(score), float(log_prob))
            for tokens, score, log_prob in zip(self.tokens, scores, sums, strict=True)
            if np.isfinite(log_prob)
        }


@functools.cache
def outputs(rules: Rules, prefix: Tokens, max_length: int) -> Outputs:
    """Every sequence that the rules allow."""
    found: list[tuple[Tokens, list[float]]] = []

    def extend(tokens: Tokens, factors: list[float]) -> None:
        for token in range(VOCAB):
            counts = factor(rules, prefix, tokens, token)
            if counts is None:
                continue
            output = (*tokens, token)
            if token == rules.ids.end or len(output) == max_length:
                found.append((output, [*factors, counts]))
            else:
                extend(output, [*factors, counts])

    extend((), [])
    shape = (len(found), LENGTH)
    nodes, ids, all_factors = np.zeros(shape, int), np.zeros(shape, int), np.zeros(shape)
    for row, (tokens, factors) in enumerate(found):
        nodes[row, : len(tokens)] = [node(tokens[:n]) for n in range(len(tokens))]
        ids[row, : len(tokens)] = tokens
        all_factors[row, : len(tokens)] = factors
    lengths = np.array([len(tokens) for tokens, _ in found], int)
    return Outputs([tokens for tokens, _ in found], nodes, ids, all_factors, lengths)


def continuations(
    rules: Rules, prefix: Tokens, tokens: Tokens, log_probs: NDArray[Any]
) -> list[tuple[float, int]]:
    """Returns the value and the id of each possible next token, best first, then by id."""
    row, found = log_probs[node(tokens)], []
    for token in range(VOCAB):
        counts = factor(rules, prefix, tokens, token)
        if counts is not None and np.isfinite(row[token]):
            found.append((row[token] * counts, token))
    return sorted(found, key=lambda one: -one[0])


class PatientResults(NamedTuple):
    """The results of a search that takes every step; ties: lower parent first, then lower id."""

    complete: list[tuple[Tokens, float]]  # with the sums of values, in the order of completion
    open_after: list[list[float]]  # the sums of the open hypotheses after each step


def patient_search(
    rules: Rules, prefix: Tokens, max_length: int, log_probs: NDArray[Any]
) -> PatientResults:
    """Beam search of one sentence that never ends before the maximum length.

    Marian's takes as many continuations as hypotheses are missing (`beam_search.cpp`: `toHyps`
    fills the beam that `purgeBeams` left).
    """
    config, found = rules.config, PatientResults([], [])
    narrows = config.early_stopping == "marian"
    beam: list[tuple[Tokens, float]] = [((), 0.0)]
    for length in range(1, max_length + 1):
        candidates = []
        for tokens, total in beam:
            for counts, token in continuations(rules, prefix, tokens, log_probs):
                candidates.append(((*tokens, token), total + counts))
        candidates.sort(key=lambda one: -one[1])
        beam = []
        width = config.beam_size - len(found.complete) if narrows else 2 * config.beam_size
        for index, (tokens, total) in enumerate(candidates[:width]):
            if tokens[-1] == rules.ids.end or length == max_length:
                if index < config.beam_size:
                    found.complete.append((tokens, total))
            elif len(beam) < config.beam_size:
                beam.append((tokens, total))
        found.open_after.append([total for _, total in beam])
    return found


def greedy_search(
    rules: Rules, prefix: Tokens, max_length: int, log_probs: NDArray[Any]
) -> Tokens | None:
    """The most likely token at each step. None if a step has no possible token."""
    tokens: Tokens = ()
    while len(tokens) < max_length and rules.ids.end not in tokens:
        following = continuations(rules, prefix, tokens, log_probs)
        if not following:
            return None
        tokens = (*tokens, following[0][1])
    return tokens


def distribution(
    rules: Rules, prefix: Tokens, max_length: int, log_probs: NDArray[Any], tokens: Tokens = ()
) -> dict[Tokens, float]:
    """The probability of drawing each output."""
    if len(tokens) == max_length or rules.ids.end in tokens:
        return {tokens: 1.0}
    config = rules.config
    following = continuations(rules, prefix, tokens, log_probs)[: config.top_k or None]
    probs = np.exp([counts / config.temperature for counts, _ in following])
    probs /= probs.sum()
    probs[np.cumsum(probs) - probs >= config.top_p] = 0.0
    found = {}
    for (_, token), prob in zip(following, probs / probs.sum(), strict=True):
        if prob:
            rest = distribution(rules, prefix, max_length, log_probs, (*tokens, token))
            found.update({output: prob * p for output, p in rest.items()})
    return found


# --- Comparison ---------------------------------------------------------------------------------


class Hypothesis(NamedTuple):
    tokens: Tokens
    score: float
    log_prob: float


def hypotheses(result: SearchResult, sentence: int, ids: SpecialIds = IDS) -> list[Hypothesis]:
    """The outputs of one sentence, best first, after checks of form."""
    fields = [np.asarray(field)[sentence] for field in result[:5]]
    found = []
    for tokens, score, length, finished, log_prob in zip(*fields, strict=True):
        assert (tokens[length:] == ids.pad).all()
        if score == NEG_INF:
            assert (length, finished, log_prob) == (0, False, NEG_INF)
            continue
        assert len(found) == 0 or score <= found[-1].score, "the empty results come last"
        output = tuple(tokens[:length].tolist())
        assert finished == (output[-1:] == (ids.end,))
        assert ids.end not in output[:-1]
        found.append(Hypothesis(output, float(score), float(log_prob)))
    return found


def assert_scored(found: list[Hypothesis], expected: dict[Tokens, tuple[float, float]]) -> None:
    """Checks that each of `found` is an expected output with its score and log-probability."""
    assert {one.tokens for one in found} <= expected.keys()
    scores = [(one.score, one.log_prob) for one in found]
    np.testing.assert_allclose(scores, [expected[one.tokens] for one in found], atol=3e-5)


def assert_best(
    found: list[Hypothesis], expected: dict[Tokens, tuple[float, float]], n_best: int
) -> None:
    """`found` are the best of `expected`: different, scored as they are, none better left out.

    Where scores are distinct the tokens are thereby the same; which of equal ones comes
    first is left open.
    """
    assert_scored(found, expected)
    assert len({one.tokens for one in found}) == len(found)
    best = sorted((score for score, _ in expected.values()), reverse=True)[:n_best]
    np.testing.assert_allclose([one.score for one in found], best, atol=3e-5)
