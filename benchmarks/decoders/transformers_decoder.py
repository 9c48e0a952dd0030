"""Hugging Face's MarianMT, a random model of the same shape, in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from steppers.cost import Sizes
from steppers.protocol import serve

from decoders import batches, protocol


def start(settings: dict[str, Any]) -> protocol.Started:
    """Makes the model and warms it up.

    Args:
        settings: `precision`, `threads`, `beam_size`, `length_penalty`, `sizes`,
            `special_ids`, `seed`, the number of `steps`, and `protocol`'s.
    """
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(settings["seed"])
    special, steps = settings["special_ids"], settings["steps"]
    model = transformers.MarianMTModel(_configuration(Sizes(**settings["sizes"]), special, steps))
    model = model.eval().to(getattr(torch, settings["precision"]))

    def prepare(ids: batches.Ids) -> torch.Tensor:
        return torch.from_numpy(ids).long()

    @torch.inference_mode()
    def decode(ids: torch.Tensor) -> Sequence[int]:
        outputs = model.generate(
            input_ids=ids,
            attention_mask=(ids != special["pad"]).long(),
            num_beams=settings["beam_size"],
            length_penalty=settings["length_penalty"],
            do_sample=False,
            min_new_tokens=steps,
            max_new_tokens=steps,
        )
        return [outputs.shape[1] - 1] * len(outputs)  # the start token is among them

    facts, commands = protocol.decode_ids(settings, prepare, decode)
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    return {**facts, "versions": versions}, commands


def _configuration(sizes: Sizes, special: dict[str, int], steps: int) -> transformers.MarianConfig:
    return transformers.MarianConfig(
        vocab_size=sizes.target_vocab_size,
        max_position_embeddings=max(256, steps + 1),
        d_model=sizes.d_model,
        encoder_layers=sizes.num_encoder_layers,
        decoder_layers=sizes.num_decoder_layers,
        encoder_ffn_dim=sizes.d_ff,
        decoder_ffn_dim=sizes.d_ff,
        encoder_attention_heads=sizes.num_heads,
        decoder_attention_heads=sizes.num_heads,
        activation_function="relu",
        scale_embedding=True,
        init_std=sizes.d_model**-0.5,
        pad_token_id=special["pad"],
        bos_token_id=special["start"],
        eos_token_id=special["end"],
        decoder_start_token_id=special["start"],
        forced_eos_token_id=None,
    )


if __name__ == "__main__":
    serve(start)
