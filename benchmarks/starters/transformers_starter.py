"""Hugging Face's MarianMT, a random model of the same shape, in PyTorch."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

from starters import protocol


def make(settings: dict[str, Any]) -> None:
    """Writes the model as `save_pretrained` does, and the vocabulary beside it.

    Args:
        settings: `path`, `vocabulary` (a SentencePiece model), `sizes` and `special_ids`
            as `decoders.transformers_decoder` takes them, `steps`, `seed`.
    """
    import torch
    import transformers
    from decoders.transformers_decoder import _configuration
    from steppers.cost import Sizes

    torch.manual_seed(settings["seed"])
    sizes = Sizes(**settings["sizes"])
    config = _configuration(sizes, settings["special_ids"], settings["steps"])
    transformers.MarianMTModel(config).save_pretrained(settings["path"])
    shutil.copy(settings["vocabulary"], f"{settings['path']}/joint.model")


def load(settings: protocol.Settings) -> protocol.Translate:
    """Returns what translates a text: SentencePiece around the model."""
    import sentencepiece
    import torch
    from transformers.models.marian.modeling_marian import MarianMTModel

    torch.set_num_threads(settings["threads"])
    pieces = sentencepiece.SentencePieceProcessor(
        model_file=f"{settings['path']}/joint.model", add_eos=True
    )
    dtype = getattr(torch, settings["precision"])
    model = MarianMTModel.from_pretrained(settings["path"], dtype=dtype).eval()

    @torch.inference_mode()
    def translate(sentence: str) -> str:
        outputs = model.generate(
            input_ids=torch.tensor([pieces.encode(sentence)]),
            num_beams=settings["beam_size"],
            length_penalty=settings["length_penalty"],
            do_sample=False,
            min_new_tokens=settings["steps"],
            max_new_tokens=settings["steps"],
        )
        text: str = pieces.decode(outputs[0].tolist())
        return text

    return translate


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(json.loads(sys.argv[2]))
    else:
        marian = "transformers.models.marian.modeling_marian"
        protocol.start(["torch", marian, "sentencepiece"], load)
