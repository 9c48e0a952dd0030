"""Given pairs scored: how probable a model finds a target, token by token, after its source.

All log-probabilities are natural logarithms, of the model alone: no length penalty,
and the end token counted as any other token.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.inference.batching import map_batches, token_counts
from keras_transformer.inference.loading import load_translator
from keras_transformer.inference.translator import Translator
from keras_transformer.models.encoder_decoder import EncoderDecoder
from keras_transformer.text.tokenizer import cut

# Targets are never cut, but attention over 4,096 tokens already takes 64 MiB a head.
MAX_TARGET_TOKENS = 4_096
NOT_SCORED = -1e9  # log-probability of a target that is too long

# Rows of the output whose logits exist at once: 512 of 8,000 classes are 16 MB.
_SLICE_ROWS = 512

_SOURCE = tf.TensorSpec([None], tf.string, name="source")
_TARGET = tf.TensorSpec([None], tf.string, name="target")
_TARGET_IDS = tf.TensorSpec([None, None], tf.int32, name="target_ids")
_LENGTHS = tf.TensorSpec([None], tf.int32, name="lengths")


class Scorer(tf.Module):
    """A translator's model that scores given targets, as functions that a SavedModel can carry.

    No text fails. A source is cut where `Translator` cuts it; an empty one is scored
    as it is, the end token alone. A target is never cut.

    Args:
        translator: whose model (or ensemble), tokenizer and limit of the source are used.
        max_target_tokens: of a target that `score` takes; by default `MAX_TARGET_TOKENS`.
    """

    def __init__(self, translator: Translator, max_target_tokens: int | None = None):
        super().__init__(name="scorer")
        self.translator = translator
        self._max_target_tokens = max_target_tokens or MAX_TARGET_TOKENS

    @tf.function(input_signature=[_SOURCE, _TARGET], autograph=False, jit_compile=False)
    def score(self, source: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """Scores `target` after `source`, both UTF-8 strings `[B]`.

        Returns:
            `log_probs`, float32 `[B]`, and `lengths`, int32 `[B]`: tokens of the target,
            the end token included. A target of more than `max_target_tokens`, or of more bytes
            than 16 for each of these (only they are counted), is not scored, and has the
            log-probability -1e9.
        """
        target, is_cut = cut(target, 16 * self._max_target_tokens)
        tokens = self.translator.tokenizer.tokenize_target(target)
        lengths = tf.cast(tokens.row_lengths(), tf.int32)
        ids = tokens[:, : self._max_target_tokens].to_tensor(self.translator.tokenizer.pad_id)
        log_probs = tf.reduce_sum(self._token_log_probs(source, ids, lengths), axis=-1)
        is_scored = ~is_cut & (lengths <= self._max_target_tokens)
        log_probs = tf.where(is_scored, log_probs, NOT_SCORED)
        return {"log_probs": log_probs, "lengths": lengths}

    @tf.function(
        input_signature=[_SOURCE, _TARGET_IDS, _LENGTHS], autograph=False, jit_compile=False
    )
    def score_ids(
        self, source: tf.Tensor, target_ids: tf.Tensor, lengths: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Scores targets given as ids, such as those a search found, as they stand.

        A search may spell a text in other pieces than the tokenizer would, and leave
        out the end token; only its ids have the log-probability that it reports.

        Args:
            source: UTF-8 strings `[B]`.
            target_ids: int32 `[B, T]` without a start id. Those outside the
                vocabulary are taken for the unknown piece.
            lengths: int32 `[B]`; only the first so many ids of a row count.

        Returns:
            `log_probs`, float32 `[B]`, and `token_log_probs`, float32 `[B, T]`, 0
            beyond `lengths`.
        """
        tokenizer = self.translator.tokenizer
        known = (target_ids >= 0) & (target_ids < tokenizer.target_vocab_size)
        target_ids = tf.where(known, target_ids, tokenizer.unknown_id)
        token_log_probs = self._token_log_probs(source, target_ids, lengths)
        log_probs = tf.reduce_sum(token_log_probs, axis=-1)
        return {"log_probs": log_probs, "token_log_probs": token_log_probs}

    def _token_log_probs(
        self, source: tf.Tensor, target_ids: tf.Tensor, lengths: tf.Tensor
    ) -> tf.Tensor:
        """Returns float32 `[B, T]`, 0 beyond `lengths`; of an ensemble the mean."""
        source_ids, _ = self.translator.source_ids(source)
        start_id = self.translator.tokenizer.start_id
        shifted = tf.pad(target_ids, [[0, 0], [1, 0]], constant_values=start_id)[:, :-1]
        counted = tf.sequence_mask(lengths, tf.shape(target_ids)[1])  # --> [B, T]
        labels = tf.boolean_mask(target_ids, counted)  # --> [N]
        log_probs = []
        # With the attention that nobody reads, so that there is one such function; but not where
        # all of it would have to be computed for that, which a window is there to avoid.
        models = self.translator.transformers
        attention = all(each.can_return_attention for each in models)
        memories = self.translator.encode(source_ids)
        results = self.translator.read_targets(shifted, memories, attention)
        for transformer, (features, _) in zip(models, results, strict=True):
            features = tf.boolean_mask(features, counted)  # --> [N, d_model]
            log_probs.append(_label_log_probs(transformer, features, labels))
        mean = tf.add_n(log_probs) / len(log_probs)
        return tf.scatter_nd(tf.where(counted), mean, tf.shape(counted, tf.int64))


