"""Tests of `search`: batches, results, invalid input, XLA and SavedModels."""

import dataclasses

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer import decoding
from keras_transformer.config import DecodingConfig
from keras_transformer.decoding import SpecialIds, StepDecoder
from keras_transformer.errors import InputError
from tests.builders import refuses, weekly
from tests.decoding.reference import (
    ALL_OUTPUTS,
    DETAILS,
    END,
    LENGTH,
    PAD,
    SOURCE,
    START,
    UNKNOWN,
    VOCAB,
    A,
    B,
    Rules,
    Tables,
    hypotheses,
    log_softmax,
    node,
    random_tables,
    search,
    step_of,
    tied_tables,
)
from tests.decoding.strategies import SEARCHES, SEEDS, batches, rules
from tests.messages import mentions

PLAIN = {
    "beam": DecodingConfig(beam_size=3, n_best=2),
    "greedy": DecodingConfig(beam_size=1),
    "sampling": DecodingConfig(sample=True, n_best=2, seed=5),
}
CONSTRAINED = {"min_length": 3, "no_repeat_ngram": 2, "repetition_penalty": 1.5}
RICH = {
    "beam": Rules(
        DecodingConfig(beam_size=3, n_best=2, **CONSTRAINED),
        banned=((A, A), (B, UNKNOWN, A), (UNKNOWN, UNKNOWN)),
    ),
    "greedy": Rules(DecodingConfig(beam_size=1, **CONSTRAINED), banned=((A, B), (A, A))),
    "sampling": Rules(
        DecodingConfig(sample=True, n_best=3, temperature=2.0, top_k=3, top_p=0.9, seed=7,
                       **CONSTRAINED),
        banned=((A, B), (A, A)),
    ),
}  # fmt: skip
each_plain = pytest.mark.parametrize("config", PLAIN.values(), ids=PLAIN)
each_rich = pytest.mark.parametrize("rules", RICH.values(), ids=RICH)


def assert_same(one, other, **tolerance):
    """The fields of two results are equal, or close where a tolerance is given."""
    for name, field in one._asdict().items():
        expected = getattr(other, name)
        assert (field is None) == (expected is None)
        if field is not None:
            np.testing.assert_allclose(field, expected, rtol=0, **tolerance, err_msg=name)


# --- Batches ------------------------------------------------------------------------------------


@SEARCHES
@given(
    data=st.data(), seed=SEEDS, beam=st.integers(1, 4), batch=batches(3), is_static=st.booleans()
)
def test_results_do_not_depend_on_the_rest_of_the_batch(data, seed, beam, batch, is_static):
    early = data.draw(st.sampled_from([False, "marian"]))
    chosen = data.draw(rules(beam, early_stopping=early))
    tables = tied_tables(seed, 3)
    limit = LENGTH if is_static else tf.constant(LENGTH)  # the batch shrinks, or keeps its shape
    arguments = {"returns_log_probs": True, **ALL_OUTPUTS, "length_limit": limit}
    together = search(tables, batch.max_lengths, chosen, prefix=batch.prefix, **arguments)
    for n in range(3):
        one = slice(n, n + 1)
        alone = search(
            tables[one], batch.max_lengths[one], chosen, prefix=batch.prefix[one], **arguments
        )
        assert_same(type(alone)(*(field[one] for field in together)), alone, atol=0)


