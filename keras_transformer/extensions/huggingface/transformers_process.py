"""Scores translations with `transformers`.

This file runs as a script: `python -I transformers_process.py MODEL`. PyTorch and TensorFlow do not
share a process, and this package is not imported. Standard input is JSON: `tokenized`, texts, and
`pairs`, each a source text and the ids of its translation. The last line of standard output is
JSON, too: `tokenized`, the ids of each text, and `log_probs`, one of each pair.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

_BATCH = 16


def _main(model_dir: str) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["USE_TF"] = "0"
    import torch
    from transformers import MarianMTModel, MarianTokenizer

    request = json.load(sys.stdin)
    tokenizer = MarianTokenizer.from_pretrained(model_dir)
    model = MarianMTModel.from_pretrained(model_dir).eval()
    tokenized = [tokenizer(text, truncation=True)["input_ids"] for text in request["tokenized"]]
    log_probs: list[float] = []
    pairs = request["pairs"]
    with torch.inference_mode():
        for begin in range(0, len(pairs), _BATCH):
            sources, targets = zip(*pairs[begin : begin + _BATCH], strict=True)
            log_probs += _log_probs(torch, model, tokenizer, list(sources), list(targets))
    print(json.dumps({"tokenized": tokenized, "log_probs": log_probs}))


def _log_probs(
    torch: Any, model: Any, tokenizer: Any, sources: list[str], targets: list[list[int]]
) -> list[float]:
    """Returns log P of each target."""
    inputs = tokenizer(sources, return_tensors="pt", padding=True, truncation=True)
    length = max(map(len, targets))
    labels = torch.full((len(targets), length), -100)
    for row, ids in zip(labels, targets, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    logits = model(**inputs, labels=labels).logits
    each = torch.log_softmax(logits.double(), -1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    return [float(value) for value in (each * (labels >= 0)).sum(-1)]


if __name__ == "__main__":
    _main(sys.argv[1])