def _label_log_probs(
    transformer: EncoderDecoder, features: tf.Tensor, labels: tf.Tensor
) -> tf.Tensor:
    """Log-probabilities float32 `[N]` of `labels` int32 `[N]` after `features` `[N, d_model]`."""

    def one_slice(i: tf.Tensor, parts: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        rows = slice(i * _SLICE_ROWS, (i + 1) * _SLICE_ROWS)
        logits = tf.cast(transformer.logits(features[rows]), tf.float32)
        log_probs = tf.gather(tf.nn.log_softmax(logits), labels[rows], batch_dims=1)
        return i + 1, parts.write(i, log_probs)

    # One slice at least: of no parts at all there is no concatenation.
    count = tf.maximum(-(-tf.shape(labels)[0] // _SLICE_ROWS), 1)
    parts = tf.TensorArray(tf.float32, count, infer_shape=False, element_shape=[None])
    _, parts = tf.while_loop(
        lambda i, _: i < count,
        one_slice,
        (0, parts),
        parallel_iterations=1,
        maximum_iterations=2**22,  # never reached: so many labels have no int32 index
    )
    return parts.concat()


class PairScore(NamedTuple):
    """How probable one target is after its source."""

    log_prob: float
    ids: Sequence[int]  # of the target, the end id included
    token_log_probs: np.ndarray  # float32 [tokens]

    @property
    def perplexity(self) -> float:
        """Of the target alone."""
        return perplexity([self])

    def penalized(self, alpha: float) -> float:
        """The score that a search gives it whose only penalty is the length penalty α."""
        return self.log_prob / ((5 + len(self.ids)) / 6) ** alpha


def perplexity(results: Iterable[PairScore]) -> float:
    """Returns exp(-Σ log P / tokens), the corpus perplexity; 1 where there are no tokens."""
    log_prob, tokens = 0.0, 0
    for result in results:
        log_prob += result.log_prob
        tokens += len(result.ids)
    # Beyond exp(709) there is no float, and no number in JSON.
    return math.exp(min(-log_prob / max(tokens, 1), 709))


def score_pairs(scorer: Scorer, sources: Sequence[str], targets: Sequence[str]) -> list[PairScore]:
    """Scores texts; `targets[i]`, split into pieces as SentencePiece does, after `sources[i]`.

    An empty target is the end token alone.

    Raises:
        InputError: as `score_ids` does.
    """
    ids: list[list[int]] = []
    for start in range(0, len(targets), 1024):
        chunk = tf.constant(targets[start : start + 1024])
        ids += scorer.translator.tokenizer.tokenize_target(chunk).to_list()
    return _score(scorer, sources, ids, targets)


def score_ids(
    scorer: Scorer, sources: Sequence[str], target_ids: Sequence[Sequence[int]]
) -> list[PairScore]:
    """Scores ids, as `Scorer.score_ids`, of any number of pairs.

    Raises:
        InputError: for a target of more than `MAX_TARGET_TOKENS`, or a model whose
            weights are no numbers.
    """
    return _score(scorer, sources, target_ids, [" ".join(map(str, ids)) for ids in target_ids])


def _score(
    scorer: Scorer,
    sources: Sequence[str],
    target_ids: Sequence[Sequence[int]],
    targets: Sequence[str],
) -> list[PairScore]:
    """Scores ids in batches of similar lengths, told by the texts."""
    for number, ids in enumerate(target_ids, start=1):
        if len(ids) > MAX_TARGET_TOKENS:
            raise InputError(
                f"the target of pair {number} has {len(ids):,} tokens; expected at most "
                f"{MAX_TARGET_TOKENS:,}"
            )
    pairs = [source + target for source, target in zip(sources, targets, strict=True)]
    results: dict[int, PairScore] = {}

    def score_batch(batch: list[int]) -> list[PairScore]:
        return _score_batch(scorer, [sources[i] for i in batch], [target_ids[i] for i in batch])

    for batch, scores in map_batches(score_batch, pairs, unit="pairs"):
        for index, score in zip(batch, scores, strict=True):
            if not math.isfinite(score.log_prob):
                raise InputError(
                    f"the log-probability of pair {index + 1} is {score.log_prob}; expected "
                    "a model whose weights are finite numbers"
                )
            results[index] = score
    return [results[index] for index in range(len(pairs))]


def _score_batch(
    scorer: Scorer, sources: Sequence[str], target_ids: Sequence[Sequence[int]]
) -> list[PairScore]:
    lengths = [len(ids) for ids in target_ids]
    padded = np.full([len(lengths), max(lengths)], scorer.translator.tokenizer.pad_id, np.int32)
    for row, ids in zip(padded, target_ids, strict=True):
        row[: len(ids)] = ids
    outputs = scorer.score_ids(tf.constant(sources), tf.constant(padded), tf.constant(lengths))
    log_probs, tokens = outputs["log_probs"].numpy(), outputs["token_log_probs"].numpy()
    return [
        PairScore(float(log_prob), ids, row[: len(ids)])
        for log_prob, ids, row in zip(log_probs, target_ids, tokens, strict=True)
    ]


def remarks(scorer: Scorer, sources: Sequence[str]) -> list[str]:
    """Returns one sentence for each source that is empty, or of which only a part was used."""
    sentences = []
    counts = token_counts(scorer.translator.lengths, sources)
    for number, (tokens, used) in enumerate(counts, start=1):
        if tokens == 1:  # the end token alone
            sentences.append(f"line {number}: the source is empty, and was scored as it is")
        elif used < tokens:
            sentences.append(
                f"line {number}: the source has {tokens:,} tokens, of which the first "
                f"{used:,} were used (decoding.max_source_tokens)"
            )
    return sentences


def split_pairs(lines: Sequence[str], name: str) -> tuple[list[str], list[str]]:
    """Returns the sources and the targets of lines `source<tab>target`.

    Raises:
        InputError: for a line with no tab or with more than one, or no line; `name`
            is named.
    """
    if not lines:
        raise InputError(f"{name} is empty; expected lines of a source, a tab and a target")
    for number, line in enumerate(lines, start=1):
        tabs = line.count("\t")
        if tabs != 1:
            raise InputError(
                f"{name}, line {number} has {tabs or 'no'} tab{'s' * (tabs != 1)}; expected one, "
                "between the source and the target"
            )
    pairs = [line.split("\t") for line in lines]
    return [source for source, _ in pairs], [target for _, target in pairs]


def parse_ids(lines: Sequence[str], vocab_size: int, name: str) -> list[list[int]]:
    """Reads lines of token ids with spaces between them, as in `"17 5 3"`.

    Raises:
        InputError: for a line without any, or what is no id below `vocab_size`;
            `name` is named.
    """
    result = []
    for number, line in enumerate(lines, start=1):
        words = line.split()
        wrong = [word for word in words or [""] if not _is_id(word, vocab_size)]
        if wrong:
            raise InputError(
                f"{name}, line {number}: {wrong[0][:20]!r} is no token id; expected ids from 0 to "
                f"{vocab_size - 1}, the end id included, with spaces between"
            )
        result.append([int(word) for word in words])
    return result


def _is_id(word: str, vocab_size: int) -> bool:
    # Not int() alone: it takes "+1" and "1_0", and refuses to read 5,000 digits.
    digits = word.isascii() and word.isdecimal() and len(word) < 10
    return digits and int(word) < vocab_size


def format_tsv(results: Iterable[PairScore], alpha: float) -> str:
    """Returns a line a pair: log P, tokens, perplexity, and the score with length penalty α."""
    return "".join(
        f"{result.log_prob:.6f}\t{len(result.ids)}\t{result.perplexity:.4f}\t"
        f"{result.penalized(alpha):.6f}\n"
        for result in results
    )


def format_json_lines(scorer: Scorer, results: Iterable[PairScore], alpha: float) -> str:
    """Returns a JSON object a line: what `format_tsv` tells, and each piece with its log P."""
    lines = []
    for result in results:
        pieces = scorer.translator.tokenizer.target_pieces(tf.constant(result.ids, tf.int32))
        fields = {
            "log_prob": round(result.log_prob, 6),
            "tokens": len(result.ids),
            "perplexity": round(result.perplexity, 4),
            "score": round(result.penalized(alpha), 6),
            "pieces": [piece.decode() for piece in pieces.numpy()],
            "token_log_probs": [round(float(value), 6) for value in result.token_log_probs],
        }
        lines.append(json.dumps(fields, ensure_ascii=False) + "\n")
    return "".join(lines)


def summary(results: Sequence[PairScore], seconds: float) -> str:
    """Returns the corpus perplexity and the sizes in a few words, for a person."""
    return (
        f"perplexity {perplexity(results):.4f}, {sum(len(r.ids) for r in results):,} tokens, "
        f"{len(results):,} sentences, scored in {seconds:.1f} s "
        f"({len(results) / max(seconds, 1e-9):,.0f} a second)"
    )


def load_scorer(model_dir: str | Path, settings: Mapping[str, Any] | None = None) -> Scorer:
    """Reads a run directory (its selected weights, in float32), or an ensemble.

    Args:
        model_dir: what `loading.load_translator` takes.
        settings: what differs from its `decoding.` configuration.

    Raises:
        InputError: where there is no run, as for a SavedModel, or for settings that do not fit.
    """
    path = Path(model_dir)
    if any(path.glob("saved_model.pb")) or any(path.glob("*/saved_model.pb")):
        raise InputError(
            f"{path} is a SavedModel, which is asked for scores by its signature score; expected "
            "the run directory that it was exported from"
        )
    return Scorer(load_translator(model_dir, settings))
