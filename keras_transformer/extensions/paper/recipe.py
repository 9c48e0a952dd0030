"""Recipes: folders of data that describe how to reproduce a result.

A recipe is `recipes/NAME/recipe.json`. It has the texts for training, validation and tests, the
options of the preparation, a preset and settings, the candidates that validation selects from, the
scoring of test translations, and published results. `run.py` runs it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import heapq
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import (
    Any,
    Literal,
    NotRequired,
    TypedDict,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from keras_transformer.config import Config
from keras_transformer.config.schema import check_scalar, require_type, without_none
from keras_transformer.data.corpus import Corpus, ParallelFiles
from keras_transformer.data.prepare import PrepareOptions
from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics
from keras_transformer.presets import preset
from keras_transformer.runs.atomic import atomic_path

Synthetic = Literal["back_translation", "distillation"]
MoreFormat = Literal["litert", "ctranslate2"]
Text = Mapping[str, str]

# The forms of a text, by their fields: for training, for validation, and for tests.
_TRAINING_FORMS = (
    {"source", "target"},  # files of the corpus directory
    {"tsv"},  # a file of the corpus directory with both
    {"tfds", "split", "source_language"},  # a TFDS data set in the corpus directory
)
_VALIDATION_FORMS = (*_TRAINING_FORMS, {"held_out"})  # a part of the training text
_TEST_FORMS = (*_VALIDATION_FORMS, {"sacrebleu", "language_pair"})  # a test set of sacreBLEU
_TAUGHT_FORMS = (*_TRAINING_FORMS, {"source"})  # a teacher generates the targets

# Fields that recipe.json does not have.
_NOT_IN_FILE = ("name", "variant")

TRAIN = "train"
_PART = re.compile(r"(?!\d)\w{1,100}")  # the name of a part or a test, for file names


# The classes would not tell which keys are required, because annotations are texts here.
# How translations are scored: arguments of `metrics.evaluate`.
Scoring = TypedDict(  # noqa: UP013
    "Scoring", {"tokenize": str | None, "lowercase": bool, "as_in_paper": bool}, total=False
)
# A published result. Its measure is `bleu` (the default of the recipe) or `paper_bleu`; other
# measures are not compared.
Published = TypedDict(  # noqa: UP013
    "Published", {"bleu": float, "source": str, "measure": NotRequired[str]}
)
# The models that generate pairs. Several seeds are an ensemble.
GeneratorFields = TypedDict(  # noqa: UP013
    "GeneratorFields",
    {"recipe": str, "variant": NotRequired[str], "seeds": NotRequired[Sequence[int]]},
)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The content of recipe.json.

    A text is `{"source": FILE, "target": FILE}`, `{"tsv": FILE}`, `{"tfds": NAME, "split": SPLIT,
    "source_language": CODE}`, `{"held_out": PART}`, or, for tests, `{"sacrebleu": NAME,
    "language_pair": PAIR}`. The training text of a student may also be
    `{"source": FILE}`.

    Attributes:
        prepare: fields of `PrepareOptions`.
        settings: changes to the configuration `preset`.
        held_out: number of sentences of parts that are taken out of `train`.
        synthetic: generated pairs that are added to `train`, by kind, with the model that generates
            them. "back_translation" generates sources, and "distillation" targets. Both together
            are data diversification (Nguyen et al., 2020).
        fine_tune: True if training starts from a run that the user gives. The vocabulary, the model
            and the search are those of the run, and `preset` gives only the training.
        teacher: True if a run that the user gives teaches the model (sequence-level distillation;
            Kim and Rush, 2016). It translates the training sources, and the model gets its
            vocabulary. Both are exported for CPUs and compared, in quality and in speed.
        average_last: numbers of last checkpoints whose averages are candidates.
        length_penalties: candidates for `decoding.length_penalty`.
        more_formats: formats of further exports. Tests are scored by the SavedModel.
        variants: changed fields of each variant by name; of `prepare`, `settings` and `synthetic`
            only the changed entries. The variant `rehearsal` is a small run of everything.
        variant: name of the current variant, or empty. Several are joined with +.
    """

    name: str
    description: str
    train: Text
    valid: Text
    tests: Mapping[str, Text]
    prepare: Mapping[str, Any]
    preset: str
    settings: Mapping[str, Any]
    evaluate: Scoring
    held_out: Mapping[str, int] = dataclasses.field(default_factory=dict)
    synthetic: Mapping[Synthetic, GeneratorFields] = dataclasses.field(default_factory=dict)
    fine_tune: bool = False
    teacher: bool = False
    average_last: Sequence[int] = dataclasses.field(default_factory=list)
    length_penalties: Sequence[float] = dataclasses.field(default_factory=list)
    more_formats: Sequence[MoreFormat] = dataclasses.field(default_factory=list)
    published: Mapping[str, Published] = dataclasses.field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    variant: str = ""

    @property
    def identity(self) -> dict[str, Any]:
        """All fields that results depend on.

        Fields with their default value are left out, so that a new field of recipes does not
        change the identity of existing recipes.
        """
        aside = ("description", "published", "variants")
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in aside and getattr(self, field.name) != _default(field)
        }

    @property
    def has_targets(self) -> bool:
        """False if a teacher generates all targets of the training text."""
        return self.train.keys() != {"source"}

    @classmethod
    def load(cls, recipes_dir: str | Path, name: str) -> Recipe:
        """Reads `recipes_dir/name/recipe.json`."""
        name = name.rstrip("/")  # a shell adds it when it completes the name
        paths = Path(recipes_dir).glob("*/recipe.json")
        known = sorted(path.parent.name for path in paths if path.is_file())
        if name not in known:
            raise InputError(f"The recipe {name!r} is unknown. Choose one of {', '.join(known)}.")
        path = Path(recipes_dir) / name / "recipe.json"
        try:
            recipe = cls._of(name, json.loads(path.read_text(encoding="utf-8")))
            for variant in recipe.variants:
                recipe.with_variant(variant)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        except ValueError as error:
            raise InputError(f"{path} is not JSON: {error}") from None
        return recipe

    @classmethod
    def _of(cls, name: str, fields: Any) -> Recipe:
        """Checks fields that would otherwise fail only in preparation, training or scoring."""
        own = cls._in_file()
        needed = {
            field.name
            for field in dataclasses.fields(cls)
            if field.name in own and _default(field) is dataclasses.MISSING
        }
        if not isinstance(fields, dict) or not needed <= fields.keys() <= own.keys():
            raise InputError(
                f"A recipe needs the fields {', '.join(sorted(needed))}, and may have "
                f"{', '.join(sorted(own.keys() - needed))}, but no others."
            )
        for key, value in fields.items():
            check_json(key, own[key], value)
        recipe = cls(name=name, **fields)
        recipe._check_texts()
        recipe._check_settings()
        return recipe

    @classmethod
    def _in_file(cls) -> dict[str, Any]:
        """The types of the fields that recipe.json has."""
        hints = get_type_hints(cls)
        return {key: hint for key, hint in hints.items() if key not in _NOT_IN_FILE}

    def _check_texts(self) -> None:
        """Checks the texts, and the names of parts and tests."""
        for part, count in self.held_out.items():
            if count < 1:
                raise InputError(f"held_out has {count!r} of {part}, but it must be at least 1.")
            if part == TRAIN or not _PART.fullmatch(part):
                raise InputError(f"held_out has a part {part!r}. Use a name such as valid or test.")
        for name in self.tests:
            if name in (TRAIN, "valid") or not _PART.fullmatch(name):
                raise InputError(f"A test is called {name!r}. Use a name such as test_2016.")
        forms = dict.fromkeys(self.tests, _TEST_FORMS) | {
            TRAIN: _TAUGHT_FORMS if self.teacher else _TRAINING_FORMS,
            "valid": _VALIDATION_FORMS,
        }
        for role, text in {TRAIN: self.train, "valid": self.valid, **self.tests}.items():
            if set(text) not in forms[role]:
                known = " or ".join(", ".join(sorted(form)) for form in forms[role])
                raise InputError(f"{role} is {dict(text)!r}. It must be a text with {known}.")
            if "held_out" in text and text["held_out"] not in self.held_out:
                parts = ", ".join(self.held_out) or "nothing"
                raise InputError(f"{role} is {text['held_out']!r} of held_out, which has {parts}.")
        for test in self.published.keys() - self.tests.keys():
            raise InputError(f"published has {test!r}. Name one of {', '.join(self.tests)}.")
        for count in self.average_last:
            if count < 2:
                raise InputError(f"average_last has {count}, but it must be at least 2.")
        if self.teacher and (self.fine_tune or self.synthetic):
            raise InputError(
                "A recipe with a teacher trains from random weights, on pairs of the teacher. "
                "Leave fine_tune and synthetic out."
            )

    def _check_settings(self) -> None:
        """Checks the fields of other configurations that a recipe contains."""
        hints = get_type_hints(PrepareOptions)
        for name, value in self.prepare.items():
            if name not in hints:
                raise InputError(f"prepare has the field {name!r}. It may have {', '.join(hints)}.")
            check_json(f"prepare.{name}", hints[name], value)
        PrepareOptions(**self.prepare)
        for penalty in (0.6, *self.length_penalties):
            self.config().updated({"decoding.length_penalty": penalty})
        scoring: Scoring = {**self.evaluate, "as_in_paper": False}
        metrics.evaluate(["a"], ["a"], **scoring)
        for name, changes in self.variants.items():
            for key in changes.keys() & self._in_file().keys():
                check_json(f"variants.{name}.{key}", self._in_file()[key], changes[key])

    def config(self) -> Config:
        """Returns the configuration, without the vocabulary sizes and the seed."""
        return preset(self.preset).updated(self.settings)

    def with_variant(self, names: str) -> Recipe:
        """Returns a variant of the recipe, or several together, as in `short+wide`."""
        recipe = self
        for name in (parts := names.split("+")):
            if parts.count(name) > 1:
                raise InputError(f"The variant {names!r} contains {name} twice.")
            if name not in self.variants:
                raise InputError(
                    f"The recipe {self.name} lacks the variant {name!r}. Its variants are: "
                    f"{', '.join(self.variants) or 'none'}."
                )
            changes = self.variants[name]
            fields = {key: getattr(recipe, key) for key in self._in_file() if key != "variants"}
            merged = {
                key: {**fields[key], **changes.get(key, {})}
                for key in ("prepare", "settings", "synthetic")
            }
            if "tests" in changes:
                fields["published"] = {}  # the published figures belong to other tests
            try:
                recipe = Recipe._of(self.name, {**fields, **changes, **merged})
            except InputError as error:
                raise InputError(f"the variant {name}: {error}") from None
        return dataclasses.replace(recipe, variant=names)

    def with_symbols(self, symbols: Sequence[str]) -> Recipe:
        """Returns the recipe with more symbols in its vocabulary, such as new language tokens."""
        known = self.prepare.get("symbols") or ()
        prepare = {**self.prepare, "symbols": list(dict.fromkeys([*known, *symbols]))}
        PrepareOptions(**prepare)
        return dataclasses.replace(self, prepare=prepare)


