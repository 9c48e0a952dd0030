"""Converts text to ids and back inside a TensorFlow graph."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_text
from tensorflow_text.python.ops.sentencepiece_tokenizer import gen_sentencepiece_tokenizer

from keras_transformer.text.vocabulary import Vocabulary


class Tokenizer(tf.Module):
    """SentencePiece tokenization as graph ops, which become part of a SavedModel.

    Segments text like the `sentencepiece` library. Names of special tokens in a text, such as
    "</s>", are ordinary text.

    Args:
        source_model: serialized SentencePiece model of the source language, or of both languages
            if `target_model` is None.
        target_model: serialized model of the target language, or None for a joint vocabulary.

    Attributes:
        joint: True if both languages share one vocabulary.
        source_vocab_size, target_vocab_size: numbers of ids.
        pad_id, unknown_id, start_id, end_id: read from the SentencePiece models.
        fingerprint: SHA-256 of the models, in hex.
        vocabulary: the models.
        symbol_ids: the source and the target ids of `text.symbols.SYMBOLS`, or None.
        has_languages: whether ids begin with languages; see `Vocabulary`.

    Example:
    >>> from keras_transformer.text.vocabulary import learn_vocabulary
    >>> tokenizer = Tokenizer(learn_vocabulary([b"the cat sees the dog"], vocab_size=30))
    >>> ids = tokenizer.tokenize_source(tf.constant(["the dog"])).to_tensor()
    >>> tokenizer.detokenize(ids, lengths=tf.shape(ids)[1:]).numpy()
    array([b'the dog'], dtype=object)
    """

    def __init__(self, source_model: bytes, target_model: bytes | None = None) -> None:
        super().__init__(name="tokenizer")
        self.vocabulary = vocabulary = Vocabulary(source_model, target_model)
        self.joint = vocabulary.joint
        self.source_vocab_size = vocabulary.source_vocab_size
        self.target_vocab_size = vocabulary.target_vocab_size
        self.pad_id = vocabulary.pad_id
        self.unknown_id = vocabulary.unknown_id
        self.start_id = vocabulary.start_id
        self.end_id = vocabulary.end_id
        self.fingerprint = vocabulary.fingerprint
        self.symbol_ids = vocabulary.symbol_ids
        self.has_languages = vocabulary.languages is not None
        self._source = _graph_tokenizer(source_model)
        self._target = self._source if target_model is None else _graph_tokenizer(target_model)

    def tokenize_source(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Returns int32 `[B, None]` ids of `text`, string `[B]`; each row ends with `end_id`.

        Every string is valid: invalid UTF-8 becomes U+FFFD, and line breaks become spaces.
        """
        tokens = self._source.tokenize(text)
        if not self.has_languages:
            return tokens
        ids, lengths = self.with_languages(tokens.to_tensor(self.pad_id), tokens.row_lengths())
        return tf.RaggedTensor.from_tensor(ids, lengths=lengths)

    def with_languages(self, ids: tf.Tensor, lengths: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Adds missing languages to padded source ids, int32 `[B, S]`, as `Vocabulary` does.

        Returns ids int32 `[B, S + 2]`, and the new lengths `[B]`.
        """
        columns, lengths = self._language_columns(ids, lengths)
        codes, language_ids = self.vocabulary.languages or (), self.vocabulary.language_ids
        target_and_source = [language_ids[code] for code in reversed(codes)]
        added = tf.tile([[*target_and_source, self.pad_id]], [tf.shape(ids)[0], 1])
        return tf.gather(tf.concat([ids, added], axis=1), columns, batch_dims=1), lengths

    def _language_columns(self, ids: tf.Tensor, lengths: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns where the columns of `with_languages` come from, int32 `[B, S + 2]`, and lengths.

        Columns S and S + 1 are the default target and source language, and S + 2 is padding.
        """
        size = tf.shape(ids)[1]
        known = np.isin(np.arange(self.source_vocab_size), [*self.vocabulary.language_ids.values()])
        is_language = tf.gather(known, tf.pad(ids, [[0, 0], [0, 2]])[:, :2])  # --> [B, 2]
        is_language &= is_language[:, :1]
        count = tf.reduce_sum(tf.cast(is_language, tf.int32), axis=1)
        languages = tf.where(is_language, tf.range(2), size + tf.range(2))
        rest = tf.range(size) + tf.expand_dims(count, 1)
        rest = tf.where(rest < size, rest, size + 2)
        lengths -= tf.cast(count, lengths.dtype)
        has_text = lengths > 1  # before the end token
        columns = tf.where(
            tf.expand_dims(has_text, 1),
            tf.concat([languages, rest], axis=1),
            tf.concat([rest, tf.fill(tf.shape(languages), size + 2)], axis=1),
        )
        return columns, lengths + 2 * tf.cast(has_text, lengths.dtype)

    def tokenize_target(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Returns int32 `[B, None]` ids in the target vocabulary, with `end_id` at the end."""
        return self._target.tokenize(text)

    def source_texts(self, text: tf.Tensor) -> tf.Tensor:
        """Returns the part of each text, string `[B]`, that each of its tokens stands for.

        The result, string `[B, S]`, is empty for the end token and for padding.
        """
        tokens, starts, ends = self._source.tokenize_with_offsets(text)
        lengths = starts.row_lengths()
        rows = tf.RaggedTensor.from_row_lengths(tf.repeat(text, lengths), lengths)
        parts = tf.strings.substr(rows.flat_values, starts.flat_values, (ends - starts).flat_values)
        texts = starts.with_flat_values(parts).to_tensor("")
        if not self.has_languages:
            return texts
        columns, _ = self._language_columns(tokens.to_tensor(self.pad_id), lengths)
        return tf.gather(tf.pad(texts, [[0, 0], [0, 3]], constant_values=""), columns, batch_dims=1)

    def source_pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the pieces of source ids, string of the same shape, such as "▁man"."""
        return _pieces(self._source, ids, self.source_vocab_size)

    def target_pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the pieces of target ids, string of the same shape, such as "▁man"."""
        return _pieces(self._target, ids, self.target_vocab_size)

    def tokenize_pairs(self, source_ids: tf.Tensor, target: tf.Tensor) -> tf.RaggedTensor:
        """Returns target ids int32 `[B, None]` for padded source ids int32 `[B, S]`.

        They begin with the target language of the source ids if the model `has_languages`.
        """
        tokens = self.tokenize_target(target)
        if not self.has_languages:
            return tokens
        # `tf.concat` of ragged tensors would contain an assertion.
        ids = tf.concat([source_ids[:, :1], tokens.to_tensor(self.pad_id)], axis=1)
        return tf.RaggedTensor.from_tensor(ids, lengths=tokens.row_lengths() + 1)

    def phrase_ids(self, phrase: str) -> list[int]:
        """Returns the target ids of a phrase inside a text, without an end token."""
        (ids,) = self.vocabulary.encode_target([phrase.encode()])
        return [token for token in ids if token != self.end_id]

    def detokenize(self, ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        """Returns the texts of target ids, string `[N]`, each in one line.

        Every id is valid. Control tokens (pad, start, end) and ids outside the vocabulary are
        skipped. The unknown token becomes `vocabulary.unknown_text`.

        Args:
            ids: int32 `[N, L]`.
            lengths: int32 `[N]`, the number of ids to use in each row.
        """
        is_text = tf.constant(self.vocabulary.target_text_pieces)  # --> [V]
        known = (ids >= 0) & (ids < self.target_vocab_size)
        ids = tf.where(known, ids, self.pad_id)
        counted = tf.sequence_mask(lengths, tf.shape(ids)[1])  # --> [N, L]
        return self._target.detokenize(
            tf.ragged.boolean_mask(ids, counted & tf.gather(is_text, ids))
        )

    def replace_unknown(
        self, texts: tf.Tensor, ids: tf.Tensor, lengths: tf.Tensor, replacements: tf.Tensor
    ) -> tf.Tensor:
        """Replaces the unknown tokens of detokenized texts.

        Args:
            texts: string `[N]`, the result of `detokenize`.
            ids: int32 `[N, L]`, the ids of the texts.
            lengths: int32 `[N]`, the number of ids of each row.
            replacements: string `[N, L]`, a text for each id.

        Returns:
            String `[N]`. A text that also contains `vocabulary.unknown_text` for another reason
            is unchanged.
        """
        is_unknown = (ids == self.unknown_id) & tf.sequence_mask(lengths, tf.shape(ids)[1])
        between = tf.strings.split(texts, self.vocabulary.unknown_text)
        count = between.row_lengths()
        between = between.to_tensor("")  # --> [N, most unknown tokens + 1]
        inserted = tf.ragged.boolean_mask(replacements, is_unknown)
        is_complete = inserted.row_lengths() == count - 1
        # An empty text follows the last part. Both tensors get the same number of columns.
        inserted = tf.concat([inserted.to_tensor(""), tf.fill(tf.shape(between), "")], axis=1)
        inserted = inserted[:, : tf.shape(between)[1]]
        joined = tf.strings.reduce_join(tf.strings.join([between, inserted]), axis=1)
        return tf.where(is_complete, tf.strings.strip(joined), texts)

    def save(self, directory: str | Path) -> None:
        """Writes `joint.model`, or `source.model` and `target.model`, into `directory`."""
        self.vocabulary.save(directory)

    @classmethod
    def load(cls, directory: str | Path) -> Tokenizer:
        """Reads a tokenizer that `save` wrote; see `Vocabulary.load`."""
        return cls(*Vocabulary.load(directory).models().values())


def truncate_text(text: tf.Tensor, max_bytes: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Truncates texts to at most `max_bytes` bytes, between two characters.

    Invalid UTF-8 is also truncated: at most 3 bytes more are dropped. Texts of another rank are an
    error. Returns the texts, string `[B]`, and bool `[B]`, True for those that were truncated.
    """
    text = tf.ensure_shape(text, [None])  # a caller of a SavedModel may ignore the signature
    too_long = tf.strings.length(text) > max_bytes
    # Bytes 10xxxxxx continue a character. Of the first byte beyond the limit and the three bytes
    # before it, find the last one that begins a character, and truncate before it.
    begin = tf.where(too_long, max(max_bytes - 3, 0), 0)
    window = tf.strings.substr(text, begin, tf.fill(tf.shape(begin), 4))
    window = tf.io.decode_raw(window, tf.uint8, fixed_length=4)
    begins = tf.bitwise.bitwise_and(window, 0xC0) != 0x80  # --> [B, 4]
    last = tf.reduce_max(tf.where(begins, tf.range(4), -1), axis=1)
    length = tf.where(last < 0, max_bytes, max_bytes - 3 + last)
    truncated = tf.strings.substr(text, tf.zeros_like(length), length)
    return tf.where(too_long, truncated, text), too_long


class _SharedModel(tf.saved_model.experimental.TrackableResource):
    """A SentencePiece model that all tokenizers with this model share.

    tensorflow-text's own belongs to an operation. `keras.utils.set_random_seed`, `clear_session`
    and `tf.random.set_seed` forget operations, and its tokenizers fail afterwards.
    """

    def __init__(self, model: bytes, name: str):
        super().__init__()
        self._model, self._name = model, name
        self.resource_handle  # noqa: B018  creates it

    def _create_resource(self) -> tf.Tensor:
        return gen_sentencepiece_tokenizer.sentencepiece_op(
            model=self._model, shared_name=self._name
        )


def _graph_tokenizer(model: bytes) -> tensorflow_text.SentencepieceTokenizer:
    # FastSentencepieceTokenizer segments BPE wrongly and lacks byte fallback.
    # The name must be unique: a loaded SavedModel merges tokenizers with the same name.
    name = f"sentencepiece_{hashlib.sha256(model).hexdigest()[:16]}"
    tokenizer = tensorflow_text.SentencepieceTokenizer(
        model, out_type=tf.int32, add_eos=True, name=name
    )
    tokenizer._model_resource = _SharedModel(model, name)
    return tokenizer


def _pieces(
    tokenizer: tensorflow_text.SentencepieceTokenizer, ids: tf.Tensor, vocab_size: int
) -> tf.Tensor:
    flat = tf.clip_by_value(tf.reshape(tf.cast(ids, tf.int32), [-1]), 0, vocab_size - 1)
    return tf.reshape(tokenizer.id_to_string(flat), tf.shape(ids))
