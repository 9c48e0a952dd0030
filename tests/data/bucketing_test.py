"""The plan of an epoch: every pair fits into its batch, with little padding, for any lengths."""

import hypothesis
import hypothesis.strategies as st
import numpy as np

from keras_transformer.data.bucketing import Histogram, choose_shapes, plan_epoch


def plan_batches(source, target, batch_tokens):
    """Returns the plan of a corpus with its best shapes, and its histogram."""
    histogram, _ = Histogram.of(np.asarray(source), np.asarray(target))
    return plan_epoch(choose_shapes(histogram, batch_tokens), histogram), histogram


def assert_every_pair_has_one_place_that_fits(plan, histogram):
    np.testing.assert_array_equal(plan.counts.sum(axis=0), histogram.count)
    assert plan.counts.min() >= 0
    for (size, source, target), batches, counts in zip(
        plan.shapes, plan.num_batches, plan.counts, strict=True
    ):
        inside = counts > 0
        assert (histogram.source[inside] <= source).all()
        assert (histogram.target[inside] <= target).all()
        assert size % 8 == 0 and size * (batches - 1) < counts.sum() <= size * batches


@hypothesis.given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60)
)
def test_a_histogram_counts_the_pairs_of_each_bucket(lengths):
    source, target = np.array(lengths, np.uint32).T
    histogram, bucket = Histogram.of(source, target)
    np.testing.assert_array_equal(histogram.source[bucket], source)
    np.testing.assert_array_equal(histogram.target[bucket], target)
    np.testing.assert_array_equal(histogram.count, np.bincount(bucket))
    found = list(zip(histogram.source.tolist(), histogram.target.tolist(), strict=True))
    assert found == sorted(set(lengths), key=lambda pair: (-sum(pair), -pair[0]))
    twice = Histogram.union([histogram, histogram])
    np.testing.assert_array_equal(twice.source, histogram.source)
    np.testing.assert_array_equal(twice.count, 2 * histogram.count)


@hypothesis.settings(max_examples=60)
@hypothesis.given(
    st.lists(
        st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=90),
        min_size=1,
        max_size=3,
    ),
    st.integers(30, 600),
)
def test_every_pair_of_corpora_that_share_shapes_has_one_place_that_fits(corpora, batch_tokens):
    histograms = [Histogram.of(*np.array(lengths, np.int64).T)[0] for lengths in corpora]
    shapes = choose_shapes(Histogram.union(histograms), batch_tokens)
    assert len(shapes) <= 16
    for histogram in histograms:
        plan = plan_epoch(shapes, histogram)
        assert_every_pair_has_one_place_that_fits(plan, histogram)
        assert set(map(tuple, plan.shapes.tolist())) <= set(map(tuple, shapes.tolist()))
        rows, _, longest_target = plan.shapes.T
        assert ((rows * longest_target <= batch_tokens) | (rows == 8)).all()


def test_rows_left_over_are_filled_with_shorter_pairs():
    # 26 long pairs leave 6 of 32 rows free: short pairs take them, and no row is filler.
    lengths = np.repeat([20, 5], [26, 134])
    plan, _ = plan_batches(lengths, lengths, 640)
    assert plan.shapes.tolist() == [[32, 20, 20], [128, 5, 5]]
    assert plan.num_batches.tolist() == [1, 1]
    assert plan.counts.tolist() == [[26, 6], [0, 128]]


def test_a_shape_with_few_pairs_has_fewer_rows_and_no_shorter_pairs():
    # 80 rows of length 40 would be 20 pairs and 60 shorter pairs from other shapes. A batch may
    # have at least half of the rows.
    lengths = np.repeat([40, 10], [20, 1000])
    plan, _ = plan_batches(lengths, lengths, 3200)
    assert plan.shapes.tolist() == [[40, 40, 40], [248, 10, 10]]
    assert plan.num_batches.tolist() == [1, 4]
    assert plan.counts.sum(axis=1).tolist() == [40, 980]


def test_the_search_beats_one_shape_for_all_by_far():
    random = np.random.default_rng(0)
    source = 3 + random.gamma(8.0, 1.8, 5000).astype(np.int64)
    target = np.maximum(2, source + random.integers(-4, 5, 5000))
    plan, _ = plan_batches(source, target, 2048)
    assert plan.positions < 1.12 * (source + target).sum()
    assert plan.positions < 0.6 * 5000 * (source.max() + target.max())
