"""Damaged models of all toolkits, and others that cannot be converted, are refused."""

import contextlib
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from keras_transformer.errors import InputError
from keras_transformer.extensions.converters.torch_files import read_torch_file
from keras_transformer.text.model_proto import ModelProto
from keras_transformer.text.vocabulary import Vocabulary
from tests.builders import refuses
from tests.damage import at_random, replace
from tests.extensions.converters import toolkits

QUERY = "encoder_l1_self_Wq"
BIAS = "final_logits_bias"
POSITIONS = "model.encoder.embed_positions.weight"
# Each line has nine references to the line before.
ALIASES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
MERGED = ALIASES.replace("[", "{<<: [").replace("]", "], " + "k: 1}")


def change(file: Path, *changes: Any) -> None:
    """Changes a file: an old and a new text, or a dictionary of fields or weights."""
    match file.suffix, *changes:
        case ".npz", str(old), new:
            toolkits.change_marian(file, old, new)
        case ".npz", weights:
            toolkits.change_npz(file, **weights)
        case ".safetensors", weights:
            arrays = safetensors.numpy.load_file(file)
            safetensors.numpy.save_file({**arrays, **weights}, file)
        case ".pt", old, new:  # a part of the pickle
            with zipfile.ZipFile(file) as archive:
                files = {name: archive.read(name) for name in archive.namelist()}
            with zipfile.ZipFile(file, "w") as archive:
                for name, content in files.items():
                    is_pickle = name.endswith(".pkl")
                    changed = content.replace(old.encode(), new.encode())
                    archive.writestr(name, changed if is_pickle else content)
        case _, "", new:
            file.write_text(new, "utf-8")
        case _, str(old), new:
            replace(file, old, new)
        case _, fields:
            toolkits.change_json(file, **fields)


