"""Converted models of four toolkits give the outputs of these toolkits (`tests/fixtures/make.py`).

`expected.json` has `pairs` of texts and, for each source, the `greedy` translation: its tokens, or
its text, or null if it was cut. `expected.npz` has the `log_probs` `[B, T]` of the target tokens,
their `lengths` `[B]`, including the end token, and the `logits` `[2, T, V]` of the first two pairs.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.extensions.converters import write_run
from keras_transformer.extensions.converters.tensor2tensor import SubwordText
from keras_transformer.inference.loading import load_translator
from keras_transformer.inference.translation_module import TranslationModule
from tests.extensions.converters.toolkits import FIXTURES, check_close, convert

# The models, and settings that characterize them.
MODELS: dict[str, dict[str, Any]] = {
    "fairseq/sentencepiece": {"positions": "sinusoidal", "tie_embeddings": "target"},
    "fairseq/words": {"positions": "learned", "tie_embeddings": "all"},
    "fsmt": {"decoder_num_heads": 4, "first_position": 2},
    "opennmt_tf/separate": {
        "norm_position": "pre",
        "attention_bias": True,
        "mask_source_end": True,
    },
    "opennmt_tf/shared": {"norm_position": "post", "attention_bias": False},
    "tensor2tensor/separate": {"norm_position": "post", "tie_embeddings": "none"},
    "tensor2tensor/shared": {"norm_position": "pre", "tie_embeddings": "target"},
}


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_the_toolkit(name: str, tmp_path: Path) -> None:
    toolkit, folder = name.partition("/")[0], FIXTURES / name
    model = convert(folder, toolkit)
    found = {field: model.config.model.as_dict()[field] for field in MODELS[name]}
    assert found == MODELS[name]
    content = json.loads((folder / "expected.json").read_text("utf-8"))
    sources, targets = map(list, zip(*content["pairs"], strict=True))
    decode: Callable[[str], Any] | None = None  # None: the pieces are compared
    if toolkit == "tensor2tensor":
        files = sorted(folder.glob("*.subwords"))
        source_subwords, subwords = (SubwordText.load(file) for file in (files[0], files[-1]))
        sources, targets = map(source_subwords.encode, sources), map(subwords.encode, targets)
        decode = subwords.decode
    elif name in ("fairseq/words", "fsmt"):
        decode = words
    pairs = [
        (source.encode(), target.encode()) for source, target in zip(sources, targets, strict=True)
    ]
    write_run(model, tmp_path / "run")
    settings = {"decoding.beam_size": 1, "decoding.unknown": "allow"}
    if toolkit == "fsmt":
        settings["decoding.max_length"] = 11
    translator = load_translator(tmp_path / "run", settings)
    check_probabilities(translator, name, pairs, dict(np.load(folder / "expected.npz")))
    result = translator.translate_to_ids(tf.constant([source for source, _ in pairs]))
    texts = [text.decode() for text in translator.texts(result)[:, 0].numpy()]
    pieces = translator.tokenizer.target_pieces(result.ids[:, 0]).numpy().tolist()
    whole = [i for i, expected in enumerate(content["greedy"]) if expected is not None]
    assert len(whole) >= 5
    for i in whole:
        length = int(result.lengths[i, 0]) - 1  # without the end token
        output = [piece.decode() for piece in pieces[i][:length]]
        assert (decode(texts[i]) if decode else output) == content["greedy"][i]


def words(text: str) -> list[str]:
    """Returns the words of a text as fairseq writes them."""
    return text.replace("\u2047", "<unk>").split()


def check_probabilities(
    translator: TranslationModule, name: str, pairs: list[tuple[bytes, bytes]],
    expected: dict[str, np.ndarray],
) -> None:  # fmt: skip
    """Compares log-probabilities and logits of all pairs."""
    vocabulary, size = translator.tokenizer.vocabulary, expected["logits"].shape[-1]
    sources = vocabulary.encode_source([source for source, _ in pairs])
    targets = vocabulary.encode_target([target for _, target in pairs])
    assert [len(target) for target in targets] == expected["lengths"].tolist()
    source_ids = tf.ragged.constant(sources, tf.int32).to_tensor(vocabulary.pad_id)
    labels = tf.ragged.constant(targets, tf.int32).to_tensor(vocabulary.pad_id)
    shifted = tf.pad(labels, [[0, 0], [1, 0]], constant_values=vocabulary.start_id)[:, :-1]
    logits = translator.transformer({"source_ids": source_ids, "target_ids": shifted})
    log_probs = tf.gather(tf.nn.log_softmax(logits), labels, batch_dims=2).numpy()
    # For each row of the toolkit's output layer, the id in the converted model.
    rows = {
        "opennmt_tf": [0, 1, 2, *range(4, size), 3],
        "tensor2tensor": [0, 1, *range(3, size + 1)],
    }.get(name.partition("/")[0], [*range(size)])
    for i, length in enumerate(expected["lengths"]):
        found, recorded = log_probs[i, :length], expected["log_probs"][i, :length]
        check_close(found, recorded, 1e-5, f"{name}, log-probabilities")
        if i < 2:
            found, recorded = logits.numpy()[i, :length][:, rows], expected["logits"][i, :length]
            check_close(found, recorded, 1e-5, f"{name}, logits")
