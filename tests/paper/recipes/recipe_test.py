"""recipe.json: what it says, what is a variant of it, and which mistakes in it are told."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any, get_args

import hypothesis
import pytest
from hypothesis import strategies as st

from keras_transformer.data.preparation.prepare import PrepareOptions
from keras_transformer.errors import InputError
from keras_transformer.paper.recipes.recipe import Recipe, Synthetic
from tests.paper.recipes.recipes import FIELDS, write_recipe

ROOT = Path(__file__).resolve().parents[3]
KINDS = get_args(Synthetic)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    return Recipe.load(write_recipe(tmp_path_factory.mktemp("recipes")), "animals")


def test_the_fingerprint_is_of_what_results_depend_on(recipe: Recipe, tmp_path: Path) -> None:
    def of(**changes: Any) -> str:
        return Recipe.load(write_recipe(tmp_path, **changes), "animals").fingerprint

    same = recipe.fingerprint
    assert same == of(description="other words", published={}, variants={})
    # A field that has its default is as one that is not there: recipes may get new fields.
    assert same == of(synthetic={}, held_out={})
    assert len({same, of(average_last=[]), of(prepare={}), of(preset="small")}) == 4


def test_a_variant_is_the_recipe_but_for_what_it_says(recipe: Recipe) -> None:
    smooth = recipe.varied("smooth")
    assert smooth.config().training.label_smoothing == 0.3
    assert smooth.prepare == {"vocab_size": 40, "max_bytes": 99}
    assert smooth.config().training.max_steps == recipe.config().training.max_steps
    assert (smooth.tests, smooth.published) == (recipe.tests, recipe.published)
    assert (smooth.name, smooth.variant) == ("animals", "smooth")
    assert smooth.fingerprint != recipe.fingerprint
    variants = {kind: {"synthetic": {kind: {"recipe": "x"}}} for kind in KINDS}
    both = dataclasses.replace(recipe, variants=variants).varied("back_translation+distillation")
    assert both.synthetic == {kind: {"recipe": "x"} for kind in KINDS}
    both = recipe.varied("rehearsal+smooth")
    assert both.variant == "rehearsal+smooth"
    assert both.config().training.label_smoothing == 0.3
    assert both.train == recipe.varied("rehearsal").train
    with pytest.raises(InputError, match="has no variant 'rough'; expected one of rehearsal, smo"):
        recipe.varied("rough")
    with pytest.raises(InputError, match=r"'smooth\+smooth' has smooth twice; expected each once"):
        recipe.varied("smooth+smooth")
    with pytest.raises(InputError, match="has no variant 'smooth'; expected none"):
        smooth.varied("smooth")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 3}, "not those of a recipe; expected description, evaluate, prepare, preset"),
        ({"train": ["a", "b"]}, r"train is \['a', 'b'\]; expected an object with names"),
        ({"valid": {"source": "a"}}, "valid is {'source': 'a'}; expected a text with"),
        ({"valid": {"tsv": 3}}, "valid.tsv is 3; expected text"),
        ({"valid": {"held_out": "v"}}, "valid is 'v' of held_out, which has nothing"),
        ({"valid": {"sacrebleu": "wmt13", "language_pair": "en-de"}}, "valid is a test set of sac"),
        ({"held_out": {"t": 2}, "train": {"held_out": "t"}}, "train is held out of itself"),
        ({"held_out": {"t": 0}}, "held_out has 0 of t; expected 1 or more"),
        ({"tests": {"x": {}}}, "x is {}; expected a text"),
        ({"prepare": {"vocab": 40}}, "prepare has 'vocab'; expected some of .*vocab_size"),
        ({"prepare": {"vocab_size": "40"}}, "prepare.vocab_size is '40'; expected a whole number"),
        ({"prepare": {"drop_identical": "no"}}, "prepare.drop_identical is 'no'; expected true or"),
        ({"prepare": {"max_length_ratio": math.nan}}, "max_length_ratio is nan; expected a finite"),
        ({"prepare": {"check_languages": "en"}}, "check_languages is 'en'; expected a list"),
        ({"prepare": {"model_type": "word"}}, "model_type is 'word'; expected one of unigram, bpe"),
        ({"prepare": {"max_tokens": 1}}, "max_tokens is 1; expected"),
        ({"preset": "huge"}, "'huge' is no preset"),
        ({"preset": []}, r"preset is \[\]; expected text"),
        ({"settings": {"training.steps": 3}}, "'training.steps' is no setting"),
        ({"settings": [1]}, r"settings is \[1\]; expected an object with names"),
        ({"settings": {"training.learning_rate": True}}, "rate is True; expected a finite number"),
        ({"synthetic": None}, "synthetic is None; expected an object with names"),
        ({"synthetic": ["distillation"]}, r"synthetic is \['distillation'\]; expected an object"),
        (
            {"synthetic": {"translation": {"recipe": "a"}}},
            "in synthetic is 'translation'; expected",
        ),
        ({"synthetic": {"distillation": "a"}}, "synthetic.distillation is 'a'; expected an object"),
        (
            {"synthetic": {"distillation": {}}},
            "is {}; expected an object with recipe, p",
        ),
        (
            {"synthetic": {"distillation": {"recipe": 1}}},
            "distillation.recipe is 1; expected text",
        ),
        (
            {"synthetic": {"distillation": {"recipe": "a", "seeds": [1, 1]}}},
            r"synthetic has the seeds \[1, 1\] of the writer of distillation; expected different",
        ),
        ({"synthetic": {"distillation": {"recipe": "a", "seeds": []}}}, r"has the seeds \[\] of"),
        (
            {"synthetic": {"distillation": {"recipe": "a", "seeds": ["1"]}}},
            r"\[0\] is '1'; expected a",
        ),
        ({"average_last": [1]}, "average_last has 1; expected 2 or more"),
        ({"average_last": ["5"]}, r"average_last\[0\] is '5'; expected a whole number"),
        ({"length_penalties": [-1]}, "length_penalty is -1.0; expected"),
        ({"held_out": {"train": 2}}, "held_out has a part 'train'; expected a name as valid"),
        ({"held_out": {"../a": 2}}, "held_out has a part '../a'; expected a name"),
        ({"tests": {"valid": FIELDS["valid"]}}, "a test is called 'valid'; expected a name"),
        ({"length_penalties": ["0.6"]}, r"penalties\[0\] is '0.6'; expected a finite"),
        (
            {"published": {"animals": {"source": "x"}}},
            "expected an object with bleu, source",
        ),
        ({"published": {"animals": 3}}, "published.animals is 3; expected an object"),
        (
            {"published": {"test_2018": {"bleu": 1, "source": ""}}},
            "published names 'test_2018'; expected one of animals",
        ),
        ({"evaluate": {"tokenize": "14a"}}, "'14a' is no tokenizer"),
        ({"evaluate": {"case": "lc"}}, "evaluate is {'case': 'lc'}; expected an object with"),
        ({"evaluate": {"lowercase": "false"}}, "lowercase is 'false'; expected true or false"),
        ({"variants": {"x": {"preset": "huge"}}}, "the variant x: 'huge' is no preset"),
        ({"variants": {"x": {"recipes_dir": "y"}}}, "the variant x: the fields are not those of a"),
        ({"variants": {"x": {"variant": 3}}}, "the variant x: the fields are not those of a rec"),
        ({"variants": {"x": {"prepare": {"max_tokens": "9"}}}}, "x: prepare.max_tokens is '9'; ex"),
        ({"variants": {"x+y": {}}}, r"a variant is called 'x\+y'; expected a name as dropout"),
        ({"tests": {"../x": FIELDS["valid"]}}, "a test is called '../x'; expected a name as test"),
        ({"tests": {"x" * 101: FIELDS["valid"]}}, "a test is called 'xxx.*; expected a name as te"),
        ({"variants": {"x": {"steps": 3}}}, "not those of a recipe"),
        (
            {"variants": {"x": {"variants": {}}}},
            "variant x has variants; expected other",
        ),
        ({"variants": {"x": []}}, r"variants.x is \[\]; expected an object with names"),
        ({"variants": {"x": {"settings": 3}}}, "variants.x.settings is 3; expected an object"),
    ],
)
def test_a_wrong_recipe_names_its_file(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    write_recipe(tmp_path, **changes)
    with pytest.raises(InputError, match=message) as error:
        Recipe.load(tmp_path, "animals")
    assert str(error.value).startswith(str(tmp_path / "animals" / "recipe.json"))
    assert "\n" not in str(error.value)


def places(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The places in a JSON value, each as the keys that lead to it."""
    found = [before] if before else []
    if isinstance(value, (dict, list)):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            found += places(each, (*before, key))
    return found


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


