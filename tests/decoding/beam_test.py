"""The search against plain NumPy: every sequence, and a beam search that never ends early."""

import functools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.config import DecodingConfig
from keras_transformer.decoding import SearchResult, beam_search

PAD, UNKNOWN, START, END, A, B = range(6)
VOCAB, LENGTH = 6, 5
POWERS = VOCAB ** np.arange(LENGTH, dtype=np.int32)
NOTHING = -1e9


def code(prefix):
    """A number that no other prefix has (ids after the first are never 0)."""
    return int(sum(token * power for token, power in zip(prefix, POWERS, strict=False)))


def random_tables(seed, sentences, scale=2.0):
    """Logits of the next token for every prefix: [sentence, code of the prefix, vocab]."""
    random = np.random.default_rng(seed)
    shape = (sentences, VOCAB**LENGTH, VOCAB)
    return (scale * random.standard_normal(shape)).astype(np.float32)


def scripted_table(script):
    """A table of one sentence: prefix without start → {token: probability}; else it ends."""
    table = np.full((1, VOCAB**LENGTH, VOCAB), -50.0, np.float32)
    table[:, :, END] = 0.0
    for prefix, probabilities in script.items():
        row = table[0, code((START, *prefix))]
        row[:] = -50.0
        for token, probability in probabilities.items():
            row[token] = np.log(probability)
    return table


def initial_cache(sentences, beam):
    return {
        "prefix": tf.zeros([sentences * beam, LENGTH], tf.int32),
        "sentence": [tf.repeat(tf.range(sentences), beam)],
    }


def step_of(tables):
    """A step function that knows the prefix from the cache alone."""

    def step(ids, position, cache):
        here = tf.range(LENGTH) == position
        prefix = tf.where(here, ids[:, None], cache["prefix"])
        codes = tf.reduce_sum(prefix * POWERS, axis=-1)
        logits = tf.gather_nd(tables, tf.stack([cache["sentence"][0], codes], axis=-1))
        return logits, {"prefix": prefix, "sentence": cache["sentence"]}, None

    return step


def search(tables, max_lengths, config, **arguments):
    max_lengths = tf.convert_to_tensor(max_lengths, tf.int32)
    cache = initial_cache(tf.shape(max_lengths)[0], config.beam_size)
    ids = {"start_id": START, "end_id": END, "pad_id": PAD} | arguments
    return beam_search(step_of(tables), cache, max_lengths, config, **ids)


@functools.cache
def compiled_search(config, jit_compile=False):
    """The search as a graph of unknown batch size (under XLA, of the sizes given)."""
    limit = {"length_limit": LENGTH} if jit_compile else {}
    function = functools.partial(search, config=config, **limit)
    if jit_compile:
        return tf.function(function, jit_compile=True)
    return tf.function(
        function,
        input_signature=[
            tf.TensorSpec([None, VOCAB**LENGTH, VOCAB]),
            tf.TensorSpec([None], tf.int32),
        ],
    )


def hypotheses(result, sentence):
    """The results of one sentence as (tokens, score, finished), after checks of form."""
    ids, scores, lengths, finished = (field.numpy()[sentence] for field in result)
    found = []
    for n in range(len(scores)):
        assert (ids[n, lengths[n] :] == PAD).all()
        tokens = tuple(ids[n, : lengths[n]].tolist())
        assert finished[n] == (tokens[-1:] == (END,))
        assert not {PAD, START} & set(tokens) and END not in tokens[:-1]
        found.append((tokens, float(scores[n]), bool(finished[n])))
    assert (np.diff(scores) <= 0).all()
    return found


# --- The same in NumPy, float64, written from the definition -------------------------------


def log_softmax(logits):
    logits = logits.astype(np.float64)
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


def penalized(log_prob, length, alpha):
    return log_prob / ((5 + length) / 6) ** alpha


def every_output(table, max_length, alpha):
    """All complete outputs of one sentence: tokens → score."""
    scores = {}

    def extend(prefix, log_prob):
        log_probs = log_softmax(table[code((START, *prefix))])
        for token in (UNKNOWN, END, A, B):
            tokens, total = (*prefix, token), log_prob + log_probs[token]
            if token == END or len(tokens) == max_length:
                scores[tokens] = penalized(total, len(tokens), alpha)
            else:
                extend(tokens, total)

    extend((), 0.0)
    return scores