@pytest.mark.parametrize("options", [{"beam_size": 2}, {"beam_size": 1}, {"sample": True}])
def test_sentences_that_have_ended_leave_the_batch(options):
    tables, config = random_tables(3, 5), DecodingConfig(min_length=LENGTH, **options)
    beam = config.n_best if config.sample else config.beam_size
    sentences, kept = [], []

    def step(ids, position, cache):
        sentences.append(len(ids) // beam)
        return step_of(tables)(ids, position, cache)

    class RecordingDecoder(StepDecoder):
        def select_rows(self, cache, sentences):
            kept.append(sentences.numpy().tolist())
            return super().select_rows(cache, sentences)

    offsets = np.linspace(0, 1, 5, dtype=np.float32)
    arguments = {"sample_offsets": offsets, "prefix": np.int32([[A], [B], [-1], [A], [B]])}
    asked = {"step": step, "decoder_type": RecordingDecoder, **arguments}
    found = search(tables, [1, 4, 2, 1, 5], config, **asked)
    # At most three quarters of the sentences stay: 3 of 5, then 2 of 3, then 1 of 2.
    assert sentences == [5, 3, 2, 2, 1]
    assert kept == [[1, 2, 4], [0, 2], [1], []]
    expected = search(tables, [1, 4, 2, 1, 5], config, length_limit=LENGTH, **arguments)
    assert_same(found, expected, atol=2e-6)


@each_plain
def test_sentences_without_tokens_need_no_step(config):
    def step(ids, position, cache):
        raise AssertionError("a step was taken")

    count = config.n_best
    prefix = np.full([2, 3], A, np.int32)
    asked = ALL_OUTPUTS
    result = search(random_tables(1, 2), [0, -3], config, step=step, prefix=prefix, **asked)
    assert result.ids.shape == [2, count, 1]
    assert result.attention.shape == [2, count, 1, SOURCE]
    for sentence in range(2):
        assert hypotheses(result, sentence)[0] == ((), 0.0, 0.0)
    for limit in (None, 3):
        shape = [0, count, limit or 1, SOURCE]
        ranks = {"ids": 3, "token_log_probs": 3, "alignment": 3, "attention": 4}
        result = search(
            random_tables(1, 0), np.zeros([0], np.int32), config, step=step, **asked,
            length_limit=limit, prefix=np.zeros([0, 0], np.int32),
        )  # fmt: skip
        for name, field in result._asdict().items():
            assert field.shape == shape[: ranks.get(name, 2)]


@each_plain
def test_length_limit_lowers_the_maximum_and_fixes_the_shape(config):
    tables, count = random_tables(4, 2), config.n_best

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)], autograph=False)
    def limited(max_lengths):
        result = search(tables, max_lengths, config, length_limit=3)
        shapes = [field.shape.as_list() for field in result[:5]]
        assert shapes == [[None, count, 3], *[[None, count]] * 4]
        return result

    assert_same(limited([2, 5]), search(tables, [2, 3], config), atol=1e-6)


@each_rich
def test_results_do_not_depend_on_the_vocabulary_size(rules):
    tables, step = random_tables(5, 4), step_of(random_tables(5, 4))

    def large_step(ids, position, cache):
        logits, cache, attention = step(ids, position, cache)
        logits = tf.pad(logits, [[0, 0], [0, 2053 - VOCAB]], constant_values=-np.inf)
        return logits, cache, attention

    for chosen in (rules, Rules(DecodingConfig(beam_size=20, n_best=20))):
        small = search(tables, [5, 2, 4, 5], chosen, **ALL_OUTPUTS)
        options = {"step": large_step, "vocab_size": 2053, **ALL_OUTPUTS}
        large = search(tables, [5, 2, 4, 5], chosen, **options)
        assert_same(small, large, atol=1e-5)


# --- What is returned -----------------------------------------------------------------------------