@hypothesis.given(place=st.sampled_from(places(EVERYTHING)), value=JSON)
@hypothesis.example(place=("settings", "training.warmup_steps"), value=0)
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_any_value_in_any_place_is_read_or_told_in_one_sentence(
    tmp_path: Path, place: tuple[Any, ...], value: Any
) -> None:
    fields = copy.deepcopy(EVERYTHING)
    inner: Any = fields
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    write_recipe(tmp_path, **fields)
    try:
        loaded = Recipe.load(tmp_path, "animals")
    except InputError as error:
        assert str(error).startswith(str(tmp_path / "animals" / "recipe.json"))
        assert re.search("; (expected|set) ", str(error))
    else:
        found: Any = getattr(loaded, place[0])
        for key in place[1:]:
            found = found[key]
        assert found == value or math.isnan(value)


def test_a_recipe_that_is_not_there_or_no_json(tmp_path: Path) -> None:
    write_recipe(tmp_path, "plants")
    write_recipe(tmp_path)
    with pytest.raises(InputError, match="no recipe 'stones'; expected one of animals, plants"):
        Recipe.load(tmp_path, "stones")
    for name in ("./animals", "", "x" * 300):  # the name of one is a single one
        with pytest.raises(InputError, match=f"no recipe '{name}'; expected one of animals"):
            Recipe.load(tmp_path, name)
    assert Recipe.load(tmp_path, "plants/").name == "plants"
    for text in (b'{"description": ', b"\xff", b"[]", b"null"):
        (tmp_path / "animals" / "recipe.json").write_bytes(text)
        with pytest.raises(InputError, match=r"animals/recipe.json: (this is no JSO|the fields a)"):
            Recipe.load(tmp_path, "animals")
    twice = '{"preset": "tiny", "preset": "big"}'
    for text, message in (
        (twice, "'preset' stands twice in the same object; expected each name once"),
        ('{"a": ' + "[" * 100_000, "recipe.json is nested too deep; expected a recipe"),
        *(
            (
                json.dumps({**FIELDS, "settings": {"model.d_model": 0}}).replace(
                    '"model.d_model": 0', '"model.d_model": ' + "[" * depth + "]" * depth
                ),
                "recipe.json(: model.d_model is .*| is nested too deep); expected",
            )
            for depth in range(900, 1000)
        ),
    ):
        (tmp_path / "animals" / "recipe.json").write_text(text)
        with pytest.raises(InputError, match=message):
            Recipe.load(tmp_path, "animals")
    (tmp_path / "stones" / "recipe.json").mkdir(parents=True)
    with pytest.raises(InputError, match="no recipe 'stones'; expected one of animals, plants"):
        Recipe.load(tmp_path, "stones")
    fields = {name: value for name, value in FIELDS.items() if name != "preset"}
    (tmp_path / "animals" / "recipe.json").write_text(json.dumps(fields))
    with pytest.raises(InputError, match="not those of a recipe"):
        Recipe.load(tmp_path, "animals")


