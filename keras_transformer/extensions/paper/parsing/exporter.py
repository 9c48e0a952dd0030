"""Exports parsers: SavedModels that also have the signatures `parse` and `parse_tokens`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from keras_transformer.export import ExportOptions, VersionFacts
from keras_transformer.export.saved_model.engine import SavedModelEngine
from keras_transformer.export.saved_model.exporter import SavedModelExporter, check_scores
from keras_transformer.extensions.paper.parsing.parser import Parser
from keras_transformer.extensions.paper.parsing.treebank import require_parser
from keras_transformer.inference.translation_module import TranslationModule

_TASK: dict[str, Any] = {
    "task": "constituency-parsing",
    "description": "parses sentences into constituents and returns trees in brackets",
    "limit": "Every tree contains all words of the sentence, but the tree can still be wrong.",
}


class ParserExporter(SavedModelExporter):
    """The format `parser`."""

    options = SavedModelExporter.options - {"quality", "shortlist"}
    request = {"signature_name": "parse", "inputs": {"text": ["A sentence to parse."]}}
    usage = (
        "`parse` splits text into words as newer treebanks do, `parse_tokens` at spaces; "
        "the leaves of `trees` are these words, with -LRB- and -RRB- for brackets. What the "
        "other signatures call a translation are the symbols of a tree."
    )

    def prepare(self, translator: TranslationModule, options: ExportOptions) -> TranslationModule:
        require_parser(translator.tokenizer.vocabulary, "the run")
        return super().prepare(translator, options)

    def extra_signatures(
        self, translator: TranslationModule
    ) -> tuple[Any, dict[str, Callable[..., Any]]]:
        parser = Parser(translator)
        return parser, {"parse": parser.parse, "parse_tokens": parser.parse_tokens}

    def compare_signatures(
        self, translator: TranslationModule, engine: SavedModelEngine, texts: list[str]
    ) -> None:
        super().compare_signatures(translator, engine, texts)
        parser = Parser(translator)
        expected = parser.parse_tokens(tf.constant(texts))["scores"].numpy()
        (found,) = engine.call([("parse_tokens", {"tokens": texts})])
        check_scores("parse_tokens", found["scores"], expected)

    def describe(
        self, translator: TranslationModule, folder: Path, options: ExportOptions
    ) -> VersionFacts:
        facts = super().describe(translator, folder, options)
        return facts._replace(**_TASK)


EXPORTER = ParserExporter()
