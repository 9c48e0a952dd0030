"""Recipes: folders of data that say how a result is reached.

A recipe is `recipes/NAME/recipe.json`: which text trains, validates and tests; how it is
prepared; a preset and what differs from it; what is chosen on the validation set; how
test translations are scored, and what others have published. `run.py` follows it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, get_type_hints

from keras_transformer.config import Config
from keras_transformer.data.corpora.splitting import TRAIN
from keras_transformer.data.preparation.prepare import PrepareOptions
from keras_transformer.errors import InputError
from keras_transformer.evaluation import metrics
from keras_transformer.presets import preset
from keras_transformer.schema import check_json, read_json

Synthetic = Literal["back_translation", "distillation"]
Text = Mapping[str, str]

# The forms of a text, by their fields.
_TEXT_FORMS = (
    {"source", "target"},  # files of the corpus directory
    {"tsv"},  # a file of the corpus directory with both
    {"tfds", "split", "source_language"},  # a TFDS data set in the corpus directory
    {"held_out"},  # a part of the training text
    {"sacrebleu", "language_pair"},  # a test set of sacreBLEU
)

# What a recipe is told by where it comes from.
_NOT_IN_FILE = ("name", "variant", "recipes_dir")

_MAX_NAME = 100  # letters, of what files are called by


class Scoring(TypedDict, total=False):
    """How translations are scored: arguments of `evaluation.assess`."""

    tokenize: str | None
    lowercase: bool
    as_in_paper: bool


class _Figure(TypedDict):
    bleu: float
    source: str


class PublishedBleu(_Figure, total=False):
    """A figure of others, and where it is from.

    What it measures is `bleu`, as the recipe scores by default, or `paper_bleu`; a measure of
    any other name says that no score here is like it.
    """

    measure: str


class _WriterName(TypedDict):
    recipe: str


class WriterFields(_WriterName, total=False):
    """Which recipe's models write pairs: its variant and, of several as an ensemble, the seeds."""

    variant: str
    seeds: Sequence[int]


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The content of recipe.json, by its own names.

    A text is `{"source": FILE, "target": FILE}`, `{"tsv": FILE}`, `{"tfds": NAME, "split": SPLIT,
    "source_language": CODE}`, `{"held_out": PART}`, or, for tests, `{"sacrebleu": NAME,
    "language_pair": PAIR}`.

    Attributes:
        name: the folder's name.
        description: one sentence.
        train: the text to train on.
        valid: the text to choose on.
        tests: texts to score in the end, by name.
        prepare: fields of `PrepareOptions`.
        preset: name of the configuration to begin with.
        settings: what differs from it.
        evaluate: how translations are scored.
        held_out: sentences of parts that are taken out of `train`.
        synthetic: pairs that are added to `train`, of which a model writes one side:
            "back_translation" its sources again, "distillation" its targets; both together are
            data diversification (Nguyen et al., 2020). For each where the model comes from.
        average_last: numbers of the last checkpoints whose averages are candidates.
        length_penalties: candidates for `decoding.length_penalty`.
        published: figures of others, by test.
        variants: by name, the fields of which a variant of the recipe has others; of
            `prepare`, `settings` and `synthetic` those that differ. A `rehearsal` is the whole
            in small.
        variant: the name of the one that this is, or empty; of several, with a + between them.
        recipes_dir: where it and the recipes of its writers are.
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
    synthetic: Mapping[Synthetic, WriterFields] = dataclasses.field(default_factory=dict)
    average_last: Sequence[int] = dataclasses.field(default_factory=list)
    length_penalties: Sequence[float] = dataclasses.field(default_factory=list)
    published: Mapping[str, PublishedBleu] = dataclasses.field(default_factory=dict)
    variants: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    variant: str = ""
    recipes_dir: Path = Path()

    @property
    def identity(self) -> dict[str, Any]:
        """All fields that results depend on, those of the writers included.

        Fields with their default value are left out, so that a new field of recipes does not
        change those that do not have it.

        Raises:
            InputError: for a writer that `writer` refuses.
        """
        aside = ("description", "published", "variants", "recipes_dir")
        fields = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name not in aside and getattr(self, field.name) != _default(field)
        }
        if self.synthetic:
            writers = {kind: self.writer(kind) for kind in self.synthetic}
            fields["synthetic"] = {
                kind: {"recipe": writer.recipe.identity, "seeds": writer.seeds}
                for kind, writer in writers.items()
            }
        return fields

    @property
    def fingerprint(self) -> str:
        """SHA-256 of `identity`."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()

    @classmethod
    def load(cls, recipes_dir: str | Path, name: str) -> Recipe:
        """Reads `recipes_dir/name/recipe.json`.

        Raises:
            InputError: for a recipe that is not there, or that does not fit the code.
        """
        name = name.rstrip("/")  # as a shell completes it
        paths = Path(recipes_dir).glob("*/recipe.json")
        known = sorted(path.parent.name for path in paths if path.is_file())
        if name not in known:
            raise InputError(f"there is no recipe {name!r}; expected one of {', '.join(known)}")
        path = Path(recipes_dir) / name / "recipe.json"
        try:
            recipe = cls._of(name, read_json(path), Path(recipes_dir))
            for variant in recipe.variants:
                recipe.varied(variant)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        except RecursionError:
            raise InputError(f"{path} is nested too deep; expected a recipe") from None
        return recipe

    @classmethod
    def _of(cls, name: str, fields: Any, recipes_dir: Path) -> Recipe:
        """Checks what preparing, training and scoring would only find later."""
        own = cls._in_file()
        needed = {
            field.name
            for field in dataclasses.fields(cls)
            if field.name in own and _default(field) is dataclasses.MISSING
        }
        if not isinstance(fields, dict) or not needed <= fields.keys() <= own.keys():
            raise InputError(
                f"the fields are not those of a recipe; expected {', '.join(sorted(needed))}, and "
                f"perhaps {', '.join(sorted(own.keys() - needed))}"
            )
        for key, value in fields.items():
            check_json(key, own[key], value)
        recipe = cls(name=name, recipes_dir=recipes_dir, **fields)
        recipe._check()
        return recipe

    @classmethod
    def _in_file(cls) -> dict[str, Any]:
        """The types of the fields that recipe.json has."""
        hints = get_type_hints(cls)
        return {key: hint for key, hint in hints.items() if key not in _NOT_IN_FILE}

    def _check(self) -> None:
        self._check_texts()
        self._check_models()
        self._check_variants()

    def _check_texts(self) -> None:
        for part, count in self.held_out.items():
            if count < 1:
                raise InputError(f"held_out has {count!r} of {part}; expected 1 or more")
            if part == TRAIN or not part.isidentifier() or len(part) > _MAX_NAME:
                raise InputError(f"held_out has a part {part!r}; expected a name as valid or test")
        for name in self.tests:  # files are called by it
            if name in ("train", "valid") or not name.isidentifier() or len(name) > _MAX_NAME:
                raise InputError(f"a test is called {name!r}; expected a name as test_2016")
        for what, text in {"train": self.train, "valid": self.valid, **self.tests}.items():
            if text.keys() not in _TEXT_FORMS:
                forms = " or ".join(", ".join(sorted(form)) for form in _TEXT_FORMS)
                raise InputError(f"{what} is {dict(text)!r}; expected a text with {forms}")
            if "held_out" in text and text["held_out"] not in self.held_out:
                raise InputError(
                    f"{what} is {text['held_out']!r} of held_out, which has "
                    f"{', '.join(self.held_out) or 'nothing'}; expected a part of it"
                )
            if "sacrebleu" in text and what not in self.tests:
                raise InputError(f"{what} is a test set of sacreBLEU; expected other text")
        if "held_out" in self.train:
            raise InputError("train is held out of itself; expected other text")
        for test in self.published:
            if test not in self.tests:
                raise InputError(
                    f"published names {test!r}; expected one of {', '.join(self.tests)}"
                )

    def _check_models(self) -> None:
        hints = get_type_hints(PrepareOptions)
        for name, value in self.prepare.items():
            if name not in hints:
                raise InputError(f"prepare has {name!r}; expected some of {', '.join(hints)}")
            check_json(f"prepare.{name}", hints[name], value)
        PrepareOptions(**self.prepare)
        self.config()
        scoring: Scoring = {**self.evaluate, "as_in_paper": False}
        metrics.assess(["a"], ["a"], **scoring)
        for kind, writer in self.synthetic.items():
            seeds = writer.get("seeds", [1])
            if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
                raise InputError(
                    f"synthetic has the seeds {seeds} of the writer of {kind}; expected different "
                    "numbers, as in [1, 2]"
                )
        for count in self.average_last:
            if count < 2:
                raise InputError(f"average_last has {count!r}; expected 2 or more")
        for penalty in self.length_penalties:
            self.config().updated({"decoding.length_penalty": penalty})

    def _check_variants(self) -> None:
        hints = self._in_file()
        for name, changes in self.variants.items():
            if not re.fullmatch(r"\w[\w.-]*", name) or len(name) > _MAX_NAME:
                raise InputError(f"a variant is called {name!r}; expected a name as dropout_0.3")
            if "variants" in changes:
                raise InputError(f"the variant {name} has variants; expected other fields")
            for key in changes.keys() & hints.keys():
                check_json(f"variants.{name}.{key}", hints[key], changes[key])

    def config(self) -> Config:
        """The configuration, but for the vocabulary's and the seed."""
        return preset(self.preset).updated(self.settings)

    def varied(self, names: str) -> Recipe:
        """Returns a variant of the recipe, or of several together, as in `short+wide`.

        Raises:
            InputError: where it has none of that name, and for a name that stands twice.
        """
        varied = self
        for name in (parts := names.split("+")):
            if parts.count(name) > 1:
                raise InputError(f"the variant {names!r} has {name} twice; expected each once")
            if name not in self.variants:
                raise InputError(
                    f"the recipe {self.name} has no variant {name!r}; expected "
                    f"{'one of ' + ', '.join(self.variants) if self.variants else 'none'}"
                )
            try:
                varied = varied._with(self.variants[name])
            except InputError as error:
                raise InputError(f"the variant {name}: {error}") from None
        return dataclasses.replace(varied, variant=names)

    def _with(self, changes: Mapping[str, Any]) -> Recipe:
        """Returns the recipe with other fields; of those that are merged what differs."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name in (*_NOT_IN_FILE, "variants"):
            del fields[name]
        merged = {
            name: {**fields[name], **changes.get(name, {})}
            for name in ("prepare", "settings", "synthetic")
        }
        if "tests" in changes:
            fields["published"] = {}  # they are of other tests
        return Recipe._of(self.name, {**fields, **changes, **merged}, self.recipes_dir)

    def writer(self, kind: Synthetic) -> Writer:
        """Returns who writes the recipe's synthetic pairs of a kind.

        Raises:
            InputError: for a recipe that is not there, has synthetic pairs itself, translates
                the wrong way as far as its files tell, or may learn from what is held out.
        """
        fields = self.synthetic[kind]
        try:
            recipe = Recipe.load(self.recipes_dir, fields["recipe"])
            if fields.get("variant"):
                recipe = recipe.varied(fields["variant"])
        except InputError as error:
            raise InputError(f"the writer of {kind} of the recipe {self.name}: {error}") from None
        if recipe.synthetic:
            raise InputError(
                f"the writer of {kind} of the recipe {self.name} learns from what another writes; "
                "expected one that learns from real text alone"
            )
        same = self.train
        if "source" in same and kind == "distillation":
            same = {"source": same["target"], "target": same["source"]}
        if recipe.train == same and (kind == "back_translation" or "source" in same):
            raise InputError(
                f"the writer of {kind} of the recipe {self.name} translates {recipe.train}; "
                "expected the other direction"
            )
        held_out = (self.held_out, recipe.held_out)
        if any(held_out) and (kind == "back_translation" or held_out[0] != held_out[1]):
            raise InputError(  # parts are chosen by source: those of another direction are others
                f"the writer of {kind} of the recipe {self.name} may learn from pairs that are "
                "held out; expected parts in files of their own, or for distillation the same"
            )
        return Writer(recipe, tuple(fields.get("seeds", [1])))


@dataclasses.dataclass(frozen=True)
class Writer:
    """Who writes one side of synthetic pairs.

    Attributes:
        recipe: what its models are trained by.
        seeds: of the models; several write as an ensemble.
    """

    recipe: Recipe
    seeds: tuple[int, ...]


def _default(field: dataclasses.Field[Any]) -> Any:
    """What a recipe has that does not name the field; MISSING where it has to."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
