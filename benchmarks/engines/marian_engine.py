"""Marian in Python (`pymarian`): a random model of the same shape, float32 or int8.

Marian limits the length of an output by the width of its batch, so all sources are cut or repeated
to half of the steps. They are then about as long as the sentences of Multi30k.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pymarian
from cost import Sizes
from protocol import Started
from sentence_batches import Ids, without_padding

from engines import tasks

_LENGTH_FACTOR = 2  # steps of an output for each source token
_NEVER = -1e4  # bias of the end token
_WORKSPACE_MB = 500
_TRAIN_MB = 200
_INT8 = "packed8avx512"  # faster than intgemm8 on CPUs with AVX-512


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
        translator = _translator(Path(folder), settings, threads)

    def prepare(ids: Ids) -> list[str]:
        rows = ([each for each in row if each > 3] for row in without_padding(ids, special["pad"]))
        return [
            " ".join(f"w{each}" for each in itertools.islice(itertools.cycle(row), width))
            for row in rows
        ]

    def decode(sources: list[str]) -> Sequence[int]:
        return [len(text.split()) for text in translator.translate(sources)]

    # Marian splits a batch between its threads.
    facts, commands = tasks.decode_ids({**settings, "at_once": 1}, prepare, decode)
    return {**facts, "versions": {"pymarian": importlib.metadata.version("pymarian")}}, commands


def make(settings: dict[str, Any]) -> Started:
    """Writes a random model to the folder `path`."""
    Path(settings["path"]).mkdir(parents=True)
    _random_model(Path(settings["path"]), settings)
    return {}, {}


def start_up(settings: dict[str, Any]) -> Started:
    """Loads the model that `make` wrote to `path`. Its source is words without a meaning."""
    source = " ".join(["w5"] * (settings["steps"] // _LENGTH_FACTOR - 1))

    def load() -> Callable[[str], str]:
        translator = _translator(Path(settings["path"]), settings, settings["threads"])
        return lambda _: str(translator.translate([source])[0])

    return tasks.start_up(settings, load)


def _translator(folder: Path, settings: dict[str, Any], threads: int) -> pymarian.Translator:
    """Loads the model that `_random_model` wrote to a folder."""
    [model] = [*folder.glob("packed.bin"), *folder.glob("model.npz")]
    vocabulary = folder / "vocabulary.yml"
    options = {
        "models": model, "vocabs": f"{vocabulary} {vocabulary}",
        "beam-size": settings["beam_size"], "normalize": settings["length_penalty"],
        "max-length-factor": _LENGTH_FACTOR, "cpu-threads": threads, "mini-batch": 64,
        "maxi-batch": 100, "workspace": _WORKSPACE_MB,
    }  # fmt: skip
    flags = " ".join(f"--{name} {value}" for name, value in options.items())
    return pymarian.Translator(f"{flags} --quiet --quiet-translation")


def _random_model(folder: Path, settings: dict[str, Any]) -> None:
    """Writes the paper's model with Marian's own random weights."""
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
        "--transformer-heads", sizes.num_heads, "--tied-embeddings-all",
        "--optimizer", "sgd", "--learn-rate", 0, "--after-batches", 1, "--mini-batch", 8,
        "--cpu-threads", 1, "--workspace", _TRAIN_MB, "--seed", settings["seed"],
    )  # fmt: skip
    weights = dict(np.load(model))
    weights["decoder_ff_logit_out_b"][0, 0] = _NEVER  # every output has all steps
    np.savez(model, **weights)
    if settings["precision"] == "int8":
        _marian("convert", "--from", model, "--to", folder / "packed.bin", "--gemm-type", _INT8)
        model.unlink()


def _marian(*arguments: object) -> None:
    command = [sys.executable, "-m", "pymarian", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=sys.stderr)
