"""Batches of lines: their limits, their threads, their order, and warnings about lines."""

import threading
import time

import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.inference import batching, loading
from keras_transformer.inference.engine import Engine
from keras_transformer.inference.translate import translate_lines, translate_verbose
from keras_transformer.runs.run_directory import RunDirectory
from tests.conftest import PHRASES
from tests.messages import tells


@pytest.fixture(scope="module")
def model(run_directory: RunDirectory) -> Engine:
    return loading.load_model(run_directory.path)


@given(st.lists(st.integers(0, 20_000), max_size=200))
@settings(max_examples=50)
def test_batches_have_every_line_once_and_are_bounded(sizes: list[int]) -> None:
    batches = batching.batches(["x" * size for size in sizes])
    assert sorted(index for batch in batches for index in batch) == list(range(len(sizes)))
    for batch in batches:
        longest = max(sizes[index] for index in batch)
        assert len(batch) == 1 or len(batch) * longest <= 16_384
        assert len(batch) <= 64


def test_a_gpu_gets_larger_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["x" * 30] * 600
    assert [len(batch) for batch in batching.batches(lines)] == [*[64] * 9, 24]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: ["gpu"])
    assert [len(batch) for batch in batching.batches(lines)] == [512, 88]
    assert len(batching.batches(["x" * 20_000] * 8)) == 2


def test_a_batch_that_does_not_fit_into_memory_is_halved() -> None:
    def function(batch: list[int]) -> list[int]:
        if len(batch) > limit:
            raise tf.errors.ResourceExhaustedError(None, None, "out of memory")
        return [index * 2 for index in batch]

    lines = [str(number) for number in range(100)]
    for limit in (64, 20, 1):
        found = dict.fromkeys(range(100), 0)
        for batch, results in batching.map_batches(function, lines):
            assert len(batch) <= limit
            found.update(zip(batch, results, strict=True))
        assert list(found.values()) == [2 * index for index in range(100)]
    limit = 0
    with pytest.raises(tf.errors.ResourceExhaustedError):
        list(batching.map_batches(function, lines))


def count_characters(text: tf.Tensor) -> dict[str, tf.Tensor]:
    tokens = tf.strings.length(text) + 1
    unknown = tf.strings.length(tf.strings.regex_replace(text, "[^?]", ""))
    return {"tokens": tokens, "used": tf.minimum(tokens, 40), "unknown": unknown}


def counts_of(lines: list[str]) -> batching.TokenCounts:
    return batching.token_counts(count_characters, lines)


def test_source_warnings_name_the_lines() -> None:
    lines = ["a"] * 1030
    lines[3], lines[1027], lines[1028] = "", "x" * 200, "x" * 30
    counts = counts_of(lines)
    empty, cut = batching.source_warnings(counts)
    assert tells(empty, "line 4", "empty")
    assert tells(cut, "line 1028", 201, 40, "decoding.max_source_tokens")
    assert len(batching.source_warnings(counts, 31)) == 2
    *_, longer = batching.source_warnings(counts, 30)
    assert tells(longer, "line 1029", 31, 30, "longest source in training")


def test_many_unknown_tokens_are_reported_once() -> None:
    remark = batching.unknown_token_remark
    assert remark(counts_of(["a" * 19] * 5 + ["?"])) is None  # 1 of 102
    assert tells(remark(counts_of(["a" * 19, "???", "?"])), "15.4%", "line 2", "vocabulary")
    assert tells(remark(counts_of(["?"]), lines=[7]), "line 7")


class TestWorkers:
    def test_results_do_not_depend_on_the_number_of_threads(
        self, model: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lines = [*PHRASES, "", "ball " * 12, *reversed(PHRASES)]
        alone = translate_verbose(model, lines)
        monkeypatch.setattr(batching, "concurrent_batches", lambda: 3)
        together = translate_verbose(model, lines)
        for one, other in zip(alone, together, strict=True):
            [best], [same] = one["translations"], other["translations"]
            assert (best["text"], best["ids"]) == (same["text"], same["ids"])
            assert best["score"] == pytest.approx(same["score"], abs=1e-4)

    def test_batches_run_at_the_same_time(
        self, model: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(batching, "concurrent_batches", lambda: 3)
        others = threading.Barrier(3, timeout=60)  # fails unless three batches meet

        def translate(text: tf.Tensor) -> dict[str, tf.Tensor]:
            others.wait()
            return {"translations": text[:, tf.newaxis], "scores": tf.zeros([len(text), 1])}

        lines = [letter * length for letter in "abc" for length in (2, 5, 3)]
        monkeypatch.setattr(model, "translate", translate)
        results = translate_lines(model, lines)
        assert [best.text for (best,) in results] == lines

    @pytest.mark.parametrize(
        ("lines", "gpus", "count", "expected"),
        [
            (100, [], 5, {"intra": 1, "inter": 5}),
            (2, [], 2, {"intra": 2, "inter": 2}),
            (0, [], 1, {"intra": 5, "inter": 1}),
            (100, ["GPU:0"], 1, {"intra": 0, "inter": 0}),
        ],
    )
    def test_each_core_has_a_batch(self, monkeypatch, lines, gpus, count, expected):
        threads, settings = {"intra": 0, "inter": 0}, tf.config.threading
        for name in threads:
            monkeypatch.setattr(
                settings,
                f"set_{name}_op_parallelism_threads",
                lambda value, name=name: threads.update({name: value}),
            )
        monkeypatch.setattr(settings, "get_intra_op_parallelism_threads", lambda: threads["intra"])
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda _: gpus)
        monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(5)))
        assert batching.concurrent_batches() == 1
        batching.use_cores_for_batches(lines)
        assert (batching.concurrent_batches(), threads) == (count, expected)

    @pytest.mark.parametrize("capacity", [8, 25, 100])
    def test_batches_that_fit_only_alone_run_alone(self, capacity: int) -> None:
        used, lock = 0, threading.Lock()

        def translate(batch: list[int]) -> list[int]:
            nonlocal used
            with lock:
                if used + len(batch) > capacity:
                    raise tf.errors.ResourceExhaustedError(None, None, "full")
                used += len(batch)
            time.sleep(0.01)
            with lock:
                used -= len(batch)
            return batch

        found = list(batching.map_batches(translate, ["a"] * 80, max_lines=20, threads=4))
        assert all(batch == result for batch, result in found)
        assert sorted(i for batch, _ in found for i in batch) == list(range(80))
        # Halves only if a batch does not fit at all.
        assert {len(batch) for batch, _ in found} == {5 if capacity == 8 else 20}
