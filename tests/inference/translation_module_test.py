"""`TranslationModule`: limits, batches, unusual inputs, caches, ensembles and details."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer import decoding
from keras_transformer.decoding import SearchConfig, SearchInputs, SpecialIds, StepDecoder
from keras_transformer.errors import InputError
from keras_transformer.inference.scoring import Scorer
from keras_transformer.inference.translation_module import CompiledTranslation, TranslationModule
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES
from tests.messages import mentions

TEXTS = [*PHRASES, "a", "", "ball " * 30]


def make_transformer(run: RunDirectory, scale: float = 1.0, dtype: str = "float32") -> Transformer:
    """Returns the run's model with all weights multiplied by `scale`."""
    transformer = Transformer(run.config.model, dtype=dtype)
    transformer.build()
    weights = run.selected_weights()
    transformer.assign_weights({path: scale * weight for path, weight in weights.items()})
    return transformer


def make_translator(run: RunDirectory, **changes: object) -> TranslationModule:
    config = run.config.replace(**changes)
    return TranslationModule(make_transformer(run), run.tokenizer(), config.decoding)


@pytest.fixture(scope="module")
def translator(run_directory: RunDirectory) -> TranslationModule:
    return make_translator(run_directory, decoding__n_best=3)


def translate(translator: TranslationModule, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    outputs = translator.translate(tf.constant(texts, tf.string))
    return outputs["translations"].numpy(), outputs["scores"].numpy()


def test_results_do_not_depend_on_the_batch(translator: TranslationModule) -> None:
    translations, scores = translate(translator, TEXTS)
    assert translations.shape == scores.shape == (len(TEXTS), 3)
    assert len(set(translations[:, 0])) > 4  # translations differ
    for row, text in enumerate(TEXTS):
        alone, alone_scores = translate(translator, [text])
        np.testing.assert_array_equal(translations[row], alone[0])
        np.testing.assert_allclose(scores[row], alone_scores[0], atol=1e-4)


def test_output_lengths_depend_only_on_their_source(translator: TranslationModule) -> None:
    texts = tf.constant(TEXTS)
    longest = translator.lengths(texts)["used"].numpy() + translator.config.max_extra_tokens
    lengths = translator.search(texts).lengths.numpy().max(axis=1)
    longest[TEXTS.index("")] = 0
    assert (lengths <= longest).all()
    assert (lengths[:-1] == longest[:-1]).sum() > 2  # several sentences reach the limit


def test_empty_texts_have_empty_translations(translator: TranslationModule) -> None:
    for texts in (["", "  \t ", "\n"], ["", TEXTS[0]]):
        translations, scores = translate(translator, texts)
        assert (translations[0].tolist(), scores[0, 0]) == ([b""] * 3, 0)
    translations, scores = translate(translator, [])
    assert translations.shape == scores.shape == (0, 3)


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


def test_learned_positions_limit_source_and_output(run_directory: RunDirectory) -> None:
    config = run_directory.config.replace(model__positions="learned", model__max_positions=12)
    transformer = Transformer(config.model, dtype="float32")
    transformer.build()
    translator = TranslationModule(transformer, run_directory.tokenizer(), config.decoding)
    texts = tf.constant(["ball " * 30, "a"])
    assert translator.lengths(texts)["used"].numpy().tolist() == [12, 2]
    assert translator.search(texts).ids.shape[-1] <= 12


@given(st.lists(st.binary(max_size=60) | st.text(max_size=30), max_size=3))
@settings(max_examples=40, deadline=None)
def test_no_text_fails(translator: TranslationModule, texts: list[str]) -> None:
    translations, scores = translate(translator, texts)
    assert translations.shape == (len(texts), 3)
    assert not any(b"\n" in text for text in translations.ravel())
    assert np.isfinite(scores).all()


def uncached_search(translator: TranslationModule, texts: list[str]) -> decoding.SearchResult:
    """Searches without a cache: each step is a forward pass over all tokens."""
    source_ids, lengths = translator.source_ids(tf.constant(texts))
    max_lengths = translator.max_lengths(lengths)
    beam, longest = translator.config.beam_size, int(tf.reduce_max(max_lengths)) + 1
    members = [(each, each.encode(source_ids)) for each in translator.transformers]

    def step(ids, position, cache):
        ids = tf.where(tf.range(longest) == position, ids[:, None], cache["ids"])
        logits = []
        for transformer, memory in members:
            rows = [tf.gather(part, cache["sentence"]) for part in memory[:2]]
            decoded = transformer.decode(ids, memory._replace(states=rows[0], mask=rows[1]))
            features = tf.gather(decoded.features, position, axis=1)
            logits.append(tf.nn.log_softmax(transformer.logits(features)))
        cache = {"ids": ids, "sentence": cache["sentence"]}
        return tf.add_n(logits) / len(logits), cache, None

    tokenizer = translator.tokenizer
    cache = {
        "ids": tf.fill([len(texts) * beam, longest], tokenizer.pad_id),
        "sentence": tf.repeat(tf.range(len(texts)), beam),
    }
    return decoding.search(
        StepDecoder(step, cache, tokenizer.target_vocab_size, beam, returns_log_probs=True),
        SearchInputs(max_lengths),
        SearchConfig(translator.config),
        SpecialIds(tokenizer.start_id, tokenizer.end_id, tokenizer.pad_id),
    )


@pytest.mark.parametrize("models", [1, 2])
@pytest.mark.parametrize("beam", [1, 4])
def test_cached_and_uncached_search_are_equal(
    run_directory: RunDirectory, models: int, beam: int
) -> None:
    config = run_directory.config.replace(decoding__beam_size=beam).decoding
    transformers = [make_transformer(run_directory, scale) for scale in (1.0, 1.1)[:models]]
    translator = TranslationModule(transformers, run_directory.tokenizer(), config)
    cached = translator.search(tf.constant(TEXTS[:4]))
    uncached = uncached_search(translator, TEXTS[:4])
    np.testing.assert_array_equal(cached.ids, uncached.ids)
    np.testing.assert_allclose(cached.scores, uncached.scores, rtol=2e-5, atol=1e-4)


def test_models_with_different_vocabularies_are_an_error(run_directory: RunDirectory) -> None:
    config = run_directory.config.replace(model__target_vocab_size=7, model__source_vocab_size=7)
    other = Transformer(config.model)
    with pytest.raises(InputError, match=mentions("model 2", "7", "tokens")):
        TranslationModule(
            [make_transformer(run_directory), other], run_directory.tokenizer(), config.decoding
        )
    with pytest.raises(InputError, match=mentions("TranslationModule", "one model")):
        TranslationModule([], run_directory.tokenizer(), config.decoding)


def test_details_fit_the_translation(translator: TranslationModule) -> None:
    phrases = TEXTS[:-2]
    texts, no_prefix = tf.constant(phrases), tf.fill([len(phrases)], "")
    plain = translator.translate(texts)
    details = translator.translate_verbose(texts, no_prefix)
    details = {name: field.numpy() for name, field in details.items()}
    np.testing.assert_array_equal(details["translations"], plain["translations"])
    np.testing.assert_allclose(details["scores"], plain["scores"], atol=1e-5)
    np.testing.assert_allclose(
        details["token_log_probs"].sum(axis=-1), details["log_probs"], atol=1e-4
    )
    penalty = ((5 + details["lengths"]) / 6) ** translator.config.length_penalty
    np.testing.assert_allclose(details["log_probs"] / penalty, details["scores"], rtol=1e-5)
    for row, text in enumerate(phrases):
        source = [p for p in details["source_tokens"][row].tolist() if p != b"<pad>"]
        assert b"".join(source[:-1]).decode().replace("\u2581", " ").strip() == text.strip()
        for k, length in enumerate(details["lengths"][row]):
            attention = details["attention"][row, k, :length]
            np.testing.assert_allclose(attention.sum(axis=-1), 1, atol=1e-5)
            assert (attention[:, len(source) :] == 0).all()
            best = attention.argmax(axis=-1)
            np.testing.assert_array_equal(details["alignments"][row, k, :length], best)


def test_translations_start_with_their_prefixes(translator: TranslationModule) -> None:
    free = translator.translate(tf.constant(TEXTS[:3]))["translations"].numpy()
    prefixes = ["", free[2, 0].decode()[:2], free[1, 0].decode()[:4]]
    details = translator.translate_verbose(tf.constant(TEXTS[:3]), tf.constant(prefixes))
    found = details["translations"].numpy()
    assert found[0].tolist() == free[0].tolist()
    for row, prefix in enumerate(prefixes):
        assert all(text.decode().startswith(prefix) for text in found[row]), (prefix, found[row])


def test_too_long_prefixes_are_truncated(run_directory: RunDirectory) -> None:
    translator = make_translator(run_directory, decoding__max_length=2)
    details = translator.translate_verbose(tf.constant(TEXTS[:1]), tf.constant([TEXTS[3]]))
    prefix = translator.tokenizer.tokenize_target(tf.constant([TEXTS[3]]))[0, :2]
    np.testing.assert_array_equal(details["ids"][0, 0], prefix)
    assert not details["finished"][0, 0] and details["lengths"][0, 0] == 2


def test_banned_phrases_do_not_appear(
    translator: TranslationModule, run_directory: RunDirectory
) -> None:
    free = translator.translate(tf.constant(TEXTS[:3]))["translations"].numpy()
    word = free[0, 0].decode().split()[0]
    banning = make_translator(run_directory, decoding__banned=f" |{word}")
    for text in banning.translate(tf.constant(TEXTS[:3]))["translations"].numpy()[:, 0]:
        assert word not in text.decode().split()


@pytest.mark.parametrize(
    "search",
    [{"beam_size": 4}, pytest.param({"beam_size": 1}, marks=pytest.mark.long), {"sample": True}],
)
def test_unknown_tokens_are_written_only_if_allowed(
    run_directory: RunDirectory, search: dict[str, object]
) -> None:
    transformer, tokenizer = make_transformer(run_directory), run_directory.tokenizer()
    settings = {f"decoding__{name}": value for name, value in search.items()}
    plain = make_translator(run_directory, **settings)
    # The embedding of a frequent token, so that the unknown token is at least as likely.
    frequent = plain.search(tf.constant(PHRASES)).ids.numpy()[:, 0, 1]
    rows = transformer.target_embedding.embeddings.numpy()
    rows[tokenizer.unknown_id] = 1.5 * rows[frequent[0]]
    transformer.target_embedding.embeddings.assign(rows)

    def translations(**changes: object) -> list[str]:
        config = run_directory.config.replace(**settings, **changes).decoding
        own = TranslationModule(transformer, tokenizer, config)
        return [text.decode() for text in translate(own, list(PHRASES))[0][:, 0]]

    assert not any("\u2047" in text for text in translations())
    allowed = translations(decoding__unknown="allow")
    assert any("\u2047" in text for text in allowed)
    replaced = translations(decoding__unknown="replace")
    assert not any("\u2047" in text for text in replaced)
    for phrase, before, after in zip(PHRASES, allowed, replaced, strict=True):
        kept = "(.*?)".join(map(re.escape, before.strip().split("\u2047")))
        inserted = re.fullmatch(kept.replace(r"\ ", " *"), after)
        assert inserted and set("".join(inserted.groups())) <= {*phrase, " "}
    assert translations(decoding__banned="\u2047|<unk>") == translations()


@pytest.mark.parametrize("n_best", [1, 3])
def test_samples_do_not_depend_on_the_batch(run_directory: RunDirectory, n_best: int) -> None:
    settings = {"sample": True, "n_best": n_best, "top_p": 0.9, "temperature": 1.5}
    changes = {f"decoding__{name}": value for name, value in settings.items()}
    sampling = make_translator(run_directory, **changes)
    together, _ = translate(sampling, TEXTS)
    assert len(set(together[:, 0])) > 4
    for row, text in enumerate(TEXTS):
        np.testing.assert_array_equal(translate(sampling, [text])[0][0], together[row])
    other, _ = translate(make_translator(run_directory, **changes, decoding__seed=1), TEXTS)
    assert (other != together).any()


def test_xla_and_graph_are_equal(translator: TranslationModule) -> None:
    compiled = CompiledTranslation(translator)
    for texts in (TEXTS[:3], [""], []):
        expected = translator.translate(tf.constant(texts, tf.string))
        actual = compiled.translate(tf.constant(texts, tf.string))
        np.testing.assert_array_equal(actual["translations"], expected["translations"])
        np.testing.assert_allclose(actual["scores"], expected["scores"], atol=1e-4)


def test_bfloat16_weights_translate(run_directory: RunDirectory) -> None:
    model = make_transformer(run_directory, dtype="bfloat16")
    assert model.target_embedding.embeddings.dtype == "bfloat16"
    assert model.encoder.layers[0].feed_forward_norm.gamma.dtype == "float32"
    lossy = TranslationModule(model, run_directory.tokenizer(), run_directory.config.decoding)
    found = lossy.search(tf.constant(TEXTS))
    # Float32 scores of the same tokens. The logits of this model are large, and bfloat16 has
    # 8 bits.
    scorer = Scorer(make_translator(run_directory))
    exact = scorer.score_ids(tf.constant(TEXTS), found.ids[:, 0], found.lengths[:, 0])
    np.testing.assert_allclose(found.log_probs[:, 0], exact["log_probs"], rtol=0.25, atol=0.3)