def _default(field: dataclasses.Field[Any]) -> Any:
    """Returns the default of a field of a recipe, or MISSING if the field is required."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def split_by_source(
    corpus: Corpus, output_dir: str | Path, held_out: Mapping[str, int]
) -> dict[str, ParallelFiles]:
    """Splits a corpus into parts without common source sentences.

    A held-out part has the given number of different source sentences, each with the first of its
    translations. The choice and the order depend only on SHA-256. All other pairs are "train", in
    their original order and without duplicates.

    The files are replaced atomically, because another process may be reading them.
    """
    wanted = sum(held_out.values())
    digests = heapq.nsmallest(wanted + 1, {_digest(source) for source, _ in corpus.pairs()})
    if len(digests) <= wanted:
        raise InputError(
            f"{corpus.name} has {len(digests):,} different sources, which is too few to hold out "
            f"{wanted:,} ({', '.join(held_out)}) and train on others. Hold out fewer, or use a "
            "larger corpus."
        )
    names = (part for part, count in held_out.items() for _ in range(count))
    part_of = dict(zip(digests, names, strict=False))
    output_dir = Path(output_dir)
    output_dir.mkdir(parents=True, exist_ok=True)
    files = {
        part: ParallelFiles(output_dir / f"{part}.source", output_dir / f"{part}.target")
        for part in (TRAIN, *held_out)
    }
    first: dict[bytes, tuple[bytes, bytes]] = {}  # pair of each source that is held out
    seen: set[bytes] = set()  # pairs that are not held out
    with contextlib.ExitStack() as stack:
        out = {
            part: [
                stack.enter_context(stack.enter_context(atomic_path(path)).open("wb"))
                for path in pair.paths
            ]
            for part, pair in files.items()
        }

        def write(part: str, pair: tuple[bytes, bytes]) -> None:
            for file, line in zip(out[part], pair, strict=True):
                file.write(line + b"\n")

        for source, target in corpus.pairs():
            if (digest := _digest(source)) in part_of:
                first.setdefault(digest, (source, target))
            elif (pair := _digest(source + b"\t" + target)) not in seen:
                seen.add(pair)
                write(TRAIN, (source, target))
        for digest, part in part_of.items():
            write(part, first[digest])
    return files


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()[:16]


def check_json(label: str, hint: Any, value: Any) -> None:
    """Checks the type of a value that the `json` module returned.

    The type is a scalar type for `check_scalar`, Any, a Sequence or tuple of one type, a Mapping, a
    TypedDict, or one of these or None. Errors about a part of the value add the path to it to the
    label, as in `settings.seed`.
    """
    required = without_none(hint)
    origin, arguments = get_origin(required), get_args(required)
    if hint is Any or (value is None and required is not hint):
        return
    if is_typeddict(required):
        hints, needed = get_type_hints(required), required.__required_keys__
        optional = (f"optionally {key}" for key in sorted(hints.keys() - needed))
        expected = ", ".join([*sorted(needed), *optional])
        fits = isinstance(value, dict) and needed <= value.keys() <= hints.keys()
        require_type(fits, label, value, f"an object with {expected}")
        for key, member in value.items():
            check_json(f"{label}.{key}", hints[key], member)
    elif origin is Mapping:
        require_type(isinstance(value, dict), label, value, "an object with names")
        for key, member in value.items():
            check_json(f"a name in {label}", arguments[0], key)
            check_json(f"{label}.{key}", arguments[1], member)
    elif origin in (Sequence, tuple):
        require_type(isinstance(value, list), label, value, "a list")
        for index, member in enumerate(value):
            check_json(f"{label}[{index}]", arguments[0], member)
    else:
        check_scalar(label, hint, value)
