"""What the export of a parser has in addition: its signatures, and the texts of its model card."""

from __future__ import annotations

from keras_transformer.export.extra_signatures import ExtraSignatures
from keras_transformer.export.saved_model.model_card import TaskCard
from keras_transformer.inference.translator import Translator
from keras_transformer.paper.parsing.parser import Parser
from keras_transformer.paper.parsing.symbol_vocabulary import is_parser


def _describe(languages: tuple[str, str] | None) -> str:
    language = "" if languages is None else f" of the language {languages[0]}"
    return f"parses sentences{language} into constituents"


_CARD = TaskCard(
    name="constituency-parsing",
    pipeline_tag=None,
    description=_describe,
    result="text goes in and trees in brackets come out",
    outputs="trees",
    limit="A tree has every word, whatever the model says, and may be wrong all the same.",
    request={"signature_name": "parse", "inputs": {"text": ["A sentence to parse."]}},
    usage="`parse` splits text into words as newer treebanks do, `parse_tokens` at spaces; "
    "the leaves of `trees` are these words, with -LRB- and -RRB- for brackets. What the "
    "other signatures call a translation are the symbols of a tree.",
)


def parser_signatures(translator: Translator) -> ExtraSignatures | None:
    """Returns the signatures `parse` and `parse_tokens`, or None if the model is not a parser.

    The vocabulary of the model decides. The export compares `parse_tokens` with the run.
    """
    if not is_parser(translator.tokenizer.vocabulary):
        return None
    parser = Parser(translator)
    return ExtraSignatures(
        functions={"parse": parser.parse, "parse_tokens": parser.parse_tokens},
        compared={"parse_tokens": "tokens"},
        card=_CARD,
        owner=parser,
    )
