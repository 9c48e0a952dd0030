"""Parts share no sources, have the requested sizes, and lose only the reported pairs."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.errors import InputError
from keras_transformer.extensions.paper.splitting import split_by_source
from tests.messages import mentions

Pair = tuple[bytes, bytes]


class Pairs:
    """A corpus in memory."""

    name = "pairs"

    def __init__(self, pairs: list[Pair]) -> None:
        self._pairs = pairs

    def pairs(self):
        return iter(self._pairs)


def read(files) -> list[Pair]:
    return list(zip(*(path.read_bytes().split(b"\n")[:-1] for path in files.paths), strict=True))


LINES = st.binary(max_size=3).filter(lambda line: b"\n" not in line)


@settings(deadline=None)  # it waits for the disk
@given(st.lists(st.tuples(LINES, LINES)), st.integers(1, 4), st.integers(1, 4))
def test_parts_of_any_corpus(tmp_path_factory, pairs, valid, test):
    folder: Path = tmp_path_factory.mktemp("split")
    sources = {source for source, _ in pairs}
    held_out = {"valid": valid, "test": test}
    if len(sources) <= valid + test:
        with pytest.raises(InputError, match=mentions("pairs", *held_out)):
            split_by_source(Pairs(pairs), folder, held_out)
        return
    parts = {
        name: read(files) for name, files in split_by_source(Pairs(pairs), folder, held_out).items()
    }
    assert (len(parts["valid"]), len(parts["test"])) == (valid, test)
    of_parts = [{source for source, _ in part} for part in parts.values()]
    assert sum(map(len, of_parts)) == len(sources) and set.union(*of_parts) == sources
    first = {}
    for source, target in pairs:
        first.setdefault(source, target)
    for name in held_out:
        assert all(first[source] == target for source, target in parts[name])
    kept = [pair for pair in dict.fromkeys(pairs) if pair[0] in of_parts[0]]
    assert parts["train"] == kept
    shuffled = split_by_source(Pairs(pairs[::-1]), folder / "again", held_out)
    assert {source for source, _ in read(shuffled["test"])} == of_parts[2], "only the sources count"


def test_held_out_sentences_are_spread_over_the_corpus(tmp_path):
    pairs = [(b"%d" % i, b"t") for i in range(1000)]
    parts = split_by_source(Pairs(pairs), tmp_path, {"test": 100})
    places = [int(source) for source, _ in read(parts["test"])]
    assert 400 < sum(places) / len(places) < 600 and places != sorted(places)


def test_existing_files_stay_complete_during_a_rewrite(tmp_path):
    class Stopping(Pairs):
        readings = 0

        def pairs(self):
            self.readings += 1
            yield from self._pairs[:3]
            if self.readings == 2:  # the order in which the parts are written
                raise KeyboardInterrupt
            yield from self._pairs[3:]

    pairs = [(b"%d" % i, b"t") for i in range(10)]
    split_by_source(Pairs(pairs), tmp_path, {"test": 1})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(KeyboardInterrupt):
        split_by_source(Stopping(pairs), tmp_path, {"test": 1})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
