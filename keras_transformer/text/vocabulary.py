"""SentencePiece vocabularies: learns them from text, saves and loads them, without TensorFlow.

`Vocabulary` encodes lines with the `sentencepiece` library. `Tokenizer` in
`keras_transformer.text.tokenizer` does the same inside a TensorFlow graph.
"""

from __future__ import annotations

import functools
import hashlib
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import sentencepiece

from keras_transformer.errors import InputError, check_names, check_path, require
from keras_transformer.text.charsmap import default_normalizer
from keras_transformer.text.model_proto import (
    MODEL_TYPES,
    USER_DEFINED,
    ModelProto,
    add_missing_special_pieces,
    append_symbols,
    is_extension,
)
from keras_transformer.text.symbols import SYMBOLS

ModelType = Literal["unigram", "bpe"]
Normalization = Literal["nfkc_numbers", "nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity"]

# Learning needs about 20 bytes of memory per byte of text.
MAX_LINES = 1_000_000
MAX_BYTES = 60_000_000
MAX_LINE_BYTES = 16_384
# A higher share of unknown tokens in data or input is reported.
MAX_UNKNOWN_RATE = 0.01
_SPACE = "\u2581"  # how SentencePiece writes a space
_LANGUAGE = re.compile(rf"{_SPACE}?>>([^\s<>]+)<<")
SPECIAL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")
BYTE_PIECES = tuple(f"<0x{byte:02X}>" for byte in range(256))  # the pieces of byte fallback


def learn_vocabulary(
    lines: Iterable[bytes],
    vocab_size: int,
    *,
    model_type: ModelType = "unigram",
    byte_fallback: bool = False,
    character_coverage: float = 1.0,
    normalization: Normalization = "nfkc_numbers",
    symbols: Sequence[str] | None = None,
) -> bytes:
    """Learns a SentencePiece model (Kudo and Richardson, 2018, arXiv:1808.06226).

    The same lines and options give the same bytes. A short text gives a model with fewer than
    `vocab_size` tokens. With `byte_fallback` the model spells unknown characters in bytes. The
    normalization nfkc_numbers is nmt_nfkc without the rules that change numbers (10³ to 103) or how
    letters join.
    """
    model = io.BytesIO()
    rules: dict[str, Any] = {"normalization_rule_name": normalization}
    if normalization == "nfkc_numbers":  # a rule of this package
        rules = {"normalizer": default_normalizer()}
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            vocab_size=vocab_size,
            model_type=model_type,
            byte_fallback=byte_fallback,
            character_coverage=character_coverage,
            **rules,
            max_sentence_length=MAX_LINE_BYTES,
            hard_vocab_limit=False,
            pad_id=0,
            unk_id=1,
            bos_id=2,
            eos_id=3,
            # A fixed number, because sums of floats depend on the distribution over threads.
            num_threads=16,
            user_defined_symbols=list(symbols or ()),
            minloglevel=2,
        )
    except RuntimeError as error:  # its message names parts of SentencePiece's source code
        message = str(error)
        if too_small := re.search(r"smaller than required_chars\. \d+ vs (\d+)", message):
            raise InputError(
                f"vocab_size is {vocab_size}, but the text has {too_small[1]} different characters "
                f"and special tokens. Raise it to at least {too_small[1]}."
            ) from error
        if "sentences_.empty()" in message or "all_chars_count" in message:
            raise InputError("There is no text to learn a vocabulary from.") from error
        raise
    proto = ModelProto.FromString(model.getvalue())
    if model_type == "unigram":
        _make_sums_exact(proto)
    return proto.SerializeToString(deterministic=True)


def _make_sums_exact(proto: Any) -> None:
    """Rounds the scores of a unigram model to multiples of 1/1024.

    Segmentations of equal probability, such as "0|000" and "000|0", are common among digits.
    SentencePiece decides them by float32 rounding, which differs between the library and
    tensorflow-text. Sums of rounded scores are exact down to -16,384, so both make the same choice.
    """
    for piece in proto.pieces:
        piece.score = round(piece.score * 1024) / 1024


