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

import dataclasses
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics
from keras_transformer.export import Exporter, ExportOptions, ExportResult
from keras_transformer.export.comparison import (
    check_references,
    check_tokens,
    ids_by_pieces,
    plain_texts,
    text_name,
)
from keras_transformer.export.manifest import Provenance, write_manifest
from keras_transformer.export.model_card import (
    FormatCard,
    ModelCardData,
    model_card,
    model_name,
)
from keras_transformer.export.probes import probe_texts
from keras_transformer.extensions.converters import ConvertOptions
from keras_transformer.extensions.converters.huggingface import (
    read as read_marian_mt,
)
from keras_transformer.extensions.converters.pieces import table_pieces
from keras_transformer.extensions.huggingface import transformers_process
from keras_transformer.extensions.huggingface.directory import (
    CARD_ABOUT,
    CARD_USE,
    WEIGHTS,
    check_search,
    hf_length_penalty,
    write_directory,
)
from keras_transformer.extensions.huggingface.tensors import (
    EPSILON,
    check_expressible,
    has_usual_positions,
    to_marian,
)
from keras_transformer.inference.batching import batches
from keras_transformer.inference.loading import load_translator
from keras_transformer.inference.scoring import Scorer, score_ids
from keras_transformer.inference.translation_module import TranslationModule
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.atomic import write_version
from keras_transformer.runs.run_directory import RunDirectory

_TOLERANCE = 1e-3  # for the log-probability of a translation, a sum of many rounded terms
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


def export(
    run: str | Path | RunDirectory,
    output_dir: Path,
    sentences: Sequence[str],
    settings: Mapping[str, Any] | None,
    options: ExportOptions,
) -> ExportResult:
    """Writes the next version under `output_dir`.

    The version gets its number only if the converter for MarianMT models reads it, if it gives the
    run's translations of `sentences` and of a few generated texts the same log-probabilities as the
    run, and if its tokenizer gives the ids of the run. If `transformers` is installed, it loads the
    version, and its log-probabilities and ids are compared, too.
    """
    check_references(sentences, options.references, None, options.tokenize)
    translator = load_translator(run, settings)
    if len(translator.transformers) > 1:
        raise InputError(
            f"{run} is an ensemble, but MarianMT is a single model. Export a single run."
        )
    transformer = translator.transformer
    assert isinstance(transformer, Transformer)
    check_expressible(transformer.config)
    check_search(translator.config)
    provenance = Provenance.of(run, translator, "float32")
    card = options.card or ModelCardData()
    probes = probe_texts(translator.tokenizer.vocabulary, sentences)
    pieces, _ = table_pieces(translator.tokenizer.vocabulary)
    codes = [piece for piece in pieces if piece.startswith(">>")]
    tokenized, probed = (
        [text for text in plain_texts(translator, each) if not any(code in text for code in codes)]
        for each in probes
    )
    # MarianTokenizer finds language tokens only at the beginning of a text.
    tokenized += [f"{code} a" for code in codes]
    has_transformers = all(map(importlib.util.find_spec, ("transformers", "torch")))

    def write(path: Path) -> tuple[float, metrics.Scores | None]:
        marian = _marian_model(transformer)
        texts = [*sentences, *probed]
        translations = _translations(translator, texts)
        lengths = [len(ids) for ids, _ in translations[: len(sentences)]]
        exponent = hf_length_penalty(translator.config, float(np.mean(lengths)))
        write_directory(path, translator, marian, card.languages, exponent)
        check_tokens(translator, tokenized, _token_ids(path, tokenized))
        scored = _Scored(
            [text_name(text, number, len(sentences)) for number, text in enumerate(texts, 1)],
            texts,
            [ids for ids, _ in translations],
        )
        expected = scored.log_probs(translator)
        # The converter reads the files with a separate table of names.
        converted = read_marian_mt(path, ConvertOptions())
        changed = TranslationModule(
            [converted.transformer()], converted.tokenizer(), translator.config
        )
        difference = scored.largest_difference(scored.log_probs(changed), expected)
        if has_transformers:
            ids, log_probs = _with_transformers(path, tokenized, scored)
            check_tokens(translator, tokenized, ids)
            difference = max(difference, scored.largest_difference(log_probs, expected))
        scores = None
        if options.references is not None:
            best = [text for _, text in translations[: len(sentences)]]
            scores = metrics.evaluate(best, options.references, tokenize=options.tokenize)
        format_card = FormatCard(
            CARD_ABOUT,
            CARD_USE,
            ("transformer", "marian"),
            (path / WEIGHTS).stat().st_size,
            library="transformers",
        )
        text = model_card(
            model_name(output_dir),
            provenance,
            dataclasses.replace(card, scores=scores),
            format_card,
        )
        (path / "README.md").write_text(text, encoding="utf-8")
        write_manifest(path, provenance, signatures={})
        return difference, scores

    path, (difference, scores) = write_version(output_dir, write)
    warnings = [] if has_transformers else [_NOT_INSTALLED]
    if translator.config.length_penalty and translator.config.length_penalty_formula != "power":
        warnings.append(_PENALTY)
    if not has_usual_positions(transformer.config):
        warnings.append(_STORED_POSITIONS)
    warning = " ".join(warnings) or None
    return ExportResult(path, len(sentences), [], difference, scores, warning)


