"""Scores of given translations: the log-probability of each target token after its source.

All log-probabilities are natural logarithms of the model without a length penalty. The end token
counts like any other token. The language that begins the targets of a model such as M2M-100 is
given: its log-probability is 0.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.config import DecodingConfig
from keras_transformer.decoding import SearchResult
from keras_transformer.decoding.beam_search import length_penalty
from keras_transformer.decoding.search_loop import map_tensors
from keras_transformer.errors import InputError, require
from keras_transformer.inference.batching import map_batches
from keras_transformer.inference.translation_module import TranslationModule, align_chosen_tokens
from keras_transformer.models.encoder_decoder import EncoderDecoder
from keras_transformer.text.tokenizer import truncate_text
from keras_transformer.text.vocabulary import Vocabulary

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
    """Scores targets with a translator's models, in functions that a SavedModel can contain.

    No text fails. Sources are truncated like in `TranslationModule`, and may be empty. Targets are
    never truncated.
    """

    def __init__(self, translator: TranslationModule, max_target_tokens: int = MAX_TARGET_TOKENS):
        super().__init__(name="scorer")
        self.translator = translator
        self.max_target_tokens = max_target_tokens

    @tf.function(input_signature=[_SOURCE, _TARGET], autograph=False, jit_compile=False)
    def score(self, source: tf.Tensor, target: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `log_probs`, float32 `[B]`, and `lengths`, int32 `[B]`, of UTF-8 strings `[B]`.

        A length is the number of tokens of the target, including the end token. A target of more
        than `max_target_tokens` tokens, or of more than 16 bytes per token of this limit, gets the
        log-probability -1e9. Only tokens within the limit of bytes are counted.
        """
        target, is_cut = truncate_text(target, 16 * self.max_target_tokens)
        source_ids, *_ = self.translator.source_ids(source)
        tokens = self.translator.tokenizer.tokenize_pairs(source_ids, target)
        lengths = tf.cast(tokens.row_lengths(), tf.int32)
        ids = tokens[:, : self.max_target_tokens].to_tensor(self.translator.tokenizer.pad_id)
        log_probs = self.search_result(source_ids, ids, lengths).log_probs[:, 0]
        is_scored = ~is_cut & (lengths <= self.max_target_tokens)
        log_probs = tf.where(is_scored, log_probs, NOT_SCORED)
        return {"log_probs": log_probs, "lengths": lengths}

    @tf.function(
        input_signature=[_SOURCE, _TARGET_IDS, _LENGTHS], autograph=False, jit_compile=False
    )
    def score_ids(
        self, source: tf.Tensor, target_ids: tf.Tensor, lengths: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Scores targets that are given as ids, int32 `[B, T]` without a start id.

        A search may use other pieces for a text than the tokenizer, and may leave out the end
        token. So its log-probability is only reproduced with its ids. Ids outside the vocabulary
        become the unknown piece. Returns `log_probs`, float32 `[B]`, and `token_log_probs`, float32
        `[B, T]`, 0 beyond `lengths`.
        """
        tokenizer = self.translator.tokenizer
        known = (target_ids >= 0) & (target_ids < tokenizer.target_vocab_size)
        target_ids = tf.where(known, target_ids, tokenizer.unknown_id)
        source_ids, *_ = self.translator.source_ids(source)
        result = self.search_result(source_ids, target_ids, lengths)
        return {
            "log_probs": result.log_probs[:, 0],
            "token_log_probs": tf.squeeze(result.token_log_probs, axis=1),
        }

    def search_result(
        self, source_ids: tf.Tensor, target_ids: tf.Tensor, lengths: tf.Tensor
    ) -> SearchResult:
        """Returns given targets as the only results of a search. Scores have no length penalty.

        Log-probabilities are 0 beyond `lengths`, and the mean of those of an ensemble. There is an
        alignment if all models return their attention.
        """
        start_id = self.translator.tokenizer.start_id
        shifted = tf.pad(target_ids, [[0, 0], [1, 0]], constant_values=start_id)[:, :-1]
        counted = tf.sequence_mask(lengths, tf.shape(target_ids)[1])  # --> [B, T]
        labels = tf.boolean_mask(target_ids, counted)  # --> [N]
        log_probs, weights = [], []
        # Requests the attention in any case, so that an export contains this function only once.
        # A model with an attention window would have to compute all of it, so not there.
        models = self.translator.transformers
        attention = all(model.can_return_attention for model in models)
        memories = self.translator.encode(source_ids)
        results = self.translator.read_targets(shifted, memories, attention)
        for transformer, (features, layers) in zip(models, results, strict=True):
            features = tf.boolean_mask(features, counted)  # --> [N, d_model]
            log_probs.append(_label_log_probs(transformer, features, labels))
            weights += [transformer.alignment(layers)] if layers else []
        mean = tf.add_n(log_probs) / len(log_probs)
        mean = tf.scatter_nd(tf.where(counted), mean, tf.shape(counted, tf.int64))
        if self.translator.tokenizer.has_languages:
            mean = tf.where(tf.range(tf.shape(mean)[1]) > 0, mean, 0.0)
        alignment = tf.argmax(tf.add_n(weights), -1, output_type=tf.int32) if attention else None
        total = tf.reduce_sum(mean, axis=-1)
        result = SearchResult(target_ids, total, lengths, lengths > 0, total, mean, alignment)
        result = map_tensors(lambda tensor: tf.expand_dims(tensor, 1), result)
        return align_chosen_tokens(result, models)


def _label_log_probs(
    transformer: EncoderDecoder, features: tf.Tensor, labels: tf.Tensor
) -> tf.Tensor:
    """Returns the log-probabilities `[N]` of int32 `labels` `[N]` for features `[N, d_model]`."""

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


def perplexity(results: Iterable[np.ndarray]) -> float:
    """Returns exp(-Σ log P / tokens), the corpus perplexity, or 1 if there are no tokens."""
    scored = list(results)
    return _perplexity(sum(float(row.sum()) for row in scored), sum(map(len, scored)))


def _perplexity(log_prob: float, tokens: int) -> float:
    return math.exp(min(-log_prob / max(tokens, 1), 709))  # exp(709) is the largest float


def penalized(log_probs: np.ndarray, config: DecodingConfig) -> float:
    """Returns the score in a search with the length penalty of `config` and no other one."""
    formula = config.length_penalty_formula
    divisor = length_penalty(len(log_probs), config.length_penalty, formula)
    return float(log_probs.sum()) / float(divisor)


def score_pairs(scorer: Scorer, sources: Sequence[str], targets: Sequence[str]) -> list[np.ndarray]:
    """Scores texts like `score_ids`. An empty target consists of the end token."""
    vocabulary = scorer.translator.tokenizer.vocabulary
    check_targets(vocabulary, targets, "pair", scorer.max_target_tokens)
    return score_ids(scorer, sources, vocabulary.encode_pairs(sources, targets)[1])


def check_targets(
    vocabulary: Vocabulary, targets: Iterable[str], label: str, most: int = MAX_TARGET_TOKENS
) -> None:
    """Raises an error for the first target that is too long, with the label before its number."""
    for number, target in enumerate(targets, start=1):
        # A token has at least one byte after normalization, which makes at most 11 bytes of one.
        if 16 * len(target.encode()) > most:
            count = len(vocabulary.encode_target([target])[0])
            message = f"{label} {number}: the target has {count:,} tokens. At most {most:,} are "
            require(count <= most, f"{message}possible. Split it, or remove the pair.")


def score_ids(
    scorer: Scorer, sources: Sequence[str], targets: Sequence[Sequence[int]], first: int = 1
) -> list[np.ndarray]:
    """Returns the log-probabilities of the tokens of each target, for any number of targets.

    `first` is the number of the first pair in messages.
    """

    def score_batch(batch: list[int]) -> list[np.ndarray]:
        ids = tf.ragged.constant([targets[i] for i in batch], tf.int32, ragged_rank=1)
        padded = ids.to_tensor(scorer.translator.tokenizer.pad_id)
        lengths = tf.cast(ids.row_lengths(), tf.int32)
        outputs = scorer.score_ids(tf.constant([sources[i] for i in batch]), padded, lengths)
        rows = outputs["token_log_probs"].numpy()
        return [row[: len(targets[i])] for i, row in zip(batch, rows, strict=True)]

    # Pairs of similar lengths share a batch. A token has about 4 bytes.
    texts = [source + 4 * len(ids) * "x" for source, ids in zip(sources, targets, strict=True)]
    results: list[np.ndarray] = [np.zeros(0)] * len(texts)
    for batch, scores in map_batches(score_batch, texts, unit="pairs"):
        for index, row in zip(batch, scores, strict=True):
            results[index] = row
    for number, row in enumerate(results, start=first):
        if not np.isfinite(row).all():
            raise InputError(
                f"The log-probability of pair {number} is {row.sum()}. The model's weights may be "
                "NaN. Use another checkpoint."
            )
    return results


def format_scores(
    results: Sequence[np.ndarray], config: DecodingConfig, pieces: Sequence[Sequence[str]] = ()
) -> str:
    """Returns one line per pair: log P, tokens, perplexity, and the score with length penalty.

    The columns are separated by TABs. With the `pieces` of the targets, each line is a JSON object,
    which also has the pieces and their log-probabilities.
    """
    lines = []
    for number, row in enumerate(results):
        fields: dict[str, Any] = {
            "log_prob": round(float(row.sum()), 6),
            "tokens": len(row),
            "perplexity": round(perplexity([row]), 4),
            "score": round(penalized(row, config), 6),
        }
        if pieces:
            log_probs = [round(float(value), 6) for value in row]
            fields |= {"pieces": pieces[number], "token_log_probs": log_probs}
            lines.append(json.dumps(fields, ensure_ascii=False))
        else:
            lines.append("\t".join(map(str, fields.values())))
    return "".join(f"{line}\n" for line in lines)


def summary(log_prob: float, tokens: int, pairs: int, seconds: float) -> str:
    """Returns one line: corpus perplexity, numbers of tokens and pairs, and speed."""
    return (
        f"perplexity {_perplexity(log_prob, tokens):.4f}, {tokens:,} tokens, {pairs:,} sentences, "
        f"scored in {seconds:.1f} s ({pairs / max(seconds, 1e-9):,.0f} sentences/s)"
    )
