"""Damaged models of all toolkits, and others that cannot be converted, are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_transformer.errors import InputError
from keras_transformer.extensions.converters import make_options, read_model
from keras_transformer.extensions.converters.converted import ConvertedModel
from keras_transformer.text.vocabulary import Vocabulary
from tests.damage import at_random, replace
from tests.extensions.converters.engine_outputs import FIXTURES
from tests.messages import mentions

# The files of a model that a format needs, below tests/fixtures.
FILES = {
    "marian": "marian/post_norm.npz marian/vocab.yml marian/source.spm marian/target.spm",
    "huggingface": "marian_mt/*",
    "opennmt_tf": "opennmt_tf/separate/*",
    "tensor2tensor": "tensor2tensor/shared/*",
    "fairseq": "fairseq/sentencepiece/*",
    "fsmt": "fsmt/*",
}


def copy_of(source_format: str, folder: Path) -> Path:
    """Copies a model, which a test may change."""
    for pattern in FILES[source_format].split():
        for file in FIXTURES.glob(pattern):
            if file.is_file():
                shutil.copy(file, folder)
    return folder


def convert(source_format: str, folder: Path) -> ConvertedModel:
    options: dict[str, Any] = {}
    if source_format in ("opennmt_tf", "fairseq"):
        names = ("source_sentencepiece", "target_sentencepiece")
        options = {k: str(p) for k, p in zip(names, sorted(folder.glob("*.model")), strict=True)}
    return read_model(folder, source_format, make_options(**options))


def change_marian(file: Path, old: str, new: str) -> None:
    """Replaces a part of the configuration inside a model of Marian."""
    arrays = dict(np.load(file))
    text = arrays["special:model.yml"].tobytes()
    assert old.encode() in text
    arrays["special:model.yml"] = np.frombuffer(text.replace(old.encode(), new.encode()), np.int8)
    np.savez(file, **arrays)


@pytest.mark.parametrize(
    ("source_format", "file", "old", "new", "facts"),
    [
        ("marian", "post_norm.npz", "type: transformer", "type: amun", ["amun", "transformer"]),
        ("marian", "post_norm.npz", "autoreg: self-attention", "autoreg: rnn", ["recurrent"]),
        ("marian", "post_norm.npz", "ffn-activation: swish", "ffn-activation: gelu", ["swish"]),
        ("marian", "post_norm.npz", "postprocess: dan", "postprocess: dhn", ["postprocess", "hn"]),
        ("marian", "post_norm.npz", "dec-depth: 2", "dec-depth: 3", ["decoder_l3_self_Wq"]),
        ("marian", "post_norm.npz", "dec-depth: 2", "dec-depth: 1", ["decoder_l2_context_Wk"]),
        ("marian", "post_norm.npz", "dec-depth: 2", "dec-depth: two", ["two"]),
        ("marian", "post_norm.npz", "dec-depth: 2", "dec-depth: -2", ["num_decoder_layers", "-2"]),
        ("marian", "post_norm.npz", "heads: 2", "heads: 5", ["num_heads", "5"]),
        ("marian", "post_norm.npz", "dim-emb: 16", "dim-emb: 20", ["weights", "values"]),
        ("marian", "post_norm.npz", "dim-ffn: 24", "dim-ffn: 900000000", ["weights", "values"]),
        ("opennmt_tf", "data.yml", "source_vocabulary", "other", ["source_vocabulary", "--config"]),
        ("opennmt_tf", "data.yml", "source.vocab", "missing.vocab", ["missing.vocab"]),
        ("opennmt_tf", "data.yml", "source.vocab", "target.vocab", ["60", "46"]),
        ("opennmt_tf", "data.yml", "data:", "data: 3\nmore:", ["data", "3"]),
        ("opennmt_tf", "data.yml", "data:", "data: [", ["data.yml", "YAML"]),
        ("opennmt_tf", "data.yml", "params", "  source_sequence_controls: {start: true}\nparams",
         ["start token"]),
        ("opennmt_tf", "model_description.py", "num_heads=4", "num_heads=4, ffn_activation=tf.tanh",
         ["tanh"]),
        ("opennmt_tf", "model_description.py", "def", "def def", ["model_description.py"]),
        ("opennmt_tf", "source.vocab", "<s>", "<sos>", ["source.vocab", "<s>"]),
        ("tensor2tensor", "hparams.json", '"timing"', '"emb"', ["hparams.json", "pos", "emb"]),
        ("tensor2tensor", "hparams.json", '"dot_product"', '"local"', ["self_attention_type"]),
        ("tensor2tensor", "hparams.json", '"da"', '"dan"', ["layer_postprocess_sequence", "dan"]),
        ("tensor2tensor", "hparams.json", '"num_heads": 2, ', "", ["hparams.json", "num_heads"]),
        ("tensor2tensor", "hparams.json", 'encoder_layers": 2', 'encoder_layers": 1', ["layer_1"]),
        ("tensor2tensor", "hparams.json", 'encoder_layers": 2', 'encoder_layers": 3', ["layer_2"]),
        ("tensor2tensor", "hparams.json", "{", "[", ["hparams.json"]),
        ("tensor2tensor", "joint.subwords", "'<EOS>_'\n", "", ["joint.subwords", "<EOS>"]),
        ("tensor2tensor", "joint.subwords", "'o'\n", "", ["84", "85"]),
        ("tensor2tensor", "joint.subwords", "'o'\n", "'i'\n", ["i", "twice"]),
        ("fairseq", "dict.en.txt", " 2\n", "\n", ["dict.en.txt", "count"]),
        ("fairseq", "dict.en.txt", " 2\n", " 2\nextra 1\n", ["entries", "embeddings"]),
        ("fsmt", "config.json", '"fsmt"', '"bart"', ["model_type", "bart"]),
        ("fsmt", "config.json", '"relu"', '"gelu"', ["activation_function", "gelu"]),
        ("fsmt", "config.json", '"encoder_layers": 2', '"encoder_layers": 3', ["layers.2"]),
        ("fsmt", "config.json", '"encoder_layers": 2', '"encoder_layers": 1', ["layers.1"]),
        ("fsmt", "config.json", '"d_model"', '"size"', ["config.json", "d_model"]),
        ("fsmt", "config.json", '"eos_token_id": 2', '"eos_token_id": [2]', ["generation_config"]),
        ("fsmt", "vocab-tgt.json", '"zwei</w>": 4', '"zwei</w>": 5', ["vocab-tgt.json", "ids"]),
        ("fsmt", "vocab-tgt.json", "{", "[", ["vocab-tgt.json", "JSON"]),
        ("fsmt", "generation_config.json", "{", "[", ["generation_config.json", "JSON"]),
        ("fsmt", "generation_config.json", "{", '{"forced_bos_token_id": 4, ',
         ["generation_config.json", "forced_bos_token_id", "4"]),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_are_named(
    source_format: str, file: str, old: str, new: str, facts: list[str], tmp_path: Path
) -> None:
    folder = copy_of(source_format, tmp_path)
    if file.endswith(".npz"):
        change_marian(folder / file, old, new)
    else:
        replace(folder / file, old, new)
    with pytest.raises(InputError, match=mentions(*facts)):
        convert(source_format, folder).transformer()


@pytest.mark.parametrize(
    ("file", "changes", "facts"),
    [
        ("config.json", {"model_type": "bart"}, ("bart", "marian")),
        ("config.json", {"activation_function": "tanh"}, ("tanh", "relu")),
        ("config.json", {"activation_function": ["relu"]}, ("activation_function", "relu")),
        ("config.json", {"normalize_before": True}, ("normalize_before",)),
        ("config.json", {"encoder_layers": 2}, ("model.encoder.layers.1.self_attn.q_proj.weight",)),
        ("config.json", {"encoder_layers": "many"}, ("config.json", "many")),
        ("config.json", {"d_model": 20}, ("weights", "values")),
        ("config.json", {"pad_token_id": 3}, ("<pad>", 46, 3)),
        ("config.json", {"decoder_start_token_id": 99}, ("decoder_start_token_id", 99)),
        ("config.json", {"decoder_start_token_id": None}, ("decoder_start_token_id",)),
        ("config.json", {"decoder_start_token_id": True}, ("decoder_start_token_id", "True")),
        ("config.json", {"quantization_config": {"bits": 8}}, ("quantization_config",)),
        ("config.json", {"vocab_size": 10}, ("vocab_size", 10, 46)),
        ("config.json", {"decoder_vocab_size": 50}, ("decoder_vocab_size", 50, 46)),
        ("config.json", {"positions": "learned"}, ("positions", "learned")),
        ("generation_config.json", {"forced_bos_token_id": 7}, ("forced_bos_token_id",)),
        ("generation_config.json", {"suppress_tokens": [9]}, ("suppress_tokens",)),
        ("generation_config.json", {"bad_words_ids": [[46], [12, 13]]}, ("bad_words_ids",)),
        ("generation_config.json", {"bad_words_ids": 5}, ("generation_config.json",)),
        ("generation_config.json", {"diversity_penalty": 1.0}, ("diversity_penalty",)),
        ("generation_config.json", {"num_beam_groups": 3}, ("num_beam_groups",)),
        ("generation_config.json", {"forced_eos_token_id": 3}, ("forced_eos_token_id",)),
        ("generation_config.json", {"num_beams": 3, "do_sample": True}, ("num_beams",)),
        ("generation_config.json", {"num_beams": 1, "do_sample": True, "typical_p": 0.9},
         ("typical_p",)),
        ("generation_config.json", {"max_length": "long"}, ("generation_config.json",)),
        ("generation_config.json", {"length_penalty": "long"}, ("decoding.length_penalty",)),
    ],
)  # fmt: skip
def test_settings_of_marian_mt_that_do_not_fit(
    file: str, changes: dict[str, Any], facts: tuple[Any, ...], tmp_path: Path
) -> None:
    path = copy_of("huggingface", tmp_path) / file
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **changes}), "utf-8")
    with pytest.raises(InputError, match=mentions(*facts)):
        convert("huggingface", tmp_path).transformer()


NEEDED = [
    *(("marian", name) for name in ("post_norm.npz", "vocab.yml", "source.spm", "target.spm")),
    *(("huggingface", name) for name in ("config.json", "model.safetensors", "vocab.json")),
    *(("huggingface", name) for name in ("source.spm", "target.spm")),
    ("opennmt_tf", "checkpoint"),
    ("tensor2tensor", "hparams.json"),
    ("tensor2tensor", "joint.subwords"),
    ("fairseq", "checkpoint_best.pt"),
    ("fsmt", "pytorch_model.bin"),
]


@pytest.mark.parametrize(("source_format", "name"), NEEDED)
def test_a_missing_file_is_named(source_format: str, name: str, tmp_path: Path) -> None:
    (copy_of(source_format, tmp_path) / name).unlink()
    fact = {"post_norm.npz": "npz", "joint.subwords": "*.subwords"}.get(name, name)
    with pytest.raises(InputError, match=mentions(fact)):
        convert(source_format, tmp_path)


@pytest.mark.parametrize(
    ("source_format", "name"),
    [
        *NEEDED[:3], *NEEDED[4:9], ("opennmt_tf", "ckpt-1.index"),
        ("opennmt_tf", "ckpt-1.data-00000-of-00001"), *NEEDED[-2:],
    ],
)  # fmt: skip
def test_random_damage_raises_only_input_errors(
    source_format: str, name: str, tmp_path: Path
) -> None:
    file = copy_of(source_format, tmp_path) / name
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError):
        convert(source_format, tmp_path)
    file.write_bytes(content)
    errors = 0
    for _ in at_random(file, 4000):
        try:
            Vocabulary.from_models(convert(source_format, tmp_path).vocabulary.models())
        except InputError as error:
            assert str(error).isprintable()
            errors += 1
    assert errors >= 5
