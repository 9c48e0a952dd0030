"""Text in, n-best out: limits, batches, strange input; the search itself is tested elsewhere."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer import decoding
from keras_transformer.decoding import SearchConfig, SearchInputs, SpecialIds, StepDecoder
from keras_transformer.errors import InputError
from keras_transformer.inference import Translation, loading
from keras_transformer.inference import translate as inference
from keras_transformer.inference.scoring import Scorer
from keras_transformer.inference.translator import CompiledTranslator, Translator
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES
from tests.messages import mentions, tells

TEXTS = [*PHRASES, "a", "", "ball " * 30]


def make_transformer(run: RunDirectory, scale: float = 1.0, dtype: str = "float32") -> Transformer:
    """The run's model, or one that differs from it by a factor of all its weights."""
    transformer = Transformer(run.config.model, dtype=dtype)
    transformer.build()
    weights = run.selected_weights()
    transformer.assign_weights({path: scale * weight for path, weight in weights.items()})
    return transformer


def make_translator(run: RunDirectory, **changes: object) -> Translator:
    config = run.config.replace(**changes)
    return Translator(make_transformer(run), run.tokenizer(), config.decoding)


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


def uncached_search(translator: Translator, texts: list[str]) -> decoding.SearchResult:
    """The search over whole forward passes: a step knows nothing but the tokens so far."""
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
def test_the_cache_changes_nothing(run_directory: RunDirectory, models: int, beam: int) -> None:
    config = run_directory.config.replace(decoding__beam_size=beam).decoding
    transformers = [make_transformer(run_directory, scale) for scale in (1.0, 1.1)[:models]]
    translator = Translator(transformers, run_directory.tokenizer(), config)
    cached = translator.search(tf.constant(TEXTS[:4]))
    uncached = uncached_search(translator, TEXTS[:4])
    np.testing.assert_array_equal(cached.ids, uncached.ids)
    np.testing.assert_allclose(cached.scores, uncached.scores, rtol=2e-5, atol=1e-4)


def test_an_ensemble_averages_log_probabilities(run_directory: RunDirectory) -> None:
    config = run_directory.config.decoding
    one, other = make_transformer(run_directory), make_transformer(run_directory, 0.9)
    tokenizer = run_directory.tokenizer()
    texts = tf.constant(TEXTS)
    translators = [
        Translator(models, tokenizer, config) for models in (one, [one, one], [one, other])
    ]
    alone, twice, both = (translator.search(texts) for translator in translators)
    np.testing.assert_array_equal(twice.ids, alone.ids)
    np.testing.assert_allclose(twice.scores, alone.scores, atol=1e-4)
    assert (both.scores.numpy() != alone.scores.numpy()).any()


def test_an_ensemble_of_other_vocabularies_is_refused(run_directory: RunDirectory) -> None:
    config = run_directory.config.replace(model__target_vocab_size=7, model__source_vocab_size=7)
    other = Transformer(config.model)
    with pytest.raises(InputError, match=mentions("model 2", "7", "tokens")):
        Translator(
            [make_transformer(run_directory), other], run_directory.tokenizer(), config.decoding
        )
    with pytest.raises(InputError, match=mentions("model", "translate")):
        Translator([], run_directory.tokenizer(), config.decoding)


def test_details_are_of_the_translation(translator: Translator) -> None:
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


def test_translations_begin_with_their_prefixes(translator: Translator) -> None:
    free = translator.translate(tf.constant(TEXTS[:3]))["translations"].numpy()
    prefixes = ["", free[2, 0].decode()[:2], free[1, 0].decode()[:4]]
    details = translator.translate_verbose(tf.constant(TEXTS[:3]), tf.constant(prefixes))
    found = details["translations"].numpy()
    assert found[0].tolist() == free[0].tolist()
    for row, prefix in enumerate(prefixes):
        assert all(text.decode().startswith(prefix) for text in found[row]), (prefix, found[row])


def test_a_prefix_longer_than_the_output_may_be_is_cut(run_directory: RunDirectory) -> None:
    translator = make_translator(run_directory, decoding__max_length=2)
    details = translator.translate_verbose(tf.constant(TEXTS[:1]), tf.constant([TEXTS[3]]))
    prefix = translator.tokenizer.tokenize_target(tf.constant([TEXTS[3]]))[0, :2]
    np.testing.assert_array_equal(details["ids"][0, 0], prefix)
    assert not details["finished"][0, 0] and details["lengths"][0, 0] == 2


