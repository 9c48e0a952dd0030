"""SentencePiece vocabularies: learned from text, kept in files, used without TensorFlow.

`Vocabulary` encodes a corpus with the `sentencepiece` library, in threads;
`keras_transformer.text.tokenizer.Tokenizer` does the same inside a graph.
"""

from __future__ import annotations

import functools
import hashlib
import io
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import sentencepiece

from keras_transformer.errors import InputError
from keras_transformer.text.model_proto import MODEL_TYPES, UNIGRAM, USER_DEFINED, ModelProto

ModelType = Literal["unigram", "bpe"]
Normalization = Literal["nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity"]

# Learning takes some 20 bytes of memory a byte of text.
MAX_LINES = 1_000_000
MAX_BYTES = 60_000_000
MAX_LINE_BYTES = 16_384
MAX_VOCAB_SIZE = 1_000_000
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")
BYTE_PIECES = tuple(f"<0x{byte:02X}>" for byte in range(256))  # those of byte fallback


def sample_lines(lines: Iterable[bytes], max_lines: int = MAX_LINES, seed: int = 1) -> list[bytes]:
    """Draws lines uniformly in one pass (Vitter 1985, algorithm R).

    Returns all lines of a text that is within both limits. The sample is halved whenever it
    exceeds `MAX_BYTES`.

    Example:
    >>> sample_lines([b"a", b"b"], max_lines=2)
    [b'a', b'b']
    """
    random_ = random.Random(seed)
    sample: list[bytes] = []
    in_bytes = 0
    for number, line in enumerate(lines):
        if number < max_lines:
            sample.append(line)
            in_bytes += len(line)
        elif (place := random_.randrange(number + 1)) < max_lines:
            in_bytes += len(line) - len(sample[place])
            sample[place] = line
        if in_bytes > MAX_BYTES and len(sample) > 1:
            max_lines = len(sample) // 2
            sample = random_.sample(sample, max_lines)
            in_bytes = sum(map(len, sample))
    return sample


def learn_vocabulary(
    lines: Iterable[bytes],
    vocab_size: int,
    *,
    model_type: ModelType = "unigram",
    byte_fallback: bool = False,
    character_coverage: float = 1.0,
    normalization: Normalization = "nmt_nfkc",
    symbols: Sequence[str] = (),
) -> bytes:
    """Learns a SentencePiece model (Kudo and Richardson 2018) and returns its proto.

    The same lines and options give the same bytes. A text that holds
    fewer than `vocab_size` pieces gives a smaller model (short corpora keep
    working): the number of ids is the model's, never assumed.

    Args:
        lines: UTF-8, one sentence each; for a large text a sample (see `sample_lines`).
            SentencePiece ignores lines of more than `MAX_LINE_BYTES`.
        vocab_size: pieces wanted, the four special ones (and the 256 of byte
            fallback) included.
        model_type: "unigram" (Kudo 2018) or "bpe" (Sennrich et al. 2016).
        byte_fallback: spell unknown characters in bytes, so that nothing is unknown.
        character_coverage: share of the text's characters that get a piece; below
            1 for texts with thousands of rare ones.
        normalization: SentencePiece's rule; "nmt_nfkc_cf" also folds case.
        symbols: pieces of their own wherever they stand, as "<2de>".

    Returns:
        The serialized model, with pad, unknown, start and end ids 0, 1, 2 and 3. The
        scores of a unigram model are rounded so that ties are decided alike everywhere.

    Raises:
        InputError: for no text, a size too small for the text's characters, an
            unknown option, or what `check_symbols` refuses.
    """
    check_learning_options(vocab_size, model_type, character_coverage, normalization)
    check_symbols(symbols, byte_fallback)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            vocab_size=vocab_size,
            model_type=model_type,
            byte_fallback=byte_fallback,
            character_coverage=character_coverage,
            normalization_rule_name=normalization,
            max_sentence_length=MAX_LINE_BYTES,
            hard_vocab_limit=False,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            # Sums of floats depend on how the lines are split among the threads.
            num_threads=16,
            user_defined_symbols=list(symbols),
            minloglevel=2,
        )
    except RuntimeError as error:
        raise _learning_error(vocab_size, error) from error
    return _with_exact_sums(model.getvalue()) if model_type == "unigram" else model.getvalue()


