"""The public names. A change here is a change that users see."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import keras_transformer as kt

NAMES = set(
    "Config DecodingConfig InputError ModelConfig PreparedData Run Tokenizer TrainingConfig "
    "Transformer Translator convert decoding layers load losses metrics prepare preset schedules "
    "train".split()
)
NAMESPACES = {
    "layers": set(
        "Block CrossAttention Decoder DecodeState DecoderLayer Dropout Encoder EncoderLayer "
        "FeedForward LayerNorm LearnedPositions SelfAttention SinusoidalPositions "
        "TokenEmbedding dropout_seed padding_mask position_mask "
        "scaled_dot_product_attention".split()
    ),
    "losses": {"LabelSmoothedCrossEntropy"},
    "metrics": {"Perplexity", "TokenAccuracy"},
    "schedules": {"LearningRate", "Noam"},
}


def test_public_names_are_listed_and_exist() -> None:
    assert set(kt.__all__) == NAMES
    assert set(dir(kt)) == NAMES | {"__version__"}
    for name in dir(kt):
        assert getattr(kt, name) is not None
    with pytest.raises(AttributeError, match="Trainer"):
        kt.Trainer  # noqa: B018  not public: `train` and `model.fit` are


SCRIPT = """\
import keras_transformer as kt

translator = kt.load("build/run", beam_size=4)
text: str = translator("a dog")
run = kt.train(kt.prepare("a.en", "a.de", output_dir="data"), "run", preset="tiny")
model = kt.Transformer.from_preset("tiny", 30)
texts: list[str] = kt.Translator(model, run.translator().tokenizer)(["a"])
"""
MISTAKES = """\
kt.load(3)
kt.nonsense
number: int = translator("a dog")
kt.prepare("a.en", "a.de")
"""


def test_type_checkers_see_the_public_names(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + MISTAKES)
    options = ["--ignore-missing-imports", "--follow-imports=silent", f"--config-file={os.devnull}"]
    command = [sys.executable, "-m", "mypy", *options, f"--cache-dir={tmp_path}", str(script)]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    lines = [int(line.split(":")[1]) for line in found.splitlines() if ": error: " in line]
    first = SCRIPT.count("\n") + 1
    assert lines == [*range(first, first + MISTAKES.count("\n"))], found


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_names_of_namespaces(namespace: str) -> None:
    module = getattr(kt, namespace)
    assert set(module.__all__) == NAMESPACES[namespace]
    assert all(hasattr(module, name) for name in module.__all__)
    assert set(dir(module)) >= NAMESPACES[namespace]