@pytest.mark.parametrize(
    "name", sorted(path.parent.name for path in (ROOT / "recipes").glob("*/recipe.json"))
)
def test_recipes_of_the_project_fit_the_code(name: str) -> None:
    recipe = Recipe.load(ROOT / "recipes", name)
    config = recipe.config().training
    assert config.max_steps >= max(recipe.average_last) * config.checkpoint_steps
    for each in (recipe, *map(recipe.varied, recipe.variants)):
        config = each.config().training
        assert config.keep_checkpoints >= max(each.average_last)
        # Or the last two of an average would be nearly the same.
        last_interval = (config.max_steps - 1) % config.checkpoint_steps + 1
        assert last_interval >= config.checkpoint_steps / 2, each.variant
        options = PrepareOptions(**each.prepare)
        assert options.vocab_size > 0
        assert options.drop_repetitive or not each.synthetic, each.variant
        for kind in each.synthetic:
            train = each.writer(kind).recipe.train
            if kind == "back_translation":
                train = {"source": train["target"], "target": train["source"]}
            assert train == each.train, each.variant
    readme = (ROOT / "recipes" / name / "README.md").read_text()
    assert f"--recipe={name}" in readme


def test_what_multi30k_has_in_common_is_the_same() -> None:
    """The pages say that models and training are those of multi30k_en_de."""
    own = {"training.max_steps", "training.bleu_steps"}
    names = [path.name for path in (ROOT / "recipes").glob("multi30k_*")]
    assert len(names) == 6
    recipes = [Recipe.load(ROOT / "recipes", name) for name in names]
    common = [{k: v for k, v in each.settings.items() if k not in own} for each in recipes]
    assert all(settings == common[0] for settings in common)
    assert len({(each.preset, tuple(each.length_penalties)) for each in recipes}) == 1