def _marian_model(transformer: Transformer) -> Transformer:
    """Returns the model in the form of `to_marian`."""
    weights = {path: each.numpy() for path, each in transformer.weights_by_path().items()}
    config, weights = to_marian(transformer.config, weights)
    changed = Transformer(config, dtype="float32")
    changed.assign_weights(weights)
    return changed


def _translations(
    translator: TranslationModule, texts: Sequence[str]
) -> list[tuple[list[int], str]]:
    """Returns the best translation of each text: its ids with the end id, and its text."""
    end_id = translator.tokenizer.end_id
    translations = [([end_id], "")] * len(texts)
    for batch in batches(texts):
        result = translator.search(tf.constant([texts[i] for i in batch]))
        best = translator.texts(result)[:, 0].numpy()
        rows = zip(result.ids[:, 0].numpy(), result.lengths[:, 0].numpy(), best, strict=True)
        for index, (ids, length, text) in zip(batch, rows, strict=True):
            row = [i for i in ids[:length].tolist() if i != end_id]
            translations[index] = ([*row, end_id], text.decode("utf-8", "replace"))
    return translations


class _Scored(NamedTuple):
    """The translations whose log-probabilities are compared."""

    names: Sequence[str]  # for messages
    texts: Sequence[str]
    target_ids: Sequence[Sequence[int]]

    def log_probs(self, translator: TranslationModule) -> list[float]:
        scores = score_ids(Scorer(translator), self.texts, self.target_ids)
        return [score.log_prob for score in scores]

    def largest_difference(self, found: Sequence[float], expected: Sequence[float]) -> float:
        """Returns the largest difference, or raises `InputError` if it is more than rounding."""
        largest = 0.0
        for name, other, own in zip(self.names, found, expected, strict=True):
            if not abs(other - own) < _TOLERANCE:  # also fails for NaN
                raise InputError(
                    f"The export gives the translation of {name} the log-probability {other:.5f}, "
                    f"the run {own:.5f}. MarianMT always has model.layer_norm_epsilon={EPSILON:g}: "
                    "if the run has another one, train it further with this one. Nothing was "
                    "exported."
                )
            largest = max(largest, abs(other - own))
        return largest


def _token_ids(path: Path, texts: Sequence[str]) -> list[list[int]]:
    """Returns the ids that MarianTokenizer finds with the files of a version."""
    ids = json.loads((path / "vocab.json").read_bytes())
    settings = json.loads((path / "tokenizer_config.json").read_bytes())
    # It takes language tokens, such as `>>de<<`, from the beginning.
    matches = [re.match("(?s)(>>.*?<<)?(.*)", text) for text in texts]
    unknown_id, limit = ids[settings["unk_token"]], settings["model_max_length"]
    rows = ids_by_pieces(
        path / "source.spm",
        ids,
        [match[2] for match in matches if match],
        unknown_id=unknown_id,
        end_id=ids[settings["eos_token"]],
        max_tokens=limit,
    )
    codes = [[ids.get(match[1], unknown_id)] if match and match[1] else [] for match in matches]
    return [
        [*code, *ids_of_text][: limit - 1] + [end_id]
        for code, (*ids_of_text, end_id) in zip(codes, rows, strict=True)
    ]


def _with_transformers(
    path: Path, tokenized: Sequence[str], scored: _Scored
) -> tuple[list[list[int]], list[float]]:
    """Returns the ids of texts, and the log-probability of each translation, in `transformers`."""
    request = {
        "tokenized": tokenized,
        "pairs": list(zip(scored.texts, scored.target_ids, strict=True)),
    }
    with tempfile.TemporaryDirectory() as name:
        files = Path(name) / "request.json", Path(name) / "results.json"
        files[0].write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-I", transformers_process.__file__, str(path), *map(str, files)]
        process = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if process.returncode:
            lines = process.stderr.strip().splitlines()
            raise RuntimeError(
                "transformers cannot use the export: "
                + (lines[-1] if lines else f"exit code {process.returncode}")
            )
        results = json.loads(files[1].read_bytes())
    return results["tokenized"], results["log_probs"]


class MarianMTExporter(Exporter):
    """The format `huggingface`."""

    options = frozenset({"card"})
    export = staticmethod(export)


EXPORTER = MarianMTExporter()
