"""The ablation with a recipe that is followed in no time: what is checked, told and passed on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ablation
import pytest
from absl import flags
from absl.testing import flagsaver

from keras_transformer.recipe import Recipe

FLAGS = flags.FLAGS


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, str]]]:
    """What was followed, with which writers, instead of being trained."""
    calls: list[tuple[str, dict[str, str]]] = []

    def follow(
        recipe: Recipe, corpus_dir: str, work_dir: Path, *, synthetic_from: dict[str, str]
    ) -> dict[str, Any]:
        assert work_dir.name == recipe.variant
        calls.append((recipe.variant, synthetic_from))
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
                }
            }
        }

    monkeypatch.setattr(ablation, "run_recipe", follow)
    monkeypatch.setattr(ablation, "check_writer", lambda directory, model_dir: None)
    return calls


def ablate(**given: Any) -> int:
    if not FLAGS.is_parsed():
        FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(
        **{"recipe": "multi30k_en_de", "corpus_dir": "multi30k", "work_dir": "work", **given}
    ):
        return ablation.main([])


def test_each_variant_has_its_own_writers_and_its_gain(
    followed: list[tuple[str, dict[str, str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    writers = {"back_translation": "reverse/1", "distillation": "teacher/1"}
    code = ablate(
        variants=["ema", "back_translation", "diversified"],
        synthetic_from=[f"{kind}={export}" for kind, export in writers.items()],
    )
    assert code == 0
    assert followed == [
        ("short", {}),
        ("short+ema", {}),
        ("short+back_translation", {"back_translation": "reverse/1"}),
        ("short+diversified", writers),
    ]
    output, told = capsys.readouterr()
    assert [row["last"] for row in json.loads(output).values()] == [31.0, 32.0, 33.0, 34.0]
    last = "| `short+diversified` | 34.00 | +3.00 | 42.00 | +9.00 | 4.00 | 1,831,424 | 7,000 | 30 |"
    assert told.rstrip().endswith(last)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"variants": ["ema", "diversified"], "synthetic_from": ["distillation=a"]},
            "has pairs of back_translation; expected --synthetic_from=back_translation=EXPORT",
        ),
        (
            {"variants": ["ema"], "synthetic_from": ["distillation=a"]},
            "no variant has pairs of distillation, which --synthetic_from names",
        ),
        ({"variants": ["ema", "long"], "base": "long"}, "long has tests; expected a --base with"),
        ({"variants": ["ema"], "synthetic_from": ["a"]}, "is 'a'; expected KIND=EXPORT"),
    ],
)
def test_mistakes_show_before_anything_is_followed(
    followed: list[tuple[str, dict[str, str]]],
    given: dict[str, Any],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ablate(**given) == 1
    assert followed == []
    assert message in capsys.readouterr().err
