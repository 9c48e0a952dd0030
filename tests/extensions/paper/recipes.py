"""A small recipe and its text, for tests that follow it."""

import json
from pathlib import Path
from typing import Any

import pytest

from keras_transformer.export import ExportResult
from keras_transformer.runs.run_directory import RunDirectory

ANIMALS = [("dog", "Hund"), ("cow", "Stier"), ("bird", "Vogel"), ("fish", "Fisch")]
PAIRS = [
    (f"the {a} sees the {b}", f"der {x} sieht den {y}") for a, x in ANIMALS for b, y in ANIMALS
]
FIELDS: dict[str, Any] = {
    "description": "invented sentences",
    "train": {"source": "train.en", "target": "train.de"},
    "valid": {"source": "valid.en", "target": "valid.de"},
    "tests": {"animals": {"source": "test.en", "target": "test.de"}},
    "prepare": {"vocab_size": 40, "augment": {}},
    "preset": "tiny",
    "settings": {
        "model.num_encoder_layers": 1,
        "model.num_decoder_layers": 1,
        "model.d_model": 16,
        "model.d_ff": 32,
        "model.num_heads": 2,
        "training.max_steps": 6,
        "training.batch_tokens": 128,
        "training.warmup_steps": 4,
        "training.checkpoint_steps": 2,
        "training.jit_compile": "false",
        "training.mixed_precision": "float32",
        "decoding.beam_size": 2,
        "decoding.max_extra_tokens": 5,
    },
    "average_last": [2],
    "length_penalties": [0.6, 1.0],
    "evaluate": {"tokenize": "none", "lowercase": True},
    "published": {"animals": {"bleu": 99.5, "source": "nobody"}},
    "variants": {
        "rehearsal": {
            "train": {"tsv": "all.tsv"},
            "held_out": {"valid": 2, "test": 2},
            "valid": {"held_out": "valid"},
            "tests": {"rest": {"held_out": "test"}},
            "settings": {"training.max_steps": 2},
        },
        "smooth": {"settings": {"training.label_smoothing": 0.3}, "prepare": {"max_bytes": 99}},
    },
}


def write_recipe(folder: Path, name: str = "animals", **changes: Any) -> Path:
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "recipe.json").write_text(json.dumps({**FIELDS, **changes}))
    return folder


def write_corpus(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for split, pairs in (("train", PAIRS[:12]), ("valid", PAIRS[12:14]), ("test", PAIRS[14:])):
        for side, language in enumerate(("en", "de")):
            lines = "".join(f"{pair[side]}\n" for pair in pairs)
            (folder / f"{split}.{language}").write_text(lines)
    (folder / "all.tsv").write_text("".join(f"{en}\t{de}\n" for en, de in PAIRS))
    return folder


def refuse_to_train(*_: Any, **__: Any) -> None:
    pytest.fail("training began")


def no_export(run: RunDirectory | str, *_: Any, **__: Any) -> ExportResult:
    """Replaces `export`, which takes seconds: returns the run itself."""
    return ExportResult([], [], path=Path(run.path if isinstance(run, RunDirectory) else run))