# Files of models (formats and names) → changes, and the facts that the message must contain.
BAD: dict[str, list[tuple[Any, ...]]] = {
    "marian/post_norm.npz": [
        ("type: transformer", "type: amun", ["amun", "transformer"]),
        ("postprocess: dan", "postprocess: dhn", ["postprocess", "hn"]),
        ("dec-depth: 2", "dec-depth: 3", ["decoder_l3_self_Wq"]),
        ("dec-depth: 2", "dec-depth: 1", ["decoder_l2_context_Wk"]),
        ("dec-depth: 2", "dec-depth: two", ["post_norm.npz", "dec-depth", "two"]),
        ("dec-depth: 2", "dec-depth: 1000000", ["1,000,001 layers"]),
        ("dim-emb: 16", "dim-emb: 0", ["post_norm.npz", "dim-emb", 0]),
        ("dim-emb: 16", "dim-emb: 99999999999", ["post_norm.npz", "dim-emb", 99999999999]),
        ("tied-embeddings: false", "tied-embeddings: 'on'", ["tied-embeddings", "on"]),
        ("dim-ffn: 24", "dim-ffn: 900000", ["weights", "values"]),
        ({QUERY: np.ones([16, 16], np.int8)}, [QUERY, "int8"]),
        ({QUERY: np.float32(1)}, ["post_norm.npz", QUERY, "number"]),
    ],
    "marian/decoder.yml": [
        ("", "normalize: [1]", ["decoder.yml"]),
        ("", "normalize: nan", ["normalize", "nan"]),
        ("", "max-length-factor: inf", ["max-length-factor", "inf"]),
        ("", "beam-size: 2.5", ["beam-size", 2.5]),
        ("", "allow-unk: yes", ["allow-unk", "yes"]),
        ("", ALIASES, ["decoder.yml", "references"]),
        ("", "a: " + "[" * 100_000, ["decoder.yml", "levels"]),
        ("", "a: 1" + ":1" * 1_000_000, ["decoder.yml", "value", "long"]),
        ("", "beam-size: 0", ["decoder.yml", "beam-size", 0]),
        ("", 'vocabs: ["\\e[31m.yml", b]', ["decoder.yml", "?[31m.yml", "not exist"]),
        ("", "models: [/training/gone.npz]", ["decoder.yml", "gone.npz", "not exist"]),
        ("", "vocabs: [vocab.yml]", ["decoder.yml", 1, "vocabularies"]),
        ("", "models: [post_norm.npz, post_norm.npz]", ["post_norm.npz", "ensemble"]),
    ],
    "marian/vocab.yml": [("\nd: ", "\nd: -", ["vocabulary"])],
    "huggingface/config.json": [
        ({"model_type": "bart"}, ["bart", "marian", "m2m_100", "mbart"]),
        ({"activation_function": ["relu"]}, ["activation_function", "relu"]),
        ({"normalize_before": True}, ["normalize_before"]),
        ({"encoder_layers": 2}, ["model.encoder.layers.1.self_attn.q_proj.weight"]),
        ({"pad_token_id": 3}, ["<pad>", 46, 3]),
        ({"quantization_config": {"bits": 8}}, ["quantization_config"]),
        ({"positions": "learned"}, ["positions", "learned"]),
        ({"encoder_layers": 1e6}, ["1,000,002 layers"]),
        ({"encoder_layers": 32.5}, ["config.json", "encoder_layers", 32.5]),
        ({"d_model": 2**20}, ["weights", "values"]),
        ({"scale_embedding": "no"}, ["scale_embedding", "no"]),
        ({"tie_word_embeddings": 2}, ["tie_word_embeddings", 2]),
        ({"activation_function": "\ud800"}, ["config.json", "surrogates"]),
    ],
    "huggingface/generation_config.json": [
        ({"suppress_tokens": [9]}, ["suppress_tokens"]),
        ({"bad_words_ids": [[46], [12, 13]]}, ["bad_words_ids"]),
        ({"num_beam_groups": 3}, ["num_beam_groups"]),
        ({"forced_eos_token_id": 3}, ["forced_eos_token_id"]),
        ({"num_beams": 3, "do_sample": True}, ["num_beams"]),
        ({"length_penalty": "long"}, ["decoding.length_penalty"]),
        ({"decoder_start_token_id": [46, 0]}, ["decoder_start_token_id", "[46, 0]"]),
        ({"decoder_start_token_id": 99}, ["decoder_start_token_id", 99]),
        ({"eos_token_id": [0, 5]}, ["eos_token_id", "[0, 5]"]),
        ({"eos_token_id": 5}, ["eos_token_id", 5]),
        ({"forced_decoder_ids": [[1, 5]]}, ["forced_decoder_ids"]),
        ({"stop_strings": ["."]}, ["stop_strings"]),
        ({"renormalize_logits": "no"}, ["renormalize_logits", "no"]),
        ({"watermarking_config": {"bias": 2.0}}, ["watermarking_config"]),
        ({"do_sample": "no"}, ["do_sample", "no"]),
        ({"max_length": 60.5}, ["max_length", 60.5]),
    ],
    "huggingface/vocab.json": [
        ("", '{"</s>": -1}', ["vocab.json"]),
        ({"\ud800": 47}, ["vocab.json", "surrogates"]),
        ({"half": 47.5}, ["vocab.json", "half", 47.5]),
        ("{", '{"more": 300, ', [300, "vocabulary"]),
    ],
    "huggingface/model.safetensors": [
        ({"extra": np.ones(2, np.float32)}, ["extra"]),
        ({BIAS: np.full((1, 47), np.nan, np.float32)}, [BIAS, "NaN"]),
        ({BIAS: np.zeros((1, 50), np.float32)}, [47, 50, "vocabulary"]),
    ],
    "opennmt_tf/data.yml": [
        ("source_vocabulary", "other", ["source_vocabulary", "as config"]),
        ("source.vocab", "target.vocab", [60, 46]),
        ("source.vocab", "x" * 300, ["vocabulary", "too long"]),
        ("params", "  source_sequence_controls: {start: true}\nparams", ["start token"]),
        ("params", "  source_sequence_controls: {end: 2}\nparams", ["end", 2]),
        ("", MERGED, ["data.yml", "references"]),
    ],
    "opennmt_tf/model_description.py": [
        ("num_heads=4", "num_heads=4, ffn_activation=tf.tanh", ["tanh"]),
        ("def", "def def", ["model_description.py"]),
        ("", "-" * 100_000 + "1", ["memory"]),
    ],
    "opennmt_tf/source.vocab": [("<s>", "<sos>", ["source.vocab", "<s>"])],
    "tensor2tensor/hparams.json": [
        ({"pos": "emb"}, ["hparams.json", "pos", "emb"]),
        ({"hidden_size": 16.5}, ["hidden_size", 16.5]),
        ({"shared_embedding_and_softmax_weights": "no"}, ["shared_embedding_and_softmax_weights"]),
        ({"layer_postprocess_sequence": "dan"}, ["layer_postprocess_sequence", "dan"]),
    ],
    "tensor2tensor/joint.subwords": [
        ("'<EOS>_'\n", "", ["joint.subwords", "<EOS>"]),
        ("'o'\n", "", [84, 85]),
        ("'o'\n", "'i'\n", ["i", "twice"]),
    ],
    "fairseq/checkpoint_best.pt": [
        ("transformer", "lightconv__", ["architecture", "lightconv__"]),
        ("relu", "tanh", ["activation_fn", "tanh"]),
        ("encoder_layers", "encoder_lay_rs", ["checkpoint_best.pt", "encoder_layers"]),
        ("fc1", "fc9", ["lacks", "fc1"]),
        ("FloatStorage", "QInt8Storage", ["checkpoint_best.pt", "storage"]),
    ],
    "fairseq/dict.en.txt": [
        (" 2\n", "\n", ["dict.en.txt", "count"]),
        (" 2\n", " 2\nextra 1\n", ["entries", "embeddings"]),
    ],
    "fsmt/config.json": [
        ({"model_type": "bart"}, ["model_type", "bart"]),
        ('"d_model"', '"size"', ["config.json", "d_model"]),
        ({"eos_token_id": 0}, ["eos_token_id", 0]),
    ],
    "fsmt/generation_config.json": [
        ({"forced_bos_token_id": 4}, ["generation_config.json", "forced_bos_token_id", 4]),
        ({"decoder_start_token_id": 0}, ["generation_config.json", "decoder_start_token_id", 0]),
    ],
    "fsmt/vocab-tgt.json": [
        ('"zwei</w>": 4', '"zwei</w>": 5', ["vocab-tgt.json", "ids"]),
        ('"zwei</w>"', '"\\ud800"', ["vocab-tgt.json", "surrogates"]),
    ],
    "m2m_100/config.json": [
        ({"model_type": "nllb-moe"}, ["config.json", "model_type", "nllb-moe", "m2m_100"]),
        ({"model_type": None}, ["config.json", "model_type", "None"]),
        ({"activation_function": "tanh"}, ["config.json", "activation_function", "tanh"]),
        ({"scale_embedding": "no"}, ["config.json", "scale_embedding", "no"]),
        ({"quantization_config": {"bits": 8}}, ["config.json", "quantization_config"]),
        ({"eos_token_id": 5}, ["vocab.json", "</s>", "eos_token_id", 5]),
        ({"encoder_layers": 2}, ["model.encoder.layers.1.self_attn.q_proj.weight"]),
        ({"max_position_embeddings": 0}, ["max_positions", 0]),
        ('"d_model"', '"size"', ["config.json", "d_model"]),
    ],
    "m2m_100/generation_config.json": [
        ({"decoder_start_token_id": 4}, ["generation_config.json", "decoder_start_token_id", 4]),
    ],
    "m2m_100/vocab.json": [
        ({"more": 300}, ["vocab.json", 349, 356, "rows"]),
        ({"<s>": 5}, ["vocab.json", 348, 356, "rows"]),
        ('"<s>"', '"<bos>"', ["vocab.json", "<s>"]),
        ("", "{}", ["vocab.json", "</s>"]),
        ("", '{"a": "b"}', ["vocab.json", "'a'", "'b'"]),
    ],
    "nllb/tokenizer.json": [
        ({"added_tokens": [{"id": "x", "content": "deu_Latn"}]}, ["tokenizer.json", "x"]),
        ({"added_tokens": [{"content": "deu_Latn"}]}, ["tokenizer.json", "id"]),
        ({"added_tokens": 5}, ["tokenizer.json"]),
        ('"id": 251', '"id": 9', ["sentencepiece.bpe.model", "rows"]),
        ('"id": 251', '"id": 1000000000', ["sentencepiece.bpe.model", "1,000,000,000", "rows"]),
        ("", "[" * 100_000, ["tokenizer.json"]),
    ],
    "nllb/tokenizer_config.json": [
        ({"legacy_behaviour": True}, ["tokenizer_config.json", "legacy_behaviour"]),
        ({"extra_special_tokens": [["deu_Latn"]]}, ["tokenizer_config.json"]),
    ],
    "mbart/config.json": [
        ({"decoder_start_token_id": 9}, ["config.json", "decoder_start_token_id", 9]),
        ({"normalize_before": False}, ["config.json", "normalize_before", "False"]),
        ({"static_position_embeddings": True}, ["config.json", "static_position_embeddings"]),
        ({"max_position_embeddings": 99}, ["weights", "values"]),
        ({"d_model": 32}, ["weights", "values"]),
    ],
    "mbart/special_tokens_map.json": [
        ({"additional_special_tokens": []}, ["language"]),
        ('"ar_AR"', '"ar_AR", "xx_XX"', ["sentencepiece.bpe.model", 173, 172, "rows"]),
        ('"ar_AR"', "3", ["special_tokens_map.json"]),
    ],
    "mbart/model.safetensors": [
        ({"extra": np.ones(2, np.float32)}, ["extra", "architecture"]),
        ({POSITIONS: np.ones([9, 16], np.float32)}, ["weights", "values"]),
        ({POSITIONS: np.full([66, 16], np.nan, np.float32)}, [POSITIONS, "NaN"]),
        ({BIAS: np.zeros((1, 50), np.float32)}, [172, 50, "vocabulary"]),
    ],
}


