"""Fills templates with CLDR values, splits the phrases, and writes them to files."""

import os
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from keras_transformer.errors import InputError
from keras_transformer.extensions.corpora.phrasebook.slots import ORDERED, slots
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
    """The phrases for training, validation and testing."""

    train: list[Phrase]
    valid: list[Phrase]
    test: list[Phrase]


def _read_templates() -> tuple[Template, ...]:
    """Reads templates.txt. Skips empty lines and `#` comments."""
    text = Path(__file__).with_name("templates.txt").read_text(encoding="utf-8")
    return tuple(
        Template(*(side.strip() for side in line.split("|")))
        for line in text.splitlines()
        if line and not line.startswith("#")
    )


TEMPLATES = _read_templates()


def _slots_by_kind(template: Template) -> dict[str, list[str]]:
    """Returns slot names by kind: `{time2}` is a second value of the kind `time`."""
    names: dict[str, list[str]] = {}
    for name in sorted(re.findall(r"{(\w+)}", template.english)):
        names.setdefault(name.rstrip("0123456789"), []).append(name)
    return names


def _draw_values(
    slots_by_kind: dict[str, list[str]], rng: random.Random
) -> tuple[dict[str, str], dict[str, str]]:
    """Draws English and German values by slot name; two of one kind differ."""
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
    """Yields at most `count` different phrases of one template."""
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
    """Returns about `per_template` phrases of each template, no two with the same English.

    The result depends only on the arguments and on the version of the CLDR.
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
    """Shuffles the phrases and splits them.

    No two phrases of `phrases` have the same English, so that no test phrase is in training.
    """
    if len(corpus) <= valid_size + test_size:
        raise InputError(
            f"The corpus has {len(corpus)} phrases, but {valid_size} + {test_size} of them must be "
            "held out."
        )
    shuffled = list(corpus)
    random.Random(f"{seed}/split").shuffle(shuffled)
    held_out = test_size + valid_size
    return Split(shuffled[held_out:], shuffled[test_size:held_out], shuffled[:test_size])


def write_corpus(directory: str | os.PathLike[str], seed: int = 1) -> Split:
    """Writes {train,valid,test}.{en,de}: UTF-8, one phrase a line, each ended by a newline.

    The directory is created atomically. If it already holds the same six files, nothing happens.
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
        raise InputError(f"{target} contains other files. Choose a new or empty directory.")
    try:
        with atomic_path(target) as partial:
            partial.mkdir(parents=True)
            for name, content in contents.items():
                (partial / name).write_bytes(content)
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror}") from None
    return parts


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content