@pytest.mark.parametrize("rules", [*map(Rules, PLAIN.values()), RICH["beam"], RICH["sampling"]])
def test_details_belong_to_the_path_of_the_hypothesis(rules):
    tables, prefix = random_tables(12, 8), np.int32([[A], [-1]] * 4)
    max_lengths = [1, 5, 5, 4, 0, 5, 3, 2]
    result = search(tables, max_lengths, rules, prefix=prefix, **ALL_OUTPUTS)
    without = search(tables, max_lengths, rules, prefix=prefix, **DETAILS)
    assert without.attention is None
    assert_same(without, result._replace(attention=None), atol=0)
    plain = search(tables, max_lengths, rules, prefix=prefix)
    assert (plain.token_log_probs, plain.alignment, plain.attention) == (None, None, None)
    assert_same(plain, without._replace(token_log_probs=None, alignment=None), atol=0)
    for sentence in range(8):
        log_probs = log_softmax(tables.logits[sentence])
        for n, (tokens, _, log_prob) in enumerate(hypotheses(result, sentence)):
            own = result.token_log_probs.numpy()[sentence, n]
            attention = result.attention.numpy()[sentence, n]
            nodes = [node(tokens[:length]) for length in range(len(tokens))]
            np.testing.assert_allclose(own[: len(tokens)], log_probs[nodes, tokens], atol=1e-5)
            assert own.sum() == pytest.approx(log_prob, abs=1e-5)
            expected = tables.attention[sentence, nodes]
            np.testing.assert_array_equal(attention[: len(tokens)], expected)
            assert not own[len(tokens) :].any() and not attention[len(tokens) :].any()
            alignment = result.alignment.numpy()[sentence, n]
            np.testing.assert_array_equal(alignment[: len(tokens)], expected.argmax(-1))


@each_plain
def test_length_penalty_can_differ_between_sentences(config):
    tables, alphas = random_tables(21, 24), np.float32([0, 0.6, 2] * 8)
    found = search(tables, [LENGTH] * 24, config, alpha=alphas)
    differ = 0
    for alpha in (0.0, 0.6, 2.0):
        chosen = dataclasses.replace(config, length_penalty=alpha)
        expected = search(tables, [LENGTH] * 24, chosen)
        rows = np.flatnonzero(alphas == np.float32(alpha))
        one, other = (type(r)(*(f if f is None else tf.gather(f, rows) for f in r))
                      for r in (found, expected))  # fmt: skip
        assert_same(one, other, atol=1e-6)
        differ += not np.allclose(found.scores, expected.scores)
    assert differ == 3


def test_attention_is_not_returned_without_a_source_mask():
    tables = random_tables(1, 2)._replace(source_mask=None)
    for config in PLAIN.values():
        result = search(tables, [3, 3], config, **ALL_OUTPUTS)
        assert result.attention is None and result.alignment is None
        assert result.token_log_probs.shape == result.ids.shape


@each_plain
def test_steps_are_bounded_by_the_graph(config):
    tables = random_tables(5, 3)
    steps = []

    def step(ids, position, cache):
        steps.append(position)
        return step_of(tables)(ids, position, cache)

    chosen = dataclasses.replace(config, min_length=LENGTH)
    search(tables, [LENGTH] * 3, chosen, step=step, max_steps=2, length_limit=LENGTH)
    assert len(steps) == 2
    enough = search(tables, [LENGTH, 1, 2], chosen, max_steps=LENGTH)
    assert_same(enough, search(tables, [LENGTH, 1, 2], chosen), atol=0)


@each_rich
def test_scores_of_listed_tokens_give_the_results_of_the_whole_vocabulary(rules):
    tables, tokens = random_tables(8, 3), [B, START, A, END, PAD, UNKNOWN]
    assert sorted(tokens) == list(range(VOCAB))

    def step(ids, position, cache):
        scores, cache, attention = step_of(tables)(ids, position, cache)
        return tf.gather(scores, tokens, axis=1), cache, attention

    inputs = {"prefix": tf.constant([[-1], [B], [-1]]), **DETAILS}
    expected = search(tables, [LENGTH, LENGTH, 2], rules, **inputs)
    listed = {"step": step, "scored_tokens": tf.constant(tokens)}
    assert_same(search(tables, [LENGTH, LENGTH, 2], rules, **listed, **inputs), expected, atol=1e-5)


# --- Bad input --------------------------------------------------------------------------------


