#!/usr/bin/env python3
r"""Says what the recipes need on GPUs that are not here: memory of each, and hours, both counted.

Example:
    benchmarks/training_plan.py --recipes=wmt14_en_de_base,wmt14_en_de_big --gpus=1,8

Nothing is run. For each recipe, of steps with its batch of target tokens:

* `flop`: of all steps' matrix products (backward twice the forward, causal attention half), with
  --sentence_tokens tokens a sentence on both sides; beside `paper_flop`, which the paper's Table 2
  has from hours and the GPUs' speed;
* `memory_gb` by the number of GPUs and of parts (`training.accumulate_steps`): weights, gradients
  and Adam's moments in float32, 16 bytes a weight; a compute copy of the weights; and what a
  part's forward pass leaves for the backward pass in 2 bytes a value (`activation_values` a
  token: inputs of products, attention weights, normalized values). Of a batch
  of sentences with `longest_tokens` on both sides. It is no upper bound: where sources are longer
  than targets, a batch has more source positions. What the framework holds besides is not in it,
  either: leave a fifth of a GPU for that.
* `hours` by GPU and number: flop over --utilization of what the maker states for dense products
  in bfloat16 or float16 (P100: the paper's 9.5 TFLOP/s in float32, which it takes as sustained).

Prints one JSON object.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import command
import numpy as np
from absl import flags
from steppers.cost import Sizes, training_flop

from keras_transformer.config import ModelConfig
from keras_transformer.data.preparation.pipeline import PrepareOptions
from keras_transformer.paper.recipes.recipe import Recipe

FLAGS = flags.FLAGS
flags.DEFINE_list(
    "recipes",
    ["wmt14_en_de_base", "wmt14_en_de_big", "wmt14_en_fr_base", "wmt14_en_fr_big"],
    "folders of recipes/",
)
command.define_numbers("gpus", [1, 2, 8], "numbers of GPUs")
command.define_numbers("parts", [1, 2, 4, 8], "numbers of parts of a batch")
flags.DEFINE_integer("sentence_tokens", 30, "tokens of a sentence", 1, upper_bound=256)
flags.DEFINE_float(
    "utilization", 0.35, "share of a GPU's stated speed that is reached", 0.01, upper_bound=1
)

TERAFLOP = {"V100": 125.0, "RTX 4090": 165.0, "A100": 312.0, "H100": 989.0}
PAPER_P100 = 9.5  # "sustained", footnote 5 of the paper
PAPER_FLOP = {"base": 3.3e18, "big": 2.3e19}  # Table 2


def activation_values(m: ModelConfig, length: int) -> int:
    """Values that a source and a target token leave for the backward pass."""
    heads, d = m.num_heads * (m.key_dim or 0), m.d_model
    values = m.num_heads * (m.value_dim or 0)
    # Input, query, keys and values, weights before and after the softmax, context, residual sum
    # and normalized sum.
    attention = 3 * d + 2 * heads + 2 * values + 2 * m.num_heads * length
    feed_forward = 3 * d + 2 * m.d_ff
    layers = m.num_encoder_layers * (attention + feed_forward)
    layers += m.num_decoder_layers * (2 * attention + feed_forward)
    return layers + 3 * 2 * d


def plan(recipe: Recipe) -> dict[str, Any]:
    """Returns what is printed of a recipe."""
    vocab_size = int(recipe.prepare["vocab_size"])
    config = recipe.config().updated(
        {"model.source_vocab_size": vocab_size, "model.target_vocab_size": vocab_size}
    )
    m, t = config.model, config.training
    sizes = Sizes(
        m.num_encoder_layers, m.num_decoder_layers, m.d_model, m.d_ff, m.num_heads,
        m.key_dim or 0, m.value_dim or 0, vocab_size,
    )  # fmt: skip
    lengths = np.full(t.batch_tokens // FLAGS.sentence_tokens, FLAGS.sentence_tokens)
    flop = t.max_steps * training_flop(sizes, lengths, lengths)
    weights = m.num_parameters()
    longest = PrepareOptions(**recipe.prepare).max_tokens
    values = activation_values(m, longest)
    # Full logits never exist at once: the loss takes 512 rows at a time.
    fixed = weights * (16 + 2) + 512 * vocab_size * 3 * 4
    memory = {
        f"{gpus} GPUs": {
            f"{parts} parts": round(
                (fixed + 2 * values * t.batch_tokens / (int(gpus) * int(parts))) / 1e9, 1
            )
            for parts in FLAGS.parts
        }
        for gpus in FLAGS.gpus
    }
    hours = {
        f"{gpus} {name}": round(flop / (int(gpus) * teraflop * 1e12 * FLAGS.utilization) / 3600, 1)
        for name, teraflop in TERAFLOP.items()
        for gpus in FLAGS.gpus
    }
    hours["8 P100, as the paper counts"] = round(flop / (8 * PAPER_P100 * 1e12) / 3600, 1)
    return {
        "parameters": weights,
        "steps": t.max_steps,
        "flop": float(f"{flop:.3g}"),
        "paper_flop": PAPER_FLOP.get(recipe.preset),
        "longest_tokens": longest,
        "activation_values": values,
        "memory_gb": memory,
        "hours": hours,
    }


def main() -> int:
    """Prints the plans."""
    recipes_dir = Path(__file__).resolve().parent.parent / "recipes"
    plans = {name: plan(Recipe.load(recipes_dir, name)) for name in FLAGS.recipes}
    assumed = {"sentence_tokens": FLAGS.sentence_tokens, "utilization": FLAGS.utilization}
    print(json.dumps({**assumed, "recipes": plans}))
    return 0


if __name__ == "__main__":
    command.run(main)
