"""`TranslationModule`: limits, batches, unusual inputs, caches, ensembles and details."""

import dataclasses
import functools
import re

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer import decoding
from keras_transformer.decoding import SearchInputs, SpecialIds, StepDecoder
from keras_transformer.errors import InputError
from keras_transformer.inference import loading, output_limit
from keras_transformer.inference.translation_module import TranslationModule, compiled_translation
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.run_directory import RunDirectory
from tests.builders import weekly
from tests.conftest import PHRASES
from tests.layers.layer_check import randomize
from tests.messages import mentions

TEXTS = [*PHRASES, "a", "", "ball " * 30]


def make_transformer(run: RunDirectory, scale: float = 1.0, dtype: str = "float32") -> Transformer:
    """Returns the run's model with all weights multiplied by `scale`."""
    transformer = Transformer(run.config.model, dtype=dtype)
    transformer.build()
    weights = run.named_weights()
    transformer.assign_weights({path: scale * weight for path, weight in weights.items()})
    return transformer


def make_translator(run: RunDirectory, **changes: object) -> TranslationModule:
    config = run.config.updated(**changes)
    return TranslationModule(make_transformer(run), run.tokenizer(), config.decoding)


@pytest.fixture(scope="module")
def translator(run_directory: RunDirectory) -> TranslationModule:
    return loading.load_translator(run_directory, {"decoding.n_best": 2})  # as in other files