@each_plain
@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
@pytest.mark.parametrize("vocab", [VOCAB, 2053])
def test_nan_logits_end_the_search_without_results(config, value, vocab):
    steps = []

    def step(ids, position, cache):
        steps.append(position)
        return tf.fill([tf.shape(ids)[0], vocab], value), cache, None

    result = search(random_tables(1, 2), [LENGTH] * 2, config, step=step, vocab_size=vocab)
    assert len(steps) == 1
    assert hypotheses(result, 0) == hypotheses(result, 1) == []


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"banned": ((UNKNOWN,), (END,), (A,), (B,))}, ("banned", "token")),
        ({"banned": ((-1, A, VOCAB),)}, ("[-1, 6]", "below 6")),
        ({"ids": SpecialIds(start=VOCAB, end=END, pad=99)}, ("[6, 99]",)),
    ],
)
def test_rules_and_inputs_that_do_not_fit_are_errors(options, facts):
    tables = random_tables(1, 1)._replace(source_mask=None)
    refuses(search, (tables, [3], Rules(**{"config": DecodingConfig(), **options})), *facts)


@each_plain
def test_output_is_empty_if_only_the_end_token_is_allowed(config):
    rules = Rules(config, banned=((UNKNOWN,), (A,), (B,)))
    assert hypotheses(search(random_tables(1, 1), [3], rules), 0)[0].tokens == (END,)


@each_plain
def test_alignment_needs_a_decoder_with_attention(config):
    def step(ids, position, cache):
        logits, cache, _ = step_of(random_tables(1, 2))(ids, position, cache)
        return logits, cache, None

    with pytest.raises(InputError, match=mentions("decoder", "attention", "alignments")):
        search(random_tables(1, 2), [3, 3], config, step=step, **DETAILS)


# --- Where it runs --------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", [RICH["beam"], weekly(RICH["greedy"]), weekly(RICH["sampling"])])
def test_jit_compiled_gives_the_same(rules):
    max_lengths, prefix = tf.constant([5, 2, 0, 4]), tf.constant([[A, B], [A, 9], [B, A], [-1, A]])

    def searched(*tables):
        arguments = {"length_limit": LENGTH, **DETAILS, "prefix": prefix}
        return search(Tables(*tables), max_lengths, rules, **arguments)

    compiled = tf.function(searched, jit_compile=True, autograph=False)
    for seed in (7, 8):
        tables = [tf.constant(field) for field in random_tables(seed, 4)]
        assert_same(compiled(*tables), searched(*tables), atol=1e-5)


class Searcher(tf.Module):
    def __init__(self, tables, rules):
        super().__init__()
        self.tables = Tables(*map(tf.Variable, tables))
        self.rules = rules

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.int32), tf.TensorSpec([None, None], tf.int32)],
        autograph=False,
    )
    def __call__(self, max_lengths, prefix):
        asked = {"prefix": prefix, **ALL_OUTPUTS}
        return search(self.tables, max_lengths, self.rules, **asked)._asdict()


@pytest.mark.parametrize("rules", [RICH["beam"], weekly(RICH["sampling"])])
def test_saved_model_without_xla_ops(rules, tmp_path):
    searcher = Searcher(random_tables(6, 3), rules)
    tf.saved_model.save(searcher, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    for max_lengths in ([3, 5, 4], [5, 0, 5]):
        prefix = tf.constant([[A, B], [-1, -1], [B, -1]])
        found = decoding.SearchResult(**loaded(tf.constant(max_lengths), prefix))
        tables = Tables(*(field.numpy() for field in searcher.tables))
        asked = {"prefix": prefix, **ALL_OUTPUTS}
        assert_same(found, search(tables, max_lengths, rules, **asked), atol=1e-5)
    graph = loaded.signatures["serving_default"].graph.as_graph_def()
    functions = graph.library.function
    nodes = [*graph.node, *(node for function in functions for node in function.node_def)]
    assert any("While" in node.op for node in nodes)
    assert not [node.op for node in nodes if node.op.startswith("Xla")]
