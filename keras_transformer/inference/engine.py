"""Engines: opened models, which `kt.load`, the commands, the server and the exports share."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from keras_transformer.errors import InputError
from keras_transformer.inference import updated_decoding
from keras_transformer.inference.batching import BatchFunction, outputs_by_line, string_array

if TYPE_CHECKING:  # imported late: an engine of another kind does not load TensorFlow
    from keras_transformer.inference.translation_module import TranslationModule
    from keras_transformer.text.vocabulary import Vocabulary


class Hypotheses(NamedTuple):
    """The search results of a sentence as NumPy arrays, best first.

    Attributes:
        ids: int32 `(n_best, length)`.
        lengths: int32 `(n_best,)`, including the end token.
        scores: float32 `(n_best,)`.
        texts: the translations as UTF-8, if they are known.
        quality: float32 `(n_best,)`, or None if the model has none.
    """

    ids: np.ndarray
    lengths: np.ndarray
    scores: np.ndarray
    texts: Sequence[bytes] = ()
    quality: np.ndarray | None = None

    def tokens(self) -> list[list[int]]:
        """Returns the ids of each hypothesis, without padding."""
        return [ids[:n].tolist() for ids, n in zip(self.ids, self.lengths, strict=True)]


class Engine:
    """An opened model, which translates.

    Attributes:
        label: the path or address of the model.
        n_best: number of translations per line.
        max_train_source_length: tokens of the longest source in training, including the end
            token, or None if it is unknown.
        single_sentences: whether the training sources were single sentences, as far as is known.
        source_tag: what a server or the model adds to texts without a tag, such as
            ">>deu<< >>eng<<" of a model that has a token for each language; None for nothing.
        source_language: code of the source language, as in "de", or None if it is unknown.
        target_language: the same of the target language.
        glossary: a `documents.glossary.Glossary` of terms in the translations, or None.
        casing: "auto" to translate texts in capitals like others, and write them in capitals again;
            None if only documents and lines with terms are; "keep" for none.
        splits_texts: whether documents are split into sentences.
        max_batch_lines: the most lines of a call; None for the default of the device.
        threads: number of calls at the same time; None: as TensorFlow is configured.
        translate_verbose: a function from `text` and `prefix`, string `(batch,)`, to the outputs
            of `TranslationModule.translate_verbose`, or None. LiteRT models lack some outputs, and
            servers have None.
        has_quality: whether `translate_verbose` returns the quality of translations.
        fallback: what replaces a translation of low quality, and the least quality that is not low.
        retry: like `translate_verbose`, with a search for translations that were bad, or None.
        vocabulary: the SentencePiece models, or None if they are unknown, as those of a server.
        changeable: the settings that `with_settings` can change.
    """

    label = ""
    n_best = 1
    max_train_source_length: int | None = None
    single_sentences = False
    source_language: str | None = None
    target_language: str | None = None
    glossary: Any = None
    casing: str | None = None
    splits_texts = True
    max_batch_lines: int | None = None
    threads: int | None = None
    translate_verbose: BatchFunction | None = None
    has_quality = False
    fallback: tuple[str, float] = ("keep", 0.0)
    retry: BatchFunction | None = None
    vocabulary: Vocabulary | None = None
    changeable: tuple[str, ...] = ()

    @functools.cached_property
    def symbols(self) -> tuple[str, ...] | None:
        """The symbols of the source vocabulary, such as <2de>, or None if they are unknown."""
        return None if self.vocabulary is None else tuple(sorted(self.vocabulary.source_symbols))

    @functools.cached_property
    def source_tag(self) -> str | None:
        """The default languages of the model, or None if it has no tokens for them."""
        return None if self.vocabulary is None else self.vocabulary.language_tag

    # Users of the model call these methods. Arrays may be tensors.

    def translate(self, text: Any) -> Mapping[str, Any]:
        """Translates lines, bytes `(batch,)`.

        Returns:
            `translations`, bytes `(batch, n_best)`, and `scores`, float32 `(batch, n_best)`.
        """
        raise NotImplementedError

    def lengths(self, text: Any) -> Mapping[str, Any]:
        """Counts the source tokens of lines, bytes `(batch,)`.

        Returns:
            `tokens`, `used` and `unknown`, int32 `(batch,)`, as in `TranslationModule.lengths`.
        """
        raise NotImplementedError

    def release_memory(self) -> None:
        """Frees what only calls at the same time need. They allocate it again."""

    def with_settings(self, settings: Mapping[str, Any]) -> Engine:
        """Returns an engine that shares the weights and has other `decoding.` settings.

        Raises:
            InputError: for an invalid setting, or one that was fixed at export.
        """
        fixed = [name for name in settings if name not in self.changeable]
        if fixed:
            only = f", only {' and '.join(self.changeable)}" if self.changeable else ""
            raise InputError(
                f"{self.label} is an export or a server: {' and '.join(fixed)} cannot be changed "
                f"after the export{only}. Use the run directory."
            )
        return self

    # The comparison of an export with its run needs `tokenize`, and `search` or `log_probs`.

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the source ids of each text, truncated, with the end token."""
        raise NotImplementedError

    def search(self, texts: Sequence[str]) -> list[Hypotheses]:
        """Searches for translations of each text."""
        raise NotImplementedError

    def log_probs(
        self, texts: Sequence[str], targets: Sequence[Sequence[int]]
    ) -> Sequence[float | None]:
        """Returns the log-probability of a translation of each text, or None if it has none.

        Args:
            texts: the sources.
            targets: the ids of their translations, with the end token.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Ends what the engine has started, such as a process."""


