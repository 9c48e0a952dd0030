"""Templates and CLDR slots, composed into different phrases, split and written."""

import os
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from keras_transformer.data.corpora.phrasebook import (
    measure_templates,
    time_templates,
    world_templates,
)
from keras_transformer.data.corpora.phrasebook.slots import ORDERED, slots
from keras_transformer.errors import InputError
from keras_transformer.runs.atomic import atomic_path


class Template(NamedTuple):
    """A sentence in both languages, with the same `{slot}` names on both sides."""

    english: str
    german: str


class Phrase(NamedTuple):
    """A sentence with its exact translation and the template that both came from."""

    english: str
    german: str
    template: Template


class Split(NamedTuple):
    """Phrases to learn from, to choose by, and to score once."""

    train: list[Phrase]
    valid: list[Phrase]
    test: list[Phrase]


def _parse(tables: Sequence[str]) -> tuple[Template, ...]:
    """One template a line, `English | Deutsch`; empty lines and `#` comments between."""
    lines = (line.strip() for table in tables for line in table.splitlines())
    return tuple(
        Template(*(side.strip() for side in line.split("|")))
        for line in lines
        if line and not line.startswith("#")
    )


TEMPLATES: tuple[Template, ...] = _parse(
    (time_templates.TABLE, world_templates.TABLE, measure_templates.TABLE)
)


def _slots_by_kind(template: Template) -> dict[str, list[str]]:
    """Slot names by kind: `{time2}` is a second value of the kind `time`."""
    names: dict[str, list[str]] = {}
    for name in sorted(re.findall(r"{(\w+)}", template.english)):
        names.setdefault(name.rstrip("0123456789"), []).append(name)
    return names


def _draw_values(
    slots_by_kind: dict[str, list[str]], rng: random.Random
) -> tuple[dict[str, str], dict[str, str]]:
    """English and German values by slot name; two of one kind differ."""
    english, german = {}, {}
    for kind, names in slots_by_kind.items():
        values = slots()[kind]
        drawn = rng.sample(range(len(values)), len(names))
        if kind in ORDERED:
            drawn.sort()
        for name, index in zip(names, drawn, strict=True):
            english[name], german[name] = values[index]
    return english, german


def _sentence(pattern: str, values: dict[str, str]) -> str:
    text = pattern.format(**values)
    return text[0].upper() + text[1:]


def _render(template: Template, count: int, rng: random.Random) -> Iterator[Phrase]:
    """At most `count` different phrases of one template."""
    seen: set[str] = set()
    slots_by_kind = _slots_by_kind(template)
    for _ in range(20 * count):  # enough tries to draw nearly every value of a small slot
        if len(seen) == count:
            return
        english_values, german_values = _draw_values(slots_by_kind, rng)
        english = _sentence(template.english, english_values)
        if english not in seen:
            seen.add(english)
            yield Phrase(english, _sentence(template.german, german_values), template)


def phrases(seed: int = 1, per_template: int = 100) -> list[Phrase]:
    """Phrases of all templates, about `per_template` of each, no two with the same English.

    The same arguments (and the same CLDR) give the same list.
    """
    by_english: dict[str, Phrase] = {}
    for template in TEMPLATES:
        rng = random.Random(f"{seed}/{template.english}")
        for phrase in _render(template, per_template, rng):
            by_english.setdefault(phrase.english, phrase)
    return list(by_english.values())


def split(
    corpus: Sequence[Phrase], seed: int = 1, valid_size: int = 500, test_size: int = 1000
) -> Split:
    """Shuffles the phrases and holds some out.

    Since no two phrases of `phrases` have the same English, none held out is learned from.

    Raises:
        InputError: if nothing would be left to learn from.
    """
    if len(corpus) <= valid_size + test_size:
        raise InputError(
            f"{len(corpus)} phrases cannot be split; expected more than the "
            f"{valid_size} + {test_size} to hold out"
        )
    shuffled = list(corpus)
    random.Random(f"{seed}/split").shuffle(shuffled)
    held_out = test_size + valid_size
    return Split(shuffled[held_out:], shuffled[test_size:held_out], shuffled[:test_size])


def write_corpus(directory: str | os.PathLike[str], seed: int = 1) -> Split:
    """Writes {train,valid,test}.{en,de}: UTF-8, one phrase a line, each ended by a newline.

    The directory appears whole or not at all. One that already holds these six files
    with these contents is left alone.

    Returns:
        The phrases written.

    Raises:
        InputError: if something else is there already, or nothing can be written there.
    """
    target = Path(directory)
    parts = split(phrases(seed), seed)
    contents = {
        f"{name}.{language}": "".join(f"{line}\n" for line in lines).encode()
        for name, part in parts._asdict().items()
        for language, lines in (
            ("en", [phrase.english for phrase in part]),
            ("de", [phrase.german for phrase in part]),
        )
    }
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        if all(_holds(target / name, content) for name, content in contents.items()):
            return parts
        raise InputError(
            f"{target} already holds something else; expected a new or empty directory, "
            f"or the phrasebook of seed {seed}"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(target) as partial:
            partial.mkdir()
            for name, content in contents.items():
                (partial / name).write_bytes(content)
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror}") from None
    return parts


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content
