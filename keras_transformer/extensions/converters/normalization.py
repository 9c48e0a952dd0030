"""Normalization rules of SentencePiece that do what Moses does.

Models of OPUS-MT were trained on text whose punctuation other programs had normalized. Here the
same replacements become rules of the SentencePiece model, so they run in the graph. A rule replaces
a text of a few characters, and SentencePiece joins spaces afterwards. Moses has regular expressions
instead. They change runs of punctuation and spaces, and rarely depend on the text around a run. So
all short runs are normalized with sacremoses, and become rules unless shorter rules give the same
result.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import sentencepiece

from keras_transformer.errors import InputError, needs_extra
from keras_transformer.text.charsmap import with_rules
from keras_transformer.text.model_proto import ModelProto
from keras_transformer.text.vocabulary import Vocabulary

UNICODE = "unicode"  # the name of the rules that only replace single characters

_SPACE = "\u2581"
# Characters that normalize-punctuation.perl replaces, or looks for next to others.
_ASCII = " ().!:?;,%'\""
_PUNCTUATION = _ASCII + "\u00a0`„“”–—´‘‚’…«»"
_MAX_RUN = 4  # characters


def normalize_punctuation(vocabulary: Vocabulary, language: str) -> Vocabulary:
    """Returns a vocabulary whose source model normalizes punctuation first, as Moses does.

    Ids stay the same. Only source texts are normalized.
    """
    if language != UNICODE and not re.fullmatch("[a-z]{2,3}", language):
        raise InputError(
            f"normalize_punctuation is {language!r}. It must be {UNICODE}, or a language code such "
            "as en."
        )
    rules = _unicode_rules() if language == UNICODE else _moses_rules(language)
    proto = ModelProto.FromString(vocabulary.source_model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.source_model)

    def then_normalized(text: str) -> str:
        """Applies the old rules to the result of a new one, but keeps spaces around it."""
        text = text.replace("\u00a0", " ")  # the old rules would remove it at the end
        core = text.strip(" ")
        normal = processor.normalize(core).strip(_SPACE).replace(_SPACE, " ")
        return text.replace(core, normal) if core else text

    spec = proto.normalizer_spec
    spec.precompiled_charsmap = with_rules(
        spec.precompiled_charsmap,
        {text: then_normalized(replacement) for text, replacement in rules.items()},
    )
    source_model = bytes(proto.SerializeToString(deterministic=True))
    return Vocabulary(source_model, vocabulary.target_model)


def _unicode_rules() -> dict[str, str]:
    """Returns the replacements of replace-unicode-punctuation.perl."""
    normalizer = _moses("en")
    characters = (pattern[0] for pattern, _ in normalizer.REPLACE_UNICODE_PUNCTUATION)
    return {char: normalizer.replace_unicode_punct(char) for char in characters}


@functools.cache
def _moses_rules(language: str) -> dict[str, str]:
    """Returns rules that normalize a text as both scripts do, if the longest match wins."""
    normalizer = _moses(language, pre_replace_unicode_punct=True)
    rules: dict[str, str] = {}
    wide = [*_PUNCTUATION, *(char for char in _unicode_rules() if char not in _PUNCTUATION)]
    for size, characters in enumerate([wide, wide, _PUNCTUATION, _ASCII], start=1):
        runs = ["".join(run) for run in itertools.product(characters, repeat=size)]
        _add_rules(rules, runs, normalizer.normalize)
    for first, space, last in itertools.product("0123456789", " \u00a0", "%0123456789"):
        text = f"{first}{space}{last}"
        if (normal := normalizer.normalize(text)) != text:
            rules[text] = normal
    return rules


def _moses(language: str, **options: bool) -> Any:
    with needs_extra("moses", "normalize_punctuation"):
        import sacremoses
    return sacremoses.MosesPunctNormalizer(language, **options)


def _add_rules(rules: dict[str, str], runs: Sequence[str], normalize: Callable[[str], str]) -> None:
    """Adds a rule for each run of punctuation that shorter rules do not normalize."""

    def normalized(after: str) -> list[str]:
        """Normalizes each run after a letter and before another character."""
        text = "\n".join(f"x{run}{after}" for run in runs)
        return [line[1:-1] for line in normalize(text).split("\n")]

    new = {}
    # To Moses, "<" is like the end of a text: quotation marks stay after a full stop.
    for run, inside, at_end in zip(runs, normalized("x"), normalized("<"), strict=True):
        # A run without a space after it is more often at the end of a text than before a letter.
        is_same = run[-1] in " \u00a0" or inside.rstrip() == at_end.rstrip()
        wanted = inside if is_same else at_end
        if _joined(_apply(rules, run)) != _joined(wanted):
            new[run] = wanted
    rules.update(new)


def _apply(rules: dict[str, str], text: str) -> str:
    """Replaces the longest rule at each position of a text."""
    parts, start = [], 0
    while start < len(text):
        sizes = range(min(_MAX_RUN, len(text) - start), 0, -1)
        size = next((size for size in sizes if text[start : start + size] in rules), 0)
        found = text[start : start + size]
        parts.append(rules[found] if size else text[start])
        start += max(size, 1)
    return "".join(parts)


def _joined(run: str) -> str:
    """Joins the spaces of a run between two letters, as SentencePiece does."""
    return re.sub("[ \u00a0]+", " ", run)