class KerasEngine(Engine):
    """Translates with Keras models: a run, an ensemble, or a format that stores their weights.

    Args:
        module: the models, the tokenizer and the options of the search.
        label: the name of the model in messages.
        jit_compile: compile the search with XLA, for each batch shape.
    """

    def __init__(self, module: TranslationModule, label: str = "", jit_compile: bool = False):
        from keras_transformer.inference.translation_module import compiled_translation

        self.module, self.label, self._jit_compile = module, label, jit_compile
        self.n_best = module.config.n_best
        self.max_train_source_length = module.max_train_source_length
        self.vocabulary = module.tokenizer.vocabulary
        self.translate_verbose = module.translate_verbose
        self.has_quality = module.quality is not None
        self._translate = compiled_translation(module) if jit_compile else module.translate

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        found = self.module.source_ids(string_array(texts))
        ids, lengths, _ = (tensor.numpy() for tensor in found)
        return [row[:length].tolist() for row, length in zip(ids, lengths, strict=True)]

    def search(self, texts: Sequence[str]) -> list[Hypotheses]:
        def outputs(text: np.ndarray) -> dict[str, Any]:
            result = self.module.translate_to_ids(text)
            ids = {name: getattr(result, name) for name in ("ids", "lengths", "scores")}
            return {**ids, "texts": self.module.texts(result, text)}

        def outputs_with_quality(text: np.ndarray) -> dict[str, Any]:
            found = self.module.translate_verbose(text, np.full(len(text), b""))
            ids = {name: found[name] for name in ("ids", "lengths", "scores", "quality")}
            return {**ids, "texts": found["translations"]}

        search = outputs if self.module.quality is None else outputs_with_quality
        return [Hypotheses(**row) for row in outputs_by_line(search, texts)]

    def log_probs(self, texts: Sequence[str], targets: Sequence[Sequence[int]]) -> list[float]:
        from keras_transformer.inference.scoring import Scorer, score_ids

        return [float(row.sum()) for row in score_ids(Scorer(self.module), texts, targets)]

    def translate(self, text: Any) -> Mapping[str, Any]:
        return self._translate(text)

    def lengths(self, text: Any) -> Mapping[str, Any]:
        return self.module.lengths(text)

    def with_settings(self, settings: Mapping[str, Any]) -> KerasEngine:
        if not settings:
            return self
        module = self.module.with_options(updated_decoding(self.module.config, settings))
        engine = copy.copy(self)  # keeps what the loader knows of the model
        KerasEngine.__init__(engine, module, self.label, self._jit_compile)
        return engine
