"""results.json of recipes: whose they are, what they say together, and how a person reads them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.paper.recipes.recipe import Recipe
from keras_transformer.runs.results import mixed_origins, read_results


def identity(recipe: Recipe) -> dict[str, Any]:
    """Returns what results say of the recipe that they are of."""
    return {
        "recipe": recipe.name,
        "variant": recipe.variant,
        "recipe_sha256": recipe.fingerprint,
    }


def check_identity(work_dir: Path, facts: Mapping[str, Any]) -> None:
    """Raises `InputError` for a directory of another recipe, or version of it, or other writers.

    Args:
        work_dir: the directory.
        facts: what its results will say of the recipe and of its writers.
    """
    name = f"{facts['recipe']} {facts['variant']}".strip()
    for path in (work_dir / "recipe.json", work_dir / "results.json"):
        found = read_results(path)
        if not found:
            continue
        other = f"{found.get('recipe', 'something else')} {found.get('variant', '')}".strip()
        if other != name:
            raise InputError(
                f"{path} is of {other}, not of the recipe {name}; expected another directory"
            )
        if found.get("recipe_sha256") != facts["recipe_sha256"]:
            raise InputError(
                f"{path} is of another version of the recipe {name}; expected another directory"
            )
        before, now = found.get("written_by", {}), facts.get("written_by", {})
        for kind in now:
            if before.get(kind) != now[kind]:
                raise InputError(
                    f"{path} was begun with {before.get(kind)} as the writer of {kind}, not with "
                    f"{now[kind]}; expected the same --synthetic_from, or another directory"
                )


def spread(by_seed: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation of BLEU over the seeds, by test."""
    result: dict[str, Any] = {"mean": {}, "standard_deviation": {}}
    for name in next(iter(by_seed.values()))["tests"]:
        bleu = [seed["tests"][name]["bleu"] for seed in by_seed.values()]
        result["mean"][name] = round(statistics.mean(bleu), 2)
        result["standard_deviation"][name] = round(statistics.stdev(bleu), 2)
    return result


def summary(results: Mapping[str, Any]) -> str:
    """Returns the tests' BLEU for a person, published figures beside what is like them."""
    models = {f"seed {seed}": result for seed, result in results["seeds"].items()}
    if "ensemble" in results:
        models["ensemble"] = results["ensemble"]
    lines = []
    for name, result in models.items():
        finished = result.get("finished", True)
        tests = result["tests"] if finished else {}  # earlier code scored them at every stop
        if not tests:
            line = f"{name:<10} {'validation':<20} BLEU {max(result['validation'].values()):6.2f}"
            if not finished:
                line += f"  at step {result['steps']:,}; tests are scored when training is finished"
            lines.append(line)
        for test, scores in tests.items():
            lines += [f"{name:<10} {test:<20} {said}" for said in _measures(scores)]
    for test, mean in results.get("mean", {}).items():
        deviation = results["standard_deviation"][test]
        lines.append(f"{'mean':<10} {test:<20} BLEU {mean:6.2f} ± {deviation:.2f}")
    origins = {
        name: (result["commit"], result["machine"]["processor"]) for name, result in models.items()
    }
    return "\n".join(filter(None, [*lines, mixed_origins(origins)]))


def _measures(scores: Mapping[str, Any]) -> list[str]:
    """Returns a line for each measure of BLEU that a test was scored by."""
    said = {"bleu": f"BLEU {scores['bleu']:6.2f}  {scores['signature']}"}
    if "paper_bleu" in scores:
        said["paper_bleu"] = f"BLEU {scores['paper_bleu']:6.2f}  {scores['paper_signature']}"
    published = scores["published"]
    if published:
        measure = published.get("measure", "bleu")
        if measure in said:
            said[measure] += f"  (published: {published['bleu']})"
        else:
            said["bleu"] += f"  (published by {measure}: {published['bleu']})"
    return list(said.values())
