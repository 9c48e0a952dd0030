"""Scores of given translations: the log-probability of each target token after its source.

All log-probabilities are natural logarithms of the model without a length penalty. The end token
counts like any other token.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.config import DecodingConfig
from keras_transformer.decoding.beam_search import length_penalty
from keras_transformer.errors import InputError
from keras_transformer.inference.batching import map_batches
from keras_transformer.inference.loading import load_translator
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.models.encoder_decoder import EncoderDecoder
from keras_transformer.text.tokenizer import truncate_text

# Targets are never truncated. Attention over 4,096 tokens takes 64 MiB per head.
MAX_TARGET_TOKENS = 4_096
NOT_SCORED = -1e9  # log-probability of a target that is too long

# Rows whose logits are in memory at the same time: 512 rows of 8,000 classes are 16 MB.
_SLICE_ROWS = 512

_SOURCE = tf.TensorSpec([None], tf.string, name="source")
_TARGET = tf.TensorSpec([None], tf.string, name="target")
_TARGET_IDS = tf.TensorSpec([None, None], tf.int32, name="target_ids")
_LENGTHS = tf.TensorSpec([None], tf.int32, name="lengths")


class Scorer(tf.Module):
    """Scores targets with a translator's model, in functions that a SavedModel can contain.

    No text fails. Sources are truncated like in `TranslationModule`. The source may be empty.
    Targets are never truncated.

    Args:
        translator: its model (or ensemble), tokenizer and source limit are used.
        max_target_tokens: the longest target that `score` accepts. The default is
            `MAX_TARGET_TOKENS`.
    """

    def __init__(self, translator: TranslationModule, max_target_tokens: int | None = None):
        super().__init__(name="scorer")
        self.translator = translator
        self._max_target_tokens = max_target_tokens or MAX_TARGET_TOKENS

    @tf.function(input_signature=[_SOURCE, _TARGET], autograph=False, jit_compile=False)
    def score(self, source: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """Scores targets.

        Args:
            source: UTF-8 strings `[B]`.
            target: UTF-8 strings `[B]`.

        Returns:
            `log_probs`, float32 `[B]`, and `lengths`, int32 `[B]`: the tokens of the target,
            including the end token. A target of more than `max_target_tokens` tokens, or of more
            than 16 bytes per token of this limit, gets the log-probability -1e9. Only tokens
            within the limit of bytes are counted.
        """
        target, is_cut = truncate_text(target, 16 * self._max_target_tokens)
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
        """Scores targets that are given as ids, such as the results of a search.

        A search may use other pieces for a text than the tokenizer, and may leave out the end
        token. Therefore its log-probability is only reproduced with its ids.

        Args:
            source: UTF-8 strings `[B]`.
            target_ids: int32 `[B, T]` without a start id. Ids outside the vocabulary become the
                unknown piece.
            lengths: int32 `[B]`, the number of ids of each row.

        Returns:
            `log_probs`, float32 `[B]`, and `token_log_probs`, float32 `[B, T]`, 0 beyond `lengths`.
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
        """Returns float32 `[B, T]`, 0 beyond `lengths`; the mean of an ensemble."""
        source_ids, _ = self.translator.source_ids(source)
        start_id = self.translator.tokenizer.start_id
        shifted = tf.pad(target_ids, [[0, 0], [1, 0]], constant_values=start_id)[:, :-1]
        counted = tf.sequence_mask(lengths, tf.shape(target_ids)[1])  # --> [B, T]
        labels = tf.boolean_mask(target_ids, counted)  # --> [N]
        log_probs = []
        # Requests the attention without using it, so that an export contains this function only
        # once. A model with an attention window would have to compute all of it, so not there.
        models = self.translator.transformers
        attention = all(model.can_return_attention for model in models)
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
    """Returns the log-probabilities float32 `[N]` of `labels` int32 `[N]`.

    Args:
        features: outputs of its decoder, `[N, d_model]`.
    """

    def one_slice(i: tf.Tensor, parts: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        rows = slice(i * _SLICE_ROWS, (i + 1) * _SLICE_ROWS)
        logits = tf.cast(transformer.logits(features[rows]), tf.float32)
        log_probs = tf.gather(tf.nn.log_softmax(logits), labels[rows], batch_dims=1)
        return i + 1, parts.write(i, log_probs)

    # At least one slice, because zero parts cannot be concatenated.
    count = tf.maximum(-(-tf.shape(labels)[0] // _SLICE_ROWS), 1)
    parts = tf.TensorArray(tf.float32, count, infer_shape=False, element_shape=[None])
    _, parts = tf.while_loop(
        lambda i, _: i < count,
        one_slice,
        (0, parts),
        parallel_iterations=1,
        maximum_iterations=2**22,  # never reached: int32 could not index this many labels
    )
    return parts.concat()


class PairScore(NamedTuple):
    """The score of one pair.

    Attributes:
        log_prob: log-probability of the target.
        ids: ids of the target, including the end id.
        token_log_probs: float32 `(tokens,)`.
    """

    log_prob: float
    ids: Sequence[int]
    token_log_probs: np.ndarray

    @property
    def perplexity(self) -> float:
        """The perplexity of this target."""
        return perplexity([self])

    def penalized(self, config: DecodingConfig) -> float:
        """Returns the score in a search with the length penalty of `config` and no other one."""
        divisor = length_penalty(
            len(self.ids), config.length_penalty, config.length_penalty_formula
        )
        return self.log_prob / float(divisor)


def perplexity(results: Iterable[PairScore]) -> float:
    """Returns exp(-Σ log P / tokens), the corpus perplexity, or 1 if there are no tokens."""
    scored = list(results)
    tokens = sum(len(score.ids) for score in scored)
    log_prob = sum(score.log_prob for score in scored)
    # exp(709) is the largest float.
    return math.exp(min(-log_prob / max(tokens, 1), 709))


def score_pairs(scorer: Scorer, sources: Sequence[str], targets: Sequence[str]) -> list[PairScore]:
    """Scores texts.

    Args:
        targets: a target for each source; may be empty (only the end token).

    Raises:
        InputError: if a target has more than `MAX_TARGET_TOKENS`, or if weights are NaN.
    """
    vocabulary = scorer.translator.tokenizer.vocabulary
    return score_ids(
        scorer, sources, vocabulary.encode_target([target.encode() for target in targets])
    )


def score_ids(
    scorer: Scorer, sources: Sequence[str], target_ids: Sequence[Sequence[int]]
) -> list[PairScore]:
    """Scores any number of targets that are given as ids (see `Scorer.score_ids`).

    Args:
        target_ids: the ids of a target for each source.

    Raises:
        InputError: if a target has more than `MAX_TARGET_TOKENS`, or if weights are NaN.
    """
    for number, ids in enumerate(target_ids, start=1):
        if len(ids) > MAX_TARGET_TOKENS:
            raise InputError(
                f"The target of pair {number} has {len(ids):,} tokens. At most "
                f"{MAX_TARGET_TOKENS:,} are possible."
            )

    def score_batch(batch: list[int]) -> list[PairScore]:
        targets = tf.ragged.constant([target_ids[i] for i in batch], tf.int32, ragged_rank=1)
        lengths = tf.cast(targets.row_lengths(), tf.int32)
        padded = targets.to_tensor(scorer.translator.tokenizer.pad_id)
        outputs = scorer.score_ids(tf.constant([sources[i] for i in batch]), padded, lengths)
        log_probs, tokens = outputs["log_probs"].numpy(), outputs["token_log_probs"].numpy()
        return [
            PairScore(float(log_prob), target_ids[i], row[: len(target_ids[i])])
            for i, log_prob, row in zip(batch, log_probs, tokens, strict=True)
        ]

    # Pairs of similar lengths share a batch. A token has about 4 bytes.
    texts = [source + 4 * len(ids) * "x" for source, ids in zip(sources, target_ids, strict=True)]
    results: dict[int, PairScore] = {}
    for batch, scores in map_batches(score_batch, texts, unit="pairs"):
        results.update(zip(batch, scores, strict=True))
    for index, score in sorted(results.items()):
        if not math.isfinite(score.log_prob):
            raise InputError(
                f"The log-probability of pair {index + 1} is {score.log_prob}. The model's weights "
                "may be NaN. Use another checkpoint."
            )
    return [results[index] for index in range(len(texts))]


def split_pairs(lines: Sequence[str], name: str) -> tuple[list[str], list[str]]:
    """Splits lines `source<tab>target` of a file with a `name` into sources and targets.

    Raises:
        InputError: if the file is empty, or if a line does not have exactly one tab.
    """
    if not lines:
        raise InputError(f"{name} is empty. Each line must be a source, a tab and a target.")
    pairs = [line.split("\t") for line in lines]
    for number, pair in enumerate(pairs, start=1):
        if len(pair) != 2:
            raise InputError(
                f"{name}, line {number} has {len(pair) - 1} tabs instead of one between the source "
                "and the target."
            )
    return [source for source, _ in pairs], [target for _, target in pairs]


def format_tsv(results: Iterable[PairScore], config: DecodingConfig) -> str:
    r"""Returns one line per pair: log P, tokens, perplexity, and the score with length penalty."""
    return "".join(
        f"{result.log_prob:.6f}\t{len(result.ids)}\t{result.perplexity:.4f}\t"
        f"{result.penalized(config):.6f}\n"
        for result in results
    )


def format_json_lines(scorer: Scorer, results: Iterable[PairScore]) -> str:
    """Returns one JSON object per pair: the fields of `format_tsv`, and each piece with its log P.

    Args:
        scorer: the model, whose configuration has the length penalty.
    """
    lines = []
    for result in results:
        pieces = scorer.translator.tokenizer.target_pieces(tf.constant(result.ids, tf.int32))
        fields = {
            "log_prob": round(result.log_prob, 6),
            "tokens": len(result.ids),
            "perplexity": round(result.perplexity, 4),
            "score": round(result.penalized(scorer.translator.config), 6),
            "pieces": [piece.decode() for piece in pieces.numpy()],
            "token_log_probs": [round(float(value), 6) for value in result.token_log_probs],
        }
        lines.append(json.dumps(fields, ensure_ascii=False) + "\n")
    return "".join(lines)


def summary(results: Sequence[PairScore], seconds: float) -> str:
    """Returns one line: corpus perplexity, numbers of tokens and pairs, and speed."""
    return (
        f"perplexity {perplexity(results):.4f}, {sum(len(r.ids) for r in results):,} tokens, "
        f"{len(results):,} sentences, scored in {seconds:.1f} s "
        f"({len(results) / max(seconds, 1e-9):,.0f} sentences/s)"
    )


def load_scorer(model_dir: str | Path, settings: Mapping[str, Any] | None = None) -> Scorer:
    """Loads a run, with its selected weights in float32, or an ensemble.

    Args:
        model_dir: any value that `load_translator` accepts.
        settings: changes of the run's `decoding.` configuration.

    Raises:
        InputError: if the run is missing, or if a setting is invalid.
    """
    return Scorer(load_translator(model_dir, settings))
