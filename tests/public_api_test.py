"""The public names. A change here is a change that users see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import keras_transformer as kt

NAMES = {
    *("Config", "DecodingConfig", "InputError", "ModelConfig", "PreparedData", "Run", "Tokenizer"),
    *("TrainingConfig", "Transformer", "Translator", "convert", "layers", "load", "losses"),
    *("metrics", "prepare", "preset", "schedules", "train"),
}
SUBPACKAGES = {
    *("api", "data", "decoding", "evaluation", "export", "extensions", "inference", "models"),
    *("runs", "text", "training"),
}
NAMESPACES = {
    "layers": {
        *("CrossAttention", "Decoder", "DecoderLayer", "Dropout", "Encoder", "EncoderLayer"),
        *("FeedForward", "LayerNorm", "LearnedPositions", "PaddingMask", "SelfAttention"),
        *("SinusoidalPositions", "TokenEmbedding", "dropout_seed", "padding_mask"),
        *("position_mask", "scaled_dot_product_attention"),
    },
    "losses": {"LabelSmoothedCrossEntropy"},
    "metrics": {"Perplexity", "TokenAccuracy"},
    "schedules": {"LearningRate", "Noam"},
}


def test_public_names_are_listed_and_exist() -> None:
    assert set(kt.__all__) == NAMES
    assert set(dir(kt)) == NAMES | SUBPACKAGES | {"__version__"}
    for name in dir(kt):
        assert getattr(kt, name) is not None
    with pytest.raises(AttributeError, match="Trainer"):
        kt.Trainer  # noqa: B018  not public: `train` and `model.fit` are


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_names_of_namespaces(namespace: str) -> None:
    module = getattr(kt, namespace)
    assert set(module.__all__) == NAMESPACES[namespace]
    assert all(hasattr(module, name) for name in module.__all__)
    assert set(dir(module)) >= NAMESPACES[namespace]


# tests/integration/keras_user_test.py has the order Keras, then this package.
@pytest.mark.parametrize(
    "imports",
    [
        "from keras_transformer.layers import Encoder; import keras",
        "import keras_transformer; import tensorflow as tf; keras = tf.keras",
    ],
)
def test_importing_the_package_registers_all_classes(imports: str, tmp_path: Path) -> None:
    model = kt.Transformer.from_preset(
        "tiny", 30, d_model=16, num_heads=2, d_ff=8, num_encoder_layers=1, num_decoder_layers=1
    )
    model.compile("adam", kt.losses.LabelSmoothedCrossEntropy(), metrics=[kt.metrics.Perplexity()])
    model.save(tmp_path / "model.keras")
    program = f"""{imports}
print(keras.models.load_model({str(tmp_path / "model.keras")!r}).loss)
import keras_transformer.layers, keras_transformer.models.transformer as transformer
assert transformer.Encoder is keras_transformer.layers.Encoder  # imported once
assert keras_transformer.layers.__spec__.origin"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "LabelSmoothedCrossEntropy" in done.stdout
