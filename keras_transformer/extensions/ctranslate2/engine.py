"""Runs an export for CTranslate2, without TensorFlow."""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from keras_transformer.config import DecodingConfig
from keras_transformer.errors import needs_extra
from keras_transformer.inference import output_limit, updated_decoding
from keras_transformer.inference.engine import Engine
from keras_transformer.text.symbols import SYMBOLS, TERM_SYMBOLS
from keras_transformer.text.vocabulary import Vocabulary

with needs_extra("ctranslate2", "the format ctranslate2"):
    import ctranslate2

_SETTINGS = ("beam_size", "n_best", "length_penalty", "max_extra_tokens")


class CTranslate2Engine(Engine):
    """A CTranslate2 model with SentencePiece models. Its length penalty is log P / length^α.

    `tokenizer` is the SentencePiece model of both languages; by default, those of the directory.
    `options` are arguments of `ctranslate2.Translator`.
    """

    vocabulary: Vocabulary
    keeps_unknown = False  # the pieces of unknown characters are these characters
    changeable = tuple(f"decoding.{name}" for name in _SETTINGS)
    max_batch_lines = 16
    max_source_tokens = 1024  # the default of `translate_batch`; a program chooses its own limit

    def __init__(self, folder: Path, tokenizer: Path | None = None, **options: Any):
        ctranslate2.set_log_level(logging.ERROR)  # this CPU may lack the type of the weights
        self.label, self.threads = str(folder), options.get("inter_threads")
        self.use_shortlist = (folder / "vmap.txt").exists()
        self.vocabulary = Vocabulary.load(tokenizer or folder)
        self._decoding = DecodingConfig()
        self._model = ctranslate2.Translator(str(folder), **options)
        # The language that begins a translation is the first source token here, but not there.
        self._num_forced = int(self.vocabulary.languages is not None)
        self._tokenizer, self._detokenizer = (
            sentencepiece.SentencePieceProcessor(model_proto=model)
            for model in (self.vocabulary.source_model, self.vocabulary.target_model)
        )
        self._config = json.loads((folder / "config.json").read_bytes())
        joint = folder / "shared_vocabulary.json"
        files = [folder / f"{side}_vocabulary.json" for side in ("source", "target")]
        files = [joint, joint] if joint.exists() else files
        self._source, self._target = (json.loads(file.read_bytes()) for file in files)
        self._symbols = {*SYMBOLS, *TERM_SYMBOLS} & {*self._target}

    def with_settings(self, settings: Mapping[str, Any]) -> CTranslate2Engine:
        super().with_settings(settings)  # refuses others
        changed = copy.copy(self)
        changed._decoding = updated_decoding(self._decoding, settings)
        changed.n_best = changed._decoding.n_best
        return changed

    def pieces(self, texts: Sequence[str]) -> list[list[str]]:
        """Returns the pieces of each text, truncated, without the end token."""
        if self.keeps_unknown:
            rows = self._tokenizer.encode(list(texts), out_type=str)
        else:
            lines = [text.encode("utf-8", "replace") for text in texts]
            ids = self.vocabulary.encode_source(lines)
            rows = [self._tokenizer.id_to_piece(row[:-1]) for row in ids]
        return [row[: self.max_source_tokens - 1] for row in rows]

    def translate(self, text: Any) -> Mapping[str, Any]:
        decoding, first = self._decoding, self._num_forced
        sources = self.pieces([line.decode("utf-8", "replace") for line in np.asarray(text)])
        longest = max(map(len, sources)) + 1
        texts = np.full((len(sources), self.n_best), b"", object)
        scores = np.full(texts.shape, -1e9, np.float32)
        scores[:, 0] = 0  # stays for empty lines, which CTranslate2 would translate
        filled = [index for index, source in enumerate(sources) if source]
        results = self._model.translate_batch(
            [sources[index][first:] for index in filled],
            target_prefix=[sources[index][:first] for index in filled],
            beam_size=decoding.beam_size,
            num_hypotheses=self.n_best,
            length_penalty=decoding.length_penalty,
            max_decoding_length=output_limit(decoding, longest),
            max_input_length=0,
            return_scores=True,
            # Symbols that no source of the batch has, as in the search of a run.
            suppress_sequences=[[symbol] for symbol in self._symbols.difference(*sources)],
            use_vmap=self.use_shortlist,
        )
        for index, result in zip(filled, results, strict=True):
            limit = output_limit(decoding, len(sources[index]) + 1)  # CTranslate2 has one per batch
            for rank, pieces in enumerate(result.hypotheses):
                known = [p for p in pieces[first:limit] if p != self._config["unk_token"]]
                texts[index, rank] = self._detokenizer.decode(known).encode()
            scores[index, : len(result.scores)] = result.scores
        return {"translations": texts, "scores": scores}

    def lengths(self, text: Any) -> Mapping[str, Any]:
        rows = self.vocabulary.encode_source(list(text))
        tokens = np.array([len(ids) for ids in rows], np.int32)
        unknown = np.array([ids.count(self._tokenizer.unk_id()) for ids in rows], np.int32)
        used = np.minimum(tokens, self.max_source_tokens)
        return {"tokens": tokens, "used": used, "unknown": unknown}

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        ids = {piece: i for i, piece in enumerate(self._source)}
        unknown_id, end_id = (ids[self._config[name]] for name in ("unk_token", "eos_token"))
        rows = self.pieces(texts)
        return [[*(ids.get(piece, unknown_id) for piece in row), end_id] for row in rows]

    def log_probs(
        self, texts: Sequence[str], targets: Sequence[Sequence[int]]
    ) -> list[float | None]:
        sources = self.pieces(texts)
        outputs = [[self._target[i] for i in ids[:-1]] for ids in targets]  # drops the end tokens
        first = self._num_forced
        results = self._model.score_batch(
            [row[first:] for row in sources], outputs, max_batch_size=64, max_input_length=0
        )
        # Without any source token, the engine returns no log-probabilities.
        adds_end, pairs = self._config["add_source_eos"], zip(sources, results, strict=True)
        return [float(np.sum(r.log_probs[first:])) if row or adds_end else None for row, r in pairs]
