"""Marian in Python (`pymarian`): a random model of the same shape, or the model of a run.

Marian limits the length of an output by the width of its batch. With random models, all sources are
cut or repeated to half of the steps. They are then about as long as the sentences of Multi30k.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pymarian
from cost import Sizes
from protocol import Started
from sentence_batches import Ids, groups_for_marian, without_padding

from engines import tasks

_BATCH = 64  # sentences
_LENGTH_FACTOR = 2  # steps of an output of a random model, for each source token
_TEXT_LENGTH_FACTOR = 3  # Marian's default
_NEVER = -1e4  # bias of the end token
_WORKSPACE_MB = 500
_TRAIN_MB = 200
_INT8 = "packed8avx512"  # faster than intgemm8 on CPUs with AVX-512
_VERSIONS = {"pymarian": importlib.metadata.version("pymarian")}


def decode_ids(settings: dict[str, Any]) -> Started:
    """Makes a random model that decodes ids.

    Args:
        settings: `precision`, `threads` and `at_once`, whose product is Marian's number of threads
            (each translates a part of a batch), `beam_size`, `length_penalty`, `sizes`,
            `special_ids`, `seed`, the number of `steps`, and the settings of `tasks.decode_ids`.
    """
    special, steps = settings["special_ids"], settings["steps"]
    width = steps // _LENGTH_FACTOR - 1  # without the end token
    threads = settings["threads"] * settings["at_once"]
    with tempfile.TemporaryDirectory() as folder:
        _random_model(Path(folder), settings)
        translator = _load_random(Path(folder), settings, threads)

    def prepare(ids: Ids) -> list[str]:
        rows = (
            [token for token in row if token > 3] for row in without_padding(ids, special["pad"])
        )
        return [
            " ".join(f"w{token}" for token in itertools.islice(itertools.cycle(row), width))
            for row in rows
        ]

    def decode(sources: list[str]) -> Sequence[int]:
        return [len(text.split()) for text in translator.translate(sources)]

    # Marian splits a batch between its threads.
    facts, commands = tasks.decode_ids({**settings, "at_once": 1}, prepare, decode)
    return {**facts, "versions": _VERSIONS}, commands


def decode_text(settings: dict[str, Any]) -> Started:
    """Loads the model that `marian_model.write_marian` wrote, and translates the text in one call.

    Marian's length penalty is log P / length^α, and α is `length_penalty`.

    Args:
        settings: `precision`, `threads` and `at_once`, whose product is Marian's number of threads
            (each translates a batch), `beam_size`, `length_penalty`, the folder `marian`,
            `positions`, the length of the model's position tables, and the settings of
            `tasks.decode_text`, except `rows`: Marian has batches of 64.
    """
    import sentencepiece  # only for text: an interpreter for random models may lack it

    os.environ["TRANSFORMER_FLAVOR"] = "experimental"  # see marian_model.py
    folder = Path(settings["marian"])
    joint = folder / "joint.model"
    source, target = (
        sentencepiece.SentencePieceProcessor(
            model_file=str(joint if joint.is_file() else folder / f"{side}.model")
        )
        for side in ("source", "target")
    )
    model = folder / "model.npz"
    if settings["precision"] == "int8":
        model = folder / "packed.bin"
        if not model.is_file():  # with --whole_program, each turn loads it again
            _convert(folder / "model.npz", model)
    translator = _translator(
        model,
        [folder / "source.yml", folder / "target.yml"],
        settings,
        settings["threads"] * settings["at_once"],
        {
            "max-length-factor": _TEXT_LENGTH_FACTOR,
            "max-length": settings["positions"],
            "maxi-batch": 1,  # the batches below, in their order
        },
    )

    def translate(lines: list[str]) -> list[str]:
        sentences = source.encode(lines)
        indices: list[int | None] = []  # index of the sentence; None for a filler
        inputs = []
        for group, filler in groups_for_marian([len(ids) for ids in sentences], _BATCH):
            batch = [sentences[i] for i in group]
            indices += group
            if filler is not None:
                longest = batch[-1]
                batch.append([*longest, *longest[-1:] * (filler - len(longest))])
                indices.append(None)
            inputs += [" ".join(f"w{i}" for i in ids) for ids in batch]
        outputs = translator.translate(inputs)
        # Marian never writes <unk> by default.
        texts = target.decode([[int(word[1:]) for word in text.split()] for text in outputs])
        found = {i: text for i, text in zip(indices, texts, strict=True) if i is not None}
        return [found[i] for i in range(len(lines))]

    one_call = {**settings, "at_once": 1, "rows": sys.maxsize}
    facts, commands = tasks.decode_text(one_call, translate)
    return {**facts, "batch": _BATCH, "versions": _VERSIONS}, commands


def _load_random(folder: Path, settings: dict[str, Any], threads: int) -> pymarian.Translator:
    """Loads the model that `_random_model` wrote to a folder."""
    [model] = [*folder.glob("packed.bin"), *folder.glob("model.npz")]
    options = {"max-length-factor": _LENGTH_FACTOR, "maxi-batch": 100}
    return _translator(model, [folder / "vocabulary.yml"] * 2, settings, threads, options)


def _translator(
    model: Path,
    vocabularies: Sequence[Path],
    settings: dict[str, Any],
    threads: int,
    more: dict[str, Any],
) -> pymarian.Translator:
    """Loads a model.

    Args:
        model: the model.
        vocabularies: the vocabularies of the source and the target.
        settings: `beam_size` and `length_penalty`.
        threads: number of threads.
        more: further options of Marian.
    """
    options = {
        "models": model, "vocabs": " ".join(map(str, vocabularies)),
        "beam-size": settings["beam_size"], "normalize": settings["length_penalty"],
        "cpu-threads": threads, "mini-batch": _BATCH, "workspace": _WORKSPACE_MB, **more,
    }  # fmt: skip
    flags = " ".join(f"--{name} {value}" for name, value in options.items())
    return pymarian.Translator(f"{flags} --quiet --quiet-translation")


def _random_model(folder: Path, settings: dict[str, Any]) -> None:
    """Writes the paper's model with Marian's own random weights.

    The output layer is separate from the embeddings, because Marian only packs it then. With int8,
    a batch of one sentence is twice as fast as with a tied output layer.
    """
    sizes = Sizes(**settings["sizes"])
    vocabulary, text, model = folder / "vocabulary.yml", folder / "text", folder / "model.npz"
    words = ["</s>", "<unk>", *(f"w{i}" for i in range(2, sizes.target_vocab_size))]
    vocabulary.write_text("".join(f'"{word}": {i}\n' for i, word in enumerate(words)))
    text.write_text("w5 w6 w7\n" * 8)
    _marian(
        "train", "--type", "transformer", "--train-sets", text, text,
        "--vocabs", vocabulary, vocabulary, "--dim-vocabs", len(words), len(words),
        "--model", model, "--dim-emb", sizes.d_model, "--transformer-dim-ffn", sizes.d_ff,
        "--enc-depth", sizes.num_encoder_layers, "--dec-depth", sizes.num_decoder_layers,
        "--transformer-heads", sizes.num_heads, "--tied-embeddings-src",
        "--optimizer", "sgd", "--learn-rate", 0, "--after-batches", 1, "--mini-batch", 8,
        "--cpu-threads", 1, "--workspace", _TRAIN_MB, "--seed", settings["seed"],
    )  # fmt: skip
    weights = dict(np.load(model))
    weights["decoder_ff_logit_out_b"][0, 0] = _NEVER  # every output has all steps
    output = weights.pop("decoder_ff_logit_out_Wt")  # packing skips a transposed matrix
    weights["decoder_ff_logit_out_W"] = np.ascontiguousarray(output.T)
    np.savez(model, **weights)
    if settings["precision"] == "int8":
        _convert(model, folder / "packed.bin")
        model.unlink()


def _convert(model: Path, packed: Path) -> None:
    """Writes a model with packed int8 matrices."""
    _marian("convert", "--from", model, "--to", packed, "--gemm-type", _INT8)


def _marian(*arguments: object) -> None:
    command = [sys.executable, "-m", "pymarian", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=sys.stderr)