def patient_beam_search(table, max_length, config):
    """Beam search of one sentence that goes on to the maximum whatever it has found."""
    beam, results, open_ones = config.beam_size, [], [((), 0.0)]
    for length in range(1, max_length + 1):
        candidates = [
            ((*prefix, token), log_prob + log_softmax(table[code((START, *prefix))])[token])
            for prefix, log_prob in open_ones
            for token in (UNKNOWN, END, A, B)
        ]
        candidates = sorted(candidates, key=lambda one: -one[1])[: 2 * beam]
        is_complete = [tokens[-1] == END or length == max_length for tokens, _ in candidates]
        for (tokens, log_prob), complete in zip(candidates, is_complete, strict=True):
            if complete:
                results.append((tokens, penalized(log_prob, length, config.length_penalty)))
        results = sorted(results, key=lambda one: -one[1])[:beam]
        open_ones = [
            one for one, complete in zip(candidates, is_complete, strict=True) if not complete
        ][:beam]
    return results[: config.n_best]


def assert_best(found, scores):
    """`found` are different outputs, scored as `scores` says, and none is better.

    Said so, ties need no care.
    """
    best = sorted(scores.values(), reverse=True)[: len(found)]
    assert len({tokens for tokens, _, _ in found}) == len(found)
    np.testing.assert_allclose([score for _, score, _ in found], best, atol=2e-5)
    np.testing.assert_allclose([scores[tokens] for tokens, _, _ in found], best, atol=2e-5)


# --- Equality with them --------------------------------------------------------------------

EXHAUSTIVE = 81  # open hypotheses before the last of 5 tokens: 3 ** 4


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([0.5, 2.0, 5.0]),
    alpha=st.sampled_from([0.0, 0.6, 1.0]),
    n_best=st.sampled_from([1, 4]),
    max_lengths=st.tuples(st.integers(2, LENGTH), st.just(LENGTH)),
)
def test_exhaustive_beam_equals_brute_force(seed, scale, alpha, n_best, max_lengths):
    tables = random_tables(seed, 2, scale)
    config = DecodingConfig(beam_size=EXHAUSTIVE, n_best=n_best, length_penalty=alpha)
    result = compiled_search(config)(tables, np.int32(max_lengths))
    for sentence, max_length in enumerate(max_lengths):
        expected = every_output(tables[sentence], max_length, alpha)
        assert_best(hypotheses(result, sentence), expected)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([0.5, 2.0, 5.0]),
    alpha=st.sampled_from([0.0, 0.6, 1.0, 3.0]),
    beam_and_n_best=st.sampled_from([(2, 1), (3, 3), (4, 2)]),
    max_lengths=st.lists(st.integers(1, LENGTH), min_size=3, max_size=3),
)
def test_narrow_beam_equals_one_that_never_ends_early(
    seed, scale, alpha, beam_and_n_best, max_lengths
):
    tables = random_tables(seed, 3, scale)
    beam, n_best = beam_and_n_best
    config = DecodingConfig(beam_size=beam, n_best=n_best, length_penalty=alpha)
    result = compiled_search(config)(tables, np.int32(max_lengths))
    for sentence, max_length in enumerate(max_lengths):
        expected = patient_beam_search(tables[sentence], max_length, config)
        assert_best(hypotheses(result, sentence), dict(expected))


def test_beam_of_one_is_greedy():
    tables = random_tables(3, 20)
    result = compiled_search(DecodingConfig(beam_size=1))(tables, [LENGTH] * 20)
    lengths = set()
    for sentence in range(20):
        tokens, total = (), 0.0
        while END not in tokens and len(tokens) < LENGTH:
            log_probs = log_softmax(tables[sentence, code((START, *tokens))])
            log_probs[[PAD, START]] = -np.inf
            tokens, total = (*tokens, int(log_probs.argmax())), total + log_probs.max()
        [(found, score, _)] = hypotheses(result, sentence)
        assert found == tokens
        assert score == pytest.approx(penalized(total, len(tokens), 0.6), abs=1e-5)
        lengths.add(len(tokens))
    assert len(lengths) > 2


def test_logits_of_low_precision_are_scored_in_float32():
    tables = tf.cast(random_tables(5, 1, scale=4.0), tf.bfloat16)
    config = DecodingConfig(beam_size=EXHAUSTIVE, n_best=4)
    result = search(tables, [LENGTH], config)
    assert result.scores.dtype == tf.float32
    assert_best(hypotheses(result, 0), every_output(tables.numpy()[0], LENGTH, 0.6))


