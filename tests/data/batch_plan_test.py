"""The plan of an epoch: everything has a place that fits, at low cost, whatever the lengths."""

import hypothesis
import hypothesis.strategies as st
import numpy as np

from keras_transformer.data.batch_plan import plan_batches


def bucket_lengths(plan, source, target):
    """Returns the lengths of each bucket, and that a bucket has but one pair of lengths."""
    lengths = np.zeros((plan.places.shape[1], 2), np.int64)
    lengths[plan.bucket] = np.stack([source, target], axis=1)
    np.testing.assert_array_equal(lengths[plan.bucket, 0], source)
    np.testing.assert_array_equal(lengths[plan.bucket, 1], target)
    return lengths


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=120),
    st.integers(30, 600),
)
def test_every_pair_has_one_place_that_fits(lengths, batch_tokens):
    source, target = np.array(lengths, np.int64).T
    plan = plan_batches(source, target, batch_tokens)
    of_bucket = bucket_lengths(plan, source, target)
    np.testing.assert_array_equal(plan.places.sum(axis=0), np.bincount(plan.bucket))
    assert plan.places.min() >= 0
    for (rows, longest_source, longest_target), batches, places in zip(
        plan.shapes, plan.num_batches, plan.places, strict=True
    ):
        inside = of_bucket[places > 0]
        assert (inside <= (longest_source, longest_target)).all()
        assert rows % 8 == 0 and rows * (batches - 1) < places.sum() <= rows * batches
        assert rows * longest_target <= batch_tokens or rows == 8


def test_equal_lengths_need_one_shape_without_padding():
    plan = plan_batches(np.full(64, 5), np.full(64, 10), 160)
    assert plan.shapes.tolist() == [[16, 5, 10]] and plan.num_batches.tolist() == [4]
    assert plan.positions == 64 * 15


def test_rows_left_over_are_filled_with_shorter_pairs():
    # 26 long pairs leave 6 of 32 rows free: short pairs take them, and no row is filler.
    lengths = np.repeat([20, 5], [26, 134])
    plan = plan_batches(lengths, lengths, 640)
    assert plan.shapes.tolist() == [[32, 20, 20], [128, 5, 5]]
    assert plan.num_batches.tolist() == [1, 1]
    assert plan.places.tolist() == [[26, 6], [0, 128]]


def test_the_search_beats_one_shape_for_all_by_far():
    random = np.random.default_rng(0)
    source = 3 + random.gamma(8.0, 1.8, 5000).astype(np.int64)
    target = np.maximum(2, source + random.integers(-4, 5, 5000))
    plan = plan_batches(source, target, 2048)
    assert plan.positions < 1.12 * (source + target).sum()
    assert plan.positions < 0.6 * 5000 * (source.max() + target.max())