def translate(translator: TranslationModule, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    outputs = translator.translate(tf.constant(texts, tf.string))
    return outputs["translations"].numpy(), outputs["scores"].numpy()


def test_results_do_not_depend_on_the_batch(translator: TranslationModule) -> None:
    translations, scores = translate(translator, TEXTS)
    assert translations.shape == scores.shape == (len(TEXTS), 2)
    assert len(set(translations[:, 0])) > 4  # translations differ
    for row, text in enumerate(TEXTS):
        alone, alone_scores = translate(translator, [text])
        np.testing.assert_array_equal(translations[row], alone[0])
        np.testing.assert_allclose(scores[row], alone_scores[0], atol=1e-4)


def test_empty_texts_have_empty_translations(translator: TranslationModule) -> None:
    for texts in (["", "  \t ", "\n"], ["", TEXTS[0]]):
        translations, scores = translate(translator, texts)
        assert (translations[0].tolist(), scores[0, 0]) == ([b""] * 2, 0)
    translations, scores = translate(translator, [])
    assert translations.shape == scores.shape == (0, 2)


def test_long_texts_are_truncated(translator: TranslationModule) -> None:
    limit = translator.config.max_source_tokens
    long = "a small dog runs over the green field " * 300  # more than 10,000 characters
    counts = translator.lengths(tf.constant([long, "a", ""]))
    assert counts["tokens"][0] > 1000
    assert counts["used"].numpy().tolist() == [limit, 2, 1]
    # Text after the limit has no effect, and the truncated source ends with the end token.
    tokens = translator.tokenizer.tokenize_source(tf.constant([long]))[:, : limit - 1]
    cut = translator.tokenizer.detokenize(tokens.to_tensor(), tf.constant([limit - 1]))
    assert translator.lengths(cut)["tokens"] == [limit]
    for whole, same in zip(
        translate(translator, [long]), translate(translator, [cut.numpy()[0]]), strict=True
    ):
        np.testing.assert_array_equal(whole, same)


def test_all_tokens_of_a_text_are_counted(translator: TranslationModule) -> None:
    bytes_limit = translator.config.max_source_bytes
    texts = tf.constant([*TEXTS, "x" * 50, "ball " * bytes_limit, "ß" * 50])
    counts = translator.lengths(texts)
    tokens = translator.tokenizer.tokenize_source(texts)
    np.testing.assert_array_equal(counts["tokens"], tokens.row_lengths())
    unknown = tf.cast(tokens == translator.tokenizer.unknown_id, tf.int32)
    np.testing.assert_array_equal(counts["unknown"], tf.reduce_sum(unknown, axis=1))
    _, used, _ = translator.source_ids(texts)
    np.testing.assert_array_equal(counts["used"], used)


def test_learned_positions_limit_source_and_output(run_directory: RunDirectory) -> None:
    config = run_directory.config.updated(model__positions="learned", model__max_positions=12)
    transformer = Transformer(config.model, dtype="float32")
    transformer.build()
    translator = TranslationModule(transformer, run_directory.tokenizer(), config.decoding)
    source_ids, used, _ = translator.source_ids(tf.constant(["ball " * 30, "a"]))
    assert used.numpy().tolist() == [12, 2]
    limits = SearchInputs(translator.max_lengths(source_ids))
    assert translator.translate_ids(source_ids, limits).ids.shape[-1] <= 12


@pytest.mark.parametrize(
    ("extra", "limits"),
    [
        (None, [0, 16, 70, 71, 150]),  # input + 50, and for short inputs 3 * input + 10
        (50, [0, 52, 70, 71, 150]),
        (-2, [0, 6, 60, 63, 300]),
    ],
)
def test_outputs_have_limits_relative_to_their_source(
    translator: TranslationModule, extra: int | None, limits: list[int]
) -> None:
    config = dataclasses.replace(translator.config, max_extra_tokens=extra)
    lengths = [2, 20, 21, 100]
    module = translator.with_options(config)
    source_ids = tf.sequence_mask([1, *lengths], dtype=tf.int32) * translator.tokenizer.end_id
    assert module.max_lengths(source_ids).numpy().tolist() == limits
    assert [output_limit(config, length) for length in lengths] == limits[1:]


@given(st.lists(st.binary(max_size=60) | st.text(max_size=30), max_size=3))
@settings(max_examples=40)
def test_no_text_fails(translator: TranslationModule, texts: list[str]) -> None:
    translations, scores = translate(translator, texts)
    assert translations.shape == (len(texts), 2)
    assert not any(b"\n" in text for text in translations.ravel())
    assert np.isfinite(scores).all()


def uncached_search(translator: TranslationModule, texts: list[str]) -> decoding.SearchResult:
    """Searches without a cache: each step is a forward pass over all tokens."""
    source_ids, *_ = translator.source_ids(tf.constant(texts))
    max_lengths = translator.max_lengths(source_ids)
    beam, longest = translator.config.beam_size, int(tf.reduce_max(max_lengths)) + 1
    members = [(model, model.encode(source_ids)) for model in translator.transformers]

    def step(ids, position, cache):
        ids = tf.where(tf.range(longest) == position, ids[:, None], cache["ids"])
        logits = []
        for transformer, memory in members:
            rows = [tf.gather(part, cache["sentence"]) for part in memory[:2]]
            features, _ = transformer.decode(ids, memory._replace(states=rows[0], mask=rows[1]))
            features = tf.gather(features, position, axis=1)
            logits.append(tf.nn.log_softmax(transformer.logits(features)))
        cache = {"ids": ids, "sentence": cache["sentence"]}
        return tf.add_n(logits) / len(logits), cache, None

    tokenizer = translator.tokenizer
    cache = {
        "ids": tf.fill([len(texts) * beam, longest], tokenizer.pad_id),
        "sentence": tf.repeat(tf.range(len(texts)), beam),
    }
    search = functools.partial(
        decoding.search,
        StepDecoder(step, cache, tokenizer.target_vocab_size, beam, returns_log_probs=True),
        SearchInputs(max_lengths),
        translator.config,
        SpecialIds(tokenizer.start_id, tokenizer.end_id, tokenizer.pad_id),
    )
    return tf.function(search, autograph=False)()


@pytest.mark.parametrize(
    ("scales", "beam", "ssru"),
    [
        weekly([1.0], 1, False),
        ([1.0, 1.1], 4, False),
        ([], 3, True),
        weekly([1.0], 2, True),
    ],
)
def test_cached_and_uncached_search_are_equal(
    run_directory: RunDirectory, scales: list[float], beam: int, ssru: bool
) -> None:
    config = run_directory.config.updated(decoding__beam_size=beam)
    transformers = [make_transformer(run_directory, scale) for scale in scales]
    if ssru:
        recurrent = Transformer(config.updated(model__decoder_self_attention="ssru").model)
        randomize(recurrent, scale=0.5)
        transformers.append(recurrent)
    translator = TranslationModule(transformers, run_directory.tokenizer(), config.decoding)
    cached = translator.translate_to_ids(tf.constant(TEXTS[:4]))
    assert len({row.tobytes() for row in cached.ids.numpy()[:, 0]}) == 4  # translations differ
    uncached = uncached_search(translator, TEXTS[:4])
    np.testing.assert_array_equal(cached.ids, uncached.ids)
    np.testing.assert_allclose(cached.scores, uncached.scores, rtol=2e-5, atol=1e-4)


def test_models_with_different_vocabularies_are_an_error(run_directory: RunDirectory) -> None:
    config = run_directory.config.updated(model__target_vocab_size=7, model__source_vocab_size=7)
    other = Transformer(config.model)
    with pytest.raises(InputError, match=mentions("model 2", "7", "tokens")):
        TranslationModule(
            [make_transformer(run_directory), other], run_directory.tokenizer(), config.decoding
        )
    with pytest.raises(InputError, match=mentions("TranslationModule", "one model")):
        TranslationModule([], run_directory.tokenizer(), config.decoding)


def test_unknown_tokens_are_written_only_if_allowed(
    run_directory: RunDirectory, translator: TranslationModule
) -> None:
    transformer, tokenizer = make_transformer(run_directory), run_directory.tokenizer()
    # The embedding of a frequent token, so that the unknown token is at least as likely.
    frequent = translator.translate_to_ids(tf.constant(PHRASES)).ids.numpy()[:, 0, 1]
    rows = transformer.target_embedding.embeddings.numpy()
    rows[tokenizer.unknown_id] = 1.5 * rows[frequent[0]]
    transformer.target_embedding.embeddings.assign(rows)

    def module(unknown: str = "forbid") -> TranslationModule:
        changes = {"decoding__beam_size": 1, "decoding__unknown": unknown}
        config = run_directory.config.updated(**changes).decoding
        return TranslationModule(transformer, tokenizer, config)

    def texts(module: TranslationModule) -> list[str]:
        return [text.decode() for text in module.texts(result, phrases).numpy()[:, 0]]

    phrases, forbidding, replacing = tf.constant(PHRASES), module(), module(unknown="replace")
    result = forbidding.translate_to_ids(phrases)
    assert not any("\u2047" in text for text in texts(forbidding))
    result = replacing.translate_to_ids(phrases)
    allowed, replaced = texts(module("allow")), texts(replacing)
    assert any("\u2047" in text for text in allowed)
    assert not any("\u2047" in text for text in replaced)
    for phrase, before, after in zip(PHRASES, allowed, replaced, strict=True):
        kept = "(.*?)".join(map(re.escape, before.strip().split("\u2047")))
        inserted = re.fullmatch(kept.replace(r"\ ", " *"), after)
        assert inserted and set("".join(inserted.groups())) <= {*phrase, " "}


def test_samples_do_not_depend_on_the_batch(run_directory: RunDirectory) -> None:
    settings = {"sample": True, "n_best": 3, "top_p": 0.9, "temperature": 1.5}
    changes = {f"decoding__{name}": value for name, value in settings.items()}
    sampling = make_translator(run_directory, **changes)
    together, _ = translate(sampling, TEXTS)
    assert len(set(together[:, 0])) > 4
    for row, text in enumerate(TEXTS):
        np.testing.assert_array_equal(translate(sampling, [text])[0][0], together[row])
    other, _ = translate(make_translator(run_directory, **changes, decoding__seed=1), TEXTS)
    assert (other != together).any()


@pytest.mark.parametrize("texts", [TEXTS[:3], weekly([])], ids=len)
def test_xla_and_graph_are_equal(translator: TranslationModule, texts: list[str]) -> None:
    expected = translator.translate(tf.constant(texts, tf.string))
    actual = compiled_translation(translator)(text=tf.constant(texts, tf.string))
    np.testing.assert_array_equal(actual["translations"], expected["translations"])
    np.testing.assert_allclose(actual["scores"], expected["scores"], atol=1e-4)