# --- Scripted: the best path is known beforehand ----------------------------------------------

# The first choice (A) has no good continuation; the best output is B A END, P = 0.4 * 0.9.
TRAP = scripted_table(
    {
        (): {A: 0.6, B: 0.4},
        (A,): {A: 0.4, B: 0.35, UNKNOWN: 0.25},
        (B,): {A: 0.9, B: 0.1},
    }
)


def test_beam_finds_what_greedy_misses():
    greedy = search(TRAP, [LENGTH], DecodingConfig(beam_size=1, length_penalty=0))
    assert hypotheses(greedy, 0) == [((A, A, END), pytest.approx(np.log(0.24)), True)]
    beam = search(TRAP, [LENGTH], DecodingConfig(beam_size=2, n_best=2, length_penalty=0))
    assert hypotheses(beam, 0) == [
        ((B, A, END), pytest.approx(np.log(0.36)), True),
        ((A, A, END), pytest.approx(np.log(0.24)), True),
    ]


def count_steps(table, config, max_length=LENGTH):
    """The result and the number of steps taken (run eagerly, each step is a call)."""
    positions, step = [], step_of(table)

    def counting_step(ids, position, cache):
        positions.append(int(position))
        return step(ids, position, cache)

    cache = initial_cache(1, config.beam_size)
    max_lengths = tf.constant([max_length])
    ids = {"start_id": START, "end_id": END, "pad_id": PAD}
    result = beam_search(counting_step, cache, max_lengths, config, **ids)
    assert positions == list(range(len(positions)))
    return result, len(positions)


def test_ends_when_no_open_hypothesis_can_win():
    table = scripted_table({(): {END: 0.9, A: 0.1}, (A,): {A: 1.0}, (A, A): {A: 1.0}})
    result, steps = count_steps(table, DecodingConfig(beam_size=2))
    assert steps == 1  # 0.1 cannot become 0.9, even over the penalty of 5 tokens
    assert hypotheses(result, 0)[0][0] == (END,)
    result, steps = count_steps(table, DecodingConfig(beam_size=2, n_best=2))
    assert steps == 4  # the second result is A A A END
    assert hypotheses(result, 0)[1][0] == (A, A, A, END)


def test_ends_no_sooner():
    # END: log 0.6 / 1 = -0.51. A: log 0.4 = -0.92, at length 5 / (10 / 6) = -0.55: it has lost
    # when alpha is 1, and wins (-0.46) when alpha is 1.35; after one token it is behind in both.
    table = scripted_table(
        {(): {END: 0.6, A: 0.4}, **{(A,) * n: {A: 1.0} for n in range(1, LENGTH)}}
    )
    result, steps = count_steps(table, DecodingConfig(beam_size=2, length_penalty=1.0))
    assert steps == 1
    assert hypotheses(result, 0) == [((END,), pytest.approx(np.log(0.6)), True)]
    result, steps = count_steps(table, DecodingConfig(beam_size=2, length_penalty=1.35))
    assert steps == LENGTH
    score = pytest.approx(np.log(0.4) / (10 / 6) ** 1.35, abs=1e-6)
    assert hypotheses(result, 0) == [((A,) * LENGTH, score, False)]
    # With fewer tokens allowed, the bound is tighter.
    _, steps = count_steps(table, DecodingConfig(beam_size=2, length_penalty=1.35), max_length=3)
    assert steps == 1


def test_unfinished_hypotheses_compete_as_they_stand():
    table = scripted_table({(): {A: 0.7, END: 0.3}, (A,): {B: 0.8, END: 0.2}})
    result = search(table, [2], DecodingConfig(beam_size=3, n_best=3, length_penalty=1.0))
    assert hypotheses(result, 0) == [
        ((A, B), pytest.approx(np.log(0.56) / (7 / 6)), False),
        ((END,), pytest.approx(np.log(0.3)), True),
        ((A, END), pytest.approx(np.log(0.14) / (7 / 6)), True),
    ]


def test_score_keeps_the_models_probability_of_ids_never_generated():
    table = scripted_table({(): {PAD: 0.5, START: 0.3, A: 0.2}})
    [(tokens, score, _)] = hypotheses(search(table, [LENGTH], DecodingConfig(length_penalty=0)), 0)
    assert tokens == (A, END)
    assert score == pytest.approx(np.log(0.2), abs=1e-5)


