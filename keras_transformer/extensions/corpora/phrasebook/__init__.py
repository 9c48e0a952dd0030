"""An embedded English-German corpus of short phrases, generated without a download.

Dates, times, amounts, units and names come from the Unicode CLDR through `babel`; hand-written
templates put them into sentences.
"""

import os
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from keras_transformer.errors import InputError, require
from keras_transformer.runs.atomic import atomic_path

# A sentence in English and in German, with the same `{slot}` names on both sides.
Template = tuple[str, str]


class Phrase(NamedTuple):
    """A sentence with its exact translation and the template that both came from."""

    english: str
    german: str
    template: Template


TEMPLATES: tuple[Template, ...] = tuple(
    (english.strip(), german.strip())
    for line in Path(__file__).with_name("templates.txt").read_text("utf-8").splitlines()
    if line and not line.startswith("#")
    for english, german in [line.split("|")]
)
# Phrases that are not for training.
_TEST, _VALID = 1000, 500


def phrases(seed: int = 1, per_template: int = 100) -> list[Phrase]:
    """Returns about `per_template` phrases of each template, no two with the same English.

    The result depends only on the arguments and on the version of the CLDR.
    """
    by_english: dict[str, Phrase] = {}
    for template in TEMPLATES:
        rng = random.Random(f"{seed}/{template[0]}")
        for phrase in _render(template, per_template, rng):
            by_english.setdefault(phrase.english, phrase)
    return list(by_english.values())


def _render(template: Template, count: int, rng: random.Random) -> list[Phrase]:
    """Returns at most `count` different phrases of one template."""
    from keras_transformer.extensions.corpora.phrasebook.slots import ORDERED, slots  # an extra

    # `{time2}` is a second value of the kind `time`. Two values of a kind differ.
    names_of_kind: dict[str, list[str]] = {}
    for name in sorted(re.findall(r"{(\w+)}", template[0])):
        names_of_kind.setdefault(name.rstrip("0123456789"), []).append(name)
    found: dict[str, Phrase] = {}
    for _ in range(20 * count):  # enough tries to draw nearly every value of a small slot
        if len(found) == count:
            break
        values: dict[str, tuple[str, str]] = {}
        for kind, names in names_of_kind.items():
            drawn = rng.sample(range(len(slots()[kind])), len(names))
            if kind in ORDERED:
                drawn.sort()
            values |= {name: slots()[kind][i] for name, i in zip(names, drawn, strict=True)}
        english, german = (
            pattern.format(**{name: pair[side] for name, pair in values.items()})
            for side, pattern in enumerate(template)
        )
        english, german = (text[0].upper() + text[1:] for text in (english, german))
        found.setdefault(english, Phrase(english, german, template))
    return list(found.values())


def split(corpus: Sequence[Phrase], seed: int = 1) -> dict[str, list[Phrase]]:
    """Shuffles the phrases and splits them into `train`, `valid` and `test`.

    No two phrases of `phrases` have the same English, so that no test phrase is in training.
    """
    shuffled = list(corpus)
    random.Random(f"{seed}/split").shuffle(shuffled)
    return {
        "train": shuffled[_TEST + _VALID :],
        "valid": shuffled[_TEST : _TEST + _VALID],
        "test": shuffled[:_TEST],
    }


def write_corpus(directory: str | os.PathLike[str], seed: int = 1) -> dict[str, list[Phrase]]:
    """Writes {train,valid,test}.{en,de}: UTF-8, one phrase a line, each ended by a newline.

    The directory is created atomically. If it already holds the same six files, nothing happens.
    """
    target = Path(directory)
    parts = split(phrases(seed), seed)
    contents = {
        f"{name}.{language}": "".join(f"{phrase[side]}\n" for phrase in part).encode()
        for name, part in parts.items()
        for side, language in enumerate(("en", "de"))
    }
    try:
        if target.exists() and any(target.iterdir()):
            paths = {name: target / name for name in contents}
            found = {name: path.read_bytes() for name, path in paths.items() if path.is_file()}
            message = f"{target} contains other files. Choose a new or empty directory."
            require(found == contents, message)
            return parts
        with atomic_path(target) as partial:
            partial.mkdir(parents=True)
            for name, content in contents.items():
                (partial / name).write_bytes(content)
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror}") from None
    return parts
