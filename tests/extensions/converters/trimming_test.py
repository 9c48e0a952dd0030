"""A trimmed vocabulary splits its text as before, and its tokens have the same logits."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.extensions.converters import convert, make_options, read_model, trimming
from keras_transformer.extensions.converters.source import ConvertedModel, make_model
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.model_proto import UNIGRAM, ModelProto
from keras_transformer.text.vocabulary import Vocabulary, learn_vocabulary
from tests.builders import PHRASES, refuses, tiny_config
from tests.export.model_variants import with_languages
from tests.extensions.converters.toolkits import FIXTURES
from tests.messages import tells

MARIAN = FIXTURES / "marian"
MODEL = MARIAN / "post_norm.npz"
TEXT = ["a dog runs", "ein Hund rennt", "a green boy", "the red ball ☃", "</s> der Ball"]


# The first two are the default languages. The script of the last one is unknown.
CODES = ("eng_Latn", "de", "rus_Cyrl", "jpn_Jpan", "zh_CN", "ns")
LATIN = ["a green dog, 3 (¾) m", "ein Hund läuft: e\u0301"]
OTHERS = {"rus_Cyrl": "собака бежит", "jpn_Jpan": "犬がボールで遊ぶー", "zh_CN": "一条狗在跑"}


def random_model(vocabulary: Vocabulary, tying: str) -> ConvertedModel:
    model = make_model(tiny_config(model__tie_embeddings=tying), {}, vocabulary)
    weights = Transformer(model.config.model).weights_by_path()
    arrays = {path: np.array(weight) for path, weight in weights.items()}
    return make_model(model.config, arrays, vocabulary)


def bpe_model(joint: bool) -> ConvertedModel:
    lines = [phrase.encode() for phrase in PHRASES]
    models = [learn_vocabulary(part, 90, model_type="bpe") for part in (lines, lines[::2])]
    vocabulary = Vocabulary(models[0], None if joint else models[1])
    return random_model(vocabulary, "all" if joint else "none")


def language_model(tying: str = "all") -> ConvertedModel:
    lines = [text.encode() for text in [*LATIN, *OTHERS.values()] * 9]
    proto = ModelProto.FromString(learn_vocabulary(lines, 150, model_type="bpe"))
    if tying == "none":  # the scores of the pieces fit to both types
        proto.trainer_spec.model_type = UNIGRAM
    return random_model(with_languages(proto.SerializeToString(), CODES), tying)


MODELS = {
    "one unigram model": lambda: read_model(MODEL, "marian"),
    "unigram, separate matrices": lambda: read_model(MARIAN / "untied.npz", "marian"),
    "one BPE model": lambda: bpe_model(joint=True),
    "two BPE models": lambda: bpe_model(joint=False),
    "languages": lambda: convert(
        str(FIXTURES / "multilingual" / "nllb"),
        "huggingface",
        source_language="eng_Latn",
        target_language="deu_Latn",
    ),
    "languages, separate matrices": lambda: language_model("none"),
}


def segmentations(vocabulary: Vocabulary, texts: list[str] = TEXT) -> list[list[str]]:
    lines = [text.encode() for text in texts]
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
        convert(str(MODEL), "marian", keep_text=str(file))
    assert "every tenth line, 50.0 %" in caplog.text


def test_a_text_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    def check(path: str, *facts: str) -> None:
        refuses(read_model, (MODEL, "marian", make_options(keep_text=path)), *facts)

    file = tmp_path / "text"
    check("", "keep_text", "empty")
    check(str(file), "text", "missing")
    for text, fact in (("", "is empty"), (" \n", "empty lines")):
        file.write_text(text)
        check(str(file), "text", fact)


def test_a_text_that_is_not_tokenized_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, file = read_model(FIXTURES / "fairseq" / "words", "fairseq"), tmp_path / "text"
    file.write_text("A girl!\nDie Hunde.\n")
    refuses(trimming.keep_text, (model, file), file.name, "100.0 %", "unknown", "Tokenize")
    file.write_text("dogs ☃ ☃ in\nthe shop .\ndie hunde .\n", "utf-8")
    with caplog.at_level(logging.INFO):
        trimming.keep_text(model, file)
    assert tells(caplog.text, "20.0 %", "unknown")


@pytest.mark.parametrize("tying", ["all", "none"])
@pytest.mark.parametrize("code", OTHERS)
def test_languages_keep_their_scripts(
    tying: str, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    old = language_model(tying)
    with caplog.at_level(logging.INFO):
        new = trimming.keep_languages(old, code)
    assert [*new.vocabulary.language_ids] == ["eng_Latn", "de", code]
    assert new.vocabulary.languages == old.vocabulary.languages
    assert "3 of 6 languages" in caplog.text
    kept = [*LATIN, OTHERS[code], " ".join([*LATIN, OTHERS[code]])]
    assert segmentations(new.vocabulary, kept) == segmentations(old.vocabulary, kept)
    # Other texts become single characters, which are not unknown.
    others = [text for other, text in OTHERS.items() if other not in (code, "zh_CN")]
    changed = segmentations(new.vocabulary, others)
    assert changed != segmentations(old.vocabulary, others)
    assert all("<unk>" not in row for row in changed)
    # Each token keeps its vectors.
    pieces = [model.vocabulary.pieces()[1] for model in (old, new)]
    rows = [pieces[0].index(piece) for piece in pieces[1]]
    name = "embedding/embeddings" if tying == "all" else "target_embedding/embeddings"
    np.testing.assert_array_equal(new.weights[name], old.weights[name][rows])


def test_a_text_and_languages_keep_what_both_need(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("\n".join(TEXT), "utf-8")
    options: Any = {"source_language": "eng_Latn", "target_language": "deu_Latn"}
    options |= {"keep_text": str(tmp_path / "text"), "keep_languages": "fra_Latn"}
    model = convert(str(FIXTURES / "multilingual" / "nllb"), "huggingface", **options)
    assert {*model.vocabulary.language_ids} == {"eng_Latn", "deu_Latn", "fra_Latn"}
    assert segmentations(model.vocabulary) == segmentations(MODELS["languages"]().vocabulary)
    model.transformer()  # checks the shapes


def test_languages_that_cannot_be_kept_are_refused() -> None:
    model = language_model()
    for languages, facts in (
        ("rus", ["'rus'", "rus_Cyrl", "keep_languages"]),
        ("rus_Cyrl,", ["''", "keep_languages"]),
        ("ns", ["ns", "script", "keep_text"]),
    ):
        refuses(trimming.keep_languages, (model, languages), *facts)
    refuses(trimming.keep_languages, (bpe_model(True), "de"), "de", "no languages")
