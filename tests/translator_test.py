"""Text in, n-best out: limits, batches, strange input; the search itself is tested elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.model import Transformer
from keras_transformer.run_directory import RunDirectory
from keras_transformer.translator import Translator
from tests.conftest import PHRASES

TEXTS = [*PHRASES, "a", "", "ball " * 30]


def make_translator(run: RunDirectory, **changes: object) -> Translator:
    config = run.config.replace(**changes)
    transformer = Transformer(run.config.model, dtype="float32")
    transformer.build()
    transformer.assign_weights(run.selected_weights())
    return Translator(transformer, run.tokenizer(), config.decoding)


@pytest.fixture(scope="module")
def translator(run_directory: RunDirectory) -> Translator:
    return make_translator(run_directory, decoding__n_best=3)


def translate(translator: Translator, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    outputs = translator.translate(tf.constant(texts, tf.string))
    return outputs["translations"].numpy(), outputs["scores"].numpy()


def test_a_batch_gives_each_sentence_what_it_gets_alone(translator: Translator) -> None:
    translations, scores = translate(translator, TEXTS)
    assert translations.shape == scores.shape == (len(TEXTS), 3)
    assert len(set(translations[:, 0])) > 4  # the model is not one that always says the same
    for row, text in enumerate(TEXTS):
        alone, alone_scores = translate(translator, [text])
        np.testing.assert_array_equal(translations[row], alone[0])
        np.testing.assert_allclose(scores[row], alone_scores[0], atol=1e-4)


def test_n_best_is_sorted_and_all_different(translator: Translator) -> None:
    _, scores = translate(translator, list(PHRASES))
    assert (np.diff(scores, axis=1) <= 0).all()
    result = translator.search(tf.constant(PHRASES))
    for ids, lengths in zip(result.ids.numpy(), result.lengths.numpy(), strict=True):
        assert len({tuple(i[:n]) for i, n in zip(ids, lengths, strict=True)}) == 3


def test_beam_1_is_greedy_decoding_by_the_whole_forward_pass(run_directory: RunDirectory) -> None:
    greedy = make_translator(run_directory, decoding__beam_size=1)
    tokenizer, model = greedy.tokenizer, greedy.transformer
    for phrase in PHRASES:
        result = greedy.search(tf.constant([phrase]))
        ids = result.ids.numpy()[0, 0, : result.lengths[0, 0]].tolist()
        source = tokenizer.tokenize_source(tf.constant([phrase])).to_tensor()
        target = tf.constant([[tokenizer.start_id, *ids[:-1]]])
        logits = model({"source_ids": source, "target_ids": target}, training=False)[0].numpy()
        logits[:, [tokenizer.pad_id, tokenizer.start_id]] = -np.inf
        assert logits.argmax(axis=-1).tolist() == ids
        assert ids[-1] == tokenizer.end_id or len(ids) == source.shape[1] + 5


def test_an_output_is_as_long_as_its_own_source_allows(translator: Translator) -> None:
    texts = tf.constant(TEXTS)
    longest = translator.lengths(texts)["used"].numpy() + translator.config.max_extra_tokens
    lengths = translator.search(texts).lengths.numpy().max(axis=1)
    longest[TEXTS.index("")] = 0
    assert (lengths <= longest).all()
    assert (lengths[:-1] == longest[:-1]).sum() > 2  # and reached, not only by the longest


def test_nothing_to_translate_gives_nothing(translator: Translator) -> None:
    for texts in (["", "  \t ", "\n"], ["", TEXTS[0]]):
        translations, scores = translate(translator, texts)
        assert (translations[0].tolist(), scores[0, 0]) == ([b""] * 3, 0)
    translations, scores = translate(translator, [])
    assert translations.shape == scores.shape == (0, 3)


def test_a_long_text_is_translated_from_its_first_tokens(translator: Translator) -> None:
    limit = translator.config.max_source_tokens
    long = "a small dog runs over the green field " * 300  # more than 10,000 characters
    counts = translator.lengths(tf.constant([long, "a", ""]))
    assert counts["tokens"][0] > 1000
    assert counts["used"].numpy().tolist() == [limit, 2, 1]
    # What lies behind the limit changes nothing, and the cut source ends with the end token.
    tokens = translator.tokenizer.tokenize_source(tf.constant([long]))[:, : limit - 1]
    cut = translator.tokenizer.detokenize(tokens.to_tensor(), tf.constant([limit - 1]))
    assert translator.lengths(cut)["tokens"] == [limit]
    for whole, same in zip(
        translate(translator, [long]), translate(translator, [cut.numpy()[0]]), strict=True
    ):
        np.testing.assert_array_equal(whole, same)


def test_learned_positions_limit_source_and_output(run_directory: RunDirectory) -> None:
    config = run_directory.config.replace(model__positions="learned", model__max_positions=12)
    transformer = Transformer(config.model, dtype="float32")
    transformer.build()
    translator = Translator(transformer, run_directory.tokenizer(), config.decoding)
    texts = tf.constant(["ball " * 30, "a"])
    assert translator.lengths(texts)["used"].numpy().tolist() == [12, 2]
    assert translator.search(texts).ids.shape[-1] <= 12


@given(st.lists(st.binary(max_size=60) | st.text(max_size=30), max_size=3))
@settings(max_examples=40, deadline=None)
def test_no_text_fails(translator: Translator, texts: list[str]) -> None:
    translations, scores = translate(translator, texts)
    assert translations.shape == (len(texts), 3)
    assert not any(b"\n" in text for text in translations.ravel())
    assert np.isfinite(scores).all()
