"""Token stores return the written pairs for any sizes of shards."""

import json

import numpy as np
import pytest

from keras_transformer.data.token_store import TokenStore, write_index, write_shard
from keras_transformer.errors import InputError
from tests.builders import refuses
from tests.damage import flip
from tests.messages import mentions

SIZES = (65_536, 65_537)
PAIRS = [
    (b"one", [7, 3], b"eins", [9, 8, 3]),
    ("zwölf\u2028x\x85".encode(), [65_535, 5, 5, 3], b"two", [3]),
    (b"three", [4, 3], b"drei", [65_536, 3]),
]


def write(directory, pairs, shard=2):
    """Writes pairs in shards of a given size."""
    written = []
    for start in range(0, len(pairs), shard):
        group = pairs[start : start + shard]
        sources, source_ids, targets, target_ids = zip(*group, strict=True)
        columns = (sources, targets), (source_ids, target_ids), SIZES
        written.append((str(start), len(group), *write_shard(directory / str(start), *columns)))
    assert write_index(directory, written) == len(pairs)
    return TokenStore(directory)


@pytest.mark.parametrize("shard", [1, 2, 3])
def test_pairs_lengths_and_text_are_read_back(tmp_path, shard):
    store = write(tmp_path / "s", PAIRS, shard)
    assert len(store) == 3
    assert store.source.lengths.tolist() == [2, 4, 2] and store.target.lengths.tolist() == [3, 1, 2]
    order = np.array([2, 0, 1, 2])
    for number, side in enumerate(store.sides):
        lines, ids = ([pair[2 * number + i] for pair in PAIRS] for i in (0, 1))
        assert side.ids(order).dtype == np.int32
        assert side.ids(order).tolist() == [id for i in order for id in ids[i]]
        assert side.lines(order) == [lines[i] for i in order]
        assert [text.encode() for text in side.text()] == lines
        assert side.ids(order[:0]).tolist() == [] == side.lines(order[:0])


def test_ids_take_two_bytes_where_the_vocabulary_fits(tmp_path):
    write(tmp_path / "s", PAIRS, 3)
    assert np.load(tmp_path / "s/0/source_ids.npy").dtype == np.uint16
    assert np.load(tmp_path / "s/0/target_ids.npy").dtype == np.int32
    assert np.load(tmp_path / "s/0/target_ids.npy").tolist() == [9, 8, 3, 3, 65_536, 3]


def test_fingerprint_depends_on_ids_and_pair_boundaries(tmp_path):
    first = write(tmp_path / "1", PAIRS).fingerprint
    assert first == write(tmp_path / "2", PAIRS).fingerprint
    assert first != write(tmp_path / "3", PAIRS[::-1]).fingerprint
    (a, a_ids, *a_rest), (b, b_ids, *b_rest), c = PAIRS
    moved = [(a, [*a_ids, b_ids[0]], *a_rest), (b, b_ids[1:], *b_rest), c]
    assert first != write(tmp_path / "4", moved).fingerprint


def test_errors_name_broken_and_missing_stores(tmp_path):
    refuses(TokenStore, (tmp_path / "absent",), "absent", "token store", "store.json")
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
    refuses(
        lambda: TokenStore(tmp_path / "s").source.ids(np.arange(1)), (), "source_ids.npy", "read"
    )


def test_changed_files_and_ids_of_another_vocabulary_are_refused(tmp_path):
    store = write(tmp_path, PAIRS)
    store.check(SIZES)
    refuses(store.check, ((65_535, 65_537),), "0/source_ids.npy", "vocabulary")
    flip(tmp_path / "2" / "source.txt")
    refuses(lambda: TokenStore(tmp_path).check(SIZES), (), tmp_path, "damaged", "texts")
    index = tmp_path / "store.json"
    index.write_text(index.read_text().replace('"texts"', '"other"'))  # an earlier version
    TokenStore(tmp_path).check(SIZES)
    file = tmp_path / "2" / "target_ids.npy"
    content = bytearray(file.read_bytes())
    content[-4] ^= 1
    file.write_bytes(content)
    refuses(lambda: TokenStore(tmp_path).check(SIZES), (), tmp_path, "damaged", "ids")
    (tmp_path / "2" / "target.txt").unlink()
    refuses(lambda: TokenStore(tmp_path).check(SIZES), (), "2/target.txt", "read")