class Vocabulary:
    """One SentencePiece model for both languages, or one for each.

    A model such as M2M-100 has a token for each of its languages: a symbol of the source, such as
    ">>de<<", which is a control token of the target. Then source ids begin with the target language
    and the source language, and target ids with the target language. A text that does not begin
    with these symbols gets the default languages, which the SentencePiece models contain.
    """

    def __init__(self, source_model: bytes, target_model: bytes | None = None) -> None:
        self.joint = target_model is None
        self.source_model = source_model
        self.target_model = source_model if target_model is None else target_model
        self._source = _parse(source_model)
        self._target = self._source if target_model is None else _parse(target_model)
        ids, target_ids = _special_ids(self._source), _special_ids(self._target)
        if ids != target_ids:
            raise InputError(
                f"The special ids are {ids} in the source vocabulary, but {target_ids} in the "
                "target vocabulary. Both must be equal."
            )
        self.pad_id, self.unknown_id, self.start_id, self.end_id = ids.values()
        self.source_vocab_size: int = self._source.get_piece_size()
        self.target_vocab_size: int = self._target.get_piece_size()

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the two models, in hex."""
        digests = (hashlib.sha256(m).digest() for m in (self.source_model, self.target_model))
        return hashlib.sha256(b"".join(digests)).hexdigest()

    @functools.cached_property
    def language_ids(self) -> dict[str, int]:
        """The ids of the languages of a model such as M2M-100, by code; empty for other models."""
        names = {
            i: _LANGUAGE.fullmatch(self._source.id_to_piece(i))
            for i in range(min(self.source_vocab_size, self.target_vocab_size))
            if self._target.is_control(i)
        }
        return {match[1]: i for i, match in names.items() if match}

    @functools.cached_property
    def languages(self) -> tuple[str, str] | None:
        """The default source and target language, or None if the model has no `language_ids`."""
        if not self.language_ids:
            return None
        protos = map(ModelProto.FromString, (self.source_model, self.target_model))
        source, target = (str(proto.trainer_spec.accept_language[0]) for proto in protos)
        return source, target

    @property
    def language_tag(self) -> str | None:
        """The start of a text in the default languages, such as ">>deu<< >>eng<<", or None."""
        return self.languages and " ".join(f">>{code}<<" for code in reversed(self.languages))

    def with_languages(self, source: str | None, target: str | None) -> Vocabulary:
        """Returns a copy with other default languages. None keeps a language."""
        require(bool(self.language_ids), "This model has no languages to choose from.")
        codes = [code for code in (source, target) if code is not None]
        check_names(codes, [*self.language_ids], "a language of this model")
        models = []
        for model, code in ((self.source_model, source), (self.target_model, target)):
            proto = ModelProto.FromString(model)
            if code is not None:
                proto.trainer_spec.accept_language[:] = [code]
            models.append(proto.SerializeToString(deterministic=True))
        return Vocabulary(*models)

    def encode_source(self, lines: Sequence[bytes | str]) -> list[list[int]]:
        """Returns the source ids of each line, with `end_id` at the end."""
        rows = [self._source.encode(line, out_type=int, add_eos=True) for line in lines]
        if self.languages is None:
            return rows
        source, target = map(self.language_ids.__getitem__, self.languages)
        return [self._with_languages(row, [target, source]) for row in rows]

    def _with_languages(self, ids: list[int], defaults: list[int]) -> list[int]:
        """Adds missing languages to the ids of a text; a text without other tokens has none."""
        known, count = self.language_ids.values(), 0
        while count < len(defaults) and ids[count] in known:
            count += 1
        is_empty = len(ids) == count + 1
        return ids[count:] if is_empty else [*ids[:count], *defaults[count:], *ids[count:]]

    def encode_target(self, lines: Sequence[bytes | str]) -> list[list[int]]:
        """Returns the target ids of each line, with `end_id` at the end."""
        return [self._target.encode(line, out_type=int, add_eos=True) for line in lines]

    def encode_pairs(
        self, sources: Sequence[bytes | str], targets: Sequence[bytes | str]
    ) -> tuple[list[list[int]], list[list[int]]]:
        """Returns the source and the target ids of pairs, with `end_id` at the end."""
        source_ids, target_ids = self.encode_source(sources), self.encode_target(targets)
        if self.languages is not None:
            both = zip(source_ids, target_ids, strict=True)
            target_ids = [[source[0], *target] for source, target in both]
        return source_ids, target_ids

    def rewritten(self, side: Literal["source", "target"], texts: Sequence[str]) -> dict[int, str]:
        """Returns the texts that normalization changes: their indices and new text.

        A model never reads or writes the original characters. Spaces that are added, removed or
        replaced by other spaces do not count.
        """
        rewritten = {}
        model = self._source if side == "source" else self._target
        for index, normal in enumerate(model.normalize(list(texts))):
            words = normal.replace(_SPACE, " ").split()
            if words != texts[index].replace(_SPACE, " ").split():
                rewritten[index] = " ".join(words)
        return rewritten

    def normalized_target(self, texts: Sequence[str]) -> list[str]:
        """Returns target texts as a model can write them."""
        rewritten = self.rewritten("target", texts)
        return [rewritten.get(index, text) for index, text in enumerate(texts)]

    @functools.cached_property
    def shares_ids(self) -> bool:
        """True if each id has the same piece in both languages.

        Both languages can then share one embedding matrix. This is also possible with two models,
        such as those of OPUS-MT: each model has pieces that only the other one uses.
        """
        protos = (ModelProto.FromString(model) for model in self.models().values())
        pieces = [[piece.piece for piece in proto.pieces] for proto in protos]
        return pieces[0] == pieces[-1]

    @functools.cached_property
    def source_symbols(self) -> set[str]:
        """The texts that always become one token in the source.

        A symbol such as "\u2581>>deu<<" is one token only at the start of a word. This is
        without the space.
        """
        pieces = ModelProto.FromString(self.source_model).pieces
        return {piece.piece.lstrip(_SPACE) for piece in pieces if piece.type == USER_DEFINED}

    @functools.cached_property
    def symbol_ids(self) -> tuple[list[int], list[int]] | None:
        """The source and the target ids of `SYMBOLS`, or None if a language lacks one of them."""
        source, target = ([m.piece_to_id(t) for t in SYMBOLS] for m in (self._source, self._target))
        return None if self.unknown_id in source + target else (source, target)

    def describe(self) -> dict[str, Any]:
        """Returns type, sizes, special ids, normalization and fingerprint as JSON values."""
        proto = ModelProto.FromString(self.source_model)
        return {
            "type": "joint" if self.joint else "separate",
            "model_type": MODEL_TYPES.get(proto.trainer_spec.model_type, "unknown"),
            "normalization": proto.normalizer_spec.name,
            "source_size": self.source_vocab_size,
            "target_size": self.target_vocab_size,
            **{f"{name}_id": value for name, value in _special_ids(self._source).items()},
            "fingerprint": self.fingerprint,
        }

    @property
    def unknown_text(self) -> str:
        """The text of the unknown token in a translation, such as " ⁇ "."""
        trainer_spec = ModelProto.FromString(self.target_model).trainer_spec
        return trainer_spec.unk_surface or " \u2047 "

    def pieces(self) -> tuple[list[str], list[str]]:
        """Returns the source and the target pieces by id. Special pieces have the target's names.

        Other engines look tokens up by their pieces, and know the special pieces by name.
        """
        source, target = (
            [model.id_to_piece(i) for i in range(model.get_piece_size())]
            for model in (self._source, self._target)
        )
        for i in (self.pad_id, self.unknown_id, self.start_id, self.end_id):
            source[i] = target[i]
        return source, target

    @functools.cached_property
    def target_text_pieces(self) -> list[bool]:
        """For each target id, True if it is text of a line.

        False for special tokens, and for the control characters of byte fallback: a line break
        inside a translation would shift all lines after it.
        """
        model = self._target
        breaks = {BYTE_PIECES[code] for code in (*range(0x20), 0x7F)}
        return [
            not model.is_control(i) and not (model.is_byte(i) and model.id_to_piece(i) in breaks)
            for i in range(self.target_vocab_size)
        ]

    def target_spaces(self) -> list[bool]:
        """Returns for each target id whether its piece is only a space."""
        return [self._target.id_to_piece(i) == "\u2581" for i in range(self.target_vocab_size)]

    def target_text(self, ids: Sequence[int]) -> str:
        """Returns the text of target ids, in one line; special and unknown ids are skipped."""
        known = range(self.target_vocab_size)
        kept = [int(i) for i in ids if i in known and self.target_text_pieces[i]]
        return str(self._target.decode(kept))

    def models(self) -> dict[str, bytes]:
        """Returns the serialized models by file name, for `from_models`."""
        if self.joint:
            return {"joint.model": self.source_model}
        return {"source.model": self.source_model, "target.model": self.target_model}

    @classmethod
    def from_models(cls, models: Mapping[str, bytes]) -> Vocabulary:
        """Returns a vocabulary of serialized models by file name, as `models` returns them."""
        if "joint.model" in models:
            return cls(models["joint.model"])
        return cls(models["source.model"], models["target.model"])

    def save(self, directory: str | Path) -> None:
        """Writes `joint.model`, or `source.model` and `target.model`, into `directory`."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        for name, model in self.models().items():
            (directory / name).write_bytes(model)

    def with_symbols(self, symbols: Iterable[str]) -> Vocabulary:
        """Returns a copy of the vocabulary with these symbols appended.

        Old ids stay the same, so a trained model can be fine-tuned with the new vocabulary.
        """
        symbols = list(symbols)
        return self.from_models(
            {name: append_symbols(model, symbols) for name, model in self.models().items()}
        )

    def extends(self, old: Vocabulary) -> bool:
        """Returns True if this vocabulary is `old`, or `old` with more symbols after its ids."""
        return self.joint == old.joint and all(
            is_extension(*models)
            for models in zip(self.models().values(), old.models().values(), strict=True)
        )

    @classmethod
    def load(cls, directory: str | Path) -> Vocabulary:
        """Reads a vocabulary that `save` wrote, or a SentencePiece model."""
        path = Path(check_path(directory, "directory"))
        folders = (path, path / "tokenizer")
        joint = ([folder / "joint.model"] for folder in folders)
        separate = ([folder / "source.model", folder / "target.model"] for folder in folders)
        for files in ([path], *joint, *separate):
            if all(file.is_file() for file in files):
                models = {file.name: file.read_bytes() for file in files}
                try:
                    if path.is_file():
                        _parse(models[path.name])
                        return cls(add_missing_special_pieces(models[path.name]))
                    return cls.from_models(models)
                except InputError as error:
                    raise InputError(f"{' and '.join(map(str, files))}: {error}") from None
        raise InputError(
            f"{directory} contains no vocabulary. It needs joint.model, or source.model and "
            "target.model, directly or in its folder tokenizer. Or give the file of a "
            "SentencePiece model."
        )


def _parse(model: bytes) -> sentencepiece.SentencePieceProcessor:
    if model:  # SentencePiece accepts an empty model, and logs errors later
        try:
            return sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError:
            pass
    raise InputError(f"{len(model)} bytes are not a SentencePiece model.")


def _special_ids(model: sentencepiece.SentencePieceProcessor) -> dict[str, int]:
    functions = (model.pad_id, model.unk_id, model.bos_id, model.eos_id)
    ids = {name: f() for name, f in zip(("pad", "unknown", "start", "end"), functions, strict=True)}
    missing = [name for name, piece_id in ids.items() if piece_id < 0]
    if missing:
        raise InputError(
            f"The SentencePiece model lacks the special tokens {', '.join(missing)}. Give its file "
            "to the preparation as vocab_from=FILE.model, which adds them, or train it "
            "with pad_id, unk_id, bos_id and eos_id of 0 or more."
        )
    return ids