def test_banned_phrases_do_not_come(translator: Translator, run_directory: RunDirectory) -> None:
    free = translator.translate(tf.constant(TEXTS[:3]))["translations"].numpy()
    word = free[0, 0].decode().split()[0]
    banning = make_translator(run_directory, decoding__banned=f" |{word}")
    for text in banning.translate(tf.constant(TEXTS[:3]))["translations"].numpy()[:, 0]:
        assert word not in text.decode().split()


@pytest.mark.parametrize("n_best", [1, 3])
def test_samples_are_the_same_alone_and_in_a_batch(
    run_directory: RunDirectory, n_best: int
) -> None:
    settings = {"sample": True, "n_best": n_best, "top_p": 0.9, "temperature": 1.5}
    changes = {f"decoding__{name}": value for name, value in settings.items()}
    sampling = make_translator(run_directory, **changes)
    together, _ = translate(sampling, TEXTS)
    assert len(set(together[:, 0])) > 4
    for row, text in enumerate(TEXTS):
        np.testing.assert_array_equal(translate(sampling, [text])[0][0], together[row])
    other, _ = translate(make_translator(run_directory, **changes, decoding__seed=1), TEXTS)
    assert (other != together).any()


def test_xla_finds_what_the_graph_finds(translator: Translator) -> None:
    compiled = CompiledTranslator(translator)
    for texts in (TEXTS[:3], [""], []):
        expected = translator.translate(tf.constant(texts, tf.string))
        actual = compiled.translate(tf.constant(texts, tf.string))
        np.testing.assert_array_equal(actual["translations"], expected["translations"])
        np.testing.assert_allclose(actual["scores"], expected["scores"], atol=1e-4)


def test_bfloat16_weights_translate(run_directory: RunDirectory) -> None:
    model = make_transformer(run_directory, dtype="bfloat16")
    assert model.target_embedding.embeddings.dtype == "bfloat16"
    assert model.encoder.layers[0].feed_forward_norm.gamma.dtype == "float32"
    lossy = Translator(model, run_directory.tokenizer(), run_directory.config.decoding)
    found = lossy.search(tf.constant(TEXTS))
    # What float32 thinks of the same tokens; the logits of this model are large, and bfloat16
    # has 8 bits of them.
    scorer = Scorer(make_translator(run_directory))
    exact = scorer.score_ids(tf.constant(TEXTS), found.ids[:, 0], found.lengths[:, 0])
    np.testing.assert_allclose(found.log_probs[:, 0], exact["log_probs"], rtol=0.25, atol=0.3)


def test_weights_that_are_no_numbers_find_nothing(run_directory: RunDirectory) -> None:
    broken = Translator(
        make_transformer(run_directory, np.nan),
        run_directory.tokenizer(),
        run_directory.config.decoding,
    )
    translations, scores = translate(broken, TEXTS[:2])
    assert (translations == b"").all() and (scores == decoding.NEG_INF).all()
    model = loading.LoadedModel("here", 1, broken.translate, broken.lengths, broken)
    results = inference.translate_lines(model, TEXTS[:2])
    assert results == [[inference.NO_TRANSLATION]] * 2
    remarks = inference.remarks(model, TEXTS[:2], results)
    assert [remark[:30] for remark in remarks] == [
        "line 1 has no translation: the", "line 2 has no translation: the"
    ]  # fmt: skip


def test_a_prefix_that_cannot_be_written_is_named(translator: Translator) -> None:
    model = loading.LoadedModel(
        "here", 3, translator.translate, translator.lengths, translator,
        translator.translate_verbose,
    )  # fmt: skip
    prefixes = ["\u65e5\u672c", ""]
    details = inference.translate_in_detail(model, TEXTS[:2], prefixes)
    results = [
        [Translation(t["text"], t["score"]) for t in each["translations"]] for each in details
    ]
    (remark,) = inference.remarks(model, TEXTS[:2], results, prefixes)
    assert tells(remark, "line 1", "prefix")
