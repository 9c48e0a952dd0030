"""The ablation with a recipe that is followed in no time: what is checked, told and passed on."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import ablation
import pytest

from keras_transformer.errors import DivergedError, InputError
from keras_transformer.paper.recipes.recipe import Recipe
from tests.conftest import ROOT
from tests.messages import mentions


@pytest.fixture
def after() -> list[int]:
    """Steps that were to follow each of `followed`, for the time left."""
    return []


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch, after: list[int]) -> list[tuple[str, dict[str, str]]]:
    """What was followed, with which writers, instead of being trained."""
    calls: list[tuple[str, dict[str, str]]] = []
    checked: list[tuple[Path, str]] = []

    def follow(
        recipe: Recipe,
        corpus_dir: str,
        work_dir: Path,
        *,
        synthetic_from: dict[str, str],
        writers_dir: Path,
        steps_after: int,
    ) -> dict[str, Any]:
        assert work_dir.name == recipe.variant
        assert writers_dir == work_dir.parent / "writers", "trained once for all"
        for kind, export in synthetic_from.items():
            assert (work_dir / "synthetic" / kind, export) in checked
        calls.append((recipe.variant, synthetic_from))
        after.append(steps_after)
        if "post_norm" in recipe.variant:
            raise DivergedError("step 9: the loss is no number")
        last = 30.0 + len(calls)
        return {
            "seeds": {
                "1": {
                    "validation": {"last": last, "last, length penalty 1": last + 2 * len(calls)},
                    "validation_perplexity": 4.0,
                    "steps": 7000,
                    "training_minutes": 30.0,
                    "tokens_per_second": 6000,
                    "parameters": 1831424,
                    "commit": "0123456",
                    "machine": {"processor": "abacus" if len(calls) < 3 else "slide rule"},
                }
            }
        }

    monkeypatch.setattr(ablation, "run_recipe", follow)
    monkeypatch.setattr(ablation, "check_writer", lambda *writer: checked.append(writer))
    return calls


def ablate(
    variants: list[str], writers: dict[str, str], base: str = "short"
) -> dict[str, dict[str, Any]]:
    recipe = Recipe.load(ROOT / "recipes", "multi30k_en_de")
    return ablation.ablate(
        recipe, "multi30k", Path("work"), base=base, variants=variants, writers=writers
    )


def test_each_variant_has_the_writers_of_its_kinds_and_its_gain(
    followed: list[tuple[str, dict[str, str]]],
    after: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    writers = {"back_translation": "reverse/1"}
    measured = ablate(["ema", "distillation", "diversified"], writers)
    assert followed == [
        ("short", {}),
        ("short+ema", {}),
        ("short+distillation", {}),
        ("short+diversified", writers),
    ]
    assert [row["last"] for row in measured.values()] == [31.0, 32.0, 33.0, 34.0]
    told = capsys.readouterr().err
    last = "| `short+diversified` | 34.00 | +3.00 | 42.00 | +9.00 | 4.00 | 1,831,424 | 7,000 | 30 |"
    assert last in told
    both = "| 30 |\n\nNot all of one commit and one processor: `short`: 0123456 on abacus; `"
    assert told.count(both) == 2, "of the third row on, since only they differ"
    german = 2 * 18000  # a writer of two seeds, trained in its variant's turn
    assert after == [21000 + german, 14000 + german, 7000, 0]


def test_a_variant_that_diverges_is_a_row(
    followed: list[tuple[str, dict[str, str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    measured = ablate(["post_norm", "ema"], {})
    assert measured["short+post_norm"] == {"diverged": "step 9: the loss is no number"}
    assert measured["short+ema"]["last"] == 33.0
    assert "| `short+post_norm` | diverged | | |" in capsys.readouterr().err
    with pytest.raises(DivergedError):
        ablate(["ema"], {}, base="short+post_norm")
    assert followed[-1] == ("short+post_norm", {})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"variants": ["ema"], "writers": {"distillation": "a"}},
            mentions("distillation", "--synthetic_from"),
        ),
        (
            {"variants": ["ema"], "writers": {}, "base": "long"},
            mentions("long", "tests", "--base"),
        ),
    ],
)
def test_mistakes_show_before_anything_is_followed(
    followed: list[tuple[str, dict[str, str]]], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ablate(**given)
    assert followed == []


def test_one_writer_of_a_kind_is_for_all(followed: list[tuple[str, dict[str, str]]]) -> None:
    variants = {
        "brief": {"tests": {}},
        "one": {"synthetic": {"back_translation": {"recipe": "multi30k_de_en"}}},
        "two": {"synthetic": {"back_translation": {"recipe": "multi30k_de_en", "seeds": [2]}}},
        "none": {"synthetic": {"back_translation": {"recipe": "nobody"}}},
    }
    recipe = dataclasses.replace(Recipe.load(ROOT / "recipes", "multi30k_en_de"), variants=variants)
    for others, message in (
        (["one", "two"], mentions("back_translation", "writer")),
        (["none"], mentions("recipe", "nobody")),
    ):
        with pytest.raises(InputError, match=message):
            ablation.ablate(
                recipe, "multi30k", Path("work"), base="brief", variants=others, writers={}
            )
    assert followed == []


@pytest.mark.parametrize(
    ("argument", "code", "told"),
    [
        ("--synthetic_from=a", 1, mentions("a", "KIND=EXPORT")),
        ("post_norm", 2, mentions("post_norm", "--name=value")),
    ],
)
def test_the_command_tells_a_mistake_in_one_sentence(
    tmp_path: Path, argument: str, code: int, told: str
) -> None:
    command = [sys.executable, ROOT / "benchmarks/ablation.py", "--recipe=multi30k_en_de"]
    command += ["--corpus_dir=multi30k", f"--work_dir={tmp_path}", "--variants=ema"]
    command += [argument]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == code
    assert ended.stderr.splitlines()[-1].startswith("error: ")
    assert re.search(told, ended.stderr.splitlines()[-1])
    assert "Traceback" not in ended.stderr