def check_learning_options(
    vocab_size: int, model_type: str, character_coverage: float, normalization: str
) -> None:
    """Raises `InputError` for options that `learn_vocabulary` refuses whatever the text."""
    if vocab_size < 5:
        raise InputError(
            f"vocab_size is {vocab_size}; expected at least 5: four special pieces and text"
        )
    if vocab_size > MAX_VOCAB_SIZE:
        raise InputError(f"vocab_size is {vocab_size}; expected at most {MAX_VOCAB_SIZE:,}")
    if not 0.98 <= character_coverage <= 1:
        raise InputError(f"character_coverage is {character_coverage}; expected from 0.98 to 1")
    for name, value, choices in (
        ("model_type", model_type, get_args(ModelType)),
        ("normalization", normalization, get_args(Normalization)),
    ):
        if value not in choices:
            raise InputError(f"{name} is {value!r}; expected one of {', '.join(choices)}")


def check_symbols(symbols: Iterable[str], byte_fallback: bool) -> None:
    """Raises `InputError` for symbols that cannot be pieces of their own."""
    for symbol in symbols:
        if not symbol or any(character.isspace() for character in symbol):
            raise InputError(f"the symbol {symbol!r} has spaces or nothing; expected as <2de>")
        if symbol in SPECIAL_PIECES:
            raise InputError(
                f"the symbol {symbol} is a piece that every vocabulary has; expected as <2de>"
            )
        if byte_fallback and symbol in BYTE_PIECES:
            raise InputError(
                f"the symbol {symbol} is a piece that every vocabulary with byte_fallback has; "
                "expected as <2de>"
            )


def _learning_error(vocab_size: int, error: RuntimeError) -> Exception:
    """Says in the user's terms what SentencePiece says in terms of its source."""
    message = str(error)
    too_small = re.search(r"smaller than required_chars\. \d+ vs (\d+)", message)
    if too_small:
        return InputError(
            f"vocab_size is {vocab_size}; expected at least {too_small[1]}, as the text has that "
            "many different characters and special pieces"
        )
    if "sentences_.empty()" in message or "all_chars_count" in message:
        return InputError("there is no text to learn a vocabulary from")
    return error


def _with_exact_sums(model: bytes) -> bytes:
    """Rounds the scores of a unigram model to multiples of 1/1024.

    Segmentations of equal probability ("0|000" and "000|0") are common among
    digits. SentencePiece decides them by float32 rounding, and its release in
    tensorflow-text rounds otherwise than the library. Sums of rounded scores
    are exact down to -16,384, and then both take the same one.
    """
    proto = ModelProto.FromString(model)
    for piece in proto.pieces:
        piece.score = round(piece.score * 1024) / 1024
    return proto.SerializeToString(deterministic=True)


