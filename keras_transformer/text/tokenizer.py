"""Text to ids and back inside a TensorFlow graph."""

from __future__ import annotations

import hashlib
from pathlib import Path

import tensorflow as tf
import tensorflow_text

from keras_transformer.text.vocabulary import Vocabulary


class Tokenizer(tf.Module):
    """SentencePiece tokenization as graph ops that a SavedModel carries whole.

    Segments as the `sentencepiece` library does. The names of special pieces
    in a text ("</s>") are ordinary text. `tf.random.set_seed`, and so
    `keras.utils.set_random_seed`, makes TensorFlow throw away what a tokenizer holds ("Resource
    … does not exist"): set the seed first.

    Attributes:
        joint: whether both languages share one vocabulary.
        source_vocab_size, target_vocab_size: numbers of ids.
        pad_id, unknown_id, start_id, end_id: read from the SentencePiece models.
        fingerprint: SHA-256 of the models, in hex.
        vocabulary: the models themselves.
    """

    def __init__(self, source_model: bytes, target_model: bytes | None = None) -> None:
        """Makes a tokenizer of serialized SentencePiece models.

        Args:
            source_model: of the source language; of both when `target_model` is None.
            target_model: of the target language, or None for a joint vocabulary.

        Raises:
            InputError: for bytes that are no SentencePiece model, a special piece
                that is missing, or special ids that differ between the two.
        """
        super().__init__(name="tokenizer")
        vocabulary = Vocabulary(source_model, target_model)
        self.joint = vocabulary.joint
        self.source_vocab_size = vocabulary.source_vocab_size
        self.target_vocab_size = vocabulary.target_vocab_size
        self.pad_id = vocabulary.pad_id
        self.unknown_id = vocabulary.unknown_id
        self.start_id = vocabulary.start_id
        self.end_id = vocabulary.end_id
        self.fingerprint = vocabulary.fingerprint
        self.vocabulary = vocabulary
        self._source = _graph_tokenizer(source_model)
        self._target = self._source if target_model is None else _graph_tokenizer(target_model)

    def tokenize_source(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Returns int32 `[B, None]` ids of `text`, string `[B]`; each row ends with `end_id`.

        No string fails: bytes that are no UTF-8 become U+FFFD, line breaks spaces.
        """
        return self._source.tokenize(text)

    def tokenize_target(self, text: tf.Tensor) -> tf.RaggedTensor:
        """As `tokenize_source`, in the target vocabulary; there is no `start_id` in front."""
        return self._target.tokenize(text)

    def source_pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the pieces, string, of source ids int32 of any shape, as in `"▁man"`."""
        return _pieces(self._source, ids, self.source_vocab_size)

    def target_pieces(self, ids: tf.Tensor) -> tf.Tensor:
        """As `source_pieces`, of target ids."""
        return _pieces(self._target, ids, self.target_vocab_size)

    def phrase_ids(self, phrase: str) -> list[int]:
        """Returns the target ids of `phrase` as words of a text, without an end token."""
        (ids,) = self.vocabulary.encode_target([phrase.encode()])
        return [token for token in ids if token != self.end_id]

    def detokenize(self, ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        """Returns the texts, string `[N]`, each in one line, of target ids.

        No id fails. Control pieces (pad, start, end) and ids outside the
        vocabulary give nothing; the unknown piece gives U+2047, as in the
        `sentencepiece` library.

        Args:
            ids: int32 `[N, L]`.
            lengths: int32 `[N]`; only the first so many ids of a row count.
        """
        is_text = tf.constant(self.vocabulary.target_text_pieces())  # --> [V]
        known = (ids >= 0) & (ids < self.target_vocab_size)
        ids = tf.where(known, ids, self.pad_id)
        counted = tf.sequence_mask(lengths, tf.shape(ids)[1])  # --> [N, L]
        return self._target.detokenize(
            tf.ragged.boolean_mask(ids, counted & tf.gather(is_text, ids))
        )

    def save(self, directory: str | Path) -> None:
        """Writes `joint.model`, or `source.model` and `target.model`, into `directory`."""
        self.vocabulary.save(directory)

    @classmethod
    def load(cls, directory: str | Path) -> Tokenizer:
        """Reads what `save` wrote.

        Args:
            directory: that of the models, or one that holds it as `tokenizer/`.

        Raises:
            InputError: where there is no vocabulary, or a broken one.
        """
        vocabulary = Vocabulary.load(directory)
        target_model = None if vocabulary.joint else vocabulary.target_model
        return cls(vocabulary.source_model, target_model)


def cut(text: tf.Tensor, max_bytes: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Cuts texts, string `[B]`, that have more than `max_bytes` bytes, between characters.

    No string fails. In one that is no UTF-8 a character is taken to have at most 4 bytes.

    Returns:
        The texts, string `[B]`, and bool `[B]`, True for those that were cut.
    """
    too_long = tf.strings.length(text) > max_bytes
    # A byte 10xxxxxx continues a character: the cut is before the last byte that begins one,
    # of the first byte that has no room and the three before it.
    begin = tf.where(too_long, max(max_bytes - 3, 0), 0)
    window = tf.strings.substr(text, begin, tf.fill(tf.shape(begin), 4))
    window = tf.io.decode_raw(window, tf.uint8, fixed_length=4)
    begins = tf.bitwise.bitwise_and(window, 0xC0) != 0x80  # --> [B, 4]
    last = tf.reduce_max(tf.where(begins, tf.range(4), -1), axis=1)
    length = tf.where(last < 0, max_bytes, max_bytes - 3 + last)
    cut_text = tf.strings.substr(text, tf.zeros_like(length), length)
    return tf.where(too_long, cut_text, text), too_long


def _graph_tokenizer(model: bytes) -> tensorflow_text.SentencepieceTokenizer:
    # Not FastSentencepieceTokenizer: it segments wrongly with BPE and has no byte fallback.
    # Of two that have the same name in a SavedModel, both are the first once it is loaded.
    name = f"sentencepiece_{hashlib.sha256(model).hexdigest()[:16]}"
    return tensorflow_text.SentencepieceTokenizer(model, out_type=tf.int32, add_eos=True, name=name)


def _pieces(
    tokenizer: tensorflow_text.SentencepieceTokenizer, ids: tf.Tensor, vocab_size: int
) -> tf.Tensor:
    flat = tf.clip_by_value(tf.reshape(ids, [-1]), 0, vocab_size - 1)
    return tf.reshape(tokenizer.id_to_string(flat), tf.shape(ids))