@pytest.mark.parametrize(("name", "row"), [(name, row) for name in BAD for row in BAD[name]])
def test_files_that_do_not_fit_are_named(name: str, row: tuple[Any, ...], tmp_path: Path) -> None:
    source_format, _, file = name.partition("/")
    *changes, facts = row
    change(toolkits.copy_of(source_format, tmp_path) / file, *changes)
    refuses(toolkits.convert, (tmp_path, source_format), tmp_path, *facts)


@pytest.mark.parametrize("side", ["source", "target"])
def test_other_sentencepiece_models_are_refused(side: str, tmp_path: Path) -> None:
    file = toolkits.copy_of("marian", tmp_path) / f"{side}.spm"
    proto = ModelProto.FromString(file.read_bytes())
    for field in ("normalizer_spec", "trainer_spec"):
        proto.ClearField(field)
        file.write_bytes(proto.SerializeToString())
        refuses(toolkits.convert, (tmp_path, "marian"), file.name, "end is missing")
    shutil.copy(toolkits.FIXTURES / "opennmt_tf/shared/joint.model", file)
    refuses(toolkits.convert, (tmp_path, "marian"), side, "24 of the 72 pieces")


FILES = {
    "marian": ["post_norm.npz", "vocab.yml", "source.spm"],
    "huggingface": ["config.json", "model.safetensors", "vocab.json"],
    "m2m_100": ["config.json", "vocab.json"],
    "nllb": ["model.safetensors", "sentencepiece.bpe.model"],
    "tensor2tensor": ["hparams.json", "joint.subwords"],
    "fairseq": ["checkpoint_best.pt"],
    "fsmt": ["pytorch_model.bin"],
    "opennmt_tf": ["checkpoint", "ckpt-1.index", "ckpt-1.data-00000-of-00001"],
}