class Vocabulary:
    """One SentencePiece model for both languages, or one for each.

    Attributes:
        source_model, target_model: the serialized protos; the same when joint.
        joint: whether one model serves both languages.
        source_vocab_size, target_vocab_size: numbers of ids.
        pad_id, unknown_id, start_id, end_id: as the protos say.
    """

    def __init__(self, source_model: bytes, target_model: bytes | None = None) -> None:
        """Parses the models.

        Raises:
            InputError: for bytes that are no SentencePiece model, a special piece
                that is missing, or special ids that differ between the two.
        """
        self.joint = target_model is None
        self.source_model = source_model
        self.target_model = source_model if target_model is None else target_model
        self._source = _parse(source_model)
        self._target = self._source if target_model is None else _parse(target_model)
        ids = _special_ids(self._source)
        for (name, source_id), target_id in zip(
            ids.items(), _special_ids(self._target).values(), strict=True
        ):
            if source_id != target_id:
                raise InputError(
                    f"the {name} id is {source_id} in the source vocabulary and {target_id} in "
                    "the target vocabulary; expected the same"
                )
        self.pad_id, self.unknown_id, self.start_id, self.end_id = ids.values()
        self.source_vocab_size: int = self._source.get_piece_size()
        self.target_vocab_size: int = self._target.get_piece_size()

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the two models, in hex: equal for equal segmentations."""
        digests = (hashlib.sha256(m).digest() for m in (self.source_model, self.target_model))
        return hashlib.sha256(b"".join(digests)).hexdigest()

    def encode_source(self, lines: Sequence[bytes], threads: int = -1) -> list[list[int]]:
        """Returns the ids of each line, which end with `end_id`; with -1 threads, one a core."""
        return self._source.encode(list(lines), out_type=int, add_eos=True, num_threads=threads)

    def encode_target(self, lines: Sequence[bytes], threads: int = -1) -> list[list[int]]:
        """Returns the ids of each line, which end with `end_id`; with -1 threads, one a core."""
        return self._target.encode(list(lines), out_type=int, add_eos=True, num_threads=threads)

    def source_symbols(self) -> set[str]:
        """Returns the pieces of the source that stand for themselves wherever they are."""
        pieces = ModelProto.FromString(self.source_model).pieces
        return {piece.piece for piece in pieces if piece.type == USER_DEFINED}

    def describe(self) -> dict[str, Any]:
        """Returns type, sizes, special ids, normalization and fingerprint as JSON values."""
        proto = ModelProto.FromString(self.source_model)
        return {
            "type": "joint" if self.joint else "separate",
            "model_type": MODEL_TYPES.get(proto.trainer_spec.model_type, "unknown"),
            "normalization": proto.normalizer_spec.name,
            "source_size": self.source_vocab_size,
            "target_size": self.target_vocab_size,
            "pad_id": self.pad_id,
            "unknown_id": self.unknown_id,
            "start_id": self.start_id,
            "end_id": self.end_id,
            "fingerprint": self.fingerprint,
        }

    def source_piece(self, piece_id: int) -> str:
        """Returns the piece of a source id."""
        return str(self._source.id_to_piece(piece_id))

    def target_text_pieces(self) -> list[bool]:
        """Says for each target id whether it may appear in one line of text.

        Control pieces may not, nor may the bytes of control characters, which
        byte fallback has pieces for: a line break inside a translation would
        shift all the lines after it.
        """
        model = self._target
        breaks = {BYTE_PIECES[code] for code in (*range(0x20), 0x7F)}
        return [
            not model.is_control(i) and not (model.is_byte(i) and model.id_to_piece(i) in breaks)
            for i in range(self.target_vocab_size)
        ]

    def target_text(self, ids: Sequence[int]) -> str:
        """Returns the text, in one line, of target ids.

        As `Tokenizer.detokenize`: no id fails; those that are no pieces of text give nothing.
        """
        known = range(self.target_vocab_size)
        kept = [int(i) for i in ids if i in known and self._is_target_text[i]]
        return str(self._target.decode(kept))

    @functools.cached_property
    def _is_target_text(self) -> list[bool]:
        return self.target_text_pieces()

    @property
    def is_plain_unigram(self) -> bool:
        """Whether both models are unigram models without byte fallback."""
        protos = map(ModelProto.FromString, (self.source_model, self.target_model))
        specs = [proto.trainer_spec for proto in protos]
        return all(spec.model_type == UNIGRAM and not spec.byte_fallback for spec in specs)

    def models(self) -> dict[str, bytes]:
        """Returns the serialized protos by their files' names, as `of` takes them."""
        if self.joint:
            return {"joint.model": self.source_model}
        return {"source.model": self.source_model, "target.model": self.target_model}

    @classmethod
    def of(cls, models: Mapping[str, bytes]) -> Vocabulary:
        """Makes a vocabulary of what `models` returns.

        Raises:
            InputError: for no or broken models.
            KeyError: where one is missing.
        """
        if "joint.model" in models:
            return cls(models["joint.model"])
        return cls(models["source.model"], models["target.model"])

    def save(self, directory: str | Path) -> None:
        """Writes `joint.model`, or `source.model` and `target.model`, into `directory`."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        for name, model in self.models().items():
            (directory / name).write_bytes(model)

    @classmethod
    def load(cls, directory: str | Path) -> Vocabulary:
        """Reads what `save` wrote.

        Args:
            directory: that of the models, or one that holds it as `tokenizer/`.

        Raises:
            InputError: where there is no vocabulary, or a broken one.
        """
        for place in (Path(directory), Path(directory) / "tokenizer"):
            for names in (["joint.model"], ["source.model", "target.model"]):
                paths = [place / name for name in names]
                if all(path.is_file() for path in paths):
                    try:
                        return cls.of({path.name: path.read_bytes() for path in paths})
                    except InputError as error:
                        raise InputError(f"{' and '.join(map(str, paths))}: {error}") from None
        raise InputError(
            f"{directory} holds no vocabulary; expected joint.model, or source.model and "
            "target.model, in it or in its folder tokenizer"
        )


def _parse(model: bytes) -> sentencepiece.SentencePieceProcessor:
    if model:  # An empty proto parses, to a model that logs an error at each use.
        try:
            return sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError:
            pass
    raise InputError(f"{len(model)} bytes that are no SentencePiece model; expected its proto")


def _special_ids(model: sentencepiece.SentencePieceProcessor) -> dict[str, int]:
    ids = {
        "pad": model.pad_id(),
        "unknown": model.unk_id(),
        "start": model.bos_id(),
        "end": model.eos_id(),
    }
    missing = [name for name, piece_id in ids.items() if piece_id < 0]
    if missing:
        raise InputError(
            f"the SentencePiece model has no {' and no '.join(missing)} piece; expected one "
            "learned with pad_id, unk_id, bos_id and eos_id of 0 or more"
        )
    return ids
