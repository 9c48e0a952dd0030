"""recipe.json: its fields, its variants, error messages, and held-out parts."""

import copy
import dataclasses
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, get_args

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.data.corpus import ParallelFiles
from keras_transformer.data.prepare import PrepareOptions
from keras_transformer.errors import InputError
from keras_transformer.extensions.paper.recipe import (
    Recipe,
    Synthetic,
    check_json,
    split_by_source,
)
from tests.builders import refuses
from tests.extensions.paper.recipes import FIELDS, write_recipe

ROOT = Path(__file__).resolve().parents[3]
KINDS = get_args(Synthetic)


def test_the_identity_has_the_fields_that_results_depend_on(recipe: Recipe, tmp_path: Path) -> None:
    def of(**changes: Any) -> dict[str, Any]:
        return Recipe.load(write_recipe(tmp_path, **changes), "animals").identity

    same = recipe.identity
    assert same == of(description="other words", published={}, variants={})
    # A field with its default value equals a missing field, so that recipes can get new fields.
    assert same == of(synthetic={}, held_out={})
    assert same not in (of(average_last=[]), of(prepare={}), of(preset="small"))


def test_a_variant_changes_only_its_own_fields(recipe: Recipe) -> None:
    smooth = recipe.with_variant("smooth")
    assert smooth.config().training.label_smoothing == 0.3
    assert smooth.prepare == {**recipe.prepare, "max_bytes": 99}
    assert smooth.config().training.max_steps == recipe.config().training.max_steps
    assert (smooth.tests, smooth.published) == (recipe.tests, recipe.published)
    assert (smooth.name, smooth.variant) == ("animals", "smooth")
    assert smooth.identity != recipe.identity
    variants = {kind: {"synthetic": {kind: {"recipe": "x"}}} for kind in KINDS}
    both = dataclasses.replace(recipe, variants=variants).with_variant(
        "back_translation+distillation"
    )
    assert both.synthetic == {kind: {"recipe": "x"} for kind in KINDS}
    both = recipe.with_variant("rehearsal+smooth")
    assert both.variant == "rehearsal+smooth"
    assert both.config().training.label_smoothing == 0.3
    assert both.train == recipe.with_variant("rehearsal").train
    refuses(recipe.with_variant, ("rough",), "variant", "rough", "rehearsal", "smooth")
    refuses(recipe.with_variant, ("smooth+smooth",), "smooth+smooth", "smooth", "twice")
    refuses(smooth.with_variant, ("smooth",), "variant", "smooth")


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"epochs": 3}, ("fields", "description", "evaluate", "prepare", "preset")),
        ({"valid": {"held_out": "v"}}, ("valid", "v", "held_out")),
        ({"valid": {"sacrebleu": "wmt13", "language_pair": "en-de"}}, ("valid", "sacrebleu")),
        ({"held_out": {"t": 2}, "train": {"held_out": "t"}}, ("train", "held_out")),
        ({"held_out": {"t": 0}}, ("held_out", "0", "t", "1")),
        ({"prepare": {"vocab": 40}}, ("prepare", "vocab", "vocab_size")),
        ({"prepare": {"vocab_size": "40"}}, ("prepare.vocab_size", "40")),
        ({"prepare": {"max_tokens": 1}}, ("max_tokens", "1")),
        ({"prepare": {"drop_identical": "false"}}, ("drop_identical", "'false'", "true")),
        ({"preset": "huge"}, ("huge", "preset")),
        ({"settings": {"training.steps": 3}}, ("training.steps", "setting")),
        ({"synthetic": {"translation": {"recipe": "a"}}}, ("synthetic", "translation")),
        ({"synthetic": {"distillation": {}}}, ("{}", "recipe")),
        ({"average_last": [1]}, ("average_last", "1", "2")),
        ({"published": {"t": {"bleu": 1, "source": ""}}}, ("published", "t", "animals")),
        ({"average_last": [3, "2"]}, ("average_last[1]", "2")),
        ({"length_penalties": [-1]}, ("length_penalty", "-1.0")),
        ({"held_out": {"train": 2}}, ("held_out", "train")),
        ({"held_out": {"../a": 2}}, ("held_out", "../a")),
        ({"tests": {"valid": FIELDS["valid"]}}, ("test", "valid")),
        ({"published": {"animals": {"source": "x"}}}, ("bleu", "source")),
        ({"evaluate": {"tokenize": "14a"}}, ("14a", "tokenizer")),
        ({"variants": {"x": {"preset": "huge"}}}, ("variant x", "huge", "preset")),
        ({"tests": {"../x": FIELDS["valid"]}}, ("test", "../x")),
        ({"variants": {"x": {"steps": 3}}}, ("fields", "recipe")),
        ({"train": {"source": "train.en"}}, ("train", "{'source': 'train.en'}")),
        ({"teacher": True, "fine_tune": True}, ("teacher", "fine_tune")),
        (
            {"teacher": True, "synthetic": {"distillation": {"recipe": "x"}}},
            ("teacher", "synthetic"),
        ),
    ],
)
def test_a_wrong_recipe_names_its_file(
    tmp_path: Path, changes: dict[str, Any], facts: tuple[str, ...]
) -> None:
    file = write_recipe(tmp_path, **changes) / "animals" / "recipe.json"
    refuses(Recipe.load, (tmp_path, "animals"), file, *facts)


