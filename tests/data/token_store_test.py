"""Token stores return the written pairs for any sizes of shards."""

import json

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from keras_transformer.data.token_store import TokenStore, encoded, write_index, write_shard
from keras_transformer.errors import InputError
from tests.messages import mentions

SIZES = (65_536, 65_537)
PAIRS = [
    (b"one", [7, 3], b"eins", [9, 8, 3]),
    ("zwölf\u2028x\x85".encode(), [65_535, 5, 5, 3], b"two", [3]),
    (b"three", [4, 3], b"drei", [65_536, 3]),
]


def write(directory, pairs, shard=2, empty_first=False):
    """Writes pairs in shards of a given size."""
    written = []
    groups = [pairs[start : start + shard] for start in range(0, len(pairs), shard)]
    for number, group in enumerate([[], *groups] if empty_first else groups):
        columns = list(zip(*group, strict=True)) or [()] * 4
        source = encoded(columns[0], columns[1], SIZES[0])
        target = encoded(columns[2], columns[3], SIZES[1])
        digest = write_shard(directory / str(number), source, target)
        written.append((str(number), len(group), digest))
    directory.mkdir(exist_ok=True)
    assert write_index(directory, written) == len(pairs)
    return TokenStore(directory)


@pytest.mark.parametrize("shard", [1, 2, 3])
def test_pairs_lengths_and_text_are_read_back(tmp_path, shard):
    store = write(tmp_path / "s", PAIRS, shard, empty_first=True)
    assert len(store) == 3
    assert store.source_lengths.tolist() == [2, 4, 2] and store.target_lengths.tolist() == [3, 1, 2]
    order = np.array([2, 0, 1, 2])
    assert store.source_ids(order).dtype == store.target_ids(order).dtype == np.int32
    assert store.source_ids(order).tolist() == [id for i in order for id in PAIRS[i][1]]
    assert store.target_ids(order).tolist() == [id for i in order for id in PAIRS[i][3]]
    assert store.source_lines(order) == [PAIRS[i][0] for i in order]
    assert store.target_lines(order) == [PAIRS[i][2] for i in order]
    assert [text.encode() for text in store.source_text()] == [pair[0] for pair in PAIRS]
    assert store.target_text() == ["eins", "two", "drei"]
    assert store.source_ids(order[:0]).tolist() == [] == store.source_lines(order[:0])


def test_ids_take_two_bytes_where_the_vocabulary_fits(tmp_path):
    write(tmp_path / "s", PAIRS, 3)
    assert np.load(tmp_path / "s/0/source_ids.npy").dtype == np.uint16
    assert np.load(tmp_path / "s/0/target_ids.npy").dtype == np.int32
    assert np.load(tmp_path / "s/0/target_ids.npy").tolist() == [9, 8, 3, 3, 65_536, 3]


def test_indices_outside_the_store_are_refused(tmp_path):
    store = write(tmp_path / "s", PAIRS)
    for index in (-1, 3):
        for read in (store.source_ids, store.target_ids, store.source_lines, store.target_lines):
            with pytest.raises(IndexError, match=mentions("store", "3")):
                read(np.array([0, index]))


def test_fingerprint_depends_on_ids_and_pair_boundaries(tmp_path):
    first = write(tmp_path / "1", PAIRS).fingerprint
    assert first == write(tmp_path / "2", PAIRS, empty_first=True).fingerprint
    assert first != write(tmp_path / "3", PAIRS[::-1]).fingerprint
    (a, a_ids, *a_rest), (b, b_ids, *b_rest), c = PAIRS
    moved = [(a, [*a_ids, b_ids[0]], *a_rest), (b, b_ids[1:], *b_rest), c]
    assert first != write(tmp_path / "4", moved).fingerprint


def test_errors_name_broken_and_missing_stores(tmp_path):
    with pytest.raises(InputError, match=mentions("absent", "token store", "store.json")):
        TokenStore(tmp_path / "absent")
    write(tmp_path / "s", PAIRS)
    index = json.loads((tmp_path / "s/store.json").read_text())
    for change, message in (
        ({"format": 1}, mentions("store.json", "format", "1", "2")),
        ({"pairs": 4}, mentions("4 pairs", "3 sources", "3 targets")),
        ({"shards": ["0"]}, mentions("3 pairs", "2 sources")),
    ):
        (tmp_path / "s/store.json").write_text(json.dumps(index | change))
        with pytest.raises(InputError, match=message):
            TokenStore(tmp_path / "s")
    (tmp_path / "s/store.json").write_text(json.dumps(index))
    (tmp_path / "s/0/source_ids.npy").write_bytes(b"garbage")
    with pytest.raises(InputError, match=mentions("source_ids.npy", "read")):
        TokenStore(tmp_path / "s").source_ids(np.arange(1))


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(
    st.lists(
        st.tuples(
            st.binary(max_size=3).filter(lambda line: b"\n" not in line),
            st.lists(st.integers(0, 65_535), min_size=1, max_size=5),
            st.just(b"t"),
            st.lists(st.integers(0, 65_536), min_size=1, max_size=5),
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 4),
)
def test_any_pairs_are_read_back(tmp_path_factory, pairs, shard):
    store = write(tmp_path_factory.mktemp("store") / "s", pairs, shard)
    for i, (line, source, _, target) in enumerate(pairs):
        one = np.array([i])
        assert store.source_ids(one).tolist() == source
        assert store.target_ids(one).tolist() == target
        assert store.source_lines(one) == [line]
