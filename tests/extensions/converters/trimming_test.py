"""A trimmed vocabulary splits its text as before, and its tokens have the same logits."""

import logging
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.errors import InputError
from keras_transformer.extensions.converters import convert, read_model, trimming
from keras_transformer.extensions.converters.source import ConvertedModel, make_model
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary
from tests.builders import PHRASES, tiny_config
from tests.extensions.converters.toolkits import FIXTURES
from tests.messages import mentions

MARIAN = FIXTURES / "marian"
TEXT = ["a dog runs", "ein Hund rennt", "a green boy", "the red ball ☃", "</s> der Ball"]


def bpe_model(joint: bool) -> ConvertedModel:
    lines = [text.encode() for pair in PHRASES for text in pair]
    models = [learn_vocabulary(part, 90, model_type="bpe") for part in (lines, lines[::2])]
    vocabulary = Vocabulary(models[0], None if joint else models[1])
    config = tiny_config(model__tie_embeddings="all" if joint else "none")
    model = make_model(config, {}, vocabulary)
    weights = Transformer(model.config.model).weights_by_path()
    arrays = {path: np.array(weight) for path, weight in weights.items()}
    return make_model(model.config, arrays, vocabulary)


MODELS = {
    "one unigram model": lambda: read_model(MARIAN / "post_norm.npz", "marian"),
    "unigram, separate matrices": lambda: read_model(MARIAN / "untied.npz", "marian"),
    "one BPE model": lambda: bpe_model(joint=True),
    "two BPE models": lambda: bpe_model(joint=False),
    "languages": lambda: convert(
        str(FIXTURES / "multilingual" / "nllb"),
        "huggingface",
        source_language="eng_Latn",
        target_language="deu_Latn",
    ),
}


def segmentations(vocabulary: Vocabulary) -> list[list[str]]:
    lines = [line.encode() for line in TEXT]
    rows = vocabulary.encode_source(lines), vocabulary.encode_target(lines)
    return [
        [pieces[i] for i in ids]
        for pieces, side in zip(vocabulary.pieces(), rows, strict=True)
        for ids in side
    ]


@pytest.mark.parametrize("name", MODELS)
def test_segmentations_and_logits_of_the_text_do_not_change(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, file = MODELS[name](), tmp_path / "text"
    file.write_text("\n".join(TEXT) + "\n", "utf-8")
    with caplog.at_level(logging.INFO):
        new = trimming.keep_text(old, file)
    assert segmentations(new.vocabulary) == segmentations(old.vocabulary)
    assert f"0 of {2 * len(TEXT)} segmentations" in caplog.text
    assert new.vocabulary.target_vocab_size < 0.9 * old.vocabulary.target_vocab_size
    assert new.vocabulary.joint == old.vocabulary.joint

    logits, rows = [], []
    for model in (old, new):
        lines = [b"a dog runs"], [b"ein Hund rennt"]
        source = np.array(model.vocabulary.encode_source(lines[0]))
        ids = np.array(model.vocabulary.encode_target(lines[1]))
        logits.append(model.transformer()({"source_ids": source, "target_ids": ids}))
        rows.append(model.vocabulary.pieces()[1])
    kept = [rows[0].index(piece) for piece in rows[1]]
    np.testing.assert_allclose(tf.gather(logits[0], kept, axis=-1), logits[1], atol=1e-6)


def test_the_report_tells_how_often_new_text_needs_other_tokens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "text"
    file.write_text("a dog\n" * 18 + "a dog\nzwei Kinder spielen\n", "utf-8")
    with caplog.at_level(logging.INFO):
        convert(str(MARIAN / "post_norm.npz"), "marian", keep_text=str(file))
    assert "every tenth line, 50.0 %" in caplog.text


@pytest.mark.parametrize(
    ("text", "fact"), [("", "is empty"), (" \n", "empty lines"), (None, "is missing")]
)
def test_a_text_that_cannot_be_used_is_refused(text: str | None, fact: str, tmp_path: Path) -> None:
    file = tmp_path / "text"
    if text is not None:
        file.write_text(text)
    with pytest.raises(InputError, match=mentions("text", fact)):
        trimming.keep_text(bpe_model(joint=True), file)
