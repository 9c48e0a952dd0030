"""Exports a run as a MarianMT directory, which `transformers` loads.

A version contains `config.json`, `generation_config.json`, `model.safetensors`, the tokenizer
(`vocab.json`, `source.spm`, `target.spm`, `tokenizer_config.json`), a model card (`README.md`) and
`manifest.json`. Ids are those of the run.

MarianMT is a post-norm Transformer. These differences remain:

* The epsilon of its layer norms is 1e-5. The comparison measures how much this changes.
* `generate` divides log P by length^α, as with `decoding.length_penalty_formula=power`.
* The length limit of a translation does not depend on its source.
* A text that begins like `>>de<<` begins with a language token, even if the vocabulary has none.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_transformer.config import ModelConfig
from keras_transformer.errors import InputError
from keras_transformer.export import (
    Engine,
    Exporter,
    ExportOptions,
    ExportResult,
    KerasEngine,
    VersionFacts,
)
from keras_transformer.export.probes import plain_texts
from keras_transformer.extensions.converters.loader import open_directory
from keras_transformer.extensions.converters.pieces import table_pieces
from keras_transformer.extensions.huggingface import transformers_process
from keras_transformer.extensions.huggingface.directory import (
    CARD_ABOUT,
    CARD_USE,
    check_search,
    write_directory,
)
from keras_transformer.extensions.huggingface.tensors import (
    EPSILON,
    check_expressible,
    has_usual_positions,
    to_marian,
)
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.models.transformer import Transformer

_NOT_INSTALLED = (
    "transformers is not installed, so only the files were compared with the run. To load the "
    "export with it, too, install transformers and torch."
)
_STORED_POSITIONS = (
    "The sinusoids of this model are not those of MarianMT, so the file contains them. "
    "transformers reads them, but save_pretrained leaves them out."
)
_PENALTY = (
    "The run divides log-probabilities by ((5 + length) / 6)^α, but generate divides by a power of "
    "the length, which was chosen to be similar. A few translations differ. To search in the same "
    "way here, set decoding.length_penalty_formula=power."
)


class TransformersEngine(Engine):
    """A version that `transformers` reads, in another process."""

    def __init__(self, folder: Path):
        self._folder = folder

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        return list(self._results(tokenized=texts, pairs=[])["tokenized"])

    def log_probs(
        self, texts: Sequence[str], targets: Sequence[Sequence[int]]
    ) -> list[float | None]:
        pairs = list(zip(texts, targets, strict=True))
        return list(self._results(tokenized=[], pairs=pairs)["log_probs"])

    def _results(self, **request: Sequence[Any]) -> Any:
        process = subprocess.run(
            [sys.executable, "-I", transformers_process.__file__, str(self._folder)],
            input=json.dumps(request), capture_output=True, text=True, check=False,
        )  # fmt: skip
        if process.returncode:
            lines = process.stderr.strip().splitlines() or [f"exit code {process.returncode}"]
            raise RuntimeError(f"transformers cannot use the export: {lines[-1]}")
        return json.loads(process.stdout.splitlines()[-1])  # libraries may print before


class HuggingFaceExporter(Exporter):
    """Writes a MarianMT directory, and compares log-probabilities.

    If `transformers` is installed, it loads the version, too.
    """

    kind = "a MarianMT model"
    comparison = "log_probs"
    ensembles = False

    def prepare(self, translator: TranslationModule, options: ExportOptions) -> TranslationModule:
        check_expressible(_config(translator))
        check_search(translator.config)
        return translator

    def probes(self, translator: TranslationModule, sentences: Sequence[str]) -> list[str]:
        pieces, _ = table_pieces(translator.tokenizer.vocabulary)
        codes = [piece for piece in pieces if piece.startswith(">>")]
        texts = plain_texts(translator, super().probes(translator, sentences))
        # MarianTokenizer finds language tokens only at the beginning of a text.
        others = [text for text in texts if not any(code in text for code in codes)]
        return [*others, *(f"{code} a" for code in codes)]

    def write(self, translator: TranslationModule, folder: Path, options: ExportOptions) -> None:
        weights = translator.transformer.weights_by_path()
        arrays = {path: weight.numpy() for path, weight in weights.items()}
        config, arrays = to_marian(_config(translator), arrays)
        changed = Transformer(config, dtype="float32")
        changed.assign_weights(arrays)
        write_directory(folder, translator, changed, options.languages)

    def open(
        self, folder: Path, precision: str = "float32", jit_compile: bool = False
    ) -> KerasEngine:
        return open_directory(folder, precision, jit_compile)

    def open_for_comparison(self, folder: Path) -> KerasEngine:
        limit = json.loads((folder / "tokenizer_config.json").read_bytes())["model_max_length"]
        return self.open(folder).with_settings({"decoding.max_source_tokens": limit})

    def compare(
        self,
        translator: TranslationModule,
        engine: Engine,
        sentences: Sequence[str],
        probes: Sequence[str],
        options: ExportOptions,
    ) -> ExportResult:
        engines = [engine]
        if _has_transformers():
            engines.append(TransformersEngine(Path(engine.label)))
        epsilon = _config(translator).other_toolkits.layer_norm_epsilon
        differences = []
        try:
            for opened in engines:
                result = super().compare(translator, opened, sentences, probes, options)
                differences.append(result.largest_difference or 0.0)
        except InputError as error:
            if epsilon == EPSILON:
                raise
            raise InputError(
                f"{error} MarianMT always has model.layer_norm_epsilon={EPSILON:g}, but the run "
                f"has {epsilon:g}. Train it further with this one."
            ) from error
        return result._replace(largest_difference=max(differences))

    def describe(
        self, translator: TranslationModule, folder: Path, options: ExportOptions
    ) -> VersionFacts:
        warnings = [] if _has_transformers() else [_NOT_INSTALLED]
        decoding = translator.config
        if decoding.length_penalty and decoding.length_penalty_formula != "power":
            warnings.append(_PENALTY)
        if not has_usual_positions(_config(translator)):
            warnings.append(_STORED_POSITIONS)
        warning = " ".join(warnings) or None
        tags = ("transformer", "marian")
        return VersionFacts(CARD_ABOUT, CARD_USE, tags, "transformers", warning=warning)


EXPORTER = HuggingFaceExporter()


def _has_transformers() -> bool:
    return all(map(importlib.util.find_spec, ("transformers", "torch")))


def _config(translator: TranslationModule) -> ModelConfig:
    assert isinstance(translator.transformer, Transformer)
    return translator.transformer.config
