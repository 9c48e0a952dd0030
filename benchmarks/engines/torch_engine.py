"""PyTorch: training steps of the same model with `nn.Transformer`; needs only torch and NumPy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from cost import Sizes
from protocol import Answer, Started
from torch import nn
from torch.nn import functional

from engines import device_time, tasks

Tensors = tuple[torch.Tensor, ...]  # source, target and labels


class TorchTranslator(nn.Module):
    """`nn.Transformer` with one matrix for both embeddings and the output, as in the paper.

    Args:
        sizes: sizes of the model.
        dropout: rate for embeddings, residuals, attention weights and ReLUs.
        pad_id: padding id.
        max_length: length of the longest sentence.
    """

    def __init__(self, sizes: Sizes, dropout: float, pad_id: int, max_length: int):
        super().__init__()
        d = sizes.d_model
        self.pad_id = pad_id
        self.embedding = nn.Embedding(sizes.target_vocab_size, d, padding_idx=pad_id)
        nn.init.normal_(self.embedding.weight, std=d**-0.5)
        angles = torch.arange(max_length)[:, None] / 10_000 ** (torch.arange(0, d, 2) / d)
        positions = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
        self.register_buffer("positions", positions)
        self.dropout = nn.Dropout(dropout)
        self.transformer = nn.Transformer(
            d, sizes.num_heads, sizes.num_encoder_layers, sizes.num_decoder_layers, sizes.d_ff,
            dropout, batch_first=True,
        )  # fmt: skip

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        scale = math.sqrt(self.embedding.embedding_dim)
        return self.dropout(self.embedding(ids) * scale + self.positions[: ids.shape[1]])

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Returns logits [B, T, V] for int[B, S] and int[B, T]."""
        length = target.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=target.device).triu(1)
        padding = source == self.pad_id
        # Targets are padded on the right, where the causal mask hides the padding. Without another
        # mask, PyTorch uses its faster attention.
        features = self.transformer(
            self.embed(source), self.embed(target), tgt_mask=future, tgt_is_causal=True,
            src_key_padding_mask=padding, memory_key_padding_mask=padding,
        )  # fmt: skip
        return functional.linear(features, self.embedding.weight)


def use_paper_dropout(model: TorchTranslator) -> None:
    """Keeps only the paper's dropout, of embeddings and residuals, which costs less."""
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
        elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            module.dropout = nn.Identity()


def make_step(
    model: TorchTranslator, settings: dict[str, Any]
) -> Callable[[Tensors], torch.Tensor]:
    """Returns a function that trains on one batch and returns its loss."""
    optimizer = torch.optim.Adam(
        model.parameters(), settings["learning_rate"], betas=(0.9, 0.98), eps=1e-9, fused=True
    )
    in_bfloat16 = settings["precision"] == "bfloat16"
    device = model.embedding.weight.device.type

    def loss_of(source: torch.Tensor, target: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=in_bfloat16):
            logits = model(source, target)
        return functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), ignore_index=model.pad_id,
            label_smoothing=settings["label_smoothing"],
        )  # fmt: skip

    if settings["compile"]:
        loss_of = torch.compile(loss_of, dynamic=settings["dynamic"])

    def take_step(batch: Tensors) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(*batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return take_step


def train(settings: dict[str, Any]) -> Started:
    """Makes a model and warms it up.

    Args:
        settings: `sizes` of the model; `batches`, an .npz file of source_I, target_I and
            labels_I; `device`, cpu or cuda; `precision`, float32 or bfloat16; booleans `compile`,
            `dynamic` (compile for all shapes at once) and `paper_dropout`; `dropout`,
            `label_smoothing`, `learning_rate`, `pad_id`, `threads` and `seed`.
    """
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(settings["seed"])
    sizes, pad_id = Sizes(**settings["sizes"]), settings["pad_id"]
    with np.load(settings["batches"]) as file:
        stored = [
            tuple(file[f"{name}_{i}"] for name in ("source", "target", "labels"))
            for i in range(len(file.files) // 3)
        ]
    longest = max(ids.shape[1] for batch in stored for ids in batch)
    device = settings["device"]
    # TensorFlow also multiplies float32 with TF32 on a GPU.
    torch.set_float32_matmul_precision("high" if device == "cuda" else "highest")
    model = TorchTranslator(sizes, settings["dropout"], pad_id, longest).train().to(device)
    if settings["paper_dropout"]:
        use_paper_dropout(model)

    def tensors(batch: tuple[np.ndarray, ...]) -> Tensors:
        return tuple(torch.from_numpy(ids).long().to(device) for ids in batch)

    of_each_shape = {tuple(ids.shape for ids in batch): batch for batch in stored}
    # All batches are on the card before the steps.
    on_card = [tensors(batch) for batch in stored] if device == "cuda" else None
    endless = itertools.cycle(range(len(stored)))

    def next_batch(step: int) -> tuple[Tensors, Callable[[], tasks.Arrays]]:
        index = next(endless)
        batch = stored[index]
        ready = tensors(batch) if on_card is None else on_card[index]
        return ready, lambda: (batch[0], batch[2])

    take_step = make_step(model, settings)

    def profile(steps: int) -> Answer:
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profiled:
            for step in range(steps):
                float(take_step(next_batch(step)[0]))
        return device_time.summary(device_time.torch_events(profiled), steps)

    def device_mb() -> float:
        return torch.cuda.max_memory_allocated() / 2**20

    facts, commands = tasks.train(
        sizes, pad_id, map(tensors, of_each_shape.values()), next_batch, take_step,
        device_mb if device == "cuda" else None,
    )  # fmt: skip
    versions = {"torch": torch.__version__, "numpy": np.__version__}
    if device == "cuda":
        versions["cuda"] = str(torch.version.cuda)
    return {**facts, "versions": versions}, {**commands, "profile": profile}
