"""The public names. A change here is a change that users see."""

import pytest

import keras_transformer as kt

NAMES = set(
    "Config DecodingConfig InputError ModelConfig PreparedData Run Tokenizer TrainingConfig "
    "Transformer Translator convert decoding generate layers load losses metrics prepare preset "
    "schedules train".split()
)
NAMESPACES = {
    "layers": set(
        "Block CrossAttention Decoder DecodeState DecoderLayer Dropout Encoder EncoderLayer "
        "FeedForward LayerNorm LearnedPositions SSRU SelfAttention SinusoidalPositions "
        "TokenAndPositionEmbedding TokenEmbedding dropout_seed padding_mask position_mask "
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


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_names_of_namespaces(namespace: str) -> None:
    module = getattr(kt, namespace)
    assert set(module.__all__) == NAMESPACES[namespace]
    assert all(hasattr(module, name) for name in module.__all__)
    assert set(dir(module)) >= NAMESPACES[namespace]
