"""Misalignments are located within a few lines, even at the end."""

import re

import numpy as np
import pytest

from keras_transformer.data.misalignment import (
    describe_misalignment,
    find_misalignment,
)
from tests.messages import tells


def translations(count, seed=0):
    """Logarithms of the lengths of sentences and their translations."""
    random = np.random.default_rng(seed)
    source = random.normal(4, 0.6, count)
    return source, source + 0.2 + random.normal(0, 0.25, count)


@pytest.mark.parametrize("missing", [1, 2, 40])
@pytest.mark.parametrize("place", [0, 700, 1800])
@pytest.mark.parametrize("side", [0, 1])
def test_lines_that_are_missing_are_found(missing, place, side):
    lengths = list(translations(2000))
    lengths[side] = np.delete(lengths[side], slice(place, place + missing))
    line, shift = find_misalignment(*lengths)
    assert abs(line - (place + 1)) <= 10
    assert shift == missing


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "gaps",
    [
        [(0, 700, 1), (0, 1500, 3)],
        [(0, 600, 30), (1, 900, 7)],
        [(1, 400, 2), (0, 800, 500)],
        [(0, 300, 60), (0, 1900, 300)],
    ],
)
def test_the_first_of_several_places_is_reported(gaps, seed):
    lengths = list(translations(3000, seed))
    for side, place, missing in reversed(gaps):
        lengths[side] = np.delete(lengths[side], slice(place, place + missing))
    side, place, missing = gaps[0]
    longer = int(len(lengths[1]) > len(lengths[0]))
    line, shift = find_misalignment(*lengths)
    assert abs(line - (place + 1)) <= 12
    assert shift == (missing if side != longer else -missing)


def test_extra_lines_of_the_shorter_side_are_counted(test_data):
    """Lengths that no shift aligns, not even by chance."""
    source, target = (
        np.log([1 + len(line) for line in path.read_bytes().split(b"\n")])
        for path in (test_data / "multi30k/train.en", test_data / "multi30k/train.de")
    )
    source = np.delete(source, slice(3000, 3500))
    target = np.delete(target, [*range(9000, 9500), len(target) - 1])
    line, shift = find_misalignment(source, target)
    assert abs(line - 3001) <= 15 and shift == -500


def test_repeated_text_has_the_smallest_shift(test_data):
    source, target = (
        np.log([1 + len(line) for line in path.read_bytes().split(b"\n")] * 5)
        for path in (test_data / "multi30k/val.en", test_data / "multi30k/val.de")
    )
    line, shift = find_misalignment(source, np.delete(target, 2500))
    assert abs(line - 2501) <= 15 and shift == 1


def test_a_missing_end_is_not_a_shift():
    source, target = translations(2000)
    line, shift = find_misalignment(source, target[:-100])
    assert line > 1890
    assert shift == 100
    assert find_misalignment(source[:0], target) == (1, 2000)


def test_the_message_names_the_misaligned_line(tmp_path, test_data):
    lines = [
        (test_data / f"multi30k/val.{code}").read_bytes().split(b"\n") for code in ("en", "de")
    ]
    source, target = tmp_path / "s", tmp_path / "t"
    source.write_bytes(b"\n".join(lines[0]))
    target.write_bytes(b"\n".join(lines[1][:500] + lines[1][501:]))
    sentence = describe_misalignment(source, target)
    assert tells(sentence, "1 line")
    assert tells(sentence, source, target)
    found = int(re.findall(r"\bline (\d[\d,]*)", sentence)[0].replace(",", ""))
    assert abs(found - 501) < 15
    source.write_bytes(b"\n".join(lines[0][:800] + lines[0][803:]))
    target.write_bytes(b"\n".join(lines[1][:500] + lines[1][501:]))
    sentence = describe_misalignment(source, target)
    assert tells(sentence, "1 line")
    assert tells(sentence, source, target, "other such places")
    source.write_bytes(b"\n".join(lines[0]))
    target.write_bytes(b"\n".join(lines[1][:-40]))
    assert tells(describe_misalignment(source, target), "lengths", target, "missing")