def test_start_id_may_be_the_end_id():
    table = np.full((1, VOCAB**LENGTH, VOCAB), -50.0, np.float32)
    table[0, code((END,)), A] = table[0, code((END, A)), END] = 0.0
    result = search(table, [LENGTH], DecodingConfig(), start_id=END)
    assert result.ids.numpy().tolist() == [[[A, END, PAD, PAD, PAD]]]


# --- Batches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("beam", [1, 3])
def test_a_batch_gives_each_sentence_what_it_gets_alone(beam):
    tables = random_tables(11, 12, scale=4.0)
    max_lengths = [1, 5, 2, 4, 3, 5, 0, 5, 5, 5, 2, 5]
    config = DecodingConfig(beam_size=beam, n_best=beam)
    together = compiled_search(config)(tables, max_lengths)
    for sentence, max_length in enumerate(max_lengths):
        alone = compiled_search(config)(tables[sentence : sentence + 1], [max_length])
        assert alone.ids.shape == [1, beam, max_length]
        np.testing.assert_array_equal(together.ids[sentence, :, :max_length], alone.ids[0])
        np.testing.assert_array_equal(together.lengths[sentence], alone.lengths[0])
        np.testing.assert_array_equal(together.finished[sentence], alone.finished[0])
        np.testing.assert_allclose(together.scores[sentence], alone.scores[0], atol=1e-6)
    assert len(set(together.lengths[:, 0].numpy())) > 1 and not together.finished.numpy().all()


def test_no_tokens_allowed_and_empty_batch():
    config = DecodingConfig(beam_size=2, n_best=2)
    result = compiled_search(config)(random_tables(1, 2), [0, -3])
    for sentence in range(2):
        assert hypotheses(result, sentence) == [((), 0.0, False), ((), np.float32(NOTHING), False)]
    result = compiled_search(config)(random_tables(1, 0), np.zeros([0], np.int32))
    assert [field.shape for field in result] == [[0, 2, 0], [0, 2], [0, 2], [0, 2]]


def test_fewer_outputs_than_asked_for():
    config = DecodingConfig(beam_size=6, n_best=6)
    found = hypotheses(search(random_tables(2, 1), [1], config), 0)
    assert {tokens for tokens, _, _ in found[:4]} == {(UNKNOWN,), (END,), (A,), (B,)}
    assert found[4:] == [((), np.float32(NOTHING), False)] * 2


def test_logits_that_are_no_numbers_end_the_search():
    result = search(np.full_like(TRAP, np.nan), [LENGTH], DecodingConfig())
    assert hypotheses(result, 0) == [((), np.float32(NOTHING), False)]


def test_length_limit_lowers_the_maximum_and_fixes_the_shape():
    tables = random_tables(4, 2)
    config = DecodingConfig(beam_size=3, n_best=2)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
    def limited(max_lengths):
        result = search(tables, max_lengths, config, length_limit=3)
        assert [field.shape.as_list() for field in result] == [[None, 2, 3]] + [[None, 2]] * 3
        return result

    found, expected = limited([2, 5]), compiled_search(config)(tables, [2, 3])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


# --- Where it runs --------------------------------------------------------------------------------


class Searcher(tf.Module):
    def __init__(self, tables, config):
        super().__init__()
        self.tables, self.config = tf.Variable(tables), config

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
    def __call__(self, max_lengths):
        return search(self.tables, max_lengths, self.config)._asdict()


def test_saved_model_without_xla_ops(tmp_path):
    searcher = Searcher(random_tables(6, 3), DecodingConfig(beam_size=3, n_best=2))
    tf.saved_model.save(searcher, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    for max_lengths in ([3, 5, 4], [5]):
        expected = search(searcher.tables, max_lengths, searcher.config)
        found = SearchResult(**loaded(tf.constant(max_lengths)))
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)
    graph = loaded.signatures["serving_default"].graph.as_graph_def()
    nodes = [*graph.node, *(node for each in graph.library.function for node in each.node_def)]
    assert any("While" in node.op for node in nodes)
    assert not [node.op for node in nodes if node.op.startswith("Xla")]


@pytest.mark.parametrize("beam", [1, 3])
def test_jit_compiled_gives_the_same(beam):
    tables, max_lengths = tf.constant(random_tables(7, 4)), tf.constant([5, 2, 0, 4])
    config = DecodingConfig(beam_size=beam, n_best=beam)
    found = compiled_search(config, jit_compile=True)(tables, max_lengths)
    expected = compiled_search(config)(tables, max_lengths)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
