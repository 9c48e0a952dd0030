"""Steps of the same model as a PyTorch user writes it; needs torch and NumPy alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from steppers import protocol
from steppers.cost import Sizes

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # source, target, labels


class Translator(nn.Module):
    """`nn.Transformer` with one matrix for both embeddings and the output, as in the paper.

    Args:
        sizes: the model's.
        dropout: `nn.Transformer`'s: of embeddings, residuals, attention and ReLU.
        pad_id: of the vocabulary.
        max_length: longest sentence.
        norm_first: pre-norm.
    """

    def __init__(
        self, sizes: Sizes, dropout: float, pad_id: int, max_length: int, norm_first: bool = False
    ):
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
            dropout, batch_first=True, norm_first=norm_first,
        )  # fmt: skip

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        scale = math.sqrt(self.embedding.embedding_dim)
        return self.dropout(self.embedding(ids) * scale + self.positions[: ids.shape[1]])

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Returns logits [B, T, V] for int[B, S] and int[B, T]."""
        length = target.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=target.device).triu(1)
        padding = source == self.pad_id
        # Targets are padded on the right, where the causal mask hides it; with no other mask
        # PyTorch takes its faster attention.
        features = self.transformer(
            self.embed(source), self.embed(target), tgt_mask=future, tgt_is_causal=True,
            src_key_padding_mask=padding, memory_key_padding_mask=padding,
        )  # fmt: skip
        return functional.linear(features, self.embedding.weight)


def use_paper_dropout(model: Translator) -> None:
    """Leaves dropout on embeddings and residuals alone, as in the paper; it costs less."""
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
        elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
            module.dropout = nn.Identity()


def make_step(model: Translator, settings: dict[str, Any]) -> Callable[[Tensors], torch.Tensor]:
    """Returns a function that trains on one batch and returns its loss."""
    optimizer = torch.optim.Adam(
        model.parameters(), settings["learning_rate"], betas=(0.9, 0.98), eps=1e-9, fused=True
    )
    in_bfloat16 = settings["precision"] == "bfloat16"

    def loss_of(source: torch.Tensor, target: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=in_bfloat16):
            logits = model(source, target)
        return functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), ignore_index=model.pad_id,
            label_smoothing=settings["label_smoothing"],
        )  # fmt: skip

    if settings["compile"]:
        loss_of = torch.compile(loss_of, dynamic=True)

    def take_step(batch: Tensors) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(*batch)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return take_step


def start(
    settings: dict[str, Any],
) -> tuple[protocol.Answer, Mapping[str, Callable[[str], protocol.Answer]]]:
    """Makes the model and warms it up.

    Args:
        settings: `sizes` of the model; `batches`, an .npz of source_I, target_I and
            labels_I; `precision` float32 or bfloat16; whether to `compile` and to take
            `paper_dropout`; `dropout`, `label_smoothing`, `learning_rate`, `pad_id`,
            `threads`, `seed`.
    """
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(settings["seed"])
    sizes, pad_id = Sizes(**settings["sizes"]), settings["pad_id"]
    with np.load(settings["batches"]) as file:
        count = len(file.files) // 3
        stored = [
            tuple(file[f"{name}_{i}"] for name in ("source", "target", "labels"))
            for i in range(count)
        ]
    longest = max(ids.shape[1] for batch in stored for ids in batch)
    model = Translator(sizes, settings["dropout"], pad_id, longest).train()
    if settings["paper_dropout"]:
        use_paper_dropout(model)
    take_step = make_step(model, settings)

    def tensors(batch: tuple[np.ndarray, ...]) -> Tensors:
        source, target, labels = (torch.from_numpy(ids).long() for ids in batch)
        return source, target, labels

    of_each_shape = {tuple(ids.shape for ids in batch): batch for batch in stored}
    facts = protocol.warm_up(map(tensors, of_each_shape.values()), take_step)
    endless = map(tensors, itertools.cycle(stored))
    steps_taken = 0

    def go(count: str) -> protocol.Answer:
        nonlocal steps_taken
        first, steps_taken = steps_taken, steps_taken + int(count)

        def arrays(place: int) -> tuple[np.ndarray, np.ndarray]:
            source, _, labels = stored[(first + place) % len(stored)]
            return source, labels

        return protocol.measure(int(count), sizes, lambda: next(endless), take_step, arrays, pad_id)

    versions = {"torch": torch.__version__, "numpy": np.__version__}
    return {**facts, "versions": versions}, {"go": go}


if __name__ == "__main__":
    protocol.serve(start)
