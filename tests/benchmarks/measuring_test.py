"""Turns, ratios, engines and batches: errors in them would be seen only as other figures."""

from pathlib import Path
from types import SimpleNamespace

import measuring
import numpy as np
import pytest
import sentence_batches
from measuring import Turn
from variants import Variant, grouped

KNOWN = {"keras": (["bfloat16"], ["xla", "number"]), "torch": (["float32"], ["compile"])}


def rates(*values: float, cores: float | None = None) -> list[Turn]:
    own = {} if cores is None else {"cores": cores}
    return [{"per_second": value, "other_cores": 0.1, **own} for value in values]


def test_turns_rotate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_PAUSE_S", 0)
    order = []

    def call(name: str, number: int) -> Turn:
        order.append(name)
        return {"per_second": number, "other_cores": 0.0}

    calls = {name: lambda number, name=name: call(name, number) for name in "abc"}
    turns = measuring.take_turns(calls, 4)
    assert "".join(order) == "abcbcacababc"
    assert [turn["per_second"] for turn in turns["b"]] == [0, 1, 2, 3]


def test_ratios_compare_the_same_round() -> None:
    turns = {"own": rates(10, 40, 90), "slow": rates(1, 1, 1), "peer": rates(5, 10, 30)}
    found = measuring.ratio(turns, "own", "peer")
    assert found == {"of": "own", "over": "peer", "median": 3.0, "min": 2.0, "max": 4.0}
    best = measuring.best_ratios(turns, ["own"], {"other": ["slow", "peer"], "absent": ["none"]})
    assert best == {"best over best other": found}
    assert measuring.fastest(turns, []) is None
    assert measuring.is_quiet(turns)
    turns["peer"][1]["other_cores"] = 0.5
    assert not measuring.is_quiet(turns)


def test_ratios_by_cpu_time_when_both_are_known() -> None:
    turns = {"own": rates(10, 20, cores=2.0), "peer": rates(10, 10, cores=0.5)}
    found = measuring.ratio(turns, "own", "peer")
    assert found["median"] == 1.5
    assert found["cpu_time"] == {"median": 0.375, "min": 0.25, "max": 0.5}
    turns["peer"] = rates(10, 10)
    assert "cpu_time" not in measuring.ratio(turns, "own", "peer")


def test_names_of_engines() -> None:
    ours, peer = (Variant.parse(n, KNOWN) for n in ("keras:bfloat16:xla:2", "torch:float32"))
    assert (ours.engine, ours.precision, ours.options) == ("keras", "bfloat16", ("xla", "2"))
    variables = ours.environment(intraop_threads=1, threads=ours.number or 0)
    assert variables["TF_NUM_INTRAOP_THREADS"] == "1" and variables["CUDA_VISIBLE_DEVICES"] == "-1"
    assert "CUDA_VISIBLE_DEVICES" not in ours.environment(1, 2, "gpu")
    assert grouped([ours, peer]) == ([ours.name], {"torch": [peer.name]})
    for name in ("keras", "keras:int8", "jax:float32", "keras:bfloat16:0", "torch:float32:2", ""):
        with pytest.raises(ValueError, match="unknown"):
            Variant.parse(name, KNOWN)


def test_batches_are_saved_and_read(tmp_path: Path) -> None:
    batches = sentence_batches.sorted_batches([[1, 2, 3], [4], [5, 6], [7]], 2, count=3, seed=1)
    assert sorted(map(sorted, batches[:2])) == [[[1, 2, 3], [5, 6]], [[4], [7]]]
    assert batches[2] == batches[0]
    sentence_batches.save(tmp_path / "b.npz", {2: batches}, pad_id=0)
    read = sentence_batches.read(str(tmp_path / "b.npz"))[2]
    assert [sentence_batches.without_padding(batch, 0) for batch in read] == batches
    assert sentence_batches.widen(read[0], 0).shape == (2, 8)


def store(pairs: int) -> SimpleNamespace:
    """Pairs whose targets have 1, 2, ... tokens."""
    source = SimpleNamespace(lengths=np.ones(pairs, int), ids=lambda chosen: chosen + 100)
    target = SimpleNamespace(
        lengths=np.arange(1, pairs + 1), ids=lambda chosen: np.arange(5, 6 + chosen[0])
    )
    return SimpleNamespace(source=source, target=target)


def test_training_batches_are_sorted_and_no_larger_than_asked() -> None:
    arrays = sentence_batches.sorted_training_batches(store(9), 20, {"pad": 0, "start": 2}, 1, 99)
    count = len(arrays) // 3
    sources = np.concatenate([arrays[f"source_{i}"].ravel() for i in range(count)])
    assert sorted(sources) == list(range(100, 109))
    for i in range(count):
        target, labels = arrays[f"target_{i}"], arrays[f"labels_{i}"]
        assert labels.size <= 20 and target.shape == labels.shape
        assert (target[:, 0] == 2).all()
        for shifted, row in zip(target, labels, strict=True):
            length = np.count_nonzero(row)
            np.testing.assert_array_equal(shifted[1:length], row[: length - 1])
