"""The model that is written for Marian has the logits of the run, by Marian's formulas in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from marian_model import write_marian
from sentence_batches import groups_for_marian

from keras_transformer.errors import InputError
from keras_transformer.inference.loading import load_translator
from keras_transformer.text.vocabulary import Vocabulary
from tests.export.model_variants import make_run

Array = np.ndarray[Any, np.dtype[np.float32]]

ENCODER = "TransformerBatchEncoder->encoder"
DECODER = "TransformerBatchDecoder->decoder"
# Blocks of a layer: in the names of layer norms, and in those of matrices.
BLOCKS = {
    ENCODER: [("selfAttentionBlock", "self"), ("filterBlock", "ffn")],
    DECODER: [
        ("autoRegressiveBlock", "self"),
        ("crossAttentionBlock", "context"),
        ("filterBlock", "ffn"),
    ],
}
CLASSES = {
    ENCODER: "TransformerEncoderLayer",
    DECODER: "TransformerDecoderLayerWithCrossAttention",
}


class Marian:
    """The Transformer of Marian's src/layers_new, for one sentence."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as archive:
            self.arrays = {name: archive[name] for name in archive.files}
        self.config = yaml.safe_load(self.arrays.pop("special:model.yml").tobytes().rstrip(b"\0"))
        self.used: set[str] = set()

    def take(self, name: str) -> Array:
        self.used.add(name)
        array: Array = self.arrays[name]
        return array

    def linear(self, x: Array, prefix: str, letter: str) -> Array:
        return x @ self.take(f"{prefix}_W{letter}") + self.take(f"{prefix}_b{letter}")

    def norm(self, x: Array, name: str) -> Array:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
        return x * self.take(f"{name}->norm->weight") + self.take(f"{name}->norm->bias")

    def attention(self, x: Array, memory: Array, prefix: str, causal: bool) -> Array:
        heads = self.config["transformer-heads"]
        q, k, v = (
            self.linear(y, prefix, letter).reshape(len(y), heads, -1).swapaxes(0, 1)
            for y, letter in ((x, "q"), (memory, "k"), (memory, "v"))
        )
        scores = q @ k.swapaxes(1, 2) / q.shape[-1] ** 0.5
        if causal:
            scores += np.triu(np.full(scores.shape[1:], -1e9), 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        output = (weights / weights.sum(-1, keepdims=True)) @ v
        return self.linear(output.swapaxes(0, 1).reshape(len(x), -1), prefix, "o")

    def feed_forward(self, x: Array, prefix: str) -> Array:
        inner = self.linear(x, prefix, "1")
        relu = self.config["transformer-ffn-activation"] == "relu"
        return self.linear(
            np.maximum(inner, 0) if relu else inner / (1 + np.exp(-inner)), prefix, "2"
        )

    def stack(self, stack: str, x: Array, memory: Array | None = None) -> Array:
        short = "encoder" if stack == ENCODER else "decoder"
        x = x + self.take(f"{stack}->positionEmbedding->embeddings")[: len(x)]
        for i in range(self.config[f"{short[:3]}-depth"]):
            layer = f"{stack}->layers->at({i})->as<marian::nn::{CLASSES[stack]}>()"
            for block, part in BLOCKS[stack]:
                prefix = f"{short}_l{i + 1}_{part}"
                x = self.block(x, f"{layer}->{block}", prefix, memory)
        if self.config["transformer-postprocess-top"] == "n":
            x = self.norm(x, f"{stack}->postprocessor")
        return x

    def block(self, x: Array, name: str, prefix: str, memory: Array | None) -> Array:
        pre = self.config["transformer-preprocess"] == "n"
        y = self.norm(x, f"{name}->preprocessor") if pre else x
        if prefix.endswith("ffn"):
            y = self.feed_forward(y, prefix)
        elif prefix.endswith("context"):
            assert memory is not None
            y = self.attention(y, memory, prefix, causal=False)
        else:
            y = self.attention(y, y, prefix, causal=prefix.startswith("decoder"))
        return x + y if pre else self.norm(x + y, f"{name}->postprocessor")

    def logits(self, source: list[int], target: list[int]) -> Array:
        memory = self.stack(ENCODER, self.take("encoder_Wemb")[source])
        embedded = self.take("decoder_Wemb")[target]
        inputs = np.concatenate([np.zeros_like(embedded[:1]), embedded])  # no start token
        x = self.stack(DECODER, inputs, memory)
        return x @ self.take("decoder_ff_logit_out_W") + self.take("decoder_ff_logit_out_b")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("paper", {}),
        ("no_final_norm", {"model__num_encoder_layers": 2, "model__decoder_d_ff": 24}),
        (
            "paper",
            {
                "model__norm_position": "pre",
                "model__tie_embeddings": "none",
                "model__scale_embeddings": False,
                "model__first_position": 2,
                "model__activation": "silu",
                "model__attention_bias": True,
                "model__output_bias": True,
            },
        ),
    ],
    ids=["post_norm", "no_final_norm", "pre_norm"],
)
def test_marians_logits_are_those_of_the_run(
    name: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", name, model__layer_norm_epsilon=1e-5, **changes)
    write_marian(run, tmp_path)
    marian = Marian(tmp_path / "model.npz")
    model, ids = load_translator(run).transformer, run.tokenizer()
    source, target = [7, 8, 9, 30, ids.end_id], [11, 5, 40, 6]
    inputs = {
        "source_ids": np.array([source]),
        "target_ids": np.array([[ids.start_id, *target]]),
    }
    expected = np.array(model(inputs))[0]
    np.testing.assert_allclose(marian.logits(source, target), expected, rtol=1e-3, atol=1e-4)
    assert marian.used == marian.arrays.keys()
    sizes = [marian.config[f"transformer-{name}dim-ffn"] for name in ("", "decoder-")]
    assert sizes == [run.config.model.d_ff, run.config.model.decoder_d_ff or 0]


def test_words_are_ids_except_the_required_ones(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write_marian(run, tmp_path)
    ids = run.tokenizer()
    for side in ("source", "target"):
        words = yaml.safe_load((tmp_path / f"{side}.yml").read_text("utf-8"))
        assert words.pop("</s>") == ids.end_id and words.pop("<unk>") == ids.unknown_id
        assert all(word == f"w{i}" for word, i in words.items())
        assert len(words) == ids.source_vocab_size - 2
    assert Vocabulary.load(tmp_path).fingerprint == ids.fingerprint


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model__positions": "learned"}, "model.positions is learned"),
        ({"model__activation": "gelu"}, "model.activation is gelu"),
        ({"model__key_dim": 5}, "model.key_dim is 5"),
        ({"model__decoder_num_heads": 4}, "model.decoder_num_heads is 4"),
        ({"model__layer_norm_epsilon": 0.1}, "model.layer_norm_epsilon is 0.1"),
    ],
)
def test_models_that_marian_cannot_express_are_errors(
    changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", **changes)
    with pytest.raises(InputError, match=expected):
        write_marian(run, tmp_path)


def test_no_batch_with_padding_has_a_width_that_is_a_multiple_of_four() -> None:
    def is_good(widths: list[int]) -> bool:
        return len(set(widths)) == 1 or max(widths) % 4 > 0

    def check(lengths: list[int], rows: int) -> None:
        groups = groups_for_marian(lengths, rows)
        assert sorted(i for group, _ in groups for i in group) == list(range(len(lengths)))
        sizes = []
        for group, filler in groups:
            fillers = [] if filler is None else [filler]
            widths = [length + 1 for length in [*(lengths[i] for i in group), *fillers]]
            assert is_good(widths)
            sizes.append(len(widths))
        assert all(size == rows for size in sizes[:-1]) and sizes[-1] <= rows
        assert sum(sizes) <= len(lengths) + len(sizes)  # at most one filler in each

    random = np.random.default_rng(1)
    for rows in (2, 3, 8, 64):
        for _ in range(20):
            lengths = random.integers(0, 30, random.integers(1, 200)).tolist()
            check(lengths, rows)
    assert groups_for_marian([7, 5, 6, 5], 3) == [([1, 3, 2], None), ([0], None)]
    assert groups_for_marian([5, 6, 7], 3) == [([0, 1], 6), ([2], None)]
    assert groups_for_marian([5, 7], 3) == [([0, 1], 8)]
