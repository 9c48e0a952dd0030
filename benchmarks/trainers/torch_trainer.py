r"""Trains the model of `steppers.torch_stepper` to the end; needs torch and NumPy alone.

`python -m trainers.torch_trainer SETTINGS`, a JSON object: `sizes`, `dropout`, `pad_id`,
`label_smoothing`, `precision`, `threads`, `seed` as the stepper's; `batches`, an .npz of an epoch's
source_I, target_I and labels_I, which every epoch has in another order; `learning_rate`, the
peak after `warmup_steps`, from which it falls to 0 at `max_steps`; `checkpoint_steps`; and
`directory`. There it leaves `step-N.npz`, the weights, and a line of `progress.jsonl` for each
checkpoint: its step, seconds of all steps so far, real target tokens, loss, threads. Stopped, it
continues.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from steppers.cost import Sizes
from steppers.torch_stepper import Translator, use_paper_dropout
from torch.nn import functional


def train(settings: dict[str, Any]) -> None:
    """Trains to the last step, from the last checkpoint that is there."""
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(settings["seed"])
    with np.load(settings["batches"]) as file:
        count = len(file.files) // 3
        epoch = [
            tuple(
                torch.from_numpy(file[f"{name}_{i}"]).long()
                for name in ("source", "target", "labels")
            )
            for i in range(count)
        ]
    pad_id = settings["pad_id"]
    longest = max(ids.shape[1] for batch in epoch for ids in batch)
    model = Translator(
        Sizes(**settings["sizes"]), settings["dropout"], pad_id, longest, norm_first=True
    ).train()
    use_paper_dropout(model)
    optimizer = torch.optim.Adam(model.parameters(), 0.0, betas=(0.9, 0.98), eps=1e-9, fused=True)
    directory = Path(settings["directory"])
    directory.mkdir(parents=True, exist_ok=True)
    step, seconds, tokens = restore(directory, model, optimizer)
    warmup, last = settings["warmup_steps"], settings["max_steps"]
    while step < last:
        start = time.perf_counter()
        until = min(step + settings["checkpoint_steps"], last)
        while step < until:
            order = np.random.default_rng([settings["seed"], step // count]).permutation(count)
            source, target, labels = epoch[order[step % count]]
            left = (last - step) / max(last - warmup + 1, 1)
            rate = settings["learning_rate"] * min((step + 1) / warmup, 1, left)
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=settings["precision"] == "bfloat16"):
                logits = model(source, target)
            loss = functional.cross_entropy(
                logits.flatten(0, 1).float(), labels.flatten(), ignore_index=pad_id,
                label_smoothing=settings["label_smoothing"],
            )  # fmt: skip
            loss.backward()
            optimizer.step()
            tokens += int((labels != pad_id).sum())
            step += 1
        seconds += time.perf_counter() - start
        row = {
            "step": step,
            "seconds": seconds,
            "tokens": tokens,
            "loss": loss.item(),
            "threads": settings["threads"],
        }
        save(directory, model, optimizer, row)
        left_minutes = (last - step) * seconds / step / 60
        print(f"torch: step {step} of {last}, loss {row['loss']:.3f}, "
              f"{tokens / seconds:,.0f} tokens/s, {left_minutes:.0f} min left",
              file=sys.stderr, flush=True)  # fmt: skip


def restore(
    directory: Path, model: Translator, optimizer: torch.optim.Optimizer
) -> tuple[int, float, int]:
    """Returns step, seconds and tokens to go on from."""
    path = directory / "last.pt"
    if not path.exists():
        return 0, 0.0, 0
    state = torch.load(path)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
    return state["step"], state["seconds"], state["tokens"]


def save(
    directory: Path, model: Translator, optimizer: torch.optim.Optimizer, row: dict[str, Any]
) -> None:
    """Leaves the weights, the line of progress, and what it takes to continue."""
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    np.savez(directory / f"step-{row['step']}.npz", **arrays)
    with (directory / "progress.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
             "rng": torch.get_rng_state(), **row}  # fmt: skip
    torch.save(state, directory / "last.tmp")
    os.replace(directory / "last.tmp", directory / "last.pt")


if __name__ == "__main__":
    train(json.loads(sys.argv[1]))
