"""Token stores: what is written is read back, pair by pair."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from keras_transformer.data.token_store import EncodedPair, TokenStore, TokenStoreWriter
from keras_transformer.errors import InputError

PAIRS = [
    EncodedPair(b"one", [7, 3], b"eins", [9, 8, 3]),
    EncodedPair("zwölf\u2028x\x85".encode(), [65_535, 5, 5, 3], b"two", [3]),
    EncodedPair(b"three", [4, 3], b"drei", [65_536, 3]),
]


def write(directory, pairs, sizes=(65_536, 65_537), batch=2):
    with TokenStoreWriter(directory, *sizes) as writer:
        for start in range(0, len(pairs), batch):
            writer.extend(pairs[start : start + batch])
    return TokenStore(directory)


def test_pairs_lengths_and_text_come_back(tmp_path):
    store = write(tmp_path / "s", PAIRS)
    assert len(store) == 3
    for i, pair in enumerate(PAIRS):
        assert store.source(i).dtype == store.target(i).dtype == np.int32
        assert store.source(i).tolist() == pair.source_ids
        assert store.target(i).tolist() == pair.target_ids
    assert store.source_lengths.tolist() == [2, 4, 2] and store.source_lengths.dtype == np.int64
    assert store.target_lengths.tolist() == [3, 1, 2]
    assert [text.encode() for text in store.source_text()] == [p.source_text for p in PAIRS]
    assert store.target_text() == ["eins", "two", "drei"]


def test_ids_take_two_bytes_where_the_vocabulary_fits(tmp_path):
    write(tmp_path / "s", PAIRS)
    assert np.load(tmp_path / "s/source_ids.npy").dtype == np.uint16
    assert np.load(tmp_path / "s/target_ids.npy").dtype == np.int32
    assert np.load(tmp_path / "s/target_ids.npy").tolist() == [9, 8, 3, 3, 65_536, 3]
    assert np.load(tmp_path / "s/target_offsets.npy").tolist() == [0, 3, 4, 6]


def test_indices_outside_the_store_are_refused(tmp_path):
    store = write(tmp_path / "s", PAIRS)
    for index in (-1, 3):
        with pytest.raises(IndexError, match="of a store of 3"):
            store.source(index)


def test_fingerprint_follows_the_ids_and_where_they_are_cut(tmp_path):
    first = write(tmp_path / "1", PAIRS).fingerprint
    assert first == write(tmp_path / "2", PAIRS, batch=1).fingerprint
    assert first != write(tmp_path / "3", PAIRS[::-1]).fingerprint
    moved = [PAIRS[0]._replace(source_ids=[7, 3, 65_535]), PAIRS[1]._replace(source_ids=[5, 5, 3])]
    assert first != write(tmp_path / "4", [*moved, PAIRS[2]]).fingerprint


def test_broken_and_missing_stores_are_named(tmp_path):
    with pytest.raises(InputError, match="absent is no token store: source_ids.npy"):
        TokenStore(tmp_path / "absent")
    write(tmp_path / "s", PAIRS)
    np.save(tmp_path / "s/target_offsets.npy", np.array([0, 3, 4]))
    with pytest.raises(InputError, match="target_offsets.npy does not fit"):
        TokenStore(tmp_path / "s")
    (tmp_path / "s/source_ids.npy").write_bytes(b"garbage")
    with pytest.raises(InputError, match="source_ids.npy cannot be read"):
        TokenStore(tmp_path / "s")


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(
    st.lists(
        st.builds(
            EncodedPair,
            st.just(b"s"),
            st.lists(st.integers(0, 65_535), min_size=1, max_size=5),
            st.just(b"t"),
            st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_any_ids_round_trip(tmp_path_factory, pairs):
    store = write(tmp_path_factory.mktemp("fuzz") / "s", pairs, sizes=(65_536, 2**31 - 1))
    assert [store.source(i).tolist() for i in range(len(store))] == [p.source_ids for p in pairs]
    assert [store.target(i).tolist() for i in range(len(store))] == [p.target_ids for p in pairs]