def paths(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Yields the path of keys of each part of a JSON value."""
    found = [before] if before else []
    if isinstance(value, (dict, list)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            found += paths(inner, (*before, key))
    return found


class Person(TypedDict):
    name: str
    age: NotRequired[int | None]


@pytest.mark.parametrize(
    ("hint", "value", "facts"),
    [
        (float | None, None, ()),
        (Mapping[str, Mapping[str, Any]], {"a": {"b": math.nan}}, ()),
        (Person, {"name": "Ada", "age": None}, ()),
        (Sequence[int], [1, "2"], ("it[1]", "2")),
        (Mapping[str, int], [1], ("it", "[1]")),
        (Mapping[str, int], {"a": None}, ("it.a", "None")),
        (Mapping[Literal["a"], int], {"b": 1}, ("it", "'b'", "a")),
        (Person, {}, ("it", "{}", "name", "age")),
        (Person, {"name": "Ada", "age": "36"}, ("it.age", "36")),
    ],
)
def test_json_is_checked_against_a_type(hint: Any, value: Any, facts: tuple[str, ...]) -> None:
    if facts:
        refuses(check_json, ("it", hint, value), *facts)
    else:
        check_json("it", hint, value)


EVERYTHING: dict[str, Any] = {
    **FIELDS,
    "prepare": {"vocab_size": 40, "check_languages": ["en", "de"], "drop_identical": True},
    "held_out": {"more": 3},
    "synthetic": {"distillation": {"recipe": "plants", "variant": "x", "seeds": [1, 2]}},
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=3,
)


@hypothesis.given(path=st.sampled_from(paths(EVERYTHING)), value=JSON)
@hypothesis.example(path=("settings", "training.warmup_steps"), value=0)
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_any_value_anywhere_is_read_or_refused(
    tmp_path: Path, path: tuple[Any, ...], value: Any
) -> None:
    fields = copy.deepcopy(EVERYTHING)
    inner: Any = fields
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    write_recipe(tmp_path, **fields)
    try:
        loaded = Recipe.load(tmp_path, "animals")
    except InputError as error:
        assert str(error).startswith(str(tmp_path / "animals" / "recipe.json"))
        assert len(str(error).removeprefix(str(tmp_path)).split()) > 3
    else:
        found: Any = getattr(loaded, path[0])
        for key in path[1:]:
            found = found[key]
        assert found == value or math.isnan(value)


def test_missing_and_unreadable_recipes(tmp_path: Path) -> None:
    write_recipe(tmp_path, "plants")
    write_recipe(tmp_path)
    refuses(Recipe.load, (tmp_path, "stones"), "recipe", "stones", "animals", "plants")
    for name in ("./animals", "", "x" * 300):  # a single name is accepted, too
        refuses(Recipe.load, (tmp_path, name), "recipe", f"'{name}'", "animals")
    assert Recipe.load(tmp_path, "plants/").name == "plants"
    for text in (b'{"description": ', b"\xff", b"[]", b"null"):
        (tmp_path / "animals" / "recipe.json").write_bytes(text)
        with pytest.raises(InputError, match=r"animals/recipe\.json.*(JSON|fields)"):
            Recipe.load(tmp_path, "animals")
    (tmp_path / "stones" / "recipe.json").mkdir(parents=True)
    refuses(Recipe.load, (tmp_path, "stones"), "recipe", "stones", "animals", "plants")
    fields = {name: value for name, value in FIELDS.items() if name != "preset"}
    (tmp_path / "animals" / "recipe.json").write_text(json.dumps(fields))
    refuses(Recipe.load, (tmp_path, "animals"), "fields", "recipe")


@pytest.mark.parametrize(
    "name", sorted(path.parent.name for path in (ROOT / "recipes").glob("*/recipe.json"))
)
def test_recipes_of_the_project_fit_the_code(name: str) -> None:
    recipe = Recipe.load(ROOT / "recipes", name)
    config = recipe.config().training
    assert config.max_steps >= max(recipe.average_last) * config.checkpoint_steps
    for variant in (recipe, *map(recipe.with_variant, recipe.variants)):
        config = variant.config().training
        assert config.keep_checkpoints >= max(variant.average_last)
        # Otherwise the last two checkpoints of an average would be nearly equal.
        last_interval = (config.max_steps - 1) % config.checkpoint_steps + 1
        assert last_interval >= config.checkpoint_steps / 2, variant.variant
        options = PrepareOptions(**variant.prepare)
        assert options.vocab_size > 0
        assert options.drop_repetitive or not variant.synthetic, variant.variant
        for kind in variant.synthetic:
            train = Recipe.load(ROOT / "recipes", variant.synthetic[kind]["recipe"]).train
            if kind == "back_translation":
                train = {"source": train["target"], "target": train["source"]}
            assert train == variant.train, variant.variant
    readme = (ROOT / "recipes" / name / "README.md").read_text()
    assert f"--recipe={name}" in readme


def test_the_multi30k_recipes_share_model_and_training() -> None:
    """The pages state that models and training equal multi30k_en_de."""
    own = {"training.max_steps", "training.bleu_steps"}
    names = [path.name for path in (ROOT / "recipes").glob("multi30k_*")]
    assert len(names) == 6
    recipes = [Recipe.load(ROOT / "recipes", name) for name in names]
    common = [{k: v for k, v in variant.settings.items() if k not in own} for variant in recipes]
    assert all(settings == common[0] for settings in common)
    assert len({(variant.preset, tuple(variant.length_penalties)) for variant in recipes}) == 1


# Held-out parts.

Pair = tuple[bytes, bytes]


class Pairs:
    """A corpus in memory."""

    name = "pairs"

    def __init__(self, pairs: list[Pair]) -> None:
        self._pairs = pairs

    def pairs(self) -> Iterator[Pair]:
        return iter(self._pairs)


def read(files: ParallelFiles) -> list[Pair]:
    return list(zip(*(path.read_bytes().split(b"\n")[:-1] for path in files.paths), strict=True))


LINES = st.binary(max_size=3).filter(lambda line: b"\n" not in line)


@given(st.lists(st.tuples(LINES, LINES)), st.integers(1, 4), st.integers(1, 4))
def test_parts_of_any_corpus(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[Pair], valid: int, test: int
) -> None:
    folder: Path = tmp_path_factory.mktemp("split")
    sources = {source for source, _ in pairs}
    held_out = {"valid": valid, "test": test}
    if len(sources) <= valid + test:
        refuses(split_by_source, (Pairs(pairs), folder, held_out), "pairs", *held_out)
        return
    parts = {
        name: read(files) for name, files in split_by_source(Pairs(pairs), folder, held_out).items()
    }
    assert (len(parts["valid"]), len(parts["test"])) == (valid, test)
    of_parts = [{source for source, _ in part} for part in parts.values()]
    assert sum(map(len, of_parts)) == len(sources) and set.union(*of_parts) == sources
    first: dict[bytes, bytes] = {}
    for source, target in pairs:
        first.setdefault(source, target)
    for name in held_out:
        assert all(first[source] == target for source, target in parts[name])
    kept = [pair for pair in dict.fromkeys(pairs) if pair[0] in of_parts[0]]
    assert parts["train"] == kept
    shuffled = split_by_source(Pairs(pairs[::-1]), folder / "again", held_out)
    assert {source for source, _ in read(shuffled["test"])} == of_parts[2], "only the sources count"


def test_held_out_sentences_are_spread_over_the_corpus(tmp_path: Path) -> None:
    pairs = [(b"%d" % i, b"t") for i in range(1000)]
    parts = split_by_source(Pairs(pairs), tmp_path, {"test": 100})
    numbers = [int(source) for source, _ in read(parts["test"])]
    assert 400 < sum(numbers) / len(numbers) < 600 and numbers != sorted(numbers)