@pytest.mark.parametrize(("source_format", "name"), [(f, name) for f in FILES for name in FILES[f]])
def test_damaged_files_are_refused_or_harmless(
    source_format: str, name: str, tmp_path: Path
) -> None:
    file = toolkits.copy_of(source_format, tmp_path) / name
    whole = toolkits.convert(tmp_path, source_format).weights
    content = file.read_bytes()
    file.unlink()
    facts = {"post_norm.npz": "npz", "joint.subwords": "subwords", "ckpt-1.index": "checkpoint"}
    refuses(toolkits.convert, (tmp_path, source_format), facts.get(name, name.split(".")[0]))
    file.write_bytes(content[: len(content) // 2])
    facts = {"vocab.yml": "vocabulary", "joint.subwords": "vocabulary"}
    refuses(toolkits.convert, (tmp_path, source_format), facts.get(name, name.split(".")[0]))
    file.write_bytes(2 * content)
    with contextlib.suppress(InputError):
        found = toolkits.convert(tmp_path, source_format).weights
        assert all(np.array_equal(found[path], whole[path]) for path in whole)
    file.write_bytes(content)
    errors = 0
    for _ in at_random(file, None if source_format == "marian" else 4000):
        try:
            model = toolkits.convert(tmp_path, source_format)
            Vocabulary.from_models(model.vocabulary.models())
        except InputError as error:
            assert str(error).isprintable()
            errors += 1
        else:  # checkpoints of TensorFlow have checksums
            is_checked = source_format == "opennmt_tf"
            assert not is_checked or all(np.array_equal(model.weights[k], whole[k]) for k in whole)
    assert errors >= (10 if source_format in ("marian", "huggingface") else 5)


@pytest.mark.parametrize("variant", ["sentencepiece", "words"])
def test_damaged_files_of_pytorch_are_refused_or_read(variant: str, tmp_path: Path) -> None:
    """The old format has no checksums, so a changed weight is not noticed."""
    file = Path(
        shutil.copy(toolkits.FIXTURES / "fairseq" / variant / "checkpoint_best.pt", tmp_path)
    )
    refused = 0
    for end in (6_000, None):
        for _ in at_random(file, end):
            try:
                read_torch_file(file)
            except (InputError, MemoryError) as error:  # `read_model` reports both
                assert isinstance(error, MemoryError) or file.name in str(error)
                refused += 1
    assert refused > 27
