"""Hugging Face's MarianMT in PyTorch: a random model of the same shape."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from typing import Any

import sentencepiece
import torch
import transformers
from cost import Sizes
from protocol import Started
from sentence_batches import Ids
from transformers.models.marian.modeling_marian import MarianMTModel

from engines import tasks


def _random_model(settings: dict[str, Any]) -> MarianMTModel:
    """Makes a model from `sizes`, `special_ids`, `seed` and the number of `steps`."""
    torch.manual_seed(settings["seed"])
    sizes, special = Sizes(**settings["sizes"]), settings["special_ids"]
    config = transformers.MarianConfig(
        vocab_size=sizes.target_vocab_size,
        max_position_embeddings=max(256, settings["steps"] + 1),
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
    return MarianMTModel(config)


def _search(model: MarianMTModel, settings: dict[str, Any]) -> Callable[..., torch.Tensor]:
    """Returns `model.generate` with a beam search of exactly `steps` tokens."""

    @torch.inference_mode()
    def search(ids: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
        return model.generate(
            input_ids=ids,
            num_beams=settings["beam_size"],
            length_penalty=settings["length_penalty"],
            do_sample=False,
            min_new_tokens=settings["steps"],
            max_new_tokens=settings["steps"],
            **inputs,
        )

    return search


def decode_ids(settings: dict[str, Any]) -> Started:
    """Makes a random model that decodes ids.

    Args:
        settings: `precision`, `threads`, `beam_size`, `length_penalty`, `sizes`, `special_ids`,
            `seed`, the number of `steps`, and the settings of `tasks.decode_ids`.
    """
    torch.set_num_threads(settings["threads"])
    model = _random_model(settings).eval().to(getattr(torch, settings["precision"]))
    search = _search(model, settings)

    def prepare(ids: Ids) -> torch.Tensor:
        return torch.from_numpy(ids).long()

    def decode(ids: torch.Tensor) -> Sequence[int]:
        mask = (ids != settings["special_ids"]["pad"]).long()
        outputs = search(ids, attention_mask=mask)
        return [outputs.shape[1] - 1] * len(outputs)  # without the start token

    facts, commands = tasks.decode_ids(settings, prepare, decode)
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    return {**facts, "versions": versions}, commands


def make(settings: dict[str, Any]) -> Started:
    """Writes a random model, with the SentencePiece model `vocabulary`, to the folder `path`."""
    _random_model(settings).save_pretrained(settings["path"])
    shutil.copy(settings["vocabulary"], f"{settings['path']}/joint.model")
    return {}, {}


def start_up(settings: dict[str, Any]) -> Started:
    """Loads the model that `make` wrote to `path`, in `precision`."""
    torch.set_num_threads(settings["threads"])

    def load() -> Callable[[str], str]:
        pieces = sentencepiece.SentencePieceProcessor(
            model_file=f"{settings['path']}/joint.model", add_eos=True
        )
        dtype = getattr(torch, settings["precision"])
        model = MarianMTModel.from_pretrained(settings["path"], dtype=dtype).eval()
        search = _search(model, settings)

        def translate(sentence: str) -> str:
            text: str = pieces.decode(search(torch.tensor([pieces.encode(sentence)]))[0].tolist())
            return text

        return translate

    return tasks.start_up(settings, load)
