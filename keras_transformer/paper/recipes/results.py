"""The results of a recipe for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keras_transformer.runs.results import mixed_origins


def summary(results: Mapping[str, Any]) -> str:
    """Returns the BLEU of all tests, each with the published figure that it compares to."""
    models = {f"seed {seed}": result for seed, result in results["seeds"].items()}
    if "ensemble" in results:
        models["ensemble"] = results["ensemble"]
    lines = []
    for name, result in models.items():
        if not result["tests"]:
            line = f"{name:<10} {'validation':<20} BLEU {max(result['validation'].values()):6.2f}"
            if not result.get("finished", True):
                line += f"  at step {result['steps']:,}; tests are scored when training is finished"
            lines.append(line)
        for test, scores in result["tests"].items():
            lines += [f"{name:<10} {test:<20} {line}" for line in _bleu_lines(scores)]
    for test, mean in results.get("mean", {}).items():
        deviation = results["standard_deviation"][test]
        lines.append(f"{'mean':<10} {test:<20} BLEU {mean:6.2f} ± {deviation:.2f}")
    return "\n".join(filter(None, [*lines, mixed_origins(models)]))


def _bleu_lines(scores: Mapping[str, Any]) -> list[str]:
    """Returns a line for each measure of BLEU that a test was scored by."""
    lines = {"bleu": f"BLEU {scores['bleu']:6.2f}  {scores['signature']}"}
    if "paper_bleu" in scores:
        lines["paper_bleu"] = f"BLEU {scores['paper_bleu']:6.2f}  {scores['paper_signature']}"
    published = scores["published"]
    if published:
        measure = published.get("measure", "bleu")
        if measure in lines:
            lines[measure] += f"  (published: {published['bleu']})"
        else:
            lines["bleu"] += f"  (published by {measure}: {published['bleu']})"
    return list(lines.values())
